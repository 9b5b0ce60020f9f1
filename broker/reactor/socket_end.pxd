"""One client's end as far as it sends: the socket, what that does not take at once, and what epoll is asked for."""

from broker.reactor.protocol cimport Protocol
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    NO_SOCKET = -1


cdef class SocketEnd(Protocol):
    cdef public object transform          # filter between socket and protocol, None for plain TCP
    cdef bytes transformed                # what the filter made of our output and the socket has not taken
    cdef public object tap                # who sees its packets (broker.control.tracing.Tap), None while nobody looks
    cdef int64_t heard_ms                 # when bytes last came
    cdef readonly int fd                  # NO_SOCKET in tests, and after the close
    cdef int epoll_fd
    cdef uint32_t interest                # epoll events asked for
    cdef readonly bint lingering          # closed by us: waits for the peer to have read our last packet
    cdef bint blocked                     # the socket took less than we had
    cdef readonly bint stuffed            # its output is over the limit: not read from until that has left
    cdef bint output_awaited              # has_room() said no: it is listed when enough of the output has left

    cdef int send_pending(self) except -1
    cdef int send_transformed(self) except -1
    cdef int set_interest(self, uint32_t interest) except -1
    cdef int update_reading(self) except -1             # read from the socket, or not, as the state wants it
    cdef int made_room(self) except -1
    cdef int socket_failed(self, int error) except -1
    cdef int end_output(self) noexcept
