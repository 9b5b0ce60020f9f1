"""A worker's connections: where each is found, and what is made and let go of with it."""

from broker.reactor.protocol cimport CLOSED, PAUSE_CUT, PAUSE_THROTTLED, PAUSE_UNREAD
from broker.reactor.socket_end cimport NO_SOCKET
from broker.wire.output_buffer cimport PointerList, output_clear
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, realloc
from libc.string cimport memset
import os


cdef void forget(PointerList* items, void* item) noexcept:
    """Take an item out of a list, wherever it stands; the others keep their order."""
    cdef uint32_t index, kept = 0
    for index in range(items.count):
        if items.items[index] != item:
            items.items[kept] = items.items[index]
            kept += 1
    items.count = kept


cdef class ConnectionTable(Shares):
    """The connections of one worker, by descriptor; those without a socket by identity."""

    def __dealloc__(self):
        cdef int fd
        for fd in range(self.fd_capacity):
            if self.by_fd[fd] != NULL:
                Py_DECREF(<object>self.by_fd[fd])
        free(self.by_fd)

    cdef int begin_table(self, Router router, controller, int64_t now_ms, uint32_t connect_timeout_ms) except -1:
        self.router = router
        self.controller = controller
        self.message = Message.__new__(Message)
        self.wheel = TimingWheel(now_ms)
        self.connections = {}
        self.connect_timeout_ms = connect_timeout_ms
        return 0

    cdef Connection make(self, int fd, int epoll_fd):
        cdef Connection connection = Connection.__new__(Connection)
        cdef void** grown
        cdef int capacity
        connection.turn = &self.turn
        connection.router = self.router
        connection.message = self.message
        connection.wheel = self.wheel
        connection.controller = self.controller
        connection.fd = fd
        connection.epoll_fd = epoll_fd
        connection.rates = self.rates
        connection.packet_bytes_max = 0xFFFFFFFF
        connection.accept_terms(self.turn.packet_bytes_max, self.turn.maximum_qos)
        connection.timer.owner = <void*>connection
        connection.heard_ms = self.turn.now_ms
        if fd == NO_SOCKET:
            self.connections[id(connection)] = connection
        else:
            if fd >= self.fd_capacity:
                capacity = max(fd + 1, self.fd_capacity * 2)
                grown = <void**>realloc(self.by_fd, capacity * sizeof(void*))
                if grown == NULL:
                    raise MemoryError()
                memset(grown + self.fd_capacity, 0, (capacity - self.fd_capacity) * sizeof(void*))
                self.by_fd = grown
                self.fd_capacity = capacity
            assert self.by_fd[fd] == NULL, fd
            Py_INCREF(connection)
            self.by_fd[fd] = <void*>connection
        self.connection_count += 1
        self.connections_made += 1
        self.wheel.arm(&connection.timer, self.turn.now_ms + self.connect_timeout_ms)
        return connection

    cdef int dispose(self, Connection connection) except -1:
        """Close the socket and let go of the connection and all it holds."""
        cdef int fd = connection.fd
        self.wheel.cancel(&connection.timer)
        forget(&self.turn.parked, <void*>connection)
        forget(&self.turn.waiting, <void*>connection)
        if connection.dirty:
            forget(&self.turn.dirty, <void*>connection)
            forget(&self.turn.wide, <void*>connection)
        if connection.pauses & PAUSE_CUT:
            forget(&self.turn.cut, <void*>connection)
        if connection.pauses & PAUSE_UNREAD:
            forget(&self.turn.unread, <void*>connection)
        if connection.later:
            forget(&self.turn.later, <void*>connection)
        if connection.pauses & PAUSE_THROTTLED:
            forget(&self.turn.throttled, <void*>connection)
        if connection.waits_for is not None:
            forget(&self.turn.pushed_back, <void*>connection)
            connection.waits_for = None
        if fd != NO_SOCKET:             # in memory, the last words are still to be taken
            output_clear(&connection.out)
        free(connection.kept)
        connection.kept = NULL
        connection.kept_length = connection.kept_capacity = 0
        if connection.partner is not None:
            connection.partner.partner = None
            connection.partner = None
        if connection.layers is not None:
            connection.layers.close()
            connection.layers = None
        connection.state = CLOSED
        connection.fd = NO_SOCKET
        self.connection_count -= 1
        if connection.relays:
            self.relay_ends -= 1
        if fd == NO_SOCKET:
            self.connections.pop(id(connection), None)
            return 0
        os.close(fd)
        self.by_fd[fd] = NULL
        Py_DECREF(connection)
        return 0
