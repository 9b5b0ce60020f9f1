"""One client's end as far as it sends: the socket, what that does not take at once, and what epoll is asked for."""

cimport cython
from broker.wire.output_buffer cimport Chunk, Output, chunk_data, list_push, output_bytes, output_clear, output_consume
from broker.reactor.protocol cimport AWAITING_CONNECT, LINGERING, OPEN, PAUSE_BLOCKED, PAUSE_OUTPUT_FULL, RELAYED
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t
from libc.string cimport memset
from posix.uio cimport iovec
import os

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    int shutdown(int fd, int how)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int MSG_PEEK
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
    WRAP_BYTES = 65536           # of output that go through the layers before the socket is asked to take them
    RAW_LITTLE = 4096            # that layers have to say themselves, the end of a handshake for one: it goes along


cdef inline ssize_t send_chunks(int fd, Output* output, size_t* size) noexcept:
    """Hand the socket the first chunks of an output that is not empty; `size`: how many bytes that were. As sendmsg()."""
    cdef Chunk* chunk = output.head
    cdef msghdr message
    cdef iovec[VECTORS] vectors
    if chunk.next == NULL:
        size[0] = chunk.end - chunk.start
        return send(fd, chunk_data(chunk) + chunk.start, size[0], MSG_DONTWAIT | MSG_NOSIGNAL)
    memset(&message, 0, sizeof(message))
    message.msg_iov = vectors
    size[0] = 0
    while chunk != NULL and message.msg_iovlen < VECTORS:
        vectors[message.msg_iovlen].iov_base = chunk_data(chunk) + chunk.start
        vectors[message.msg_iovlen].iov_len = chunk.end - chunk.start
        size[0] += chunk.end - chunk.start
        message.msg_iovlen += 1
        chunk = chunk.next
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)


@cython.no_gc
cdef class SocketEnd(Protocol):
    """The half of a connection that sends. Connection is the other one."""

    cdef int update_reading(self) except -1:
        raise TypeError(f"{type(self).__name__} does not read")

    cdef int socket_failed(self, int error) except -1:
        raise TypeError(f"{type(self).__name__} does not end")

    cdef int relay_on(self) except -1:
        raise TypeError(f"{type(self).__name__} relays nothing")

    cdef int layers_failed(self, object error) except -1:
        raise TypeError(f"{type(self).__name__} does not end")

    cdef int flush(self) except -1:
        if self.fd != NO_SOCKET and not self.pauses & PAUSE_BLOCKED and self.state != AWAITING_CONNECT:
            self.send_pending()
        return 0

    cdef int send_pending(self) except -1:
        """Hand the socket what is pending; what it does not take waits for EPOLLOUT."""
        cdef ssize_t sent
        cdef size_t size = 0
        if self.layers is not None:
            return self.send_layered()
        while self.out.head != NULL:
            sent = send_chunks(self.fd, &self.out, &size)
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
            if self.pauses & PAUSE_OUTPUT_FULL and sent:
                self.heard_ms = self.turn.now_ms     # it takes what we send: a sign of life while we do not listen
            if <size_t>sent < size:
                return self.took(False)
        return self.took(True)

    cdef int send_layered(self) except -1:
        """send_pending() through layers: what they have made of our output comes first, and hardly more is made before."""
        cdef ssize_t sent
        cdef size_t size = 0
        cdef Output* raw = &self.layers.raw
        while True:
            if raw.pending < RAW_LITTLE:
                self.wrap_output()
                if raw.head == NULL:
                    break
            sent = send_chunks(self.fd, raw, &size)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    sent = 0
                else:
                    return self.socket_failed(errno)
            self.turn.bytes_out += sent
            output_consume(raw, sent)
            if self.pauses & PAUSE_OUTPUT_FULL and sent:
                self.heard_ms = self.turn.now_ms
            if <size_t>sent < size:
                return self.took(False)
        return self.took(True)

    cdef int wrap_output(self) except -1:
        cdef size_t wrapped = 0, size
        if self.out.head == NULL or not self.layers.is_open():
            return 0
        try:
            while self.out.head != NULL and wrapped < WRAP_BYTES:
                size = self.out.head.end - self.out.head.start
                self.layers.send(chunk_data(self.out.head) + self.out.head.start, size)
                if self.tap is not None:
                    self.tap.sent(output_bytes(&self.out, size), size == self.out.pending)
                output_consume(&self.out, size)
                wrapped += size
        except Exception as error:
            self.layers_failed(error)
        return 0

    cdef int took(self, bint all_of_it) except -1:
        if not all_of_it:
            if not self.pauses & PAUSE_BLOCKED:
                self.pauses |= PAUSE_BLOCKED
                self.set_interest(self.interest | EPOLLOUT)
            return self.made_room()
        if self.pauses & PAUSE_BLOCKED:
            self.pauses &= ~PAUSE_BLOCKED
            self.set_interest(self.interest & ~EPOLLOUT)
        if not self.writable or self.output_awaited:
            self.made_room()
        if self.state == LINGERING:
            self.end_output()
        return 0

    cdef uint64_t unsent(self) noexcept:
        return self.out.pending + (self.layers.raw.pending if self.layers is not None else 0)

    cdef int end_output(self) except -1:
        """Nothing more will be sent: the peer reads our last packet, then the end."""
        if self.layers is not None and not self.layers.finished and not self.layers.closed:
            self.layers.finish()
            return self.send_layered()           # which comes back here
        shutdown(self.fd, SHUT_WR)
        return 0

    cdef bint has_left(self) noexcept:
        cdef uint8_t byte
        cdef ssize_t received = recv(self.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)
        return received == 0 or (received < 0 and errno != EAGAIN and errno != EINTR)

    cdef int made_room(self) except -1:
        """The output fell well below its limit: what waited goes on at the end of the turn."""
        if self.state == RELAYED:
            return self.relay_on()
        if ((not self.writable or self.output_awaited) and self.out.pending * 2 <= self.turn.output_bytes_max
                and self.state == OPEN):
            self.writable = True
            self.output_awaited = False
            list_push(&self.turn.waiting, <void*>self)
            if self.pauses & PAUSE_OUTPUT_FULL:
                self.pauses &= ~PAUSE_OUTPUT_FULL
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
