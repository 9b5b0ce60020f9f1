"""epoll and the sockets of a worker: one turn after another."""

from broker.reactor.connection cimport Connection
from broker.reactor.turn cimport Hub, PHASE_COUNT
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    EVENTS_MAX = 512
    TURNS_KEPT = 1000            # durations of so many last turns, for a dump
    SAMPLE_TURNS = 61            # in one turn of so many, recv() is timed by itself; odd, so that no rhythm hides from it
    SLOW_TURN_US = 10000


cdef class Reactor(Hub):
    cdef int epoll_fd
    cdef int wake_fd                     # an eventfd: trio, the log and other threads wake us by it
    cdef object wake_lock                # held to write to it and to close it: its number may be somebody else's then
    cdef uint8_t* shared                 # the one receive buffer
    cdef size_t shared_size
    cdef int sockets_per_turn            # at most so many sockets are read in one turn
    cdef public object guest             # broker.reactor.trio_guest.Guest, ticks once per turn if due; None under a trio task
    cdef readonly object pending_handshakes      # broker.reactor.pending_handshakes.PendingHandshakes
    cdef bint guest_due
    cdef dict watched                    # descriptor that is no client's -> callable(descriptor): it is readable
    cdef bint running
    cdef bint mesh_due                   # a descriptor of the mesh was readable
    cdef int64_t next_tick_ms
    cdef readonly uint64_t turns
    cdef int64_t started_ns              # when the last turn began
    cdef int64_t[PHASE_COUNT] phase_start_ns     # phase_ns as that turn began
    cdef bint at_once                    # its first look found events: their sockets may have waited
    cdef bint waited                     # its wait blocked, so the next one is likely to as well
    cdef bint busy                       # it left something to do
    cdef uint64_t gathered               # messages of QoS 0 sent, when a turn last looked for more before it sent to many,
    cdef uint64_t gathered_answers       # and those of QoS 1 and 2, and acknowledgements
    cdef readonly uint64_t pauses        # how often a turn slept before that look
    cdef uint32_t[TURNS_KEPT] last_turns     # microseconds, by turn number modulo TURNS_KEPT

    cdef bint needs_ticks(self) noexcept
    cdef int read_sockets(self, int count) except -1
    cdef int wait(self, bint block) except -1
    cdef int gather(self, int rounds) except -1
    cdef int gather_wide(self, bint may_pause) except -1
    cdef int hear_peers(self) except -1
    cdef int drain_wake(self) except -1
    cdef int after_turn(self) except -1
