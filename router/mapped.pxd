"""What a mapped file takes of this process's memory, kept below a bound."""

from libc.stdint cimport uint64_t, uintptr_t

cdef class MappedPages:
    cdef bytes path              # of the file: how its lines in /proc/self/maps end
    cdef uint64_t inode
    cdef int statm               # /proc/self/statm, which stays open; -1: this system has none, and nothing is done
    cdef uint64_t page_bytes
    cdef uint64_t bytes_max
    cdef uint64_t allowed        # bytes_max; on top of what others have, if that is as much
    cdef uint64_t hand           # where in the file the next look goes on

    cdef uint64_t touches        # pages that were read since the last look

    cdef uint64_t mapped(self) noexcept
    cpdef close(self)
