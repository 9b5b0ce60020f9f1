"""What one session is owed, against a model: quota, queue, resending, limits, acknowledgements.

The session is driven as a client drives it: bytes through a connection without a socket. After every step the client
must have got exactly the packets that the model says, in that order, and the session must hold what the model holds.
"""

from __future__ import annotations

from typing import Any

from broker.hub import Hub
from broker.pump import Pump
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from router.ledger import Ledger
from router.router import Router

from broker.acl import AllowAll
from broker.auth import Anonymous
from broker.config import Config
from broker.control import Controller
from broker.packets import (
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
from broker.properties import PacketType
from broker.reasons import CloseReason, Reason
from tests.support.outgoing_model import (
    FILLING,
    INFLIGHT_MAX,
    PACKET_IDENTIFIERS,
    QUEUE_BYTES_MAX,
    QUEUE_MESSAGES_MAX,
    SMALL_PACKET,
    TOPICS,
    Client,
    Model,
)

ANSWER_TYPES = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP)


class Broker:
    """One subscriber and one publisher, without sockets; time is the test's."""

    def __init__(self, ledger: Ledger) -> None:
        self.now_ms = 1_000_000
        self.router = Router(ledger)
        controller = Controller(Config(), self.router, Anonymous(), AllowAll())
        self.hub = Hub(self.router, controller, Pump(self.router), packet_bytes_max=1 << 20,
                       receive_maximum=PACKET_IDENTIFIERS, alias_max=0, output_bytes_max=1 << 20,
                       connect_timeout_ms=10_000, now_ms=self.now_ms)
        self.publisher = self.hub.connect()
        self.published = 0
        self.subscriber: Any = None
        self.say(self.publisher, Connect(5, b"p"))
        self.publisher.take_output()

    def say(self, connection: Any, *packets: Any) -> None:
        connection.feed_bytes(b"".join(encode(packet, 5) for packet in packets))
        self.hub.run_turn(self.now_ms)

    def heard(self) -> list[Any]:
        buffer, packets = bytearray(self.subscriber.take_output()), []
        while (frame := next_frame(buffer)) is not None:
            packets.append(decode(*frame, 5))
        assert not buffer
        return packets

    def connect(self, receive_maximum: int, maximum_packet_size: int = 1000, durable: bool = True,
                clean: bool = False) -> tuple[bool, list[Any]]:
        self.subscriber = self.hub.connect()
        self.say(self.subscriber, Connect(5, b"s", clean, properties={
            "session_expiry_interval": 0xFFFFFFFF if durable else 0, "receive_maximum": receive_maximum,
            "maximum_packet_size": maximum_packet_size}))
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
        self.reconnect(INFLIGHT_MAX, 1000, True, False)
        for qos, topic_filter in enumerate(TOPICS):
            self.subscribe(topic_filter, qos)

    def check(self, packets: list[Any] | None = None) -> None:
        """The subscriber got what the model expected, and nothing else."""
        expected, self.model.expected = self.model.expected, []
        got: list[Any] = []
        for packet in self.broker.heard() if packets is None else packets:
            if isinstance(packet, Publish):
                self.client.on_publish(packet)
                got.append((packet.payload, packet.qos, packet.dup, packet.packet_identifier))
            else:
                assert isinstance(packet, Ack), packet
                got.append((packet.type, packet.packet_identifier, packet.reason))
        assert got == expected

    def acknowledge(self, packet_type: PacketType, identifier: int, reason: Reason = Reason.SUCCESS) -> None:
        self.broker.say(self.broker.subscriber, Ack(packet_type, identifier, reason))

    # What the world does --------------------------------------------------------------------------------------------

    @rule(topic_name=st.sampled_from(TOPICS), qos=st.integers(0, 2), expiry_s=st.sampled_from((0, 0, 1, 3)),
          filling=st.sampled_from((0, 0, FILLING)))
    def publish(self, topic_name: bytes, qos: int, expiry_s: int, filling: int) -> None:
        self.numbers += 1
        payload = b"%04d" % self.numbers + b"." * filling
        self.broker.publish(topic_name, payload, qos, expiry_s)
        if topic_name in self.model.granted:
            now_ms = self.broker.now_ms
            self.model.deliver(payload, min(qos, self.model.granted[topic_name]),
                               now_ms + expiry_s * 1000 if expiry_s else 0, now_ms)
        self.check()

    @rule(by_ms=st.sampled_from((1, 999, 1000, 2500)))
    def time_goes_by(self, by_ms: int) -> None:
        self.broker.now_ms += by_ms
        self.broker.hub.run_turn(self.broker.now_ms)
        self.check()

    @rule(memory_full=st.sampled_from((False, False, True)))
    def memory_fills_or_frees(self, memory_full: bool) -> None:
        self.model.memory_full = self.ledger.memory_full = memory_full

    @precondition(lambda self: self.model.connected)
    @rule()
    def cut(self) -> None:
        self.broker.subscriber.close(CloseReason.CONNECTION_LOST)
        self.broker.hub.run_turn(self.broker.now_ms)
        self.model.disconnect()

    @precondition(lambda self: not self.model.connected and not self.model.memory_full)
    @rule(receive_maximum=st.sampled_from((1, 2, 3, PACKET_IDENTIFIERS)),
          maximum_packet_size=st.sampled_from((SMALL_PACKET, 1000, 1000)),
          durable=st.sampled_from((True, True, True, False)), clean=st.sampled_from((False, False, False, True)))
    def reconnect(self, receive_maximum: int, maximum_packet_size: int, durable: bool, clean: bool) -> None:
        session_present, packets = self.broker.connect(receive_maximum, maximum_packet_size, durable, clean)
        self.client.connected(receive_maximum, session_present)
        self.model.connect(receive_maximum, maximum_packet_size, durable, clean, self.broker.now_ms)
        self.check(packets)

    @precondition(lambda self: self.model.connected)
    @rule(topic_filter=st.sampled_from(TOPICS), qos=st.integers(0, 2))
    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        self.broker.say(self.broker.subscriber, Subscribe(1, (subscription(topic_filter, qos),)))
        assert self.broker.heard() == [Suback(1, (Reason(qos),))]
        self.model.granted[topic_filter] = qos

    # What the client answers ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.connected and self.model.in_flight)
    @rule(data=st.data(), refuse=st.sampled_from((False, False, True)))
    def answer(self, data: st.DataObject, refuse: bool) -> None:
        # Also of one that this connection has not resent yet: the client knows it from an earlier connection.
        delivery = data.draw(st.sampled_from(self.model.in_flight))
        now_ms, reason = self.broker.now_ms, Reason.UNSPECIFIED_ERROR if refuse else Reason.SUCCESS
        if delivery.state == "released":
            self.acknowledge(PacketType.PUBCOMP, delivery.identifier)
            self.client.finished(delivery.identifier)
            self.model.finish(delivery, now_ms)
        else:
            self.acknowledge(PacketType.PUBACK if delivery.qos == 1 else PacketType.PUBREC, delivery.identifier, reason)
            if refuse:
                self.model.dropped["refused"] += 1
            if delivery.qos == 1 or refuse:
                self.client.finished(delivery.identifier)
                self.model.finish(delivery, now_ms)
            else:
                self.model.release(delivery)
        self.check()

    @precondition(lambda self: self.model.connected)
    @rule(packet_type=st.sampled_from(ANSWER_TYPES), ahead=st.integers(0, 8), refuse=st.booleans())
    def answer_what_was_not_sent(self, packet_type: PacketType, ahead: int, refuse: bool) -> None:
        reason = Reason.UNSPECIFIED_ERROR if refuse and packet_type != PacketType.PUBCOMP else Reason.SUCCESS
        identifier = 1 + (self.model.accepted + PACKET_IDENTIFIERS - ahead) % PACKET_IDENTIFIERS
        if any(delivery.identifier == identifier for delivery in self.model.in_flight):
            return
        self.acknowledge(packet_type, identifier, reason)
        if packet_type == PacketType.PUBREC and reason == Reason.SUCCESS:
            self.model.expected.append((PacketType.PUBREL, identifier, Reason.PACKET_IDENTIFIER_NOT_FOUND))
        self.check()

    @precondition(lambda self: self.model.connected and self.model.in_flight)
    @rule(data=st.data(), packet_type=st.sampled_from(ANSWER_TYPES))
    def answer_that_does_not_fit(self, data: st.DataObject, packet_type: PacketType) -> None:
        delivery = data.draw(st.sampled_from(self.model.in_flight))
        fits = (("PUBACK",) if delivery.qos == 1
                else ("PUBREC",) if delivery.state == "sent" else ("PUBREC", "PUBCOMP"))
        if packet_type.name in fits:
            return
        self.acknowledge(packet_type, delivery.identifier)
        packet, = self.broker.heard()
        assert isinstance(packet, Disconnect)
        assert packet.reason == Reason.PROTOCOL_ERROR
        self.model.disconnect()

    @precondition(lambda self: self.model.connected and any(d.state == "released" for d in self.model.owed))
    @rule(data=st.data())
    def pubrec_again(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from([d for d in self.model.owed if d.state == "released"]))
        self.acknowledge(PacketType.PUBREC, delivery.identifier)
        self.model.release(delivery)
        self.check()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert self.ledger.queued_messages == len(self.model.queued)
        assert self.ledger.dropped() == +self.model.dropped
        session = self.broker.router.sessions.get(b"s")
        assert (session is None) == (not self.model.connected and not self.model.durable)
        outgoing = session.state()["outgoing"] if session is not None else None
        if outgoing is None:
            assert self.model.owed == []
            return
        assert outgoing["in_flight"] == [
            (delivery.identifier, delivery.qos, delivery.state) for delivery in self.model.in_flight]
        assert outgoing["queued"] == len(self.model.queued)
        assert outgoing["queued_bytes"] == sum(delivery.size for delivery in self.model.queued)
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

    assert next_identifiers(b"first") == [1]        # never acknowledged until the end
    for identifier in range(2, PACKET_IDENTIFIERS + 1):
        assert next_identifiers(b"x") == [identifier]
        broker.say(broker.subscriber, Ack(PacketType.PUBACK, identifier))
    assert next_identifiers(b"waits") == []
    broker.say(broker.subscriber, Ack(PacketType.PUBACK, 1))
    packet, = broker.heard()
    assert (packet.packet_identifier, packet.payload) == (1, b"waits")
