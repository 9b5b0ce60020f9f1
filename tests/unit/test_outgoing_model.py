"""What one session is owed, against a model: quota, queue, resending, limits, acknowledgements.

The session is driven as a client drives it: bytes through a connection without a socket. After every step the client
must have got exactly the packets that the model says, in that order, and the session must hold what the model holds.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config, Mqtt
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.worker.terms import terms
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.outgoing_model import (
    FILLING,
    INFLIGHT_MAX,
    PACKET_IDENTIFIERS,
    QUEUE_BYTES_MAX,
    QUEUE_MESSAGES_MAX,
    SMALL_PACKET,
    TOPICS,
    Client,
    Delivery,
    Model,
)

# topic name, QoS, message expiry interval, bytes to fill the payload with
MESSAGES = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from((0, 1, 1, 2, 2)),
    st.sampled_from((0, 0, 0, 1, 3)),
    st.sampled_from((0, 0, FILLING)),
)
# which of those in flight, and whether it is refused
ANSWERS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from((False, False, True))), min_size=1, max_size=4)

SUBSCRIBED: dict[str, Any] = {"subscription_identifier": [200]}  # it goes with each message, however long it waits


class Broker:
    """One subscriber and one publisher, without sockets; time is the test's."""

    def __init__(self, ledger: Ledger, log: Any = None) -> None:
        self.now_ms = 1_000_000
        self.log = log
        self.router = Router(ledger)
        config = Config(mqtt=Mqtt(receive_maximum=PACKET_IDENTIFIERS))
        controller = Controller(config, self.router, Anonymous(), AllowAll())
        self.hub = Hub(self.router, controller, Pump(self.router, log), now_ms=self.now_ms, **terms(config))
        self.publisher = self.hub.connect()
        self.published = 0
        self.subscriber: Any = None
        self.say(self.publisher, Connect(5, b"p"))
        self.publisher.take_output()

    def say(self, connection: Any, *packets: Any) -> None:
        connection.feed_bytes(b"".join(encode(packet, 5) for packet in packets))
        self.hub.run_turn(self.now_ms)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.hub.run_turn(self.now_ms)

    def heard(self) -> list[Any]:
        buffer, packets = bytearray(self.subscriber.take_output()), []
        while (frame := next_frame(buffer)) is not None:
            packets.append(decode(*frame, 5))
        assert not buffer
        return packets

    def connect(
        self, receive_maximum: int, maximum_packet_size: int = 1000, durable: bool = True, clean: bool = False
    ) -> tuple[bool, list[Any]]:
        self.subscriber = self.hub.connect()
        self.say(
            self.subscriber,
            Connect(
                5,
                b"s",
                clean,
                properties={
                    "session_expiry_interval": 0xFFFFFFFF if durable else 0,
                    "receive_maximum": receive_maximum,
                    "maximum_packet_size": maximum_packet_size,
                },
            ),
        )
        connack, *rest = self.heard()
        assert isinstance(connack, Connack)
        assert connack.reason == 0
        return connack.session_present, rest

    def publish(self, topic_name: bytes, payload: bytes, qos: int, expiry_s: int = 0) -> None:
        self.published += 1
        identifier = 1 + self.published % PACKET_IDENTIFIERS if qos else 0
        properties = {"message_expiry_interval": expiry_s} if expiry_s else {}
        released = (Ack(PacketType.PUBREL, identifier),) if qos == 2 else ()
        self.say(self.publisher, Publish(topic_name, payload, qos, False, False, identifier, properties), *released)
        self.publisher.take_output()


class OutgoingMachine(RuleBasedStateMachine):
    """One client identifier over many connections, with acknowledgements in any order, or none."""

    @initialize(queue_qos0=st.booleans())
    def begin(self, queue_qos0: bool) -> None:
        self.ledger = Ledger(QUEUE_MESSAGES_MAX, QUEUE_BYTES_MAX, INFLIGHT_MAX, queue_qos0)
        self.broker = Broker(self.ledger)
        self.model, self.client = Model(queue_qos0), Client()
        self.numbers = 0
        self.reconnect(0, INFLIGHT_MAX, 1000, True, False)

    def check(self, packets: list[Any] | None = None) -> None:
        """The subscriber got what the model expected, and nothing else."""
        expected, self.model.expected = self.model.expected, []
        got: list[Any] = []
        for packet in self.broker.heard() if packets is None else packets:
            if isinstance(packet, Publish):
                self.client.on_publish(packet)
                assert packet.properties["subscription_identifier"] == SUBSCRIBED["subscription_identifier"]
                got.append((packet.payload, packet.qos, packet.dup, packet.packet_identifier))
            else:
                assert isinstance(packet, Ack), packet
                got.append((packet.type, packet.packet_identifier, packet.reason))
        assert got == expected

    def acknowledge(self, packet_type: PacketType, identifier: int, reason: Reason = Reason.SUCCESS) -> None:
        self.broker.say(self.broker.subscriber, Ack(packet_type, identifier, reason))

    # What the world does --------------------------------------------------------------------------------------------

    @rule(messages=st.lists(MESSAGES, min_size=1, max_size=4), memory_full=st.sampled_from((False,) * 5 + (True,)))
    def publish(self, messages: list[tuple[bytes, int, int, int]], memory_full: bool) -> None:
        self.model.memory_full = self.ledger.memory_full = memory_full
        for topic_name, qos, expiry_s, filling in messages:
            self.numbers += 1
            payload = b"%04d" % self.numbers + b"." * filling
            self.broker.publish(topic_name, payload, qos, expiry_s)
            if topic_name in self.model.granted:
                now_ms = self.broker.now_ms
                self.model.deliver(
                    payload,
                    min(qos, self.model.granted[topic_name]),
                    now_ms + expiry_s * 1000 if expiry_s else 0,
                    now_ms,
                )
        self.model.memory_full = self.ledger.memory_full = False  # else nobody can connect
        self.check()

    @precondition(lambda self: self.model.connected)
    @rule()
    def cut(self) -> None:
        self.broker.subscriber.close(CloseReason.CONNECTION_LOST)
        self.broker.hub.run_turn(self.broker.now_ms)
        self.model.disconnect()

    @precondition(lambda self: not self.model.connected)
    @rule(
        after_ms=st.sampled_from((0, 1, 1000, 1001)),
        receive_maximum=st.sampled_from((1, 2, 3, PACKET_IDENTIFIERS)),
        maximum_packet_size=st.sampled_from((SMALL_PACKET, 1000, 1000)),
        durable=st.sampled_from((True,) * 7 + (False,)),
        clean=st.sampled_from((False,) * 7 + (True,)),
    )
    def reconnect(
        self, after_ms: int, receive_maximum: int, maximum_packet_size: int, durable: bool, clean: bool
    ) -> None:
        self.broker.wait(after_ms)
        session_present, packets = self.broker.connect(receive_maximum, maximum_packet_size, durable, clean)
        self.client.connected(receive_maximum, session_present)
        self.model.connect(receive_maximum, maximum_packet_size, durable, clean, self.broker.now_ms)
        self.check(packets)
        if not session_present:
            self.broker.say(
                self.broker.subscriber,
                Subscribe(
                    1, tuple(subscription(topic_filter, qos) for qos, topic_filter in enumerate(TOPICS)), SUBSCRIBED
                ),
            )
            assert self.broker.heard() == [Suback(1, tuple(Reason(qos) for qos in range(3)))]
            self.model.granted = {topic_filter: qos for qos, topic_filter in enumerate(TOPICS)}

    # What the client answers ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.connected)
    @rule(answers=ANSWERS, after_ms=st.sampled_from((0, 0, 1000, 1001)))
    def answer(self, answers: list[tuple[int, bool]], after_ms: int) -> None:
        self.broker.wait(after_ms)
        for index, refuse in answers:
            if self.model.in_flight:
                # Also one that this connection has not resent yet: the client knows it from an earlier connection.
                self.answer_one(self.model.in_flight[index % len(self.model.in_flight)], refuse)
                self.check()

    @precondition(lambda self: self.model.connected and self.model.in_flight)
    @rule(answers=ANSWERS)
    def answer_at_once(self, answers: list[tuple[int, bool]]) -> None:
        self.answer(answers, 0)

    def answer_one(self, delivery: Delivery, refuse: bool) -> None:
        reason = Reason.UNSPECIFIED_ERROR if refuse else Reason.SUCCESS
        if delivery.state == "released":
            self.acknowledge(PacketType.PUBCOMP, delivery.identifier)
            self.client.finished(delivery.identifier)
            self.model.finish(delivery, self.broker.now_ms)
            return
        self.acknowledge(PacketType.PUBACK if delivery.qos == 1 else PacketType.PUBREC, delivery.identifier, reason)
        if refuse:
            self.model.dropped["refused"] += 1
        if delivery.qos == 1 or refuse:
            self.client.finished(delivery.identifier)
            self.model.finish(delivery, self.broker.now_ms)
        else:
            self.model.release(delivery)

    @precondition(lambda self: self.model.connected)
    @rule(
        packet_type=st.sampled_from((PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP)), index=st.integers(0, 9)
    )
    def answer_what_is_not_to_be_answered(self, packet_type: PacketType, index: int) -> None:
        numbers = [delivery.identifier - 1 for delivery in self.model.owed]
        numbers += [self.model.accepted, self.model.accepted - 2, self.model.accepted + PACKET_IDENTIFIERS // 2]
        identifier = 1 + numbers[index % len(numbers)] % PACKET_IDENTIFIERS
        delivery = next((delivery for delivery in self.model.in_flight if delivery.identifier == identifier), None)
        if delivery is None:
            self.acknowledge(packet_type, identifier)
            if packet_type == PacketType.PUBREC:
                self.model.expected.append((PacketType.PUBREL, identifier, Reason.PACKET_IDENTIFIER_NOT_FOUND))
            self.check()
        elif packet_type == PacketType.PUBREC and delivery.state == "released":
            self.acknowledge(packet_type, identifier)  # once more: PUBREL once more
            self.model.release(delivery)
            self.check()
        elif (
            packet_type
            != {"sent": PacketType.PUBACK if delivery.qos == 1 else PacketType.PUBREC, "released": PacketType.PUBCOMP}[
                delivery.state
            ]
        ):
            self.acknowledge(packet_type, identifier)
            (packet,) = self.broker.heard()
            assert isinstance(packet, Disconnect)
            assert packet.reason == Reason.PROTOCOL_ERROR
            self.model.disconnect()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert self.ledger.queued_messages == len(self.model.waiting)
        assert self.ledger.queued_bytes == sum(delivery.size for delivery in self.model.waiting)
        assert self.ledger.inflight_messages == len(self.model.in_flight)
        assert self.ledger.dropped() == +self.model.dropped
        session = self.broker.router.sessions.get(b"s")
        assert (session is None) == (not self.model.connected and not self.model.durable)
        outgoing = session.state()["outgoing"] if session is not None else None
        if outgoing is None:
            assert self.model.owed == []
            return
        assert outgoing["in_flight"] == [
            (delivery.identifier, delivery.qos, delivery.state) for delivery in self.model.in_flight
        ]
        assert outgoing["queued"] == len(self.model.waiting)
        assert outgoing["queued_bytes"] == sum(delivery.size for delivery in self.model.waiting)
        if self.model.connected:
            assert outgoing["send_quota"] == self.model.quota


TestOutgoing = OutgoingMachine.TestCase


def test_a_packet_identifier_that_stays_open_is_not_given_out_again() -> None:
    # Proves: [MQTT-2.2.1-4]
    broker = Broker(Ledger())
    broker.connect(PACKET_IDENTIFIERS)
    broker.say(broker.subscriber, Subscribe(1, (subscription(b"t", 1),)))
    broker.heard()

    def next_identifiers(payload: bytes) -> list[int]:
        broker.publish(b"t", payload, 1)
        return [packet.packet_identifier for packet in broker.heard()]

    assert next_identifiers(b"first") == [1]  # never acknowledged until the end
    for identifier in range(2, PACKET_IDENTIFIERS + 1):
        assert next_identifiers(b"x") == [identifier]
        broker.say(broker.subscriber, Ack(PacketType.PUBACK, identifier))
    assert next_identifiers(b"waits") == []
    broker.say(broker.subscriber, Ack(PacketType.PUBACK, 1))
    (packet,) = broker.heard()
    assert (packet.packet_identifier, packet.payload) == (1, b"waits")
    assert next_identifiers(b"all the others are free again") == [2]


def test_a_pubrec_before_its_delivery_is_resent_is_answered_once() -> None:
    # Proves: [MQTT-4.4.0-1]
    broker = Broker(Ledger())
    broker.connect(2)
    broker.say(broker.subscriber, Subscribe(1, (subscription(b"t", 2),)))
    broker.publish(b"t", b"first", 2)
    broker.publish(b"t", b"second", 2)
    broker.subscriber.close(CloseReason.CONNECTION_LOST)
    _, resent = broker.connect(1)
    assert [packet.packet_identifier for packet in resent] == [1]
    broker.say(broker.subscriber, Ack(PacketType.PUBREC, 2))
    assert broker.heard() == [Ack(PacketType.PUBREL, 2)]
    broker.say(broker.subscriber, Ack(PacketType.PUBREC, 1), Ack(PacketType.PUBCOMP, 1), Ack(PacketType.PUBCOMP, 2))
    assert broker.heard() == [Ack(PacketType.PUBREL, 1)]
