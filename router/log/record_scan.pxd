"""Passing over the records of a log quickly: only what is wanted is decoded, and what is there is counted."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from router.log.record_cursor cimport Cursor

cdef enum:
    KIND_COUNT = 256             # a record's kind is one byte

cdef class Scan:                 # of one reader
    cdef bytes topic_filter      # None: any topic, and records that have none
    cdef bint accepted_only
    cdef int64_t since_us        # inclusive
    cdef int64_t until_us        # exclusive

cdef class Census:               # of any number of stretches
    cdef uint64_t kinds[KIND_COUNT]   # kind -> how many records
    cdef readonly uint64_t records
    cdef readonly uint64_t payload_bytes   # of accepted messages
    cdef readonly int64_t first_us         # earliest and latest time; 0 while there is no record
    cdef readonly int64_t last_us
    cdef readonly list problems            # (offset, sentence): records that say what their kind does not

cdef bint filter_matches(const uint8_t* topic_filter, size_t filter_length,
                         const uint8_t* topic, size_t topic_length) noexcept nogil
