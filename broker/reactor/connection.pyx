"""One client's end: what comes in, deadlines, close reason. The one place that catches ClientError."""

cimport cython
from broker.wire.output_buffer cimport list_push, output_clear
from broker.reactor.protocol cimport AWAITING_CONNECT, CLOSING, CONNECTING, OPEN, RELAYED, call_for_turn
from broker.wire.reasons import BY_CLIENT, LOST, ClientError, CloseReason, Reason
from broker.reactor.peer_socket import peer_address
from broker.reactor.relay_end cimport MSG_DONTWAIT, recv, timed_recv
from broker.transport.layer cimport Layers, plain
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove
from broker.wire.codec cimport DISCONNECT, read_varint
from router.core.message cimport Message
from router.matching.route_cache cimport write_identifier
from router.sessions.session cimport UNLIMITED, Session

cdef extern from "<sys/epoll.h>" nogil:
    uint32_t EPOLLIN


@cython.final
@cython.no_gc
cdef class Connection(RelayEnd):
    """A client's connection, from accept to close.

    Made by the hub. `close()` only takes note; the hub ends the connection when the turn ends.
    """

    def __dealloc__(self):
        if self.wheel is not None:
            self.wheel.cancel(&self.timer)
        free(self.kept)

    # Bytes in -------------------------------------------------------------------------------------------------------

    cdef int readable(self, uint8_t* shared, size_t shared_size) except -1:
        """Receive once and act on every whole packet. `shared` is every connection's receive buffer, in turn."""
        cdef ssize_t received
        cdef size_t have = self.kept_length
        cdef size_t room
        cdef uint64_t messages
        cdef uint8_t* grown
        if self.state >= CLOSING:
            if self.state == RELAYED:
                return self.read_relayed(shared, shared_size)
            received = recv(self.fd, shared, shared_size, MSG_DONTWAIT)
            if received == 0 or (received < 0 and errno != EAGAIN and errno != EINTR):
                self.end_input()
            return 0
        if self.cut:
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
        if self.turn.messages_per_second_max or self.turn.bytes_per_second_max:
            self.spend_rate(self.messages_in - messages, received)
        return 0

    cdef int peer_finished(self) except -1:
        """The peer sends no more. What it sent before counts: a DISCONNECT that is parked, a PUBLISH behind a CONNECT.

        Who goes before its CONNECT is answered, and sent nothing behind it, is gone at once: a late answer must not take
        the session from the connection that it made meanwhile.
        """
        if (self.parked or self.held) and not (
                self.answer_awaited and self.state == CONNECTING and self.kept_length == 0):
            self.input_ended = True
            return self.update_reading()
        self.close(CloseReason.CONNECTION_LOST)
        return 0

    def has_disconnected(self) -> bool:
        """Return whether a DISCONNECT has come that discards the will [MQTT-3.14.4-3], and has not been dealt with.

        To be asked of a connection that ends by what others do, while packets of its client wait. Cost: some 2 ns for
        each packet that waits.
        """
        cdef size_t at = 0
        cdef uint32_t remaining = 0
        cdef int size
        if self.parked and self.parked_first == DISCONNECT << 4:
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
        if self.input_ended and self.state == CONNECTING and self.kept_length == 0:
            self.close(CloseReason.CONNECTION_LOST)

    cdef int spend_rate(self, uint64_t messages, uint64_t received) except -1:
        """Count what came against the client's rate; one second's worth may come at once.

        The debt is kept as the time at which it is paid (GCRA). Until then the client is not read from.
        """
        cdef int64_t now_us = self.turn.now_ms * 1000
        cdef int64_t cost_us = 0
        if self.turn.messages_per_second_max:
            cost_us = <int64_t>(messages * 1000000 // self.turn.messages_per_second_max)
        if self.turn.bytes_per_second_max:
            cost_us = max(cost_us, <int64_t>(received * 1000000 // self.turn.bytes_per_second_max))
        self.rate_due_us = max(self.rate_due_us, now_us - 1000000) + cost_us
        if self.rate_due_us > now_us and not self.throttled and self.state == OPEN:
            self.throttled = True
            self.turn.throttled_count += 1
            list_push(&self.turn.throttled, <void*>self)
            self.update_reading()
        return 0

    def take_up_reading(self) -> bool:
        """Return whether a throttled client's rate has come down; it is read from again then."""
        if self.rate_due_us > self.turn.now_ms * 1000:
            return False
        self.throttled = False
        self.heard_ms = self.turn.now_ms
        self.update_reading()
        return True

    cdef int watch_packet(self, bint finished_one) except -1:
        """A packet is not whole: it has its own deadline, counted from its first byte."""
        cdef int64_t due_ms
        if self.parked or self.held or self.state != OPEN:
            self.packet_started_ms = 0       # whole ones wait; or the time to CONNECT is running
            return 0
        if self.packet_started_ms == 0 or finished_one:
            self.packet_started_ms = self.turn.now_ms
            due_ms = self.turn.now_ms + self.turn.packet_timeout_ms
            if self.timer.deadline_ms == 0 or self.timer.deadline_ms > due_ms:
                self.wheel.arm(&self.timer, due_ms)
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
            if self.kept_length or self.state == CLOSING:
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
        elif self.layers.has_ended() and self.state != CLOSING:
            self.peer_finished()
        if self.turn.messages_per_second_max or self.turn.bytes_per_second_max:
            self.spend_rate(self.messages_in - messages, received)
        return 0

    cdef int layers_failed(self, object error) except -1:
        """A layer raised: the connection ends, by its client's fault or by ours; then nothing comes through any more."""
        if isinstance(error, ClientError):
            self.controller.fail(self, error)
            return 0
        lingering = self.state == CLOSING
        self.layers.close()
        output_clear(&self.out)
        self.controller.filter_failed(self, error)
        if lingering:
            self.end_input()
        return 0

    def put_layers(self, Layers layers not None) -> None:
        """Have everything that comes and goes from now on pass through layers. Before anything has come."""
        self.layers = layers

    def feed_bytes(self, bytes data not None) -> None:
        """Take bytes as if the socket had delivered them: from a filter, another process, or a test."""
        if len(data):
            self.heard_ms = self.turn.now_ms
            self.feed_raw(<uint8_t*><const uint8_t*>data, len(data))

    cdef int feed_raw(self, uint8_t* data, size_t length) except -1:
        """Take bytes that are not in a receive buffer; they are copied, and not changed."""
        cdef size_t have = self.kept_length
        cdef uint8_t* grown
        if self.state == CLOSING:
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
        self.tap.received(seen if self.state == CLOSING else seen[:used[0]])
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
        if used < length and self.state != CLOSING:
            self.watch_packet(used > 0)
            return self.keep_rest(data + used, length - used)
        self.packet_started_ms = 0
        if self.kept != NULL:
            free(self.kept)
            self.kept = NULL
            self.kept_length = self.kept_capacity = 0
        return 0

    cdef int feed_kept(self) except -1:
        cdef size_t used = 0
        self.guarded_receive(self.kept, self.kept_length, &used)
        if used == self.kept_length or self.state == CLOSING:
            free(self.kept)
            self.kept = NULL
            self.kept_length = self.kept_capacity = 0
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

    def unpark(self) -> None:
        """The parked packet has been dealt with: take up what came behind it."""
        if self.state == CLOSING:
            return
        self.parked = False
        self.parked_body = None
        if self.held and self.may_go_on():
            self.held = False
        self.update_reading()
        if self.kept_length and not self.held:
            self.feed_kept()
        self.end_of_input()

    cdef int end_of_input(self) except -1:
        """If the peer sends no more, and all that it sent has been dealt with, this is the end."""
        if self.input_ended and not self.parked and not self.held:
            self.close(CloseReason.CONNECTION_LOST)
        return 0

    cdef int go_on(self) except -1:
        """It has had its share of a turn, and others have had theirs: take up what came behind."""
        cdef uint64_t messages = self.messages_in
        self.cut = False
        if self.state == CLOSING:
            return 0
        if self.held and self.may_go_on():
            self.held = False
        if self.parked or self.held:
            return 0
        self.update_reading()
        if self.kept_length:
            self.feed_kept()
        if self.turn.messages_per_second_max:
            self.spend_rate(self.messages_in - messages, 0)
        return self.end_of_input()

    cdef int update_reading(self) except -1:
        if self.input_ended or self.throttled or self.stuffed or (
                (self.parked or self.held) and self.kept_length >= self.turn.pending_bytes_max):
            return self.set_interest(self.interest & ~EPOLLIN)
        return self.set_interest(self.interest | EPOLLIN)

    # What Python decides --------------------------------------------------------------------------------------------

    def write_packet(self, bytes data not None) -> None:
        """Append a whole encoded packet to the output, unless the connection's end has been decided.

        One that is larger than the client takes [MQTT-3.1.2-24] ends the connection: whoever has a packet that may be
        left out, or be made smaller, encodes it by packets.encode_fitting.
        """
        if self.state == CLOSING:
            return
        if <size_t>len(data) > self.packet_bytes_max:
            self.controller.fail(self, ClientError(
                Reason.PACKET_TOO_LARGE, "MQTT-3.1.2-24",
                f"an answer of {len(data)} bytes, the client takes {self.packet_bytes_max}"))
            return
        self.write(data)

    def write_foreign(self, bytes data not None) -> None:
        """Append what is no packet, words of another protocol, unless the connection's end has been decided.

        Before its layers are open, it is they who know what the peer understands.
        """
        if self.state != CLOSING and (self.layers is None or self.layers.is_open()):
            self.append(data)

    def choose_version(self, version: int, packet_bytes_max: int = 0) -> None:
        """CONNECT has named the protocol level, 3, 4 or 5, and the client's Maximum Packet Size, 0 for no limit."""
        assert version in (3, 4, 5), version
        self.version = version
        self.tells_refusals = version == 5
        self.packet_bytes_max = packet_bytes_max or 0xFFFFFFFF

    cdef int accept_terms(self, uint32_t packet_bytes_max, uint8_t maximum_qos) noexcept:
        self.packet_bytes_in_max = packet_bytes_max
        self.checked_bytes = min(packet_bytes_max, self.turn.control_bytes_max)
        self.maximum_qos = maximum_qos
        self.publish_bits_refused = 0x06 if maximum_qos == 0 else 0x04 if maximum_qos == 1 else 0
        if not self.turn.retain_available:
            self.publish_bits_refused |= 0x01
        return 0

    def limit(self, packet_bytes_max: int, maximum_qos: int) -> None:
        """What its listener allows is less than what others are allowed: bytes of a packet of its, and QoS."""
        self.accept_terms(packet_bytes_max, maximum_qos)

    def open(self, Session session not None, receive_maximum: int, alias_max_in: int, alias_max_out: int,
             keep_alive_s: int, acl, salt: int) -> None:
        """The CONNECT is accepted: from here on the session delivers here, once `resume()` is called.

        Args:
            receive_maximum: the client's, 1..65535.
            alias_max_in: aliases granted to the client; alias_max_out: how many we may use towards it.
            keep_alive_s: in force, seconds; 0 for none.
            acl: broker.auth.acl.FailClosed, or None if everything is allowed.
            salt: unique to this connection and not guessable; of its remembered ACL answers.
        """
        assert self.state == CONNECTING, self.state
        self.state = OPEN
        self.alias_max_in, self.alias_max_out = alias_max_in, alias_max_out
        self.made_anew |= self.alias_max_out
        self.keep_alive_ms = keep_alive_s * 1500
        self.ask_acl(acl, salt)
        self.publish_will = True
        self.session = session
        self.writable = True
        session.attach(self, receive_maximum)
        session.incoming_max = self.turn.receive_maximum if self.version >= self.turn.receive_maximum_from else UNLIMITED
        self.heard_ms = self.opened_ms = self.turn.now_ms
        if self.keep_alive_ms:
            self.wheel.arm(&self.timer, self.turn.now_ms + self.keep_alive_ms)
        else:
            self.wheel.cancel(&self.timer)

    def resume(self) -> None:
        """Send what the session is owed, as far as quota and output allow. Called after CONNACK, and to go on."""
        if self.state == OPEN:
            self.session.drain()

    def resume_later(self) -> None:
        """The same in this turn or a later one, behind those who wait for it already."""
        list_push(&self.turn.waiting, <void*>self)
        call_for_turn(self.turn)

    def leave_session(self) -> None:
        """Break the tie to the session; the session's own side is detach()ed by the router."""
        self.session = None
        self.route = None
        self.backlog = self.slices = None

    cdef int end_for(self, object reason) except -1:
        self.close(reason)
        return 0

    cdef int forget_input(self) except -1:
        """Nothing is parsed here any more, and nothing falls due: another worker serves the client."""
        self.wheel.cancel(&self.timer)
        self.ended = True                # for the controller, which has never heard of it
        self.parked = self.held = self.cut = False
        self.parked_body = None
        free(self.kept)
        self.kept = NULL
        self.kept_length = self.kept_capacity = 0
        return 0

    def close(self, reason) -> None:
        """Take note of the end: nothing more is parsed; the hub closes when the turn ends. The first reason stays."""
        if self.state == CLOSING:
            return
        self.state = CLOSING
        self.writable = False            # QoS 1 and 2 wait in the session from here on
        self.close_reason = reason
        if self.layers is not None:
            self.layers.close_reason = reason
        list_push(&self.turn.closing, <void*>self)
        call_for_turn(self.turn)

    cdef int queue_full(self) except -1:
        self.controller.fail(self, ClientError(
            Reason.QUOTA_EXCEEDED, "section 4.13", "more messages wait than the queue of the session holds",
            CloseReason.QUEUE_FULL))
        return 0

    cdef bint has_last_words(self) except -1:
        """Whether the peer waits for them: those of MQTT, or where it has none any more the goodbye of a layer."""
        return self.close_reason not in BY_CLIENT or (
            self.layers is not None and self.layers.outermost is not None and self.close_reason not in LOST)

    cdef int socket_failed(self, int error) except -1:
        output_clear(&self.out)
        if self.state == CLOSING:
            return self.end_input()
        if self.state == RELAYED:
            return self.close_relay()
        self.close(CloseReason.SOCKET_ERROR)
        return 0

    cdef int end_input(self) except -1:
        """The peer of a lingering connection is done, or took too long."""
        if self.lingering:
            self.lingering = False
            list_push(&self.turn.closing, <void*>self)
        return 0

    cdef int on_deadline(self) except -1:
        """The timer fell due: it may have to be armed again, since bytes came meanwhile."""
        cdef int64_t due_ms
        if self.state == CLOSING:
            return self.end_input()
        if self.state == OPEN:
            # We do not read: what it may have sent in time is not late.
            if self.throttled or self.parked or self.held or self.unread:
                self.heard_ms = self.turn.now_ms
            if (self.throttled or self.stuffed) and self.packet_started_ms:
                self.packet_started_ms = self.turn.now_ms
            due_ms = self.heard_ms + self.keep_alive_ms if self.keep_alive_ms else 0
            if due_ms and due_ms <= self.turn.now_ms:
                self.controller.keep_alive_timeout(self)
                return 0
            if self.packet_started_ms:
                if self.packet_started_ms + self.turn.packet_timeout_ms <= self.turn.now_ms:
                    self.controller.packet_timeout(self)
                    return 0
                if due_ms == 0 or self.packet_started_ms + self.turn.packet_timeout_ms < due_ms:
                    due_ms = self.packet_started_ms + self.turn.packet_timeout_ms
            if due_ms:
                self.wheel.arm(&self.timer, due_ms)
            return 0
        self.controller.connect_timeout(self)
        return 0

    @property
    def is_open(self) -> bool:
        """CONNACK was sent with success and the end has not come."""
        return self.state == OPEN

    @property
    def is_relayed(self) -> bool:
        """Another worker serves the client, whose bytes come and go here."""
        return self.state == RELAYED

    @property
    def is_layered(self) -> bool:
        """Its bytes go through layers, which cannot move to another process."""
        return self.layers is not None

    @property
    def is_connecting(self) -> bool:
        """A CONNECT came and is not decided."""
        return self.state == CONNECTING

    @property
    def is_closing(self) -> bool:
        """The end has been decided."""
        return self.state == CLOSING

    @property
    def is_silent(self) -> bool:
        """Nothing has come from a client: a monitor or a proxy has looked whether the port is open."""
        if self.layers is not None:
            return self.layers.said == 0
        return self.version == 0 and not self.parked and self.kept_length == 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of output that are not sent."""
        return self.out.pending

    @property
    def is_parked(self) -> bool:
        """A control packet waits to be dealt with."""
        return self.parked

    def can_take(self, qos: int) -> bool:
        """Return whether a message of this QoS would be sent at once, neither queued nor dropped."""
        return self.has_room(qos)

    cdef bint has_room(self, bint qos) noexcept:
        if self.state != OPEN or not self.writable:
            return False
        if qos:
            return self.session.has_room()
        self.output_awaited = self.out.pending > self.turn.output_bytes_max // 2
        return not self.output_awaited

    def send_retained(self, Message message not None, qos: int, identifier: int) -> None:
        """Deliver a retained message for a new subscription: RETAIN 1 [MQTT3-3.3.1-8], at most at the granted QoS."""
        cdef uint8_t[5] ids
        cdef uint32_t ids_length = 0
        if identifier:
            ids_length = <uint32_t>(write_identifier(ids, identifier) - ids)
        self.router.deliver_retained(self.session, message, min(qos, message.qos), ids, ids_length)

    def renew_salt(self, salt: int) -> None:
        """Forget the ACL's answers for this connection: its client is another principal."""
        self.salt = salt
        self.route = None

    @property
    def peer(self) -> str | None:
        """The client's address as text, as a trusted proxy gives it if one is in between; None if it has none any more."""
        if self.facts is not None and self.facts.address is not None:
            return self.facts.address
        return peer_address(self.fd)
