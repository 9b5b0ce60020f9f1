"""Sessions that end: what came to them through shared subscriptions goes to other members, or is counted."""

from libc.stdint cimport uint64_t
from router.effects cimport Effects
from router.sessions.ledger cimport Ledger
from router.sessions.session cimport Session


cdef class Ending:
    cdef Ledger ledger
    cdef Effects effects
    cdef dict records            # client identifier -> record of its session's end, not durable yet; in order
    cdef dict unfinished         # client identifier -> Session that still owes; its end is recorded when it does no more

    cdef int end(self, Session gone) except -1           # it has no subscriptions, and no client finds it any more
    cdef int go_on(self, Session gone) except -1         # as far as can be read now
    # Its client comes again: what cannot be read now is lost if the process dies before it can.
    cdef int make_way(self, bytes client_identifier) except -1
    cdef int settle(self, uint64_t durable) except -1
    cdef bint _pass_on(self, Session gone, int passed_max) except -1     # whether that was all
    cdef int _wait(self, Session gone) except -1         # to be asked again
    cdef int _record(self, Session gone) except -1
