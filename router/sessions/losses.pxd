"""Which clients are losing messages: bounded, so that the log can say when that begins and when it is over."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    LOSERS_MAX = 100             # clients that are known by name at once; the others are counted together


cdef class Losses:
    cdef uint32_t[LOSERS_MAX] numbers    # of the loss that stands in a place; number % LOSERS_MAX is the place; 0: free
    cdef uint64_t* counts                # messages, by place and drop reason; behind the places, those of the others
    cdef int64_t[LOSERS_MAX] begun_ms    # monotonic
    cdef int64_t[LOSERS_MAX] last_ms     # of the last look that found more
    cdef uint64_t[LOSERS_MAX] told       # messages that the last look found; 0: none has yet
    cdef list clients                    # by place; None: free
    cdef tuple names                     # of the reasons
    cdef uint32_t used                   # places
    cdef uint32_t generation             # losses begun so far
    cdef uint32_t reasons                # how many there are
    cdef uint32_t counted                # a bit for each that is a loss
    cdef int64_t others_ms               # when the others were last told of

    cdef uint32_t begin(self, bytes client_identifier, int reason, int64_t now_ms) noexcept
    cdef uint64_t total(self, uint32_t place) noexcept
    cdef int clear(self, uint32_t place) except -1
    cdef dict by_reason(self, uint32_t place)

    # A client lost a message for a reason of ledger.DROP_REASONS. `loss` is what this returned for it the last time.
    cdef inline uint32_t note(self, uint32_t loss, bytes client_identifier, int reason, int64_t now_ms) noexcept:
        if loss and self.numbers[loss % LOSERS_MAX] == loss and self.counted >> reason & 1:
            self.counts[loss % LOSERS_MAX * self.reasons + reason] += 1
            return loss
        return self.begin(client_identifier, reason, now_ms) if self.counted >> reason & 1 else loss
