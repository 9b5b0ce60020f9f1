"""What a router retains, in memory or on disk."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from router.sessions.ledger cimport Ledger
from router.core.message cimport Message
from router.retained.memory_store cimport RetainedStore


cdef class Retaining:
    cdef Ledger ledger
    cdef readonly RetainedStore store    # in memory; empty where there is an index
    cdef readonly object index           # router.retained.lmdb_index.RetainedIndex: on disk; or None
    cdef readonly bint is_shared         # other workers use the index too
    cdef readonly object fences          # router.retained.fences.Fences; put up where is_shared
    cdef uint64_t known                  # what records up to this one said is there already

    cdef int64_t next_stamp_us(self) except -1
    cdef int forwarded(self, Message message, uint32_t origin, uint32_t incarnation, uint64_t record,
                       int64_t stamp_us) except -1
    cdef int retain(self, Message message) except -1
    cdef int retain_in_index(self, Message message) except -1
    cdef int64_t stamp_ms(self) noexcept
    # moment_ms: the monotonic time that stamp_us is.
    cdef int recover(self, Message message, uint64_t record, int64_t stamp_us, int64_t moment_ms) except -1
    cdef bint may_retain(self, Message message) except -1       # there is room for it
