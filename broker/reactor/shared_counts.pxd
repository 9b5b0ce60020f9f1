"""Places: the connections, or the sessions, of all workers of a broker, counted in memory that the workers share."""

from libc.stdint cimport uint32_t, uint64_t


cdef class UserPlaces:
    cdef uint64_t* keys          # SLOTS of them, of all workers together; 0: nobody's. What stands there stays
    cdef uint32_t* taken         # behind them, SLOTS of each worker, which only that worker changes
    cdef size_t bytes_mapped
    cdef size_t count
    cdef size_t number
    cdef int find(self, uint64_t key) noexcept       # its slot, made if there is room near by; -1: there is none


cdef class Places:
    cdef uint64_t* taken         # `count` numbers in the file, one for each worker, which only that worker changes
    cdef size_t count
    cdef size_t number           # whose number is ours; below count
