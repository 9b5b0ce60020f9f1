"""Places: the connections, or the sessions, of all workers of a broker, counted in memory that the workers share."""

from libc.stdint cimport uint64_t


cdef class Places:
    cdef uint64_t* taken         # `count` numbers in the file, one for each worker, which only that worker changes
    cdef size_t count
    cdef size_t number           # whose number is ours; below count
