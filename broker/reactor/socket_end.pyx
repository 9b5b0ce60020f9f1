"""One client's end as far as it sends: the socket, what that does not take at once, and what epoll is asked for."""

cimport cython
from broker.wire.output_buffer cimport Chunk, chunk_data, list_push, output_bytes, output_clear, output_consume
from broker.reactor.protocol cimport AWAITING_CONNECT, OPEN
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memset
from posix.uio cimport iovec
import os

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t send(int fd, const void* data, size_t size, int flags)
    int shutdown(int fd, int how)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int SHUT_WR
    ssize_t sendmsg(int fd, const msghdr* message, int flags)

cdef extern from "<sys/epoll.h>" nogil:
    struct epoll_data:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event)
    int EPOLL_CTL_MOD
    uint32_t EPOLLOUT

cdef enum:
    VECTORS = 16


@cython.no_gc
cdef class SocketEnd(Protocol):
    """The half of a connection that sends. Connection is the other one."""

    cdef int update_reading(self) except -1:
        raise TypeError(f"{type(self).__name__} does not read")

    cdef int socket_failed(self, int error) except -1:
        raise TypeError(f"{type(self).__name__} does not end")

    cdef int flush(self) except -1:
        if self.fd != NO_SOCKET and not self.blocked and self.transform is None and self.state != AWAITING_CONNECT:
            self.send_pending()
        return 0

    cdef int send_pending(self) except -1:
        """Hand the socket what is pending; what it does not take waits for EPOLLOUT."""
        cdef ssize_t sent
        cdef size_t size
        cdef Chunk* chunk
        cdef msghdr message
        cdef iovec[VECTORS] vectors
        if self.transform is not None:
            return self.send_transformed()
        while self.out.head != NULL:
            chunk = self.out.head
            if chunk.next == NULL:
                size = chunk.end - chunk.start
                sent = send(self.fd, chunk_data(chunk) + chunk.start, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            else:
                memset(&message, 0, sizeof(message))
                message.msg_iov = vectors
                size = 0
                while chunk != NULL and message.msg_iovlen < VECTORS:
                    vectors[message.msg_iovlen].iov_base = chunk_data(chunk) + chunk.start
                    vectors[message.msg_iovlen].iov_len = chunk.end - chunk.start
                    size += chunk.end - chunk.start
                    message.msg_iovlen += 1
                    chunk = chunk.next
                sent = sendmsg(self.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    sent = 0
                else:
                    return self.socket_failed(errno)
            self.turn.bytes_out += sent
            if self.tap is not None:
                self.tap.sent(output_bytes(&self.out, sent), <uint64_t>sent == self.out.pending)
            output_consume(&self.out, sent)
            if self.stuffed and sent:
                self.heard_ms = self.turn.now_ms     # it takes what we send: a sign of life while we do not listen
            if <size_t>sent < size:
                if not self.blocked:
                    self.blocked = True
                    self.set_interest(self.interest | EPOLLOUT)
                return self.made_room()
        if self.blocked:
            self.blocked = False
            self.set_interest(self.interest & ~EPOLLOUT)
        if not self.writable or self.output_awaited:
            self.made_room()
        if self.lingering:
            self.end_output()
        return 0

    cdef int end_output(self) noexcept:
        """Nothing more will be sent: the peer reads our last packet, then the end."""
        shutdown(self.fd, SHUT_WR)
        return 0

    cdef int send_transformed(self) except -1:
        cdef ssize_t sent
        plain = self.take_output()
        try:
            data = self.transformed + self.transform.send(plain)
        except Exception as error:
            self.filter_failed(error)
            return 0
        sent = send(self.fd, <const char*>data, len(data), MSG_DONTWAIT | MSG_NOSIGNAL) if data else 0
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                return self.socket_failed(errno)
            sent = 0
        self.turn.bytes_out += sent
        if self.stuffed and sent:
            self.heard_ms = self.turn.now_ms
        self.transformed = data[sent:]
        self.blocked = len(self.transformed) > 0
        self.set_interest(self.interest | EPOLLOUT if self.blocked else self.interest & ~EPOLLOUT)
        if (not self.writable or self.output_awaited) and not self.blocked:
            self.made_room()
        if self.lingering and not self.blocked:
            self.end_output()
        return 0

    cdef int made_room(self) except -1:
        """The output fell well below its limit: what waited goes on at the end of the turn."""
        if ((not self.writable or self.output_awaited) and self.out.pending * 2 <= self.turn.output_bytes_max
                and self.state == OPEN):
            self.writable = True
            self.output_awaited = False
            list_push(&self.turn.waiting, <void*>self)
            if self.stuffed:
                self.stuffed = False
                self.update_reading()
        return 0

    def take_output(self) -> bytes:
        """Take what is pending out of the output: for filters and tests."""
        taken = output_bytes(&self.out, self.out.pending)
        output_clear(&self.out)
        if self.tap is not None:
            self.tap.sent(taken, True)
        if self.fd == NO_SOCKET and (not self.writable or self.output_awaited):
            self.made_room()
        return taken

    cdef int set_interest(self, uint32_t interest) except -1:
        cdef epoll_event event
        if interest == self.interest or self.fd == NO_SOCKET:
            return 0
        self.interest = interest
        event.events = interest
        event.data.fd = self.fd
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, self.fd, &event):
            raise OSError(errno, os.strerror(errno))
        return 0
