"""One client's end as a whole: from accept to close, its terms, its deadlines, its close reason."""

cimport cython
from broker.wire.output_buffer cimport list_push, output_clear
from broker.reactor.protocol cimport (
    CLOSING, CONNECTING, ENDED, LINGERED, LINGERING, NOT_PARSED, OPEN, PAUSE_OUTPUT_FULL, PAUSE_THROTTLED,
    PAUSE_UNREAD, RELAYED, call_for_turn,
)
from broker.wire.reasons import BY_CLIENT, LOST, ClientError, CloseReason, Reason
from broker.reactor.peer_address cimport address_at
from broker.transport.layer cimport Layers
from router.core.message cimport Message
from router.matching.route_cache cimport write_identifier
from router.sessions.session cimport UNLIMITED, Session


@cython.final
@cython.no_gc
cdef class Connection(InputEnd):
    """A client's connection, from accept to close.

    Made by the hub. `close()` only takes note; the hub ends the connection when the turn ends.
    """

    def __dealloc__(self):
        if self.wheel is not None:
            self.wheel.cancel(&self.timer)

    cdef int layers_failed(self, object error) except -1:
        """A layer raised: the connection ends, by its client's fault or by ours; then nothing comes through any more."""
        if isinstance(error, ClientError):
            self.controller.fail(self, error)
            return 0
        lingering = self.state >= CLOSING
        self.layers.close()
        output_clear(&self.out)
        self.controller.filter_failed(self, error)
        if lingering:
            self.end_input()
        return 0

    def put_layers(self, Layers layers not None) -> None:
        """Have everything that comes and goes from now on pass through layers. Before anything has come."""
        self.layers = layers

    # What Python decides --------------------------------------------------------------------------------------------

    def write_packet(self, bytes data not None) -> None:
        """Append a whole encoded packet to the output, unless the connection's end has been decided.

        One that is larger than the client takes [MQTT-3.1.2-24] ends the connection: whoever has a packet that may be
        left out, or be made smaller, encodes it by packets.encode_fitting.
        """
        if self.state >= CLOSING:
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
        if self.state < CLOSING and (self.layers is None or self.layers.is_open()):
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

    def expire_at(self, expires_at_s: float, look_in_s: float) -> None:
        """Its authentication ends; the controller looks whether that time has come. Of an open connection.

        Args:
            expires_at_s: when, Unix seconds; 0: never.
            look_in_s: when to look, 0 or more.
        """
        assert self.state == OPEN, self.state
        self.expires_at_s = expires_at_s
        if expires_at_s == 0:
            self.expiry_look_ms = 0
            return
        self.expiry_look_ms = self.turn.now_ms + max(<int64_t>(look_in_s * 1000) + 1, 1)
        if self.timer.deadline_ms == 0 or self.timer.deadline_ms > self.expiry_look_ms:
            self.wheel.arm(&self.timer, self.expiry_look_ms)

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
        self.pauses &= ~NOT_PARSED
        self.parked_body = None
        return self.drop_kept()

    def close(self, reason) -> None:
        """Take note of the end: nothing more is parsed; the hub closes when the turn ends. The first reason stays."""
        if self.state >= CLOSING:
            return
        self.state = ENDED if self.relays else CLOSING       # the controller has never heard of a relay
        self.writable = False            # QoS 1 and 2 wait in the session from here on
        self.close_reason = reason
        if self.layers is not None:
            self.layers.close_reason = reason
        list_push(&self.turn.closing, <void*>self)
        call_for_turn(self.turn)

    def take_end(self) -> bool:
        """The controller deals with the end from here on. Returns whether it has not done so before."""
        if self.state != CLOSING:
            return False
        self.state = ENDED
        return True

    cdef int queue_full(self) except -1:
        self.controller.fail(self, ClientError(
            Reason.QUOTA_EXCEEDED, "section 4.13", "more messages wait than the queue of the session holds",
            CloseReason.QUEUE_FULL))
        return 0

    cdef bint has_last_words(self) except -1:
        """Whether the peer waits for them: those of MQTT, or where it has none any more the goodbye of a layer."""
        return self.close_reason not in BY_CLIENT or (self.layers is not None and self.layers.outermost is not None
                                                      and self.close_reason not in LOST and not self.has_left())

    cdef int socket_failed(self, int error) except -1:
        output_clear(&self.out)
        if self.state >= CLOSING:
            return self.end_input()
        if self.state == RELAYED:
            return self.close_relay()
        self.close(CloseReason.SOCKET_ERROR)
        return 0

    cdef int end_input(self) except -1:
        """The peer of a lingering connection is done, or took too long."""
        if self.state == LINGERING:
            self.state = LINGERED
            list_push(&self.turn.closing, <void*>self)
        return 0

    cdef int watch_packet(self, bint finished_one) except -1:
        """A packet is not whole: it has its own deadline, counted from its first byte."""
        cdef int64_t due_ms
        if self.pauses & NOT_PARSED or self.state != OPEN:
            self.packet_started_ms = 0       # whole ones wait; or the time to CONNECT is running
            return 0
        if self.packet_started_ms == 0 or finished_one:
            self.packet_started_ms = self.turn.now_ms
            due_ms = self.turn.now_ms + self.turn.packet_timeout_ms
            if self.timer.deadline_ms == 0 or self.timer.deadline_ms > due_ms:
                self.wheel.arm(&self.timer, due_ms)
        return 0

    cdef int on_deadline(self) except -1:
        """The timer fell due: it may have to be armed again, since bytes came meanwhile."""
        cdef int64_t due_ms
        if self.state >= CLOSING:
            return self.end_input()
        if self.state == OPEN:
            # We do not read: what it may have sent in time is not late.
            if self.pauses & (NOT_PARSED | PAUSE_THROTTLED | PAUSE_UNREAD):
                self.heard_ms = self.turn.now_ms
            if self.pauses & (PAUSE_THROTTLED | PAUSE_OUTPUT_FULL) and self.packet_started_ms:
                self.packet_started_ms = self.turn.now_ms
            if self.expiry_look_ms and self.expiry_look_ms <= self.turn.now_ms:
                self.expiry_look_ms = 0
                self.controller.look_at_expiry(self)
                if self.state != OPEN:
                    return 0
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
            if self.expiry_look_ms and (due_ms == 0 or self.expiry_look_ms < due_ms):
                due_ms = self.expiry_look_ms
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
        return self.state >= CLOSING

    @property
    def pending_bytes(self) -> int:
        """Bytes of output that are not sent."""
        return self.out.pending

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
        return address_at(self.fd)
