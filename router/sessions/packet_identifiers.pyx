"""Packet identifiers that keep away from those that a client may hold and we do not know of.

The identifier of an outgoing delivery follows from its number: 1 + (number + shift) mod 65535. There is no shift but where
a log may have lost its end: from then on numbers that were used once are used again, for other messages.
"""

cimport cython
from libc.string cimport memmove

cdef enum:
    STEP = 40503                 # of a shift, by the golden ratio: so many of them keep more than a window apart


@cython.final
@cython.no_gc
cdef class ShiftedIdentifiers:
    """The shifts of one session. Each counts for the deliveries from a number on, up to the next one."""

    cdef uint16_t of_number(self, uint64_t number) noexcept:
        cdef uint32_t index = self.count
        while index and number < self.shifts[index - 1].first_number:
            index -= 1
        if index:
            number += self.shifts[index - 1].amount
        return <uint16_t>(1 + number % PACKET_IDENTIFIERS)

    cdef uint64_t number_of(self, uint16_t packet_identifier, uint64_t start, uint64_t end) noexcept:
        cdef uint64_t stop, shifted
        cdef uint32_t index = 0
        while start < end:
            while index < self.count and self.shifts[index].first_number <= start:
                index += 1
            stop = min(end, self.shifts[index].first_number) if index < self.count else end
            shifted = start + (self.shifts[index - 1].amount if index else 0)
            start += (<uint64_t>packet_identifier - 1 + PACKET_IDENTIFIERS - shifted % PACKET_IDENTIFIERS) \
                % PACKET_IDENTIFIERS
            if start < stop:
                return start
            start = stop
        return end

    cdef int shift(self, uint64_t first_number, uint32_t amount, uint64_t oldest_open) noexcept:
        """Let the identifiers of numbers from this one on be `amount` further on than 1 + number mod 65535."""
        cdef uint32_t gone = 0
        while gone + 1 < self.count and self.shifts[gone + 1].first_number <= oldest_open:
            gone += 1
        if gone:                         # nothing is open before the later one begins
            self.count -= gone
            memmove(&self.shifts[0], &self.shifts[gone], self.count * sizeof(Shift))
        # Nothing is owed from this number on: what a log says of later ones was lost with them.
        while self.count and self.shifts[self.count - 1].first_number >= first_number:
            self.count -= 1
        if self.count < SHIFTS_MAX:      # beyond, what was owed at the first of them is still owed
            self.shifts[self.count].first_number = first_number
            self.shifts[self.count].amount = amount
            self.count += 1
        return 0

    cdef uint64_t last_first_number(self) noexcept:
        return self.shifts[self.count - 1].first_number if self.count else 0

    def of_run(self, incarnation: int) -> int:
        """Return by how much a run of the worker shifts: another amount than any run before it.

        So it does where the log has lost the shift before this one, too, with what was sent under it.
        """
        cdef uint32_t amount = <uint32_t>(<uint64_t>incarnation * STEP % PACKET_IDENTIFIERS)
        cdef uint32_t index = 0
        cdef uint32_t apart, tries = 0
        while index < self.count and tries < 4 * SHIFTS_MAX:
            apart = (amount + PACKET_IDENTIFIERS - self.shifts[index].amount) % PACKET_IDENTIFIERS
            index += 1
            if apart <= SHIFTED_WINDOW or PACKET_IDENTIFIERS - apart <= SHIFTED_WINDOW:
                amount = (amount + STEP) % PACKET_IDENTIFIERS
                index = 0
                tries += 1
        return amount

    def listed(self) -> list[tuple[int, int]]:
        """Return (first number, amount) of each shift."""
        return [(self.shifts[index].first_number, self.shifts[index].amount) for index in range(self.count)]
