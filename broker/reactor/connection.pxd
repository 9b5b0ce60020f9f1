"""One client's end: what comes in, deadlines, close reason."""

from broker.reactor.relay_end cimport RelayEnd
from broker.reactor.timing_wheel cimport Timer, TimingWheel
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    LINGER_MS = 1000             # how long a connection that we closed may take to read our last packet


cdef class Connection(RelayEnd):
    cdef uint8_t* kept                    # bytes received and not used up: an incomplete packet, or behind a parked one
    cdef size_t kept_length
    cdef size_t kept_capacity
    cdef Timer timer                      # time to CONNECT, keep alive, time to linger: whichever is next
    cdef TimingWheel wheel
    cdef object controller                # what deals with control packets and ends: broker.control.Controller
    cdef readonly object close_reason     # CloseReason, None while it is open
    cdef public bint ended                # the controller has dealt with the end
    cdef readonly int64_t opened_ms       # when its CONNECT was accepted; 0 before
    cdef readonly uint32_t keep_alive_ms  # 1.5 times the keep alive; 0: none
    cdef int64_t packet_started_ms        # when the packet that is not whole began to come; 0: there is none
    cdef int64_t rate_due_us              # when what the client sent will have fitted its rate, monotonic
    cdef public bint publish_will         # the end of this connection publishes the session's will
    cdef bint lingered                    # it has been granted that time
    cdef readonly bint throttled          # over its rate: not read from until rate_due_us
    cdef bint answer_awaited              # an authenticator thinks about its CONNECT
    cdef bint unread                      # in turn.unread: its socket is ready and was not read
    cdef bint input_ended                 # the peer sends no more; what came before waits to be dealt with, then it ends
    cdef public bint came_home            # another worker sent it here, where its client identifier lives
    cdef public object facts              # broker.transport.facts.Facts; None: the first listener, and nothing to say
    cdef public bint bridge               # its CONNECT had the bridge bit: see Controller

    cdef int readable(self, uint8_t* shared, size_t shared_size) except -1
    cdef int feed(self, uint8_t* data, size_t length) except -1
    cdef int feed_kept(self) except -1
    cdef int go_on(self) except -1
    cdef int end_of_input(self) except -1
    cdef int keep_rest(self, uint8_t* data, size_t length) except -1
    cdef int guarded_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int tapped_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int try_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int watch_packet(self, bint finished_one) except -1
    cdef int spend_rate(self, uint64_t messages, uint64_t received) except -1
    cdef bint has_room(self, bint qos) noexcept         # a message would be sent at once, neither queued nor dropped
    cdef int peer_finished(self) except -1
    cdef int on_deadline(self) except -1
    cdef int queue_full(self) except -1
    cdef int end_input(self) except -1
    cdef int accept_terms(self, uint32_t packet_bytes_max, uint8_t maximum_qos) noexcept
    cdef bint has_last_words(self) except -1
    cdef int read_layered(self, uint8_t* shared, size_t shared_size) except -1
    cdef int feed_raw(self, uint8_t* data, size_t length) except -1
