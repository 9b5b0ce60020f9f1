"""One client's end as a whole: from accept to close, its terms, its deadlines, its close reason."""

from broker.reactor.input_end cimport InputEnd
from broker.reactor.timing_wheel cimport Timer, TimingWheel
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:
    LINGER_MS = 1000             # how long a connection that we closed may take to read our last packet


cdef class Connection(InputEnd):
    cdef Timer timer                      # time to CONNECT, keep alive, time to linger: whichever is next
    cdef TimingWheel wheel
    cdef readonly object close_reason     # CloseReason, None while it is open
    cdef readonly int64_t opened_ms       # when its CONNECT was accepted; 0 before
    cdef readonly uint32_t keep_alive_ms  # 1.5 times the keep alive; 0: none
    cdef readonly double expires_at_s     # when its authentication ends, Unix seconds; 0: never
    cdef int64_t expiry_look_ms           # when that is looked at next; 0: never
    cdef public bint publish_will         # the end of this connection publishes the session's will
    cdef public bint came_home            # another worker sent it here, where its client identifier lives
    cdef public object facts              # broker.transport.facts.Facts; None: the first listener, and nothing to say
    cdef public bint bridge               # its CONNECT had the bridge bit: see Controller

    cdef bint has_room(self, bint qos) noexcept         # a message would be sent at once, neither queued nor dropped
    cdef int on_deadline(self) except -1
    cdef int queue_full(self) except -1
    cdef int accept_terms(self, uint32_t packet_bytes_max, uint8_t maximum_qos) noexcept
    cdef bint has_last_words(self) except -1
