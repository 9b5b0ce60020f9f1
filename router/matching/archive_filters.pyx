"""Which topics are archived: logged whether or not a session wants them."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from router.matching.filter_trie cimport Node


@cython.final
cdef class ArchiveFilters:
    """The topic filters of the archive.

    Args:
        topic_filters: valid, without $share prefix.
        seed: of the hash of topic levels.

    A match costs as much as with one filter: one look-up per level, and a few more where wildcards stand.
    """

    def __init__(self, topic_filters=(), seed: int = 0):
        cdef Node* node
        self.tree = FilterTree(seed)
        for topic_filter in topic_filters:
            node = self.tree.add(topic_filter)
            self.count += node.entry_count == 0
            node.entry_count = 1         # nobody's: it only says that a filter ends here

    cdef bint match(self, const uint8_t* topic, uint32_t topic_length) except -1:
        """Return whether messages of a topic name are archived. To be asked once per route."""
        if self.count == 0:
            return False
        self.tree.walk(topic, topic_length)
        return self.tree.matched_count != 0

    def matches(self, bytes topic_name not None) -> bool:
        """match() for Python callers; a valid topic name."""
        return self.match(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint32_t>len(topic_name))
