"""The ways to a client that another worker serves."""

from broker.reactor.histogram cimport monotonic_ns
from broker.reactor.protocol cimport Turn
from broker.reactor.socket_end cimport SocketEnd
from libc.stdint cimport int64_t, uint8_t

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* data, size_t size, int flags)
    int MSG_DONTWAIT

cdef enum:
    RELAY_BYTES_MAX = 65536      # on their way through a relay, each way, beyond which no more is read

cdef inline ssize_t timed_recv(Turn* turn, int fd, void* data, size_t size) noexcept:
    """recv(), its time taken in sampled turns. errno is its own: reading the clock leaves it alone."""
    cdef inline ssize_t received
    cdef int64_t started_ns
    if not turn.sampled:
        return recv(fd, data, size, MSG_DONTWAIT)
    started_ns = monotonic_ns()
    received = recv(fd, data, size, MSG_DONTWAIT)
    turn.receive_ns += monotonic_ns() - started_ns
    return received


cdef class RelayEnd(SocketEnd):
    cdef RelayEnd partner                 # what comes here goes out there; None: it is no relay
    cdef bint relays                      # it is, or was, one end of a relay

    cdef int relay_to(self, RelayEnd partner) except -1
    cdef int read_relayed(self, uint8_t* shared, size_t shared_size) except -1
    cdef int close_relay(self) except -1
    cdef int end_for(self, object reason) except -1     # the connection ends, for a CloseReason
    cdef int forget_input(self) except -1
