"""When what sessions are owed was acknowledged: the log, fed to a router as a restart would feed it."""

from libc.stdint cimport int64_t, uint64_t
from analytics.source.decoder cimport Values
from router.log.record_cursor cimport Cursor
from router.recovery.apply cimport Recovery

cdef class Receipts:
    cdef Recovery recovery
    cdef int64_t* times                  # of records that are messages, µs since 1970; 0 for the others
    cdef uint64_t first                  # number of the record that times[0] is of
    cdef uint64_t capacity
    cdef uint64_t known                  # records that times has
    cdef readonly uint64_t rows          # in the batch
    cdef Values time, accepted, latency, record, client, qos
    cdef int note(self, uint64_t number, int64_t time_us) except -1
    cdef int acknowledged(self, Cursor cursor) except -1
