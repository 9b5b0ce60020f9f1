"""Control packets other than those of the message path, and how connections end: once per connection or rarer."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from router.topics import check_topic_filter, parse_shared

from broker.handshake import Handshake
from broker.logs import get
from broker.packets import Auth, Disconnect, Suback, Subscribe, Unsuback, Unsubscribe, decode, encode, encode_connack
from broker.properties import PacketType
from broker.reasons import ClientError, CloseReason, Reason, disconnect_reason_to_close

if TYPE_CHECKING:
    from router.router import Router

    from broker.acl import Acl
    from broker.auth import Admission, Authenticator
    from broker.config import Config
    from broker.connection import Connection
    from broker.packets import Subscription

log = get("connections")

LEVEL_5 = b"\0\x04MQTT\x05"       # how the CONNECT of a 5.0 client begins

# Ends that are a client's everyday business; all others are worth a line at level info.
QUIET_ENDS = frozenset({CloseReason.CLIENT_DISCONNECT})


class Controller:
    """What a worker does about CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and AUTH, and at the end of a connection.

    The hub calls it at the end of a turn, never while packets are parsed.
    """

    def __init__(self, config: Config, router: Router, authenticator: Authenticator, acl: Acl,
                 admission: Admission | None = None) -> None:
        self.router = router
        self.acl = acl
        self.handshake = Handshake(config, router, authenticator, admission, acl, self.on_end, self.fail)
        self.ends: Counter[str] = Counter()
        self.slow_turns = 0

    # Packets -------------------------------------------------------------------------------------------------------

    def on_packet(self, connection: Connection, first: int, body: bytes) -> bool:
        """Deal with a parked packet. Returns whether the connection may be parsed on at once."""
        try:
            if first == PacketType.CONNECT << 4:
                return self.handshake.on_connect(connection, body)
            packet = decode(first, body, connection.version)
            if isinstance(packet, Disconnect):
                return self._disconnect(connection, packet)
            if isinstance(packet, Auth):
                return self.handshake.on_auth(connection, packet)
            if isinstance(packet, Subscribe):
                return self._subscribe(connection, packet)
            assert isinstance(packet, Unsubscribe), packet
            return self._unsubscribe(connection, packet)
        except ClientError as error:
            self.fail(connection, error)
            return False

    def _subscribe(self, connection: Connection, packet: Subscribe) -> bool:
        session = connection.session
        identifier: int = packet.properties.get("subscription_identifier", 0)
        reasons = []
        backlog: deque[tuple[Any, int, int]] = deque()
        for subscription in packet.subscriptions:
            reason = self._refusal(connection, subscription)
            if reason is None:
                reason = Reason(subscription.qos)
                retained = self.router.subscribe(session, subscription.topic_filter, subscription.options, identifier)
                backlog.extend((message, subscription.qos, identifier) for message in retained)
            elif connection.version < 5:
                reason = Reason.UNSPECIFIED_ERROR       # 3.1.1 knows one failure, 0x80
            reasons.append(reason)
        suback = encode(Suback(packet.packet_identifier, tuple(reasons)), connection.version)

        def answer() -> None:
            if not connection.is_open:
                return
            connection.write_packet(suback)
            if backlog:
                if connection.backlog is None:
                    connection.backlog = backlog
                else:
                    connection.backlog.extend(backlog)
                self.send_backlog(connection)

        return self._answer(connection, answer)

    def _answer(self, connection: Connection, answer: Any) -> bool:
        """Let an answer leave now, or when the record of what it answers is durable."""
        if self.router.recording and connection.session.durable:
            def answer_and_go_on() -> None:
                answer()
                connection.unpark()

            self.router.effects.call(answer_and_go_on)
            return False
        answer()
        return True

    def _refusal(self, connection: Connection, subscription: Subscription) -> Reason | None:
        """Return why a subscription is refused, or None. Raises ClientError for what 3.x or 5.0 call an error."""
        topic_filter = subscription.topic_filter
        problem = check_topic_filter(topic_filter)
        shared = None
        if problem is None:
            try:
                shared = parse_shared(topic_filter)
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            if connection.version < 5:
                raise ClientError(Reason.TOPIC_FILTER_INVALID, "MQTT3-4.7.1-1", problem)
            return Reason.TOPIC_FILTER_INVALID
        if shared is not None:
            if subscription.no_local:
                raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.8.3-4", "No Local on a shared subscription")
            topic_filter = shared[1]
        if not self.acl.may_subscribe(connection.identity, topic_filter):
            return Reason.NOT_AUTHORIZED
        return None

    def send_backlog(self, connection: Connection) -> None:
        """Send retained messages as far as the output and the window allow; the rest goes on when there is room.

        A topic whose retained message changed since the SUBSCRIBE is passed over: the new one came live.
        """
        backlog = connection.backlog
        current = self.router.retained.message_of
        while backlog:
            message, qos, identifier = backlog[0]
            if not connection.can_take(min(qos, message.quality_of_service)):
                return
            backlog.popleft()
            if current(message.topic_name) is message:
                connection.send_retained(message, qos, identifier)
        connection.backlog = None

    def _unsubscribe(self, connection: Connection, packet: Unsubscribe) -> bool:
        session = connection.session
        reasons = []
        for topic_filter in packet.topic_filters:
            problem = check_topic_filter(topic_filter)
            if problem is None:
                removed = self.router.unsubscribe(session, topic_filter)
                reasons.append(Reason.SUCCESS if removed else Reason.NO_SUBSCRIPTION_EXISTED)
            elif connection.version < 5:
                raise ClientError(Reason.TOPIC_FILTER_INVALID, "MQTT3-4.7.1-1", problem)
            else:
                reasons.append(Reason.TOPIC_FILTER_INVALID)
        unsuback = encode(Unsuback(packet.packet_identifier, tuple(reasons)), connection.version)

        def answer() -> None:
            if connection.is_open:
                connection.write_packet(unsuback)

        return self._answer(connection, answer)

    def _disconnect(self, connection: Connection, packet: Disconnect) -> bool:
        session = connection.session
        if session is not None:
            expiry_s = packet.properties.get("session_expiry_interval")
            if expiry_s is not None:
                if session.expiry_interval_s == 0 and expiry_s != 0:
                    raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.2-23",
                                      "a session expiry interval at DISCONNECT after 0 at CONNECT")
                session.set_expiry_interval(min(expiry_s, self.handshake.config.mqtt.session_expiry_interval_max_s))
            # Without a will only after reason 0 [MQTT-3.14.4-3]; a 3.x DISCONNECT has no other.
            connection.publish_will = packet.reason != Reason.NORMAL_DISCONNECTION
        connection.close(disconnect_reason_to_close(packet.reason))
        return False

    # Ends ----------------------------------------------------------------------------------------------------------

    def fail(self, connection: Connection, error: ClientError) -> None:
        """End a connection by its client's fault: the reason code where the version has one, then the close."""
        log.info("client_error", client=client_of(connection), reason=error.close, clause=error.clause,
                 detail=error.detail)
        self._last_words(connection, error.reason, error.detail)
        connection.close(error.close)

    def _last_words(self, connection: Connection, reason: Reason, detail: str = "") -> None:
        if connection.is_closing:
            return
        if connection.is_open:
            if connection.version == 5:
                properties = {"reason_string": detail} if detail else {}
                packet = encode(Disconnect(reason, properties), 5)
                if len(packet) > connection.packet_bytes_max:
                    packet = encode(Disconnect(reason), 5)
                connection.write_packet(packet)
        elif connection.is_connecting:
            # A level that we do not speak is answered in the form that all levels up to 4 share (3.1.2.2).
            version = connection.version or (5 if connection.parked_body.startswith(LEVEL_5) else 4)
            connection.write_packet(encode_connack(version, False, reason, {}))

    def internal_error(self, connection: Connection, error: BaseException) -> None:
        """End a connection by our own fault; the traceback is in the log."""
        log.error("internal_error", client=client_of(connection), exc_info=error)
        self._last_words(connection, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        connection.close(CloseReason.INTERNAL_ERROR)

    def keep_alive_timeout(self, connection: Connection) -> None:
        """One and a half times the keep alive passed in silence [MQTT-3.1.2-22]."""
        self._last_words(connection, Reason.KEEP_ALIVE_TIMEOUT)
        connection.close(CloseReason.KEEP_ALIVE_TIMEOUT)

    def connect_timeout(self, connection: Connection) -> None:
        """No CONNECT, or no end of its authentication, in time."""
        connection.close(CloseReason.CONNECT_TIMEOUT)

    def shut_down(self, connection: Connection) -> None:
        """End a connection because the server ends."""
        self._last_words(connection, Reason.SERVER_SHUTTING_DOWN)
        connection.close(CloseReason.SERVER_SHUTDOWN)

    def on_end(self, connection: Connection) -> None:
        """A connection's end was decided: its session goes on without it. Called once or twice per connection."""
        if connection.ended:
            return
        connection.ended = True
        reason = connection.close_reason
        self.ends[reason] += 1
        if reason not in QUIET_ENDS:
            log.info("connection_ended", client=client_of(connection), reason=reason)
        session = connection.session
        self.handshake.forget(connection)
        if session is not None:
            connection.leave_session()
            self.router.detach_session(session, connection.publish_will)

    def slow_turn(self, phases: dict[str, int]) -> None:
        """A turn took longer than 10 ms."""
        self.slow_turns += 1
        log.warning("slow_turn", **phases)


def client_of(connection: Connection) -> str:
    """Return a client's identifier for the log, or the address of one that has none yet."""
    if connection.session is not None:
        identifier: bytes = connection.session.client_identifier
        return identifier.decode("utf-8", "replace")
    return connection.peer or "unknown"


