"""Packet identifiers that keep away from those that a client may hold and we do not know of."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef enum:
    PACKET_IDENTIFIERS = 65535
    SHIFTS_MAX = 16
    SHIFTED_WINDOW = 2048        # numbers from the oldest open one on that no two share an identifier among

cdef struct Shift:
    uint64_t first_number        # deliveries from here on
    uint32_t amount              # have identifiers that are so much further on


cdef class ShiftedIdentifiers:
    cdef Shift[SHIFTS_MAX] shifts        # ascending
    cdef uint32_t count

    cdef uint16_t of_number(self, uint64_t number) noexcept
    # The number, from start up to end, that has an identifier, 1..65535; `end` if none has.
    cdef uint64_t number_of(self, uint16_t packet_identifier, uint64_t start, uint64_t end) noexcept
    cdef uint64_t last_first_number(self) noexcept       # of the last shift, 0 if there is none
    cdef int shift(self, uint64_t first_number, uint32_t amount, uint64_t oldest_open) noexcept
