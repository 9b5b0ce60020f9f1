"""How much a client may send in a second."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class Rates:
    cdef readonly uint32_t messages_per_second_max      # 0: any number
    cdef readonly uint64_t bytes_per_second_max         # likewise
    cdef int64_t cost_us(self, uint64_t messages, uint64_t received) noexcept    # what so much uses up of a client's time
