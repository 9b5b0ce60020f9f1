"""One connection's half of the conversation: bytes in, calls out; pure.

PUBLISH, the acknowledgements and PINGREQ are dealt with here. Any other packet is *parked*: its bytes are kept, its
connection is listed in `turn.parked`, and nothing behind it is parsed until Python has dealt with it at the end of the
turn. So containers on the route path never change while packets are parsed.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset
from broker.wire.output_buffer cimport LARGE_CHUNK, list_push, output_clear, output_room
from broker.reactor.before_open cimport CONNECT_FIRST, check_before_open, check_first_bytes
from broker.reactor.mount_point cimport MOUNTED_IN, MountPoint
from broker.reactor.topic_aliases cimport TopicAliases
from broker.wire.codec cimport (
    AUTH, CONNECT, CONNACK, DISCONNECT, PINGREQ, PUBLISH, SUBSCRIBE, UNSUBSCRIBE,
    copy_publish, goes_as_it_came, parse_acknowledgement, parse_publish,
    write_acknowledgement, write_publish,
)
from router.core.varint cimport read_varint, varint_length
from broker.auth.acl import Fetched
from broker.wire.packets import Ack, PacketType, encode_fitting
from broker.wire.reasons import ClientError, CloseReason, Reason
from router.exchanges cimport (
    PUBLISH_IDENTIFIER_IN_USE, PUBLISH_REFUSED, PUBLISH_ROUTED, PUBLISH_TOO_MANY, PUBLISH_UNLOGGED, PublishVerdict,
)
from router.publishing cimport NOT_REFUSED, Publication
from router.sessions.ledger cimport DROP_NOT_AUTHORIZED, DROP_PAYLOAD_TOO_LARGE
from router.sessions.outgoing cimport ANSWER_FREED, ANSWER_RELEASE, ANSWER_WRONG, Answer, Outgoing
from router.sessions.sink cimport (
    PACKET_IDENTIFIER_IN_USE, PUBACK, PUBCOMP, PUBREC, SINK_EXPIRED, SINK_FULL, SINK_GONE, SINK_SENT, SINK_TOO_LARGE,
    SinkResult,
)
from router.matching.subscription_tree cimport is_of
from router.matching.topic_names cimport is_own_topic, valid_topic_name
from broker.wire.topic_limits import check_topic_size

cdef extern from *:
    """
    #ifdef SHOAL_CHECKED
    #define SHOAL_POISONED 1
    #else
    #define SHOAL_POISONED 0
    #endif
    """
    const int SHOAL_POISONED

cdef enum:
    EXPLANATION_MAX = 300        # characters of why a PUBLISH was refused
    DOLLAR = 0x24


cdef object KNOWN = Fetched.KNOWN

PAUSES = ("parked", "unsettled", "pushed_back", "cut", "throttled", "output_full", "input_ended", "unread", "blocked")
"""The names of Pause, from the lowest bit on: in admin, in counters and in the log."""


cdef inline uint8_t kind_of(Message message) noexcept:
    return message.qos << 1 | (1 if message.retain else 0)


cdef int call_for_turn(Turn* turn) except -1:
    if not turn.turning and turn.wake_fd >= 0:
        os.eventfd_write(turn.wake_fd, 1)
    return 0


cdef int count_work(Protocol self, uint64_t work) except -1:
    """What a client has sent was so much work: when its share is used up, it waits for the others."""
    cdef Turn* turn = self.turn
    turn.share_used += <uint32_t>min(work, <uint64_t>1 << 24)
    if turn.share_used >= turn.share and not self.pauses & PAUSE_CUT:
        self.cut_off()
    return 0


cdef int count_delivered(Protocol self, Message message, Route route, int reached) except -1:
    """A message has been delivered to more than a few: count what work that was."""
    cdef Turn* turn = self.turn
    turn.share_used += 4 * route.cost if message.qos else route.cost
    if message.frame_length >= LARGE_FRAME:
        count_work(self, (reached + 1) * <uint64_t>message.frame_length // LARGE_FRAME)
    if turn.share_used >= turn.share and not self.pauses & PAUSE_CUT:
        self.cut_off()
    return 0


cdef inline int list_output(Protocol self, PointerList* listed) except -1:
    """There is output, if there was none: it is listed with that of others, and sent before the turn ends."""
    if not self.dirty:
        self.dirty = True
        list_push(listed, <void*>self)
        if not self.turn.turning:
            call_for_turn(self.turn)
    return 0


@cython.no_gc
cdef class Protocol(TopicAliases):
    """What a client and we have agreed on, and where in the conversation we are."""

    def __dealloc__(self):
        output_clear(&self.out)

    cdef Py_ssize_t receive(self, uint8_t* data, size_t length) except -1:
        cdef size_t offset = 0
        cdef uint32_t remaining = 0, packet_length
        cdef int size
        cdef uint8_t first, packet_type
        cdef Message message = self.message
        cdef Session session = self.session      # what changes it is parked
        cdef Turn* turn = self.turn
        cdef size_t end = length - 1             # packets begin before it; there is a byte at least
        if end > turn.share_bytes:
            end = turn.share_bytes
        turn.share_used = 0
        while offset < end and not self.pauses & NOT_PARSED and self.state < CLOSING:
            first = data[offset]
            packet_type = first >> 4
            if self.state == AWAITING_CONNECT and first != CONNECT_FIRST and check_first_bytes(
                    data + offset, length - offset):
                break
            if data[offset + 1] < 0x80:
                remaining = data[offset + 1]
                size = 1
            else:
                size = read_varint(data + offset + 1, length - offset - 1, &remaining)
                if size == 0:
                    break
                if size < 0 or <uint32_t>size != varint_length(remaining):
                    raise ClientError(Reason.MALFORMED_PACKET, "MQTT-1.5.5-1", "Remaining Length of too many bytes")
            packet_length = 1 + size + remaining
            if packet_length > self.checked_bytes:
                self.check_length(packet_type, packet_length)
            if self.state != OPEN:
                check_before_open(
                    self.state == CONNECTING, packet_type, packet_length, self.turn.connect_bytes_max)
            if length - offset < packet_length:
                break
            if packet_type == PUBLISH:
                if self.on_publish(session, message, data + offset, 1 + size, remaining):
                    break                # it is parsed anew when it is known whether the client may
            elif PUBACK <= packet_type <= PUBCOMP:
                turn.packets_in[packet_type] += 1
                self.on_acknowledgement(session, first, data + offset + 1 + size, remaining)
            elif packet_type == PINGREQ:
                if first != 0xC0 or remaining:
                    raise ClientError(Reason.MALFORMED_PACKET, "MQTT-2.1.3-1", "PINGREQ with flags or a body")
                memcpy(output_room(&self.out, 2), b"\xD0\x00", 2)     # PINGRESP
                self.bytes_out += 2
                turn.packets_in[PINGREQ] += 1
                turn.packets_out[PINGREQ + 1] += 1
                self.touch()
            else:
                self.park(first, data + offset + 1 + size, remaining)
            if SHOAL_POISONED:
                memset(data + offset, POISON, packet_length)
            offset += packet_length
        turn.work += turn.share_used + <uint32_t>(offset // BYTES_PER_WORK)
        turn.share_used = 0
        if length - offset >= 2 and offset >= end and not (self.pauses & NOT_PARSED or self.state >= CLOSING):
            self.cut_off()
        return offset

    cdef int cut_off(self) except -1:
        """It has had its share, and goes on after others have had theirs."""
        self.pauses |= PAUSE_CUT
        list_push(&self.turn.cut, <void*>self)
        return call_for_turn(self.turn)

    cdef int check_length(self, uint8_t packet_type, uint32_t packet_length) except -1:
        """A large packet: what has no payload of an application message may be less large."""
        if packet_length > self.packet_bytes_in_max:
            raise ClientError(Reason.PACKET_TOO_LARGE, "MQTT-3.2.2-15",
                              f"a packet of {packet_length} bytes, {self.packet_bytes_in_max} are allowed")
        # Before authentication connect_bytes_max holds.
        if packet_type != PUBLISH and packet_length > self.turn.control_bytes_max and self.state == OPEN:
            raise ClientError(
                Reason.PACKET_TOO_LARGE, "section 4.13",
                f"{packet_length} bytes that are no PUBLISH, {self.turn.control_bytes_max} are allowed")
        return 0

    cdef int park(self, uint8_t first, const uint8_t* body, uint32_t length) except -1:
        cdef uint8_t packet_type = first >> 4
        if self.version == 3 and (first == 0x8A or first == 0xAA):
            first &= ~<uint8_t>0x08      # 3.1 lets SUBSCRIBE and UNSUBSCRIBE be marked as sent again (its section 2.1)
        if packet_type == CONNECT:
            if self.state != AWAITING_CONNECT:
                raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.0-2", "second CONNECT")
            self.state = CONNECTING
        elif not (packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE or packet_type == DISCONNECT
                  or (packet_type == AUTH and self.version == 5)):
            raise ClientError(Reason.PROTOCOL_ERROR, "section 2.1.2",
                              f"packet type {packet_type} is not a client's to send")
        self.turn.packets_in[packet_type] += 1
        return self.keep_parked(first, PyBytes_FromStringAndSize(<const char*>body, length))

    cdef int keep_parked(self, uint8_t first, bytes body) except -1:
        self.pauses |= PAUSE_PARKED
        self.parked_first = first
        self.parked_body = body
        list_push(&self.turn.parked, <void*>self)
        return call_for_turn(self.turn)

    @property
    def paused_by(self) -> list[str]:
        """Why it is not read, parsed or sent to at this moment, of PAUSES."""
        return [name for bit, name in enumerate(PAUSES) if self.pauses >> bit & 1]

    def counters(self) -> dict[str, int]:
        """Messages and bytes in and out of this connection, and messages that were dropped, in all and by reason."""
        dropped = self.dropped()
        return {"messages_in": self.messages_in, "messages_out": self.messages_out, "bytes_in": self.bytes_in,
                "bytes_out": self.bytes_out, "messages_dropped": sum(dropped.values()),
                **{f"dropped_{reason}": count for reason, count in dropped.items()}}

    # PUBLISH in -----------------------------------------------------------------------------------------------------

    cdef int on_publish(self, Session session, Message message, const uint8_t* frame, uint32_t header_length,
                        uint32_t body_length) except -1:
        cdef Turn* turn = self.turn
        cdef Route route = self.route
        cdef uint16_t alias = 0
        cdef uint16_t identifier
        cdef Publication publication
        cdef PublishVerdict verdict
        identifier = <uint16_t>parse_publish(message, frame, header_length, body_length, self.version,
                                             turn.now_ms, &alias)
        if alias:
            self.resolve_alias(message, alias, self.turn.alias_bytes_max, self.router.ledger.memory_full)
        if frame[0] & self.publish_bits_refused:
            self.before_route(message)
            route = self.route
        if not self.router.tree.leads(route, message.topic, message.topic_length):
            if self.find_route(message):
                return 1
            if message.topic[0] == DOLLAR and self.requests is not None and self.is_request(message):
                return self.begin_request(message, frame[0], identifier)
            route = self.route
        self.messages_in += 1
        turn.publishes_in[message.qos] += 1
        turn.payload_bytes_in += message.payload_length
        publication.can_wait = turn.pushes_back
        publication.refusal = NOT_REFUSED
        if not self.route_allowed:
            publication.refusal = DROP_NOT_AUTHORIZED
            if message.qos and self.explanations is not None:
                self.explain(message, identifier)
        elif message.payload_length > turn.payload_bytes_max:
            publication.refusal = DROP_PAYLOAD_TOO_LARGE
        turn.in_router = True
        if message.qos:
            publication.packet_identifier = identifier
            publication.dup = frame[0] & 0x08 != 0
        if route.cost >= WIDE_TARGETS:
            turn.touched = &turn.wide
        verdict = self.router.on_publish(session, self, message, route, &publication)
        turn.in_router = False
        if route.cost:
            turn.touched = &turn.dirty
        if verdict == PUBLISH_ROUTED:
            if route.cost:
                count_delivered(self, message, route, publication.reached)
            if (message.qos and self.version < turn.receive_maximum_from
                    and session.waiting_records + session.held_count >= turn.receive_maximum):
                # No error, so: not parsed until its publishes have settled.
                turn.unsettled_count += not self.pauses & PAUSE_UNSETTLED
                self.pauses |= PAUSE_UNSETTLED
            if turn.pushes_back and publication.pushed_by != NULL:
                self.wait_for_room((<Session>publication.pushed_by).outgoing)
        elif verdict > PUBLISH_REFUSED:
            self.not_acknowledged(verdict, identifier)
        return 0

    cdef bint is_request(self, Message message) except -1:
        """Return whether a message is for the broker itself, from a client that may ask it for that."""
        asks_acl = self.requests.get(PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length))
        return asks_acl is not None and (self.route_allowed or not asks_acl)

    cdef int begin_request(self, Message message, uint8_t first, uint16_t packet_identifier) except -1:
        """Park a PUBLISH that the broker itself deals with; it is acknowledged then. One that is repeated is, now."""
        cdef PublishVerdict verdict
        cdef bytes topic = PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length)
        self.route = None                # nothing that is remembered here is for others
        if message.payload_length > self.turn.control_bytes_max:
            raise ClientError(Reason.PACKET_TOO_LARGE, "section 4.13",
                              f"a request of {message.payload_length} bytes, {self.turn.control_bytes_max} are allowed")
        self.messages_in += 1
        self.turn.publishes_in[message.qos] += 1
        self.turn.payload_bytes_in += message.payload_length
        if message.qos:
            self.turn.in_router = True
            verdict = self.router.begin_request(self.session, self, message, packet_identifier, first & 0x08 != 0)
            self.turn.in_router = False
            if verdict != PUBLISH_ROUTED:
                return self.not_acknowledged(verdict, packet_identifier) if verdict > PUBLISH_REFUSED else 0
        return self.keep_parked(first, (<object>packet_identifier).to_bytes(2) + len(topic).to_bytes(2) + topic +
                                PyBytes_FromStringAndSize(<const char*>message.payload, message.payload_length))

    def take_requests(self, dict requests) -> None:
        """From here on what its client publishes to one of these topic names is for the broker itself.

        Args:
            requests: whether the ACL is asked, by the broker's topic name.
        """
        self.requests = requests

    def end_request(self, qos: int, packet_identifier: int, reason: int) -> None:
        """What begin_request() has parked is done: acknowledge it, if it is to be; unpark() may follow."""
        self.router.end_request(self.session, self, qos, packet_identifier, reason)

    cdef int not_acknowledged(self, PublishVerdict verdict, uint16_t packet_identifier) except -1:
        """The router has not acknowledged a PUBLISH: that ends the connection, where its version has no answer to it."""
        if verdict == PUBLISH_TOO_MANY:
            raise ClientError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "MQTT-3.3.4-7",
                              f"more than {self.session.incoming_max} messages without their acknowledgement")
        if verdict == PUBLISH_UNLOGGED:
            raise ClientError(Reason.QUOTA_EXCEEDED, "MQTT3-4.8.0-2", "the log of the server takes no more")
        assert verdict == PUBLISH_IDENTIFIER_IN_USE, verdict
        if self.version < 5:
            raise ClientError(Reason.PACKET_IDENTIFIER_IN_USE, "MQTT3-2.3.1-2",
                              f"packet identifier {packet_identifier} belongs to a QoS 2 message under way")
        return self.acknowledge(PUBACK, packet_identifier, PACKET_IDENTIFIER_IN_USE)

    cdef int wait_for_room(self, Outgoing full) except -1:
        """A queue took the message beyond its limits: the client is not read from until there is room, or time is up."""
        self.waits_for = full
        self.waits_until_ms = full.push_back_until_ms
        self.pauses |= PAUSE_PUSHED_BACK
        self.turn.pushed_back_count += 1
        list_push(&self.turn.pushed_back, <void*>self)
        return 0

    cdef bint still_waits(self) noexcept:
        """Whether a client that is pushed back goes on waiting: until what it published is in the queue and fits there."""
        return self.state == OPEN and self.waits_until_ms > self.turn.now_ms and (
            self.session.waiting_records != 0 or self.waits_for.pushes_back())

    cdef bint has_settled(self) noexcept:
        return self.session is None or (
            self.session.waiting_records + self.session.held_count < self.turn.receive_maximum)

    cdef bint end_pauses(self) noexcept:
        if self.pauses & PAUSE_UNSETTLED and self.has_settled():
            self.pauses &= ~PAUSE_UNSETTLED
        if self.pauses & PAUSE_PUSHED_BACK and self.waits_for is None:
            self.pauses &= ~PAUSE_PUSHED_BACK
        return not self.pauses & NOT_PARSED

    cdef int find_route(self, Message message) except -1:
        """Set `route` and `route_allowed` for a message's topic, unless `route` is its and fresh."""
        cdef Route route = self.route
        cdef uint64_t before = self.turn.visited[0]
        cdef uint64_t verdict
        cdef uint64_t* remembered
        if (route is not None and self.route_rights == self.turn.rights
                and is_of(route, message.topic, message.topic_length)):
            self.route = self.router.tree.route(message.topic, message.topic_length)
            if self.turn.visited[0] != before:
                count_work(self, 2 * (self.turn.visited[0] - before))
            return 0
        if not valid_topic_name(message.topic, message.topic_length):
            raise ClientError(Reason.TOPIC_NAME_INVALID, "MQTT-3.3.2-2", "not a topic name")
        if message.topic_length >= self.turn.topic_levels_max or message.topic_length > self.turn.topic_bytes_max:
            check_topic_size(message.topic[:message.topic_length], self.turn.topic_levels_max,
                             self.turn.topic_bytes_max)
        route = self.router.tree.route(message.topic, message.topic_length)
        if self.turn.visited[0] != before:       # that was work, too: not what others had looked for before
            count_work(self, 2 * (self.turn.visited[0] - before))
        self.route = route
        self.route_rights = self.turn.rights
        if is_own_topic(message.topic, message.topic_length):
            self.route_allowed = False       # the broker's own [section 4.7.2]
            return 0
        if self.acl is None:
            self.route_allowed = True
            return 0
        verdict = route.hash ^ self.salt
        if self.decides_by_qos:
            self.route_kind = kind_of(message)
            verdict ^= (1 + <uint64_t>self.route_kind) << 32
        verdict *= <uint64_t>0x9E3779B97F4A7C15
        remembered = &self.turn.verdicts[(verdict >> 40) & (VERDICTS - 1)]
        if (remembered[0] | 1) == (verdict | 1):
            self.route_allowed = remembered[0] & 1
            return 0
        topic = PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length)
        if self.acl.waits and (self.requests is None or self.requests.get(topic) is not False):
            if self.acl.fetched(self.principal, "publish", topic, message.qos, bool(message.retain)) is not KNOWN:
                self.route = None        # nothing from here on is parsed until it is known
                self.keep_parked(kind_of(message), topic)
                return 1
            self.acl.relying.add(self)
        self.route_allowed = self.acl.may_publish(self.principal, topic, message.qos, bool(message.retain))
        remembered[0] = (verdict & ~<uint64_t>1) | (1 if self.route_allowed else 0)
        return 0

    cdef int ask_acl(self, object acl, uint64_t salt) except -1:
        """From here on an ACL says where the client may publish."""
        self.acl = acl
        self.salt = salt
        if acl is not None and acl.decides_by_qos:
            self.decides_by_qos = True
            self.publish_bits_refused |= MOUNTED_IN
        if acl is not None and acl.explains and self.version == 5 and not self.unexplained:
            self.explanations = {}
        return 0

    cdef int explain(self, Message message, uint16_t packet_identifier) except -1:
        """A PUBLISH is refused: note what decided, for its acknowledgement."""
        topic = PyBytes_FromStringAndSize(<const char*>message.topic, message.topic_length)
        if is_own_topic(message.topic, message.topic_length):
            self.explanations[packet_identifier] = "the broker's own topics"
        else:
            self.explanations[packet_identifier] = self.acl.explain(
                self.principal, "publish", topic, message.qos, bool(message.retain)).by
        return 0

    cdef int acknowledge_explained(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1:
        """Acknowledge what was refused, with the Reason String that there is for it."""
        why = self.explanations.pop(packet_identifier, "")
        properties = {"reason_string": why[:EXPLANATION_MAX]} if why else {}
        return self.append(encode_fitting(
            Ack(PacketType(packet_type), packet_identifier, Reason(reason), properties), 5, self.packet_bytes_max))

    cdef int before_route(self, Message message) except -1:
        """The PUBLISH has RETAIN or a QoS that the settings do not allow, as its CONNACK said; or each is looked at."""
        if message.retain and self.publish_bits_refused & 0x01:
            raise ClientError(Reason.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-14", "a PUBLISH with RETAIN 1")
        if self.publish_bits_refused & (message.qos << 1):
            raise ClientError(Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-11", f"a PUBLISH of QoS {message.qos}")
        if self.decides_by_qos and kind_of(message) != self.route_kind:
            self.route = None            # what is remembered with it was said of another kind of message
        return self.mount_point.enter(message) if self.mount_point is not None else 0

    def put_under(self, MountPoint mount_point not None) -> None:
        """From here on the client lives under a mount point."""
        self.mount_point = mount_point
        self.publish_bits_refused |= MOUNTED_IN
        self.made_anew |= 1

    # Acknowledgements in --------------------------------------------------------------------------------------------

    cdef int on_acknowledgement(self, Session session, uint8_t first, const uint8_t* body, uint32_t length) except -1:
        cdef uint8_t packet_type = first >> 4
        cdef uint16_t identifier = 0
        cdef Answer answer
        cdef int reason = parse_acknowledgement(body, length, first, self.version, &identifier)
        self.turn.in_router = True
        if packet_type == PUBACK:
            answer = self.router.on_puback(session, self, identifier, <uint8_t>reason)
        elif packet_type == PUBREC:
            answer = self.router.on_pubrec(session, self, identifier, <uint8_t>reason)
        elif packet_type == PUBCOMP:
            answer = self.router.on_pubcomp(session, self, identifier, <uint8_t>reason)
        else:
            self.router.on_pubrel(session, self, identifier)
            answer = ANSWER_RELEASE
        self.turn.in_router = False
        if answer == ANSWER_WRONG:
            raise ClientError(Reason.PROTOCOL_ERROR, "section 4.3.2" if packet_type == PUBACK else "section 4.3.3",
                              f"an acknowledgement of type {packet_type} that does not fit delivery {identifier}")
        if answer == ANSWER_FREED and (self.backlog is not None or self.replays_wait):
            list_push(&self.turn.waiting, <void*>self)
        return 0

    def go_on_later(self) -> None:
        """Have the controller's read_on() called, in this turn or a later one, when it is this connection's turn."""
        if not self.later and self.state == OPEN:
            self.later = True
            list_push(&self.turn.later, <void*>self)
            call_for_turn(self.turn)

    # Packets out: the sink of the session ---------------------------------------------------------------------------

    cdef int touch(self) except -1:
        return list_output(self, self.turn.touched)

    cdef int flush(self) except -1:
        return 0

    cdef int flush_full(self) except -1:
        """Send what fills a chunk at once, while it is in the CPU's cache, unless the publisher has had its share.

        A message to many fills the outputs of all at the same time; the rest are sent to at the end of turns.
        """
        if self.turn.share_used < self.turn.share:
            self.turn.share_used += WORK_SEND
            return self.flush()
        return 0

    cdef int append(self, bytes data) except -1:
        cdef size_t size = len(data)
        if size:
            memcpy(output_room(&self.out, size), PyBytes_AS_STRING(data), size)
            self.bytes_out += size
            self.touch()
        return 0

    cdef int write(self, bytes data) except -1:
        """Append whole packets that Python encoded."""
        cdef size_t size = len(data)
        cdef const uint8_t* frames = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef size_t offset = 0
        cdef uint32_t remaining = 0
        cdef int length_size
        self.append(data)
        while offset + 2 <= size:
            length_size = read_varint(frames + offset + 1, size - offset - 1, &remaining)
            if length_size <= 0:
                break
            self.turn.packets_out[frames[offset] >> 4] += 1
            offset += 1 + length_size + remaining
        return 0

    cdef SinkResult publish(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                            const uint8_t* ids, uint32_t ids_length) except? SINK_FULL:
        cdef uint32_t size
        if qos == 0 and self.out.pending > self.turn.output_bytes_max:
            return SINK_FULL
        if self.state >= CLOSING:
            return SINK_GONE             # nothing behind our DISCONNECT [MQTT-3.14.4-1]
        if message.expires_ms and not dup and self.turn.now_ms > message.expires_ms:
            return SINK_EXPIRED
        if self.version < 5:
            ids_length = 0
        if self.made_anew == 0 and goes_as_it_came(message, self.version, qos, ids_length):
            if message.frame_length > self.packet_bytes_max:
                return SINK_TOO_LARGE
            size = copy_publish(&self.out, message, packet_identifier, qos, retain, dup, self.turn.now_ms)
        else:
            size = self.put_together(message, packet_identifier, qos, retain, dup, ids, ids_length)
            if size == 0:
                return SINK_TOO_LARGE
        self.messages_out += 1
        self.bytes_out += size
        self.turn.publishes_out[qos] += 1
        self.turn.payload_bytes_out += message.payload_length
        if not self.dirty:
            self.touch()
        if self.out.pending >= LARGE_CHUNK:
            self.flush_full()
            if self.out.pending > self.turn.output_bytes_max:
                self.writable = False
        return SINK_SENT

    cdef uint32_t put_together(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                               const uint8_t* ids, uint32_t ids_length) except? 0:
        """Write a PUBLISH that does not go out as it came; returns its size, 0 if it is too large or nothing to the client."""
        cdef uint16_t alias = 0
        cdef bint with_topic = True
        cdef uint32_t size
        if self.mount_point is not None:
            message = self.mount_point.leave(message)
            self.is_outside = message is None
            if self.is_outside:
                return 0
        if self.alias_max_out:
            alias = self.pick_alias(message, &with_topic, self.turn.alias_bytes_max, self.router.ledger.memory_full)
        size = write_publish(&self.out, message, self.version, packet_identifier, qos, retain, dup, ids, ids_length,
                             alias, with_topic, self.packet_bytes_max, self.turn.now_ms)
        if size == 0 and alias:
            alias = 0                   # ours to leave out, where the message fits without it
            size = write_publish(&self.out, message, self.version, packet_identifier, qos, retain, dup, ids,
                                 ids_length, 0, True, self.packet_bytes_max, self.turn.now_ms)
        if size and alias and with_topic:
            self.keep_alias(message, alias)
        return size

    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1:
        if self.state >= CLOSING:
            return 0
        if reason >= 0x80 and self.explanations is not None:
            self.acknowledge_explained(packet_type, packet_identifier, reason)
        else:
            self.bytes_out += write_acknowledgement(&self.out, packet_type, packet_identifier, reason, self.version)
        self.turn.packets_out[packet_type] += 1
        if not self.dirty:
            # Behind no message to many, which may be under way: `touched` is where their receivers are listed.
            list_output(self, &self.turn.dirty)
        if self.pauses & PAUSE_UNSETTLED:
            self.take_up()
        return 0

    cdef int take_up(self) except -1:
        """A publish has settled of a client that waits for that: parse on at the end of the turn."""
        if self.has_settled():
            list_push(&self.turn.waiting, <void*>self)
        return 0
