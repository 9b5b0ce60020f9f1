"""When sessions without a connection end, and when their wills are published."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from router.sessions.session cimport Session

cdef struct Deadline:
    int64_t due_ms               # monotonic
    uint64_t sequence            # of two that fall due at once, the older one comes first
    void* session                # Session, held


cdef class Deadlines:
    # A binary heap with at most one entry for a session, whose `deadline_place` says where: nothing stale is ever in it.
    cdef Deadline* heap
    cdef readonly uint32_t count
    cdef uint32_t capacity       # 0, or a power of two below 4 * count, or the smallest
    cdef uint64_t sequence
    cdef int start(self, Session session, int64_t gone_ms) except -1   # its connection is gone since then
    cdef int go_on(self, Session session) except -1                    # one has passed: the next one, if there is one
    cdef int set(self, Session session, int64_t due_ms) except -1      # instead of the one that it has, if it has one
    cdef int remove(self, Session session) except -1                   # if it has one
    cdef Session due(self, int64_t now_ms)       # the session whose deadline came first, None if none has come
    cdef int _resize(self, uint32_t capacity) except -1
    cdef int _up(self, uint32_t place) noexcept
    cdef int _down(self, uint32_t place) noexcept
