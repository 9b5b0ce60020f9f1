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
    cdef uint64_t passed         # of the file, in pieces, since there was more than enough
    cdef uint64_t first          # where the file was found mapped; length 0: it was not
    cdef uint64_t length
    cdef bytes target            # its name there, as the system says it; empty if it does not

    cdef uint64_t touches        # pages that were read since the last look

    cdef uint64_t mapped(self) noexcept
    cdef bytes target_of(self, uint64_t first, uint64_t length)
    cdef uint64_t give_back(self, uint64_t windows) except? 0xFFFFFFFFFFFFFFFF
    cdef bint is_there(self) except -1
    cdef int find(self) except -1
    cpdef close(self)
