"""Which topics are archived: logged whether or not a session wants them."""

from libc.stdint cimport uint8_t, uint32_t
from router.matching.filter_trie cimport FilterTree


cdef class ArchiveFilters:
    cdef FilterTree tree
    cdef readonly uint32_t count         # of different topic filters
    cdef bint match(self, const uint8_t* topic, uint32_t topic_length) except -1
