"""How much a client may send in a second."""

cimport cython


@cython.final
cdef class Rates:
    """How much each of some clients may send in a second; it never changes, and all of them have the same one.

    Args:
        messages_per_second_max, bytes_per_second_max: 0: any number.
    """

    def __init__(self, messages_per_second_max: int, bytes_per_second_max: int) -> None:
        self.messages_per_second_max = messages_per_second_max
        self.bytes_per_second_max = bytes_per_second_max

    cdef int64_t cost_us(self, uint64_t messages, uint64_t received) noexcept:
        cdef int64_t cost_us = 0
        if self.messages_per_second_max:
            cost_us = <int64_t>(messages * 1000000 // self.messages_per_second_max)
        if self.bytes_per_second_max:
            cost_us = max(cost_us, <int64_t>(received * 1000000 // self.bytes_per_second_max))
        return cost_us
