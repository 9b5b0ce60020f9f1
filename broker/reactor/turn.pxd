"""A worker's connections and the order of things in a turn, without sockets of its own."""

from broker.wire.output_buffer cimport PointerList
from broker.reactor.connection cimport Connection
from broker.reactor.connection_table cimport ConnectionTable
from broker.reactor.histogram cimport Durations
from broker.reactor.pump cimport Pump
from broker.reactor.replay_seam cimport ReplaySeam
from libc.stdint cimport int64_t, uint32_t, uint64_t
from mesh.reactor_port cimport MeshSeam

cdef enum Phase:                         # what a turn's time goes to; names in hub.PHASES
    PHASE_INPUT = 0                      # receiving, parsing, routing
    PHASE_CONTROL = 1                    # control packets, deadlines, ends, in Python
    PHASE_PUMP = 2                       # the log, the mesh, and what they let leave
    PHASE_FLUSH = 3                      # sending
    PHASE_GUEST = 4                      # trio
    PHASE_COUNT = 5


cdef class Hub(ConnectionTable):
    cdef int64_t mark_ns                 # when the phase under way began
    cdef int64_t[PHASE_COUNT] phase_ns   # since the start
    cdef Durations turn_times
    cdef Durations turn_lags             # how long before its turn a ready socket may have waited, by turn
    cdef Durations guest_lags            # how long a tick of the guest was due
    cdef int64_t sampled_input_ns        # PHASE_INPUT of sampled turns
    cdef readonly uint64_t guest_ticks
    cdef readonly int64_t started_ms
    cdef readonly Pump pump
    cdef PointerList due
    cdef uint32_t ended                  # how many of turn.closing the controller has heard of
    cdef public MeshSeam mesh            # the links to other routers; None without any
    cdef readonly object memory          # broker.worker.memory_guard.MemoryGuard since guard_memory(), or None
    cdef readonly ReplaySeam replays     # since replay_from(); None without a log
    cdef uint64_t messages_seen          # publishes received until the turn before
    cdef bint overdue                    # sessions have ended by their time, or wills are due, and not all is done
    cdef int64_t live_ms                 # when clients last published, or peers sent something
    cdef uint64_t memory_checked_bytes   # turn.bytes_in when it last looked
    cdef readonly list arrivals          # in-process clients (LocalClient) that got messages in this turn
    cdef readonly list after_control     # called once, when this turn's control packets have been dealt with

    cdef bint unfinished(self) noexcept
    cdef bint has_more(self) noexcept
    cdef int end_turn(self) except -1
    cdef int deal_with_parked(self) except -1
    cdef int call_after_control(self) except -1
    cdef int take_up_waiting(self) except -1
    cdef int take_up_later(self) except -1
    cdef int tick(self) except -1
    cdef int expire_some(self, bint busy) except -1
    cdef uint64_t sent_or_queued(self) noexcept      # messages: it grows by what a turn gives to receivers
    cdef bint is_live(self) noexcept         # clients published in this turn
    cdef int run_replays(self, bint busy) except -1
    cdef bint has_replays(self) noexcept     # they have more to do at once
    cdef int take_up_throttled(self) except -1
    cdef int take_up_pushed_back(self) except -1
    cdef int end_closing(self) except -1
    cdef int gather_slices(self, Connection connection, bint busy) except -1
    cdef int reap(self) except -1
    cdef int64_t clock_ns(self) noexcept
    cdef int lap(self, int phase) noexcept     # what passed since the last lap was this phase's
    cdef int before_deadlines(self, Connection connection) except -1
