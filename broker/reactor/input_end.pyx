"""One client's end as far as it receives: what came and is not used up, and why no more of it is read or parsed.

The one place around a connection's parse that catches ClientError.
"""

cimport cython
from broker.wire.output_buffer cimport list_push
from broker.reactor.protocol cimport (
    CLOSING, CONNECTING, NOT_PARSED, NOT_RECEIVED, OPEN, PAUSE_CUT, PAUSE_INPUT_ENDED, PAUSE_PARKED, PAUSE_THROTTLED,
    RELAYED,
)
from broker.wire.reasons import ClientError, CloseReason, Reason
from broker.reactor.relay_end cimport MSG_DONTWAIT, recv, timed_recv
from broker.transport.layer cimport plain
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove
from broker.wire.codec cimport DISCONNECT
from router.core.varint cimport read_varint

cdef extern from "<sys/epoll.h>" nogil:
    uint32_t EPOLLIN


@cython.no_gc
cdef class InputEnd(RelayEnd):
    """A connection as far as it receives."""

    def __dealloc__(self):
        free(self.kept)

    cdef int watch_packet(self, bint finished_one) except -1:
        raise TypeError(f"{type(self).__name__} has no deadlines")

    cdef int end_input(self) except -1:
        raise TypeError(f"{type(self).__name__} does not end")

    # Bytes in -------------------------------------------------------------------------------------------------------

    cdef int readable(self, uint8_t* shared, size_t shared_size) except -1:
        """Receive once and act on every whole packet. `shared` is every connection's receive buffer, in turn."""
        cdef ssize_t received
        cdef size_t have = self.kept_length
        cdef size_t room
        cdef uint64_t messages
        cdef uint8_t* grown
        if self.state >= RELAYED:
            if self.state == RELAYED:
                return self.read_relayed(shared, shared_size)
            received = recv(self.fd, shared, shared_size, MSG_DONTWAIT)
            if received == 0 or (received < 0 and errno != EAGAIN and errno != EINTR):
                self.end_input()
            return 0
        if self.pauses & PAUSE_CUT:
            return 0                     # first what it has sent before; the socket stays ready
        if self.layers is not None:
            return self.read_layered(shared, shared_size)
        if have * 2 <= shared_size:
            if have:
                memcpy(shared, self.kept, have)
            received = timed_recv(self.turn, self.fd, shared + have, shared_size - have)
        else:
            # A packet larger than half the shared buffer is gathered in its own buffer, which grows by the bytes
            # received, never to the length that was declared.
            if self.kept_capacity - have < shared_size // 4:
                if self.router.ledger.memory_full:
                    self.controller.fail(self, ClientError(
                        Reason.QUOTA_EXCEEDED, "section 4.13", "no memory for a packet of this size",
                        CloseReason.MEMORY_LIMIT))
                    return 0
                room = have + have // 2 + shared_size // 4
                grown = <uint8_t*>realloc(self.kept, room)
                if grown == NULL:
                    raise MemoryError()
                self.kept = grown
                self.kept_capacity = room
            received = timed_recv(self.turn, self.fd, self.kept + have, self.kept_capacity - have)
            shared = NULL
        if received <= 0:
            if received == 0:
                return self.peer_finished()
            return 0 if errno == EAGAIN or errno == EINTR else self.socket_failed(errno)
        self.heard_ms = self.turn.now_ms
        self.bytes_in += received
        self.turn.bytes_in += received
        messages = self.messages_in
        if shared != NULL:
            self.feed(shared, have + received)
        else:
            self.kept_length = have + received
            self.feed_kept()
        if self.rates is not None:
            self.spend_rate(self.messages_in - messages, received)
        return 0

    cdef int read_layered(self, uint8_t* shared, size_t shared_size) except -1:
        """readable() through layers: receive once, and act on what they let through of it."""
        cdef uint64_t messages = self.messages_in
        cdef ssize_t received = timed_recv(self.turn, self.fd, shared, shared_size)
        if received <= 0:
            if received == 0:
                return self.peer_finished()
            return 0 if errno == EAGAIN or errno == EINTR else self.socket_failed(errno)
        self.heard_ms = self.turn.now_ms
        self.bytes_in += received
        self.turn.bytes_in += received
        error = None
        try:
            self.layers.receive(shared, received)
        except Exception as raised:
            error = raised
        if plain.length and (error is None or isinstance(error, ClientError)):
            if self.kept_length or self.state >= CLOSING:
                self.feed_raw(plain.data, plain.length)
            else:
                self.feed(plain.data, plain.length)      # where it lies: nobody else reads before this has been parsed
        if self.layers.raw.pending:
            self.touch()
        self.turn.work += self.layers.work
        self.layers.work = 0
        if error is not None:
            self.layers_failed(error)
        elif self.layers.outermost is None and self.layers.raw.pending == 0 and not self.layers.closed:
            self.layers = None               # they had a header to read, and that is done
        elif self.layers.has_ended() and self.state < CLOSING:
            self.peer_finished()
        if self.rates is not None:
            self.spend_rate(self.messages_in - messages, received)
        return 0

    cdef int peer_finished(self) except -1:
        """The peer sends no more. What it sent before counts: a DISCONNECT that is parked, a PUBLISH behind a CONNECT.

        Who goes before its CONNECT is answered, and sent nothing behind it, is gone at once: a late answer must not take
        the session from the connection that it made meanwhile.
        """
        if self.pauses & NOT_PARSED and not (
                self.answer_awaited and self.state == CONNECTING and self.kept_length == 0):
            self.pauses |= PAUSE_INPUT_ENDED
            return self.update_reading()
        self.end_for(CloseReason.CONNECTION_LOST)
        return 0

    def has_disconnected(self) -> bool:
        """Return whether a DISCONNECT has come that discards the will [MQTT-3.14.4-3], and has not been dealt with.

        To be asked of a connection that ends by what others do, while packets of its client wait. Cost: some 2 ns for
        each packet that waits.
        """
        cdef size_t at = 0
        cdef uint32_t remaining = 0
        cdef int size
        if self.pauses & PAUSE_PARKED and self.parked_first == DISCONNECT << 4:
            return self.version < 5 or self.parked_body[:1] in (b"", b"\0")
        while self.kept_length - at >= 2:
            size = read_varint(self.kept + at + 1, self.kept_length - at - 1, &remaining)
            if size <= 0 or self.kept_length - at < 1 + size + <size_t>remaining:
                return False
            if self.kept[at] == DISCONNECT << 4:
                return self.version < 5 or remaining == 0 or self.kept[at + 1 + size] == 0
            at += 1 + size + <size_t>remaining
        return False

    def wait_for_answer(self) -> None:
        """An authenticator was asked about the CONNECT and takes its time."""
        self.answer_awaited = True
        if self.pauses & PAUSE_INPUT_ENDED and self.state == CONNECTING and self.kept_length == 0:
            self.end_for(CloseReason.CONNECTION_LOST)

    cdef int spend_rate(self, uint64_t messages, uint64_t received) except -1:
        """Count what came against the client's rate; one second's worth may come at once.

        The debt is kept as the time at which it is paid (GCRA). Until then the client is not read from.
        """
        cdef int64_t now_us = self.turn.now_ms * 1000
        self.rate_due_us = max(self.rate_due_us, now_us - 1000000) + self.rates.cost_us(messages, received)
        if self.rate_due_us > now_us and not self.pauses & PAUSE_THROTTLED and self.state == OPEN:
            self.pauses |= PAUSE_THROTTLED
            self.turn.throttled_count += 1
            list_push(&self.turn.throttled, <void*>self)
            self.update_reading()
        return 0

    def limit_rates(self, Rates rates) -> None:
        """From here on the client may send so much in a second; None: any."""
        self.rates = rates

    def take_up_reading(self) -> bool:
        """Return whether a throttled client's rate has come down; it is read from again then."""
        if self.rate_due_us > self.turn.now_ms * 1000:
            return False
        self.pauses &= ~PAUSE_THROTTLED
        self.heard_ms = self.turn.now_ms
        self.update_reading()
        return True

    def feed_bytes(self, bytes data not None) -> None:
        """Take bytes as if the socket had delivered them: from a filter, another process, or a test."""
        if len(data):
            self.heard_ms = self.turn.now_ms
            self.feed_raw(<uint8_t*><const uint8_t*>data, len(data))

    cdef int feed_raw(self, uint8_t* data, size_t length) except -1:
        """Take bytes that are not in a receive buffer; they are copied, and not changed."""
        cdef size_t have = self.kept_length
        cdef uint8_t* grown
        if self.state >= CLOSING:
            return 0
        if have + length > self.kept_capacity:
            grown = <uint8_t*>realloc(self.kept, have + length)
            if grown == NULL:
                raise MemoryError()
            self.kept = grown
            self.kept_capacity = have + length
        memcpy(self.kept + have, data, length)
        self.kept_length = have + length
        return self.feed_kept()

    cdef inline int guarded_receive(self, uint8_t* data, size_t length, size_t* used) except -1:
        return self.try_receive(data, length, used) if self.tap is None else self.tapped_receive(data, length, used)

    cdef int tapped_receive(self, uint8_t* data, size_t length, size_t* used) except -1:
        cdef bytes seen = data[:length]
        self.try_receive(data, length, used)
        self.tap.received(seen if self.state >= CLOSING else seen[:used[0]])
        return 0

    cdef int try_receive(self, uint8_t* data, size_t length, size_t* used) except -1:
        """receive() behind the one guard around a connection's parse: what is the client's fault ends the client."""
        used[0] = 0
        try:
            used[0] = self.receive(data, length)
        except Exception as error:
            if isinstance(error, ClientError):
                self.turn.in_router = False
                self.controller.fail(self, error)
            elif self.turn.in_router:
                raise                   # router state cannot be trusted any more: the worker ends
            else:
                self.controller.internal_error(self, error)
        return 0

    cdef int feed(self, uint8_t* data, size_t length) except -1:
        cdef size_t used = 0
        self.guarded_receive(data, length, &used)
        if used < length and self.state < CLOSING:
            self.watch_packet(used > 0)
            return self.keep_rest(data + used, length - used)
        self.packet_started_ms = 0
        if self.kept != NULL:
            self.drop_kept()
        return 0

    cdef int feed_kept(self) except -1:
        cdef size_t used = 0
        self.guarded_receive(self.kept, self.kept_length, &used)
        if used == self.kept_length or self.state >= CLOSING:
            self.drop_kept()
            self.packet_started_ms = 0
        else:
            if used:
                self.kept_length -= used
                memmove(self.kept, self.kept + used, self.kept_length)
            self.watch_packet(used > 0)
        if self.kept_length >= self.turn.pending_bytes_max:
            self.update_reading()
        return 0

    cdef int keep_rest(self, uint8_t* data, size_t length) except -1:
        cdef uint8_t* grown
        if length > self.kept_capacity or self.kept_capacity > length * 4:
            grown = <uint8_t*>realloc(self.kept, length)
            if grown == NULL:
                raise MemoryError()
            self.kept = grown
            self.kept_capacity = length
        memcpy(self.kept, data, length)
        self.kept_length = length
        if length >= self.turn.pending_bytes_max:
            self.update_reading()
        return 0

    # Going on ---------------------------------------------------------------------------------------------------------

    def unpark(self) -> None:
        """The parked packet has been dealt with: take up what came behind it."""
        cdef bint goes_on
        if self.state >= CLOSING:
            return
        self.pauses &= ~PAUSE_PARKED
        self.parked_body = None
        goes_on = self.end_pauses()
        self.update_reading()
        if self.kept_length and goes_on:
            self.feed_kept()
        self.end_of_input()

    cdef int end_of_input(self) except -1:
        """If the peer sends no more, and all that it sent has been dealt with, this is the end."""
        if self.pauses & PAUSE_INPUT_ENDED and not self.pauses & NOT_PARSED:
            self.end_for(CloseReason.CONNECTION_LOST)
        return 0

    cdef int go_on(self) except -1:
        """It has had its share of a turn, and others have had theirs: take up what came behind."""
        cdef uint64_t messages = self.messages_in
        self.pauses &= ~PAUSE_CUT
        if self.state >= CLOSING:
            return 0
        if not self.end_pauses():
            return 0
        self.update_reading()
        if self.kept_length:
            self.feed_kept()
        if self.rates is not None:
            self.spend_rate(self.messages_in - messages, 0)
        return self.end_of_input()

    cdef int drop_kept(self) noexcept:
        free(self.kept)
        self.kept = NULL
        self.kept_length = self.kept_capacity = 0
        return 0

    cdef int update_reading(self) except -1:
        if self.pauses & NOT_RECEIVED or (
                self.pauses & NOT_PARSED and self.kept_length >= self.turn.pending_bytes_max):
            return self.set_interest(self.interest & ~EPOLLIN)
        return self.set_interest(self.interest | EPOLLIN)

    @property
    def is_silent(self) -> bool:
        """Nothing has come from a client: a monitor or a proxy has looked whether the port is open."""
        if self.layers is not None:
            return self.layers.said == 0
        return self.version == 0 and not self.pauses & PAUSE_PARKED and self.kept_length == 0

    @property
    def is_parked(self) -> bool:
        """A control packet waits to be dealt with."""
        return self.pauses & PAUSE_PARKED != 0
