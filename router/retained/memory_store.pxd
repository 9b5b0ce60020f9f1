"""Retained messages: the newest per topic name."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from router.matching.trie_levels cimport Level, LevelTable
from router.core.message cimport Message

cdef struct Place:
    # One level of topic names; exists while it has a message or children.
    Level level                  # first; the text of the level lies behind the place
    void* message                # Message, owned, or NULL
    Place* first                 # child that came first, or NULL
    Place* after                 # sibling that came next; NULL for the last
    Place* before                # sibling that came before; of the first one: the last

cdef class RetainedStore:
    cdef readonly uint64_t count       # messages held
    cdef readonly uint64_t size_bytes  # topic, properties and payload bytes held
    # private state is declared below this line
    cdef Place root
    cdef LevelTable table              # every Place but the root
    cdef Place* cursor                 # where purge_expired goes on; NULL: at the beginning

    cdef int store(self, Message message) except -1     # owned, payload not empty; replaces; returns 1 if the topic is new
    cdef int clear(self, const uint8_t* topic, uint16_t topic_length) except -1    # 1 if there was one
    cdef Message get(self, const uint8_t* topic, uint16_t topic_length)            # or None
    cdef Place* find(self, const uint8_t* topic, size_t topic_length) noexcept
    cdef int prune(self, Place* place) noexcept
    cdef int drop(self, Place* place) except -1
    cdef Place* child_for(self, Place* place, bytes level) noexcept
    cdef Place* next_for(self, Place* place, bytes level) noexcept
    cdef Place* open_from(self, Place* place) noexcept
    cdef int collect_below(self, Place* top, list found) except -1
