"""A SUBSCRIBE or an UNSUBSCRIBE under way: done in slices, for others are served between them, and answered once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.control.retained_backlog import Backlog, HeldBacklogs
from broker.wire.packet_parts import decode_head, decode_options, encode_codes, take_subscription, take_topic_filter
from broker.wire.packets import Suback, Subscription, encode
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError, Reason
from broker.wire.topic_filters import FilterList
from router.matching.topic_names import check_topic_filter
from router.sessions.replay_subscription import REPLAY_PREFIX, ReplaySubscription, remember

if TYPE_CHECKING:
    from collections import Counter

    from broker.auth.acl import FailClosed
    from broker.config.loader import Mqtt
    from broker.control.pending_answers import PendingAnswers
    from broker.control.rights_questions import RightsQuestions
    from broker.reactor.connection import Connection
    from broker.reactor.replay_seam import ReplaySeam
    from router.retained.link_waits import Ids
    from router.router import Router
    from router.sessions.session import Session

SLICE_FILTERS = 32  # some 0.3 ms
SLICE_FILTERS_BUSY = 8  # ... while messages are published, which wait for it
SLICE_LEVELS = 512  # of topic filters: each may be a place in the tree, at a microsecond
SLICE_BYTES = 65_536
SLICE_RETAINED = 2_048  # retained messages found in memory
EXPLANATIONS_MAX = 8  # in one Reason String
KEEP_EXISTING = 0x10  # Retain Handling 1: only if the subscription is new
RETAIN_HANDLING_BITS = 0x30


class Subscriptions(Protocol):
    """What these packets need of the worker's broker.control.controller.Controller, which says it of each."""

    mqtt: Mqtt
    acl: FailClosed
    router: Router
    replays: ReplaySeam | None
    answers: PendingAnswers
    refused_subscriptions: Counter[str]
    awaiting_links: Counter[Connection]
    held: HeldBacklogs
    questions: RightsQuestions | None

    def judge(self, connection: Connection, subscription: Subscription) -> tuple[Reason | None, int, str]:
        """Return why a subscription is refused, in a code and for its client in words, or None; and NARROWED or 0.

        Raises ClientError for what 3.x or 5.0 call an error.
        """

    def replay_of(
        self, connection: Connection, subscription: Subscription
    ) -> tuple[Reason | None, ReplaySubscription | None, str]:
        """Return why a subscription to stored messages is refused, or else what it asks for."""

    def options_of(self, connection: Connection, subscription: Subscription, qos: int) -> int:
        """Return the Subscription Options byte in force (3.8.3.1)."""

    def forget_asked(self, connection: Connection, topic_filter: bytes) -> None:
        """A subscription has ended: what it was yet to get is not sent any more."""

    def send_backlog(self, connection: Connection) -> None:
        """Send retained messages as far as the output and the window allow."""


class Slices(Protocol):
    """A control packet that takes several turns.

    Attributes:
        waits: for an answer; it goes on by itself when that is there.
    """

    waits: bool

    def go_on(self, busy: bool) -> bool:
        """Do a slice of it, a short one if busy. Returns whether that was the last."""

    def finish(self) -> bool:
        """Answer it, or see to that. Returns whether the connection may be parsed on at once."""


def _filters_of(packet_type: PacketType, body: bytes, position: int, version: int) -> FilterList:
    """Return what a packet has behind its properties. Raises ClientError for what is wrong anywhere in it."""
    is_subscribe = packet_type == PacketType.SUBSCRIBE
    filters = FilterList(body, position, is_subscribe, version)
    if filters.wrong_at >= 0:
        take = (
            take_subscription(body, filters.wrong_at, version)
            if is_subscribe
            else take_topic_filter(body, filters.wrong_at)
        )
        raise AssertionError(take)  # it is well-formed after all
    if filters.count == 0:
        raise ClientError(
            Reason.PROTOCOL_ERROR,
            "MQTT-3.8.3-2" if is_subscribe else "MQTT-3.10.3-2",
            f"{'a SUBSCRIBE' if is_subscribe else 'an UNSUBSCRIBE'} without a topic filter",
        )
    return filters


class Subscribing:
    """A SUBSCRIBE. Nothing of it is done before all of it is known to be well-formed."""

    __slots__ = (
        "_asked",
        "_backlog",
        "_codes",
        "_connection",
        "_controller",
        "_explanations",
        "_filters",
        "_held",
        "_identifier",
        "_in_use",
        "_next",
        "_packet_identifier",
        "_replays",
        "_session",
        "waits",
    )  # fmt: skip

    def __init__(self, controller: Subscriptions, connection: Connection, body: bytes) -> None:
        self._controller, self._connection = controller, connection
        self._session: Session = connection.session
        self._packet_identifier, properties, position = decode_head(
            body, connection.version, PacketType.SUBSCRIBE, user_properties=False
        )
        self._identifier: int = properties.get("subscription_identifier", 0)
        self._filters = _filters_of(PacketType.SUBSCRIBE, body, position, connection.version)
        if self._identifier and not controller.mqtt.subscription_identifiers_available:
            raise ClientError(
                Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
                "section 3.2.2.3.12",
                "a Subscription Identifier, and none are available",
            )
        self._codes = bytearray()
        self._explanations: list[str] = []  # why some were refused
        self._asked: set[bytes] = set()  # topic filters that have asked for what is retained
        self._backlog = Backlog(controller.router, self._session)
        self._held: list[tuple[bytes, bool]] = []
        self._replays: list[ReplaySubscription] = []
        self._in_use = self._session.has_incoming(self._packet_identifier)
        self._next: Subscription | None = None  # of which the answer is waited for
        self.waits = False

    def go_on(self, busy: bool) -> bool:
        """Subscribe to the next ones. Returns whether these were the last."""
        if self.waits:
            return False  # it was what else the connection has to do that had its turn
        if self._next is not None:
            self._codes.append(self._one(self._next))
            self._next = None
        filters, version, mount_point = self._filters, self._connection.version, self._connection.mount_point
        left = SLICE_FILTERS_BUSY if busy else SLICE_FILTERS
        levels_left, bytes_left, waiting_max = SLICE_LEVELS, SLICE_BYTES, self._backlog.pending + SLICE_RETAINED
        while not filters.done:
            if left <= 0 or levels_left <= 0 or bytes_left <= 0 or self._backlog.pending >= waiting_max:
                return False
            topic_filter, options = filters.next()
            if mount_point is not None:
                topic_filter = mount_point.mounted_filter(topic_filter)
            left -= 1
            levels_left -= topic_filter.count(b"/")
            bytes_left -= len(topic_filter)
            subscription = decode_options(topic_filter, options, version)
            if self._asks(subscription):
                return False
            self._codes.append(self._one(subscription))
        return True

    def _asks(self, subscription: Subscription) -> bool:
        """Return whether it has to be found out first what the client may read."""
        questions, topic_filter = self._controller.questions, subscription.topic_filter
        if questions is None or check_topic_filter(topic_filter) is not None:
            return False
        self.waits = questions.asks(self._connection, topic_filter, subscription.qos, self._answered)
        if self.waits:
            self._next = subscription
        return self.waits

    def _answered(self) -> None:
        self.waits = False
        self._connection.go_on_later()

    def _one(self, subscription: Subscription) -> int:
        """Subscribe to one topic filter, or refuse it. Returns the reason code of the SUBACK."""
        controller, connection, topic_filter = self._controller, self._connection, subscription.topic_filter
        asked: ReplaySubscription | None = None
        narrowed, why = 0, ""
        if self._in_use:
            reason: Reason | None = Reason.PACKET_IDENTIFIER_IN_USE
        elif topic_filter.startswith(REPLAY_PREFIX):
            reason, asked, why = controller.replay_of(connection, subscription)
        else:
            reason, narrowed, why = controller.judge(connection, subscription)
            if (
                reason is None
                and subscription.retain_handling != 2
                and (self._backlog.is_full or (connection.backlog is not None and connection.backlog.is_full))
            ):
                reason = Reason.QUOTA_EXCEEDED  # it takes none of the retained messages that it has asked for
        if why and len(self._explanations) < EXPLANATIONS_MAX:
            self._explanations.append(why)
        if asked is not None:
            return self._replay(subscription, asked)
        if reason is None:
            return self._subscribe(subscription, narrowed)
        controller.refused_subscriptions[reason.name.lower()] += 1
        if connection.version == 4:
            return int(Reason.UNSPECIFIED_ERROR)  # 3.1.1 knows one failure, 0x80
        if connection.version == 3:
            return subscription.qos  # 3.1 knows none: what was asked for is said
        return int(reason)

    def _subscribe(self, subscription: Subscription, narrowed: int) -> int:
        controller, connection, topic_filter = self._controller, self._connection, subscription.topic_filter
        qos: int = min(subscription.qos, self._connection.maximum_qos)
        options = controller.options_of(connection, subscription, qos) | narrowed
        again = topic_filter in self._asked
        retained = controller.router.subscribe(
            self._session, topic_filter, options, self._identifier, asks_retained=not again
        )
        if again:
            self._backlog.grade(topic_filter, qos, self._identifier)
        else:
            self._asked.add(topic_filter)
            self._backlog.add(topic_filter, retained, qos, self._identifier)
        return qos

    def _replay(self, subscription: Subscription, asked: ReplaySubscription) -> int:
        controller, session = self._controller, self._session
        qos: int = min(subscription.qos, self._connection.maximum_qos, 1)
        asked.options |= controller.options_of(self._connection, subscription, qos)  # beside NARROWED
        asked.identifier = self._identifier
        existing = (session.replays or {}).get(asked.topic_filter)
        if existing is not None and asked.options & RETAIN_HANDLING_BITS == KEEP_EXISTING:
            asked.numbers, asked.since_us = existing.numbers, existing.since_us
        remember(controller.router, session, asked)
        self._replays.append(asked)
        return qos

    def finish(self) -> bool:
        """Have the SUBACK leave, and behind it what is retained."""
        return self._controller.answers.suback(self._connection, self._answer)

    def _answer(self) -> None:
        controller, connection, backlog = self._controller, self._connection, self._backlog
        if not connection.is_open:
            return
        suback = encode_codes(0x90, self._packet_identifier, bytes(self._codes), connection.version)
        if self._explanations and connection.version == 5 and not connection.unexplained:
            explained = encode(
                Suback(
                    self._packet_identifier,
                    tuple(map(Reason, self._codes)),
                    {"reason_string": "; ".join(self._explanations)},
                ),
                5,
            )
            suback = explained if len(explained) <= connection.packet_bytes_max else suback  # [MQTT-3.9.2-1]
        connection.write_packet(suback)
        for replay in self._replays:
            if self._session.replays.get(replay.topic_filter) is replay and controller.replays is not None:
                controller.replays.start(connection, replay)
        self._drop_what_ended()
        backlog.begin()
        self._held = controller.held.hold(connection, backlog)
        router = controller.router
        if backlog.is_standing or (backlog and connection in controller.awaiting_links):
            # In the order in which they were asked: the last one counts of a topic filter that asked more than once.
            controller.awaiting_links[connection] += 1
            router.retaining.when_brought(router.effects, self._when_brought)
        elif backlog and router.retaining.is_early:
            controller.awaiting_links[connection] += 1
            router.retaining.when_sure(router.effects, self._when_sure)
        else:
            self._send_behind_records()

    def _when_sure(self) -> None:
        self._when_brought(None)

    def _when_brought(self, reached: Ids | None) -> None:
        waiting = self._controller.awaiting_links
        waiting[self._connection] -= 1
        if not waiting[self._connection]:
            del waiting[self._connection]
        if self._connection.is_open:
            self._drop_what_ended()
            if reached is not None:
                self._backlog.begin_standing(reached)
            self._backlog.look()
            self._send_behind_records()
        else:
            self._controller.held.release(self._connection, self._backlog, self._held)

    def _send_behind_records(self) -> None:
        """Have what is retained sent behind what is on its way to the client at this moment."""
        router = self._controller.router
        is_behind = router.recording and router.ledger.durable < router.last_record
        if self._backlog and (is_behind or (router.retaining.is_shared and len(router.effects))):
            # What is retained may be younger than what a crash leaves, and then it would go back. And a link may have
            # brought it already, and what was there before it, and all of that waits for our records.
            router.effects.call(self._send_begun)
        else:
            self._send_begun()

    def _send_begun(self) -> None:
        controller, connection, backlog = self._controller, self._connection, self._backlog
        controller.held.release(connection, backlog, self._held)
        if not connection.is_open:
            return
        self._drop_what_ended()
        if not backlog:
            return
        if connection.backlog is None:
            connection.backlog = backlog
        else:
            connection.backlog.join(backlog)
        controller.send_backlog(connection)

    def _drop_what_ended(self) -> None:
        for topic_filter in self._asked:
            if not self._controller.router.tree.has(self._session, topic_filter):
                self._backlog.drop(topic_filter)  # it has ended meanwhile


class Unsubscribing:
    """An UNSUBSCRIBE."""

    waits = False

    __slots__ = ("_codes", "_connection", "_controller", "_filters", "_in_use", "_packet_identifier", "_session")

    def __init__(self, controller: Subscriptions, connection: Connection, body: bytes) -> None:
        self._controller, self._connection = controller, connection
        self._session: Session = connection.session
        self._packet_identifier, _, position = decode_head(
            body, connection.version, PacketType.UNSUBSCRIBE, user_properties=False
        )
        self._filters = _filters_of(PacketType.UNSUBSCRIBE, body, position, connection.version)
        self._codes = bytearray()
        self._in_use = self._session.has_incoming(self._packet_identifier)

    def go_on(self, busy: bool) -> bool:
        """End the next subscriptions. Returns whether these were the last."""
        filters, mount_point = self._filters, self._connection.mount_point
        left, levels_left, bytes_left = SLICE_FILTERS_BUSY if busy else SLICE_FILTERS, SLICE_LEVELS, SLICE_BYTES
        while not filters.done:
            if left <= 0 or levels_left <= 0 or bytes_left <= 0:
                return False
            topic_filter, _ = filters.next()
            if mount_point is not None:
                topic_filter = mount_point.mounted_filter(topic_filter)
            left -= 1
            levels_left -= topic_filter.count(b"/")
            bytes_left -= len(topic_filter)
            self._codes.append(self._one(topic_filter))
        return True

    def _one(self, topic_filter: bytes) -> int:
        """End one subscription. Returns the reason code of the UNSUBACK."""
        controller, connection, session = self._controller, self._connection, self._session
        # A start may be a time with a time zone, like +01:00.
        is_replay = topic_filter.startswith(REPLAY_PREFIX)
        problem = None if is_replay else check_topic_filter(topic_filter)
        if self._in_use:
            return int(Reason.PACKET_IDENTIFIER_IN_USE)
        if problem is not None:
            if connection.version < 5:
                raise ClientError(Reason.TOPIC_FILTER_INVALID, "section 4.7", problem)
            return int(Reason.TOPIC_FILTER_INVALID)
        if not controller.acl.may_unsubscribe(connection.principal, topic_filter):
            return int(Reason.NOT_AUTHORIZED)  # before 5.0 nothing tells the client
        removed = controller.router.unsubscribe(session, topic_filter)
        controller.forget_asked(connection, topic_filter)
        return int(Reason.SUCCESS if removed else Reason.NO_SUBSCRIPTION_EXISTED)

    def finish(self) -> bool:
        """Have the UNSUBACK leave."""
        return self._controller.answers.unsuback(self._connection, self._answer)

    def _answer(self) -> None:
        connection = self._connection
        if connection.is_open:
            codes = bytes(self._codes) if connection.version == 5 else b""
            connection.write_packet(encode_codes(0xB0, self._packet_identifier, codes, connection.version))
