"""How a turn is shared out among connections, and what it leaves for the next."""

from broker.wire.output_buffer cimport PointerList
from broker.reactor.connection cimport Connection
from broker.reactor.protocol cimport Turn
from libc.stdint cimport int64_t, uint32_t


cdef struct Sends:
    uint32_t left                # connections that this turn may still go through
    int64_t ends_ns              # when it goes through no more; 0: the clock has not been looked at yet


cdef class Shares:
    cdef Turn turn
    cdef PointerList work                # the list being worked through
    cdef bint begun                      # what follows is not as at the beginning of a turn
    cdef int64_t began_ns                # when the turn, or what follows in it, began, monotonic; 0: there is no clock
    cdef uint32_t work_end               # turn.work at which its budget is used up, whatever the clock says
    cdef int64_t input_ns                # of the clock, from then on
    cdef uint32_t look_at                # turn.work at which the clock is looked at
    cdef uint32_t sends_few              # connections that are sent to at once without a look at the clock
    cdef Sends resumes                   # connections that are sent what waits for them in queues and backlogs
    cdef Sends ends                      # connections whose end is dealt with
    cdef Sends dirty_sends               # to those who were sent little,
    cdef Sends wide_sends                # and to the others
    cdef uint32_t control_left           # control packets that it may still deal with
    cdef int64_t control_ends_ns         # or when it deals with no more; 0: not begun, or there is no clock
    cdef readonly uint32_t turn_work_max   # units of one turn at most
    cdef readonly uint32_t sends_max       # connections in either list that one turn sends to at most
    cdef readonly int64_t sends_ns         # for how long it sends to those who were sent little
    cdef readonly uint32_t resumes_max     # connections that are sent what waits for them
    cdef readonly uint32_t ends_max        # connections whose end one turn deals with at most
    cdef readonly uint32_t control_max     # control packets that one turn deals with at most

    cdef int begin_shares(self) noexcept
    cdef bint spent(self) noexcept                       # the turn has done so much that the rest has to wait
    cdef bint control_spent(self) noexcept               # ... of control packets
    cdef int swap(self, PointerList* items) noexcept
    cdef int put_back(self, PointerList* items, void** rest, uint32_t count) except -1
    cdef int put_off(self, Connection connection) except -1
    cdef int read_unread(self) except -1
    cdef int read_one(self, Connection connection) except -1     # the reactor's: receive once
    cdef int go_on_cut(self) except -1
    cdef int flush_dirty(self) except -1
    cdef bint may_resume(self) noexcept
    cdef bint may_end(self) noexcept
    cdef int look(self, Sends* sends, int64_t budget_ns) noexcept    # at the clock: nothing is left when time is up
    cdef int flush_some(self, PointerList* items, Sends* sends, int64_t budget_ns) except -1
