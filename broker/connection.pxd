"""One client's end: socket, deadlines, close reason."""

from broker.protocol cimport Protocol
from broker.wheel cimport Timer, TimingWheel
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    LINGER_MS = 1000             # how long a connection that we closed may take to read our last packet
    NO_SOCKET = -1


cdef class Connection(Protocol):
    cdef uint8_t* kept                    # bytes received and not used up: an incomplete packet, or behind a parked one
    cdef size_t kept_length
    cdef size_t kept_capacity
    cdef Timer timer                      # time to CONNECT, keep alive, time to linger: whichever is next
    cdef TimingWheel wheel
    cdef object controller                # what deals with control packets and ends: broker.control.Controller
    cdef readonly object close_reason     # CloseReason, None while it is open
    cdef public object transform          # filter between socket and protocol, None for plain TCP
    cdef bytes transformed                # what the filter made of our output and the socket has not taken
    cdef public object tap                # who sees its packets (broker.taps.Tap), None while nobody looks
    cdef public bint ended                # the controller has dealt with the end
    cdef int64_t heard_ms                 # when bytes last came
    cdef readonly int64_t opened_ms       # when its CONNECT was accepted; 0 before
    cdef readonly uint32_t keep_alive_ms  # 1.5 times the keep alive; 0: none
    cdef readonly int fd                  # NO_SOCKET in tests, and after the close
    cdef int epoll_fd
    cdef uint32_t interest                # epoll events asked for
    cdef int64_t packet_started_ms        # when the packet that is not whole began to come; 0: there is none
    cdef int64_t rate_due_us              # when what the client sent will have fitted its rate, monotonic
    cdef public bint publish_will         # the end of this connection publishes the session's will
    cdef readonly bint lingering          # closed by us: waits for the peer to have read our last packet
    cdef bint lingered                    # it has been granted that time
    cdef bint blocked                     # the socket took less than we had
    cdef readonly bint throttled          # over its rate: not read from until rate_due_us
    cdef readonly bint stuffed            # its output is over the limit: not read from until that has left
    cdef bint answer_awaited              # an authenticator thinks about its CONNECT
    cdef bint input_ended                 # the peer sends no more; what came before waits to be dealt with, then it ends
    cdef public bint came_home            # another worker sent it here, where its client identifier lives
    cdef public bint bridge               # its CONNECT had the bridge bit: see Controller
    cdef bint output_awaited              # has_room() said no: it is listed when enough of the output has left

    cdef int readable(self, uint8_t* shared, size_t shared_size) except -1
    cdef int feed(self, uint8_t* data, size_t length) except -1
    cdef int feed_kept(self) except -1
    cdef int keep_rest(self, uint8_t* data, size_t length) except -1
    cdef int guarded_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int tapped_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int try_receive(self, uint8_t* data, size_t length, size_t* used) except -1
    cdef int send_pending(self) except -1
    cdef int send_transformed(self) except -1
    cdef int set_interest(self, uint32_t interest) except -1
    cdef int update_reading(self) except -1             # read from the socket, or not, as the state wants it
    cdef int watch_packet(self, bint finished_one) except -1
    cdef int spend_rate(self, uint64_t messages, uint64_t received) except -1
    cdef int made_room(self) except -1
    cdef bint has_room(self, bint qos) noexcept         # a message would be sent at once, neither queued nor dropped
    cdef int peer_finished(self) except -1
    cdef int on_deadline(self) except -1
    cdef int queue_full(self) except -1
    cdef int socket_failed(self, int error) except -1
    cdef int end_input(self) except -1
    cdef int end_output(self) noexcept
    cdef int _feed_transformed(self, uint8_t* data, size_t length) except -1
