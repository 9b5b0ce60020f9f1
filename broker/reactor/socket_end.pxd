"""One client's end as far as it sends: the socket, what that does not take at once, and what epoll is asked for."""

from broker.reactor.protocol cimport Protocol
from broker.transport.layer cimport Layers
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    NO_SOCKET = -1


cdef class SocketEnd(Protocol):
    cdef readonly Layers layers           # between socket and protocol: TLS and the like; None for plain TCP
    cdef public object tap                # who sees its packets (broker.control.tracing.Tap), None while nobody looks
    cdef readonly int64_t heard_ms        # when bytes last came
    cdef readonly int fd                  # NO_SOCKET in tests, and after the close
    cdef int epoll_fd
    cdef uint32_t interest                # epoll events asked for
    cdef bint output_awaited              # has_room() said no: it is listed when enough of the output has left

    cdef int send_pending(self) except -1
    cdef int send_layered(self) except -1
    cdef int wrap_output(self) except -1                # have pending output go through the layers, as much as is sent at once
    cdef uint64_t unsent(self) noexcept                 # bytes that the socket has not taken
    cdef int layers_failed(self, object error) except -1
    cdef int took(self, bint all_of_it) except -1       # what follows of it that the socket took all, or not
    cdef int set_interest(self, uint32_t interest) except -1
    cdef int update_reading(self) except -1             # read from the socket, or not, as the state wants it
    cdef int made_room(self) except -1
    cdef int relay_on(self) except -1                   # of a relay: there may be room for more
    cdef int socket_failed(self, int error) except -1
    cdef int end_output(self) except -1
    cdef bint has_left(self) noexcept                   # the peer has closed the connection, and said nothing more
