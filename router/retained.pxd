"""Retained messages: the newest per topic name."""

from libc.stdint cimport uint8_t, uint16_t, uint64_t
from router.message cimport Message

cdef class RetainedStore:
    cdef readonly uint64_t count       # messages held
    cdef readonly uint64_t size_bytes  # topic, properties and payload bytes held
    # private state is declared below this line

    cdef int store(self, Message message) except -1     # owned, payload not empty; replaces; returns 1 if the topic is new
    cdef int clear(self, const uint8_t* topic, uint16_t topic_length) except -1    # 1 if there was one
    cdef Message get(self, const uint8_t* topic, uint16_t topic_length)            # or None
