"""The topic filters of one router as a tree, and the walk that finds those that match a topic name."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from router.matching.trie_levels cimport Level, LevelTable
from router.core.receiver cimport Entry

cdef struct Node:
    # One level of a topic filter; exists while it has subscribers, shared groups or children.
    Level level                  # first; the text of the level lies behind the node
    Entry* entries               # its subscribers, partner: Receiver; NULL while it has none
    void* groups                 # SharedGroup, borrowed from the tree's dict, chained by next; NULL
    uint32_t entry_count
    uint32_t entry_capacity


cdef class FilterTree:
    cdef Node root
    cdef LevelTable table        # every Node but the root
    cdef uint64_t plus_hash      # hash_level of +
    cdef uint64_t multi_hash     # ... and of #
    cdef Node** matched          # what the last walk found; grown and never shrunk
    cdef uint32_t matched_count
    cdef uint32_t matched_capacity
    cdef Node** frontier         # two halves of frontier_capacity: this level, the next one
    cdef uint32_t frontier_capacity
    cdef uint64_t visited        # nodes that walks have come by, since the start
    cdef Node* find(self, bytes inner_filter) noexcept       # NULL: there is none
    cdef Node* add(self, bytes inner_filter) except NULL     # there already, or new and empty
    cdef int prune(self, Node* node) noexcept                # frees it and its parents as far as nobody needs them
    cdef int walk(self, const uint8_t* topic, uint32_t topic_length) except -1
    cdef int begin_frontier(self) except -1
    cdef int grow_frontier(self, uint32_t half, uint32_t count) except -1
    cdef int grow_matched(self, uint32_t capacity) except -1
    cdef int match_last(self, Node** current, uint32_t count) noexcept
    cdef bytes text(self, Node* node)
