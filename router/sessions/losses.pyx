"""Which clients are losing messages: bounded, so that the log can say when that begins and when it is over."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

QUIET_MS = 10_000     # without another one: then it is over
OTHERS_MS = 60_000    # between two times that the others are told of


cdef class Losses:
    """The clients that lose messages now, at most 100 by name.

    A session keeps the number of its loss and no more. One that is over has its place taken from it; the session finds
    that out by the number, when it loses the next message.

    Args:
        reasons: why messages are dropped, all of them.
        counted: those that are a loss to a client that did nothing for it.
    """

    def __init__(self, reasons: tuple[str, ...], counted: frozenset[str]):
        self.names = reasons
        self.reasons = <uint32_t>len(reasons)
        self.counted = sum(1 << index for index, name in enumerate(reasons) if name in counted)
        self.clients = [None] * LOSERS_MAX
        self.others_ms = -OTHERS_MS

    def __dealloc__(self):
        free(self.counts)

    cdef uint32_t begin(self, bytes client_identifier, int reason, int64_t now_ms) noexcept:
        cdef uint32_t place, number
        if self.counts == NULL:
            self.counts = <uint64_t*>calloc((LOSERS_MAX + 1) * self.reasons, sizeof(uint64_t))
            if self.counts == NULL:
                return 0                     # the router's counters have it
        if self.used == LOSERS_MAX:
            self.counts[LOSERS_MAX * self.reasons + reason] += 1
            return 0
        place = 0
        while self.clients[place] is not None:
            place += 1
        self.generation += 1
        number = self.generation * LOSERS_MAX + place
        self.used += 1
        self.numbers[place] = number
        self.clients[place] = client_identifier
        self.begun_ms[place] = self.last_ms[place] = now_ms
        self.told[place] = 0
        self.counts[place * self.reasons + reason] = 1
        return number

    def look(self, now_ms: int) -> tuple[list, list, dict]:
        """Return what is to be said: who has begun to lose messages, who has lost none for a while, and of the others.

        The first are (client identifier, counts by reason), the second likewise with the time that it took, ms; the
        third is how many messages others have lost since they were last told of, by reason, at most once a minute.
        """
        cdef uint32_t place
        cdef uint64_t total
        begun, over, others = [], [], {}
        for place in range(LOSERS_MAX if self.used else 0):
            if self.clients[place] is None:
                continue
            total = self.total(place)
            if total > self.told[place]:
                if not self.told[place]:
                    begun.append((self.clients[place], self.by_reason(place)))
                self.told[place] = total
                self.last_ms[place] = now_ms
            elif now_ms - self.last_ms[place] >= QUIET_MS:
                over.append((self.clients[place], self.by_reason(place), self.last_ms[place] - self.begun_ms[place]))
                self.clear(place)
                self.clients[place] = None
                self.numbers[place] = 0
                self.used -= 1
        if self.counts != NULL and now_ms - self.others_ms >= OTHERS_MS:
            others = self.by_reason(LOSERS_MAX)
            if others:
                self.clear(LOSERS_MAX)
                self.others_ms = now_ms
        return begun, over, others

    cdef uint64_t total(self, uint32_t place) noexcept:
        cdef uint64_t total = 0
        cdef uint32_t reason
        for reason in range(self.reasons):
            total += self.counts[place * self.reasons + reason]
        return total

    cdef int clear(self, uint32_t place) except -1:
        memset(&self.counts[place * self.reasons], 0, self.reasons * sizeof(uint64_t))
        return 0

    cdef dict by_reason(self, uint32_t place):
        return {name: self.counts[place * self.reasons + index] for index, name in enumerate(self.names)
                if self.counts[place * self.reasons + index]}
