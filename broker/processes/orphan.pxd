"""What a worker does whose supervisor has ended: it stops to accept, and is killed."""

cdef enum:
    ORPHAN_SOCKETS_MAX = 256

cdef void on_orphaned(int number) noexcept nogil     # a signal handler
