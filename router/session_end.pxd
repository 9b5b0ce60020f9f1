"""Sessions that end: what came to them through shared subscriptions goes to other members, or is counted."""

from libc.stdint cimport uint64_t
from router.effects cimport Effects
from router.sessions.ledger cimport Ledger
from router.sessions.outgoing cimport Outgoing
from router.sessions.session cimport Session


cdef class Ending:
    cdef Ledger ledger
    cdef Effects effects
    cdef dict records            # client identifier -> record of its session's end, not durable yet; in order
    cdef dict unfinished         # client identifier -> Session that still owes; its end is recorded when it does no more
    cdef list called_after       # (client identifier, action): who opens a session when the one before has ended
    cdef int work_left           # of this turn, in deliveries that are forgotten
    cdef readonly bint more      # a session has had to stop for that, and goes on in the next turn

    cdef int begin_turn(self) noexcept
    cdef int end(self, Session gone) except -1           # it has no subscriptions, and no client finds it any more
    cdef int go_on(self, Session gone) except -1         # as far as can be read now
    # Its client comes again: what cannot be read now is lost if the process dies before it can.
    cdef int make_way(self, bytes client_identifier) except -1
    cdef int settle(self, uint64_t durable) except -1
    cdef bint _owes_others(self, bytes client_identifier) except -1
    cdef int tell(self) except -1                        # behind all that went on in a turn
    cdef bint _pass_on(self, Session gone) except -1     # as far as this turn goes; whether that was all
    cdef bint _let_go(self, Session gone, Outgoing outgoing, uint64_t number) except -1     # False: it cannot be read now
    cdef int _wait(self, Session gone) except -1         # to be asked again
    cdef int _record(self, Session gone) except -1
