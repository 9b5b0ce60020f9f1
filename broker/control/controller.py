"""Control packets other than those of the message path, and how connections end: once per connection or rarer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import trio

from broker.auth.acl import FailClosed, Grant
from broker.control.connect import Handshake
from broker.control.connection_lines import ConnectionLines, client_of
from broker.control.pending_answers import PendingAnswers
from broker.control.presence import Presence
from broker.control.requests import Requests
from broker.control.retained_backlog import Backlog, HeldBacklogs
from broker.control.rights_questions import UNAVAILABLE, RightsQuestions
from broker.control.rights_review import RightsReview
from broker.control.slow_turns import SlowTurns
from broker.control.subscribe import Slices, Subscribing, Unsubscribing
from broker.control.tracing import Taps
from broker.logs import get
from broker.wire.packets import Connack, Disconnect, decode, decode_auth, decode_disconnect, encode_fitting
from broker.wire.properties import PacketType
from broker.wire.reasons import BY_CLIENT, UNHEARD, ClientError, CloseReason, Reason, disconnect_reason_to_close
from broker.wire.topic_limits import topic_problem, wildcard_problem
from router.core.receiver import NARROWED_OPTION, NO_LOCAL_BIT, QOS_BITS, RETAIN_AS_PUBLISHED_BIT, Receiver
from router.core.rights import Rights
from router.matching.topic_names import check_topic_filter, is_state_filter, parse_shared
from router.sessions.replay_subscription import REPLAY_PREFIX, ReplaySubscription, parse_replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.auth.acl import Acl
    from broker.auth.authenticator import Admission, Authenticator
    from broker.config.loader import Config
    from broker.control.openings import Opening
    from broker.reactor.connection import Connection
    from broker.reactor.replay_seam import ReplaySeam
    from broker.wire.packets import Subscription
    from router.router import Router
    from router.sessions.session import Session

log = get("connections")

SUBSCRIBE, UNSUBSCRIBE = 0x82, 0xA2  # first bytes

# Whoever comes to this port with another protocol is told in that protocol's words.
OTHER_PROTOCOLS = {
    # An alert record of TLS 1.0 (RFC 5246, 7.2): fatal, handshake_failure.
    CloseReason.TLS_ON_PLAIN_PORT: b"\x15\x03\x01\x00\x02\x02\x28",
    CloseReason.HTTP_ON_PLAIN_PORT: (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 59\r\n\r\n"
        b"This port speaks MQTT over plain TCP, not HTTP or WebSocket"
    ),
}

EXPLANATION_MAX = 300  # characters of why a subscription was refused


class ReplayError(Exception):
    """A subscription to stored messages is refused: the SUBACK's reason code, and the words for its Reason String."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class Controller:
    """What a worker does about CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and AUTH, and at the end of a connection.

    The hub calls it at the end of a turn, never while packets are parsed.

    Args:
        config: checked settings.
        router: the worker's.
        authenticator, acl, admission: seams of identity.
        on_room: is called when there is room again for a CONNECT that waits for the authenticator.
    """

    def __init__(
        self,
        config: Config,
        router: Router,
        authenticator: Authenticator,
        acl: Acl,
        admission: Admission | None = None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.mqtt = config.mqtt
        self.limits = config.limits
        self.router = router
        self.replays: ReplaySeam | None = None  # since replay_from(), where there is a log
        self.acl = acl = FailClosed(acl, explains=config.mqtt.explain_to_clients)
        self.presence = Presence()
        self.local: Callable[[], list[Receiver]] = list  # the receivers of in-process clients, since join_local()
        self.review = RightsReview(router, acl, self, lambda: self.local())
        self.taps = Taps(router)
        self.handshake = Handshake(
            config,
            router,
            authenticator,
            admission,
            acl,
            self.presence,
            self.on_end,
            self.fail,
            self.on_open,
            self.taps,
            on_room,
            self.review,
        )
        # Where answers of the ACL may have to be waited for.
        self.questions = RightsQuestions(acl, self.handshake, self.fail) if acl.waits else None
        self.lines = ConnectionLines(config)
        self.ends: Counter[str] = Counter()
        self.refused_subscriptions: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()  # ends of connections whose CONNECT was never accepted
        self.slow_turns = SlowTurns()
        self.answers = PendingAnswers(router)  # SUBACK and UNSUBACK that wait for the log and for the peers
        self.awaiting_links: Counter[Connection] = Counter()  # how many SUBSCRIBE of it wait for links
        self.held = HeldBacklogs()
        self.requests = Requests(self.handshake.rules)
        self._errors: dict[Connection, ClientError] = {}  # of connections whose end is under way

    def join_mesh(self, mesh: Any) -> None:
        """From now on a SUBACK waits for the peers, too."""
        self.answers.join_mesh(mesh)

    def join_local(self, receivers: Callable[[], list[Receiver]]) -> None:
        """From now on there are in-process clients, whose rights may change."""
        self.local = receivers

    def judge_all(self, secret: int) -> None:
        """Ask for rights from now on, and judge what recovery has brought back: they may have changed meanwhile.

        Args:
            secret: 64 bits that no client knows.
        """
        if self.acl.allows_all:
            return
        self.router.tree.ask(Rights(self.acl.may_read, secret))
        self.review.begin()
        while self.review.go_on():
            pass

    def limit_recovered(self) -> None:
        """Hold the sessions that recovery has brought back to what their clients may have, as whom they were."""
        rules = self.handshake.limit_rules
        if not rules.are_all_usual:
            for session in self.router.sessions.values():
                session.limit(rules.of(self.review.principal_of(session)).session)

    async def run(self, wake: Callable[[], None]) -> None:
        """Judge what has to be judged anew, and ask about what is not known, until cancelled.

        Args:
            wake: has the reactor turn.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.review.run, wake)
            if self.questions is not None:
                nursery.start_soon(self.review.ask)
                nursery.start_soon(self.questions.run, self.handshake.new_salt)

    def change(self, config: Config) -> None:
        """Go by other settings from now on; they differ as broker.config.live lets them."""
        self.mqtt, self.limits = config.mqtt, config.limits
        self.acl.explains = config.mqtt.explain_to_clients
        self.lines = ConnectionLines(config)
        self.handshake.change(config)

    def replay_from(self, replays: ReplaySeam) -> None:
        """From now on clients may subscribe to what is stored."""
        self.replays = replays

    # Packets -------------------------------------------------------------------------------------------------------

    def on_packet(self, connection: Connection, first: int, body: bytes) -> bool:
        """Deal with a parked packet. Returns whether the connection may be parsed on at once."""
        try:
            if first == PacketType.CONNECT << 4:
                return self.handshake.on_connect(connection, body)
            if first == SUBSCRIBE:
                return self._begin(connection, Subscribing(self, connection, body))
            if first >> 4 == PacketType.PUBLISH:
                self.requests.begin(connection, first, body)
                return False
            if first == UNSUBSCRIBE:
                return self._begin(connection, Unsubscribing(self, connection, body))
            if first == PacketType.DISCONNECT << 4:
                return self._disconnect(connection, decode_disconnect(body, connection.version, user_properties=False))
            if first == PacketType.AUTH << 4:
                return self.handshake.on_auth(connection, decode_auth(body, connection.version, user_properties=False))
            if first >> 4 == 0 and self.questions is not None:  # no packet: may it publish?
                return self.questions.on_publish(connection, first, body)
            raise AssertionError(decode(first, body, connection.version))  # it has another first byte, or raises
        except ClientError as error:
            self.fail(connection, error)
            return False

    def _begin(self, connection: Connection, slices: Slices) -> bool:
        """Do the first slice of a control packet. Returns whether the connection may be parsed on at once."""
        if slices.go_on(False):
            return slices.finish()
        connection.slices = slices
        if not slices.waits:
            connection.go_on_later()
        return False

    def _go_on(self, connection: Connection, slices: Slices, busy: bool) -> None:
        """Do the next slice of a control packet, and answer it after the last."""
        try:
            if not slices.go_on(busy):
                if not slices.waits:
                    connection.go_on_later()
                return
            connection.slices = None
            if slices.finish():
                connection.unpark()
        except ClientError as error:
            self.fail(connection, error)

    def options_of(self, connection: Connection, subscription: Subscription, qos: int) -> int:
        """Return the Subscription Options byte in force (3.8.3.1): at most the QoS that is available.

        To a bridge, messages go as they were published and never back; before 5.0 it cannot ask for it.
        """
        options: int = subscription.options & ~QOS_BITS | qos
        if connection.bridge:
            options |= RETAIN_AS_PUBLISHED_BIT
            if not subscription.topic_filter.startswith(b"$share/"):
                options |= NO_LOCAL_BIT
        return options

    def judge(self, connection: Connection, subscription: Subscription) -> tuple[Reason | None, int, str]:
        """Return why a subscription is refused, in a code and for its client in words, or None; and NARROWED or 0.

        Raises ClientError for what 3.x or 5.0 call an error.
        """
        reason = self._refusal(connection, subscription)
        if reason is not None:
            return reason, 0, ""
        asked = subscription.topic_filter
        if self.questions is not None and self.questions.is_unavailable(connection, asked, subscription.qos):
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR, 0, UNAVAILABLE
        grant = self.acl.may_subscribe(connection.principal, asked, subscription.qos)
        if grant == Grant.REFUSED:
            return Reason.NOT_AUTHORIZED, 0, self._explained(connection, asked, subscription.qos)
        return None, NARROWED_OPTION if grant == Grant.NARROWED else 0, ""

    def _explained(self, connection: Connection, topic_filter: bytes, qos: int) -> str:
        """Return for its client what decided against a subscription; "" unless the settings say that it may know."""
        if not self.acl.explains:
            return ""
        return self.acl.explain(connection.principal, "subscribe", topic_filter, qos, False).by[:EXPLANATION_MAX]

    def _refusal(self, connection: Connection, subscription: Subscription) -> Reason | None:
        topic_filter = subscription.topic_filter
        if topic_problem(topic_filter, self.limits.topic_levels_max, self.limits.topic_bytes_max) is not None:
            return Reason.TOPIC_FILTER_INVALID
        problem = check_topic_filter(topic_filter)
        shared = None
        if problem is None:
            try:
                shared = parse_shared(topic_filter)
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            if connection.version < 5:
                raise ClientError(Reason.TOPIC_FILTER_INVALID, "section 4.7", problem)
            return Reason.TOPIC_FILTER_INVALID
        if shared is not None:
            if subscription.no_local:
                raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.8.3-4", "No Local on a shared subscription")
            topic_filter = shared[1]
            if not self.mqtt.shared_subscriptions_available:
                return self._unavailable(connection, Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)
        if wildcard_problem(topic_filter, self.limits.wildcard_levels_max) is not None:
            return Reason.TOPIC_FILTER_INVALID
        if not self.mqtt.wildcard_subscriptions_available and (b"+" in topic_filter or b"#" in topic_filter):
            return self._unavailable(connection, Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)
        if is_state_filter(topic_filter):
            return Reason.NOT_AUTHORIZED  # the broker's own, and no client's business
        if topic_filter.startswith(REPLAY_PREFIX):
            return Reason.TOPIC_FILTER_INVALID  # within $share: everybody has a place of their own in the past
        if self._is_full(connection.session) and not self.router.tree.has(
            connection.session, subscription.topic_filter
        ):
            return Reason.QUOTA_EXCEEDED
        if not self.router.accepting and connection.session.durable:
            return Reason.QUOTA_EXCEEDED  # it could not be kept
        return None

    def _is_full(self, session: Session) -> bool:
        count: int = session.entry_count + len(session.replays or ())
        return count >= self._subscriptions_max(session)

    def _subscriptions_max(self, session: Session) -> int:
        return session.limits.subscriptions_max or self.limits.subscriptions_per_client_max

    def replay_of(
        self, connection: Connection, subscription: Subscription
    ) -> tuple[Reason | None, ReplaySubscription | None, str]:
        """Return why a subscription to stored messages is refused, in a code and in words, or else what it asks for."""
        try:
            return None, self._replay_asked(connection, subscription), ""
        except ReplayError as error:
            why = str(error)[:EXPLANATION_MAX]
            log.info(
                "replay_refused",
                client=client_of(connection),
                topic_filter=subscription.topic_filter,
                reason=error.reason.name.lower(),
                detail=why,
            )
            return error.reason, None, why

    def _replay_asked(self, connection: Connection, subscription: Subscription) -> ReplaySubscription:
        session, topic_filter = connection.session, subscription.topic_filter
        problem = topic_problem(topic_filter, self.limits.topic_levels_max, self.limits.topic_bytes_max)
        if problem is not None:
            raise ReplayError(Reason.TOPIC_FILTER_INVALID, problem)
        if self.replays is None:
            raise ReplayError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "nothing is stored here: the broker keeps no log")
        if not self._may_replay(connection):
            raise ReplayError(Reason.NOT_AUTHORIZED, "replay.allow_anonymous is false, and the client has no user name")
        try:
            asked = parse_replay(topic_filter, self.router.ledger.now_us)
        except ValueError as error:
            raise ReplayError(Reason.TOPIC_FILTER_INVALID, str(error)) from None
        if not self.mqtt.wildcard_subscriptions_available and (
            b"+" in asked.inner_filter or b"#" in asked.inner_filter
        ):
            reason = self._unavailable(connection, Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)
            raise ReplayError(reason, "no wildcards are available")
        if self._is_full(session) and topic_filter not in (session.replays or {}):
            raise ReplayError(
                Reason.QUOTA_EXCEEDED, f"a client may have {self._subscriptions_max(session)} subscriptions"
            )
        if self.questions is not None and self.questions.is_unavailable(connection, topic_filter, subscription.qos):
            raise ReplayError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, UNAVAILABLE)
        grant = (
            Grant.REFUSED
            if is_state_filter(asked.inner_filter)
            else self.acl.may_subscribe(connection.principal, topic_filter, subscription.qos)
        )
        if grant == Grant.REFUSED:
            raise ReplayError(
                Reason.NOT_AUTHORIZED,
                self._explained(connection, topic_filter, subscription.qos)
                or "the client may not subscribe to the topic filter",
            )
        asked.options = NARROWED_OPTION if grant == Grant.NARROWED else 0
        return asked

    def end_subscription(self, receiver: Receiver, topic_filter: bytes) -> None:
        """End a subscription that its client may not have any more, and what it was yet to get."""
        self.router.unsubscribe(receiver, topic_filter)
        connection = getattr(receiver, "connection", None)
        if connection is not None:
            self.forget_asked(connection, topic_filter)

    def forget_asked(self, connection: Connection, topic_filter: bytes) -> None:
        """A subscription has ended: what it was yet to get is not sent any more."""
        self.held.end(connection, topic_filter)
        if self.replays is not None and topic_filter.startswith(REPLAY_PREFIX):
            self.replays.stop(connection.session, topic_filter)
        if connection.backlog is not None:
            connection.backlog.drop(topic_filter)

    def _may_replay(self, connection: Connection) -> bool:
        return connection.principal.user_name is not None or self.handshake.config.replay.allow_anonymous

    def on_open(self, opening: Opening) -> None:
        """A client has its CONNACK."""
        self.lines.connected(opening.connection, opening.keep_alive_s, opening.present)
        self.resume_replays(opening.connection)

    def resume_replays(self, connection: Connection) -> None:
        """A client is back: what its session replays goes on."""
        if connection.session.replays and self.replays is not None and self._may_replay(connection):
            self.replays.resume(connection)

    def _unavailable(self, connection: Connection, reason: Reason) -> Reason:
        """Return a SUBACK's reason for what the settings exclude; a 5.0 client was told in its CONNACK, and ends."""
        if connection.version == 5:
            raise ClientError(reason, "section 3.2.2.3", "a subscription of a kind that is not available")
        return reason

    def send_backlog(self, connection: Connection) -> None:
        """Send retained messages as far as the output and the window allow; the rest goes on when there is room.

        A topic whose retained message changed since the SUBSCRIBE is passed over: the new one came live. What is still
        to be read from the disk is read when the connection's turn for that has come: read_on().
        """
        backlog: Backlog = connection.backlog
        while (waiting := backlog.next()) is not None:
            message, qos, identifier, scan = waiting
            if not connection.can_take(min(qos, message.quality_of_service)):
                return
            backlog.take()
            if backlog.is_current(message, scan):
                connection.send_retained(message, qos, identifier)
        if backlog:
            connection.go_on_later()
        else:
            connection.backlog = None

    def read_on(self, connection: Connection, busy: bool) -> None:
        """Do the next slice for a connection: of a control packet, of the retained messages to be read from the disk.

        Called a few times a turn. A connection that takes nothing now has this called again after it has taken
        something.

        Args:
            busy: messages are published: only a few, so that those do not wait.
        """
        if connection.slices is not None:
            self._go_on(connection, connection.slices, busy)
        backlog: Backlog | None = connection.backlog
        if backlog is None or not connection.can_take(0):
            return
        if not backlog.pending and backlog.scans:
            backlog.read_on(busy)
        self.send_backlog(connection)

    def _disconnect(self, connection: Connection, packet: Disconnect) -> bool:
        session = connection.session
        if session is not None:
            expiry_s = packet.properties.get("session_expiry_interval")
            if expiry_s is not None:
                if session.expiry_interval_s == 0 and expiry_s != 0:
                    raise ClientError(
                        Reason.PROTOCOL_ERROR,
                        "section 3.14.2.2.2",
                        "a session expiry interval at DISCONNECT after 0 at CONNECT",
                    )
                expiry_s = min(expiry_s, self.handshake.config.mqtt.session_expiry_interval_max_s)
                if expiry_s:
                    self.router.set_expiry_interval(session, expiry_s)
                else:
                    session.end_with_connection()
            # Without a will only after reason 0 [MQTT-3.14.4-3]; a 3.x DISCONNECT has no other.
            connection.publish_will = packet.reason != Reason.NORMAL_DISCONNECTION
        connection.close(disconnect_reason_to_close(packet.reason))
        return False

    # Ends ----------------------------------------------------------------------------------------------------------

    def fail(self, connection: Connection, error: ClientError) -> None:
        """End a connection by its client's fault: the reason code where the version has one, then the close."""
        if not connection.is_closing:
            self._errors[connection] = error
        if error.close in OTHER_PROTOCOLS:
            connection.write_foreign(OTHER_PROTOCOLS[error.close])
        else:
            self._last_words(connection, error.reason, error.detail)
        connection.close(error.close)

    def _last_words(
        self, connection: Connection, reason: Reason, detail: str = "", server_reference: str | None = None
    ) -> None:
        if connection.is_closing:
            return
        if connection.is_open:
            if connection.version == 5:
                properties = {"reason_string": detail} if detail else {}
                if server_reference is not None:
                    properties["server_reference"] = server_reference
                connection.write_packet(encode_fitting(Disconnect(reason, properties), 5, connection.packet_bytes_max))
        elif connection.is_connecting:
            version = connection.version or _answering_version(connection.parked_body)
            if version < 5 and not connection.version and reason != Reason.UNSUPPORTED_PROTOCOL_VERSION:
                return  # a CONNECT that does not conform has no CONNACK [MQTT3-3.1.4-1]
            connection.write_packet(
                encode_fitting(
                    Connack(False, reason, {} if server_reference is None else {"server_reference": server_reference}),
                    version,
                    connection.packet_bytes_max,
                )
            )

    def internal_error(self, connection: Connection, error: BaseException) -> None:
        """End a connection by our own fault; the traceback is in the log."""
        log.error("internal_error", client=client_of(connection), exc_info=error)
        self._last_words(connection, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        connection.close(CloseReason.INTERNAL_ERROR)

    def filter_failed(self, connection: Connection, error: BaseException) -> None:
        """End a connection whose filter between socket and protocol has raised; the traceback is in the log."""
        log.error("filter_failed", client=client_of(connection), exc_info=error)
        connection.close(CloseReason.FILTER_FAILED)

    def keep_alive_timeout(self, connection: Connection) -> None:
        """One and a half times the keep alive passed in silence [MQTT-3.1.2-22]."""
        self._last_words(connection, Reason.KEEP_ALIVE_TIMEOUT)
        connection.close(CloseReason.KEEP_ALIVE_TIMEOUT)

    def look_at_expiry(self, connection: Connection) -> None:
        """End a connection whose authentication has ended; look again later if it has not."""
        if self.handshake.expiry.has_come(connection):
            self._last_words(connection, Reason.NOT_AUTHORIZED, "the authentication has ended")
            connection.close(CloseReason.AUTHENTICATION_EXPIRED)

    def packet_timeout(self, connection: Connection) -> None:
        """A packet was begun and is not whole after `packet_timeout_s`."""
        self._last_words(connection, Reason.KEEP_ALIVE_TIMEOUT, "a packet was not finished in time")
        connection.close(CloseReason.PACKET_TIMEOUT)

    def connect_timeout(self, connection: Connection) -> None:
        """No CONNECT, no answer to a challenge, or no decision, in time."""
        if not self.handshake.refuse_late(connection):
            connection.close(CloseReason.CONNECT_TIMEOUT)

    def shut_down(self, connection: Connection, server_reference: str | None = None) -> None:
        """End a connection because the server ends; one that another worker serves is ended by that.

        Args:
            server_reference: another server that its client may use.
        """
        if connection.is_relayed:
            return
        if server_reference is not None:
            self._last_words(connection, Reason.USE_ANOTHER_SERVER, server_reference=server_reference)
            connection.close(CloseReason.REDIRECTED)
            return
        # A CONNACK knows no "shutting down" [MQTT-3.2.2-8].
        self._last_words(connection, Reason.SERVER_SHUTTING_DOWN if connection.is_open else Reason.SERVER_UNAVAILABLE)
        connection.close(CloseReason.SERVER_SHUTDOWN)

    def holders(self) -> list[tuple[Session, Connection]]:
        """Return the sessions that have a connection, open or not yet, and that."""
        found = [(session, self.handshake.holder_of(session)) for session in self.router.sessions.values()]
        return [(session, connection) for session, connection in found if connection is not None]

    def send_away(self, session: Session, with_session: bool) -> bool:
        """End a client's connection because an administrator says so; its will, if it has one, is published.

        Args:
            with_session: its session ends too, with the connection or without one.

        Returns whether it has a connection.
        """
        connection = self.handshake.holder_of(session)
        if connection is None:
            if with_session:
                self.router.end_session(session)
            return False
        if with_session:
            session.end_with_connection()
        # A CONNACK knows no "administrative action" [MQTT-3.2.2-8].
        self._last_words(connection, Reason.ADMINISTRATIVE_ACTION if connection.is_open else Reason.SERVER_UNAVAILABLE)
        connection.close(CloseReason.KICKED)
        return True

    def on_end(self, connection: Connection) -> None:
        """A connection's end was decided: its session goes on without it. Called once or twice per connection."""
        if not connection.take_end():
            return
        reason = connection.close_reason
        self.ends[reason] += 1
        self.lines.ended(connection, self._errors.pop(connection, None), self.router.ledger.now_ms)
        if connection.tap is not None:
            self.taps.ended(connection)
        session = connection.session
        if session is not None and self.presence.watches:
            self.presence.ended(connection)
        if session is None and reason not in BY_CLIENT:
            self.refused[reason] += 1
        self.handshake.forget(connection)
        if self.questions is not None:
            self.questions.forget(connection)
        if session is not None:
            self.handshake.give_place(connection)
            if session.replays and self.replays is not None:
                self.replays.pause(session)
            connection.leave_session()
            disconnected = reason in UNHEARD and connection.has_disconnected()
            ends_here = reason != CloseReason.SERVER_SHUTDOWN or disconnected
            if ends_here or not self.router.suspend_session(session):
                # Who is sent to another server lives on there.
                publish_will = connection.publish_will and not disconnected and reason != CloseReason.REDIRECTED
                self.router.detach_session(session, publish_will)
            self.handshake.session_limit.tell()

    def slow_turn(self, phases: dict[str, int]) -> None:
        """A turn took 10 ms or more."""
        self.slow_turns.add(phases, self.router.ledger.now_ms)


def _answering_version(connect_body: bytes) -> int:
    """Return the version whose CONNACK answers a CONNECT that could not be decoded, from its first bytes.

    Levels of MQTT above 5 are answered in 5.0's form, which their clients can be expected to know; any other in the
    form that all levels up to 4 share (3.1.2.2).
    """
    return 5 if connect_body[:6] == b"\0\x04MQTT" and b"\x05" <= connect_body[6:7] < b"\x80" else 4
