"""What becomes of a message for which a session's queue has no room: by its topic."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdlib cimport free, malloc
from router.matching.filter_trie cimport Node

POLICIES = ("drop_newest", "drop_oldest", "disconnect", "push_back")


@cython.final
cdef class OverflowRules:
    """The overflow policies of a broker.

    Args:
        policy: a name in POLICIES, for topics without a rule.
        rules: (topic filter, policy); the first whose filter matches a topic name counts. Filters are valid and without
            $share prefix.
        seed: of the hash of topic levels.

    Nothing is asked of it while there is room. Then an answer costs one look-up per topic level, and nothing without
    rules.
    """

    def __init__(self, policy: str = "drop_newest", rules=(), seed: int = 0):
        cdef Node* node
        self.tree = FilterTree(seed)
        names = [name for _, name in rules] + [policy]
        free(self.policies)
        self.policies = <uint8_t*>malloc(len(names))
        if self.policies == NULL:
            raise MemoryError()
        for index, name in enumerate(names):
            self.policies[index] = POLICIES.index(name)
        for index, (topic_filter, _) in enumerate(rules):
            node = self.tree.add(topic_filter)
            if node.entry_count == 0:
                node.entry_count = index + 1     # nobody's: it says which rule ends here
        self.count = len(names) - 1
        self.pushes_back = POLICIES[PUSH_BACK] in names

    def __dealloc__(self):
        free(self.policies)

    cdef int policy_of(self, const uint8_t* topic, uint32_t topic_length) except -1:
        """Return the policy for messages of a topic name."""
        cdef uint32_t index, rule = self.count
        if self.count:
            self.tree.walk(topic, topic_length)
            for index in range(self.tree.matched_count):
                rule = min(rule, self.tree.matched[index].entry_count - 1)
        return self.policies[rule]

    def policy(self, bytes topic_name not None) -> str:
        """The name of policy_of(), for Python callers; a valid topic name."""
        return POLICIES[self.policy_of(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint32_t>len(topic_name))]
