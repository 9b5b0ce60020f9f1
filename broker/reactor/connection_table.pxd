"""A worker's connections: where each is found, and what is made and let go of with it."""

from broker.reactor.connection cimport Connection
from broker.reactor.rates cimport Rates
from broker.reactor.timing_wheel cimport TimingWheel
from broker.reactor.turn_shares cimport Shares
from libc.stdint cimport int64_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.router cimport Router


cdef class ConnectionTable(Shares):
    cdef readonly Router router
    cdef public object controller
    cdef Message message                 # the one borrowed message
    cdef TimingWheel wheel
    cdef dict connections                # in memory only: id -> Connection
    cdef void** by_fd                    # Connection (owned reference) or NULL
    cdef int fd_capacity
    cdef readonly uint32_t connection_count
    cdef readonly uint64_t connections_made
    cdef readonly uint32_t relay_ends        # of these: ends of relays, two for each client that another worker serves
    cdef readonly uint64_t relays_made
    cdef Rates rates                         # of a client of which nothing else is said; None: any
    cdef uint32_t connect_timeout_ms         # from accept to CONNECT, and to the end of authentication

    cdef int begin_table(self, Router router, controller, int64_t now_ms, uint32_t connect_timeout_ms) except -1
    cdef Connection make(self, int fd, int epoll_fd)
    cdef int dispose(self, Connection connection) except -1
