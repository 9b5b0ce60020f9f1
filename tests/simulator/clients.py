"""Simulated clients: they keep their half of the standard, and check that the broker keeps its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from router.matching.topic_names import matches

if TYPE_CHECKING:
    from tests.simulator.promises import Promises

SESSION_EXPIRY_S = 3600


@dataclass
class Client:
    """A client with a durable session: what it remembers over its connections, and its present connection."""

    world: Promises
    identifier: str
    version: int
    receive_maximum: int = 65_535
    home: int = 0  # number of the worker that it lives on
    durable: bool = True  # its session outlives its connection
    forgot: bool = False  # its session, so it asks for a new one
    refuses: bool = False  # answers some QoS 1 and 2 deliveries with 0x80 (5.0)
    connection: Any = None
    to_broker: deque[bytes] = field(default_factory=deque)  # written and still on its way
    buffer: bytearray = field(default_factory=bytearray)
    connected: bool = False  # CONNACK came
    established: bool = False  # CONNACK came at any time: there is a session to come back to
    has_will: bool = False  # of every connection
    will_delay_s: int = 0  # of it
    waiting_will: tuple[bytes, int] | None = None  # one that is delayed, and until when: nobody has cancelled it
    connections: int = 0
    hubs: list[Any] = field(default_factory=list)  # of its connections, which do not hold them themselves
    # Since CONNACK came last: connections that were given up, each with what had come and was not read.
    given_up: list[tuple[Any, bytes]] = field(default_factory=list)
    # Towards us
    unanswered: dict[int, int] = field(default_factory=dict)  # packet identifier -> QoS, delivered and not finished
    on_this_connection: set[int] = field(default_factory=set)  # identifiers in flight that this connection brought
    in_doubt: set[int] = field(default_factory=set)  # of these, what the broker may have forgotten
    answers: list[tuple[int, PacketType]] = field(default_factory=list)  # acknowledgements that we owe
    received_qos2: set[int] = field(default_factory=set)
    window: int = 0  # QoS 1/2 of this connection without their end

    def connect(self) -> None:
        """Open a connection, over an older one if there is one, and say CONNECT."""
        self.cut_quietly()
        hub = self.world.hub_of(self)
        if hub not in self.hubs:
            self.hubs.append(hub)
        self.connection = hub.connect()
        properties: dict[str, Any] = {}
        if self.version == 5:
            properties = {
                "session_expiry_interval": SESSION_EXPIRY_S if self.durable else 0,
                "receive_maximum": self.receive_maximum,
            }
        self.connections += 1
        will = None
        if self.has_will:
            will = Will(
                b"w/" + self.identifier.encode(),
                self.will_payload,
                1 + self.connections % 2,
                delay_interval_s=self.will_delay_s,
            )
        self.waiting_will = None
        connect = Connect(
            self.version, self.identifier.encode(), not self.durable or self.forgot, 0, will, None, None, properties
        )
        self.send(encode(connect, self.version))

    @property
    def will_payload(self) -> bytes:
        """The will of the present connection says which one it is of."""
        return f"will of {self.identifier}:{self.connections}".encode()

    def cut_quietly(self) -> None:
        """Forget the connection without telling the broker: it finds out by a takeover, or by cut()."""
        if self.connected and self.has_will and self.will_delay_s:
            self.waiting_will = self.will_payload, self.world.now_ms + self.will_delay_s * 1000
        elif self.connected and self.has_will:
            self.world.will_owed(self, self.will_payload)
        if self.connection is not None:
            self.given_up.append((self.connection, bytes(self.buffer)))
        self.connection = None
        self.connected = False
        self.established = self.established and self.durable
        self.to_broker.clear()
        self.buffer.clear()
        self.answers.clear()
        self.on_this_connection.clear()
        self.window = 0

    def cut(self) -> None:
        """The network connection breaks; bytes on their way are lost."""
        if self.connection is not None:
            self.connection.close(CloseReason.CONNECTION_LOST)
            self.buffer += self.connection.take_output()
        self.cut_quietly()

    def send(self, data: bytes) -> None:
        """Put bytes on their way."""
        self.to_broker.append(data)

    def carry(self) -> None:
        """Bring some of the bytes on their way to the broker, perhaps not whole packets."""
        if self.to_broker and self.connection is not None:
            data = b"".join(self.to_broker)
            self.to_broker.clear()
            size = self.world.random.randint(1, len(data)) if self.world.faults else len(data)
            if size < len(data):
                self.to_broker.append(data[size:])
            self.connection.feed_bytes(data[:size])

    def read(self) -> None:
        """Take what the broker has sent and act on it."""
        if self.connection is None:
            return
        self.take(self.connection.take_output())
        if self.connection is not None and self.connection.is_closing:
            self.world.check(not self.world.must_stay(self), f"{self.identifier}: {self.connection.close_reason}")
            self.cut_quietly()

    def survive(self) -> None:
        """The broker has died: of what it had sent, some may still come."""
        if self.connection is None:
            return
        output = self.connection.take_output()
        size = self.world.random.randint(0, len(output)) if self.world.random.random() < 0.5 else 0
        self.take(output[:size])
        self.buffer += output[size:]
        self.cut_quietly()

    def unheard(self) -> list[Any]:
        """Return the packets that the broker had sent on connections that were given up."""
        found: list[Any] = []
        for connection, data in self.given_up:
            buffer = bytearray(data + connection.take_output())
            while (frame := next_frame(buffer)) is not None:
                found.append(decode(*frame, self.version))
        return found

    def forgive(self) -> None:
        """The broker may have forgotten the session, or the end of it; what it still holds is in doubt."""
        self.established = False
        self.waiting_will = None
        self.in_doubt |= self.unanswered.keys()

    def take(self, output: bytes) -> None:
        """Act on what the broker has sent."""
        self.world.note(self.identifier, output)
        self.buffer += output
        while self.connection is not None and (frame := next_frame(self.buffer)) is not None:
            self.on_packet(decode(*frame, self.version))

    def on_packet(self, packet: Any) -> None:
        """Deal with one packet of the broker."""
        if isinstance(packet, Connack):
            if packet.reason and self.world.in_trouble():
                self.cut_quietly()  # it comes back when the disk is well
                return
            self.world.check(packet.reason == 0, f"{self.identifier}: {packet}")
            self.connected = True
            self.world.check(packet.session_present or not self.established, f"{self.identifier}: the session was lost")
            self.established = True
            self.world.connected(self)
            self.forgot = False
            if not packet.session_present:
                self.unanswered.clear()
                self.in_doubt.clear()
                self.received_qos2.clear()
            self.on_connected(packet.session_present)
            self.given_up.clear()
        elif isinstance(packet, Publish):
            self.on_publish(packet)
        elif isinstance(packet, Ack):
            self.on_ack(packet)
        elif isinstance(packet, Disconnect):
            self.world.check(
                packet.reason == Reason.SESSION_TAKEN_OVER
                or self.world.in_trouble()
                or (self.world.limited and packet.reason == Reason.QUOTA_EXCEEDED),
                f"{self.identifier}: {packet}",
            )

    def on_connected(self, session_present: bool) -> None:
        """A subclass goes on where it was."""

    def on_publish(self, packet: Publish) -> None:
        """A delivery: check it, and owe its acknowledgement."""
        check, identifier = self.world.check, packet.packet_identifier
        if packet.qos:
            check(
                identifier not in self.on_this_connection,
                f"{self.identifier}: identifier {identifier} again on a live connection [MQTT-4.4.0-1]",
            )
            if not packet.dup:
                # A log with holes gives numbers, and identifiers with them, to other messages than before.
                check(
                    identifier not in self.unanswered.keys() - self.in_doubt,
                    f"{self.identifier}: identifier {identifier} is in use",
                )
            self.on_this_connection.add(identifier)
            is_swallowed = identifier in self.in_doubt and identifier in self.received_qos2
            self.in_doubt.discard(identifier)
            self.window += 1
            check(self.window <= self.receive_maximum, f"{self.identifier}: over Receive Maximum [MQTT-3.3.4-9]")
            again = packet.qos == 2 and identifier in self.received_qos2
            self.unanswered[identifier] = packet.qos
            if packet.qos == 2:
                self.received_qos2.add(identifier)
            self.answers.append((identifier, PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC))
            if again:
                if is_swallowed:  # perhaps another message than the one that it had under this identifier
                    self.world.excuse(self, packet.payload)
                return
        else:
            check(not packet.dup, f"{self.identifier}: DUP at QoS 0 [MQTT-3.3.1-2]")
        self.world.delivered(self, packet)

    def answer(self) -> None:
        """Send one of the acknowledgements that are owed, the oldest [MQTT-4.6.0-2]."""
        if not self.answers or not self.connected:
            return
        identifier, packet_type = self.answers.pop(0)
        reason = Reason.SUCCESS
        if self.refuses and packet_type != PacketType.PUBCOMP and self.world.random.random() < 0.2:
            reason = Reason.UNSPECIFIED_ERROR
        self.send(encode(Ack(packet_type, identifier, reason), self.version))
        if packet_type != PacketType.PUBREC or reason >= 0x80:
            self.finished(identifier)

    @property
    def has_unanswered(self) -> bool:
        """Whether a delivery has not come to its end, which it must."""
        return not self.unanswered.keys() <= self.in_doubt

    def finished(self, identifier: int) -> None:
        """A delivery's exchange is over."""
        self.unanswered.pop(identifier, None)
        self.in_doubt.discard(identifier)
        self.received_qos2.discard(identifier)
        if identifier in self.on_this_connection:
            self.on_this_connection.discard(identifier)
            self.window -= 1

    def on_ack(self, packet: Ack) -> None:
        """PUBREL of a delivery; a publisher adds its own acknowledgements."""
        self.world.check(packet.type == PacketType.PUBREL, f"{self.identifier}: {packet}")
        self.answers.append((packet.packet_identifier, PacketType.PUBCOMP))


@dataclass
class Subscriber(Client):
    """Subscribes once, and remembers what it got: (publisher, topic, QoS) -> numbers."""

    topic_filter: str = "t/#"
    qos: int = 1
    group: str = ""
    subscribed: bool = False
    asked_step: int = 0  # of the world, when it subscribed last
    old_filters: set[bytes] = field(default_factory=set)  # that it wants no more, and may still be subscribed to

    def on_connected(self, session_present: bool) -> None:
        """Subscribe at the first connection; a durable session keeps the subscription."""
        if self.subscribed and session_present:
            return
        self.subscribed = False
        self.subscribe()

    def forgive(self) -> None:
        """The subscription may be lost, too, and an older one may have come back."""
        super().forgive()
        self.subscribed = False
        self.old_filters |= self.world.filters

    @property
    def full_filter(self) -> bytes:
        """The topic filter as it is subscribed to."""
        return (f"$share/{self.group}/{self.topic_filter}" if self.group else self.topic_filter).encode()

    def wants(self, topic: bytes) -> bool:
        """Return whether it is to get what is published on a topic, and takes it."""
        return matches(self.topic_filter.encode(), topic) and not self.refuses

    def subscribe(self) -> None:
        """Ask for the topic filter, and for no other."""
        self.asked_step = self.world.steps
        self.old_filters.discard(self.full_filter)
        if self.old_filters:
            self.send(encode(Unsubscribe(2, tuple(sorted(self.old_filters))), self.version))
        self.send(encode(Subscribe(1, (subscription(self.full_filter, self.qos),)), self.version))

    def on_packet(self, packet: Any) -> None:
        """Take note of the SUBACK."""
        if isinstance(packet, Suback):
            if packet.reasons[0] >= 0x80 and self.world.in_trouble():
                self.cut_quietly()  # and tries again
                return
            self.world.check(packet.reasons == (self.qos,), f"{self.identifier}: {packet}")
            self.subscribed = True
            self.old_filters.clear()
            self.world.subscribed(self)
        elif not isinstance(packet, Unsuback):
            super().on_packet(packet)


@dataclass
class Publisher(Client):
    """Publishes numbered messages at every QoS and sends again what was not acknowledged."""

    number: int = 0
    next_identifier: int = 1
    in_flight: dict[int, Publish] = field(default_factory=dict)  # identifier -> message, in sending order
    numbers: dict[int, int] = field(default_factory=dict)  # identifier -> number of the message
    sent_again: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)

    def publish(self) -> None:
        """Send the next message."""
        if not self.connected or len(self.in_flight) >= 10:
            return
        random = self.world.random
        self.number += 1
        retain = random.random() < 0.1
        # At one QoS, since a QoS 1 message sent again may come behind a later one of another QoS [MQTT-4.6.0-5].
        qos = 1 if retain else random.choice((0, 1, 1, 2, 2))
        topic = f"r/{self.identifier}" if retain else f"t/{random.randint(0, 2)}"
        empty = retain and random.random() < 0.2
        self.send_message(topic.encode(), qos, retain, empty)

    def publish_one(self, topic: bytes, qos: int) -> bytes:
        """Send the next message to a topic; returns its payload."""
        self.number += 1
        return self.send_message(topic, qos, False, False)

    def send_message(self, topic: bytes, qos: int, retain: bool, empty: bool) -> bytes:
        """Send message `number`; returns its payload."""
        identifier = 0
        if qos:
            while self.next_identifier in self.in_flight:
                self.next_identifier = self.next_identifier % 40 + 1
            identifier = self.next_identifier
            self.next_identifier = identifier % 40 + 1
        payload = f"{self.identifier}:{self.number:0{self.world.digits}d}".encode()
        if empty:
            payload = b""
        packet = Publish(topic, payload, qos, retain, False, identifier)
        if qos:
            self.in_flight[identifier] = packet
            self.numbers[identifier] = self.number
            self.sent_again.discard(identifier)
            self.world.published(self, packet, self.number)
        self.send(encode(packet, self.version))
        return payload

    def on_connected(self, session_present: bool) -> None:
        """Send again, in order, what is not acknowledged [MQTT-4.4.0-1]."""
        if not session_present:
            self.in_flight.clear()
            self.released.clear()
        for packet in self.unheard():
            if (
                isinstance(packet, Ack)
                and packet.type in (PacketType.PUBACK, PacketType.PUBREC)
                and (packet.reason >= 0x80 and packet.packet_identifier in self.in_flight)
            ):
                self.world.refused_unheard.add(self.in_flight[packet.packet_identifier].payload)
        self.sent_again.update(self.in_flight)
        for identifier, packet in list(self.in_flight.items()):
            if identifier in self.released:
                self.send(encode(Ack(PacketType.PUBREL, identifier), self.version))
            else:
                self.world.sent_again.add(packet.payload)
                self.send(
                    encode(
                        Publish(packet.topic, packet.payload, packet.qos, packet.retain, True, identifier), self.version
                    )
                )

    def on_ack(self, packet: Ack) -> None:
        """PUBACK, PUBREC and PUBCOMP of what we published."""
        identifier = packet.packet_identifier
        message = self.in_flight.get(identifier)
        self.world.check(message is not None, f"{self.identifier}: {packet} for nothing in flight")
        assert message is not None
        if packet.reason >= 0x80 and packet.type in (PacketType.PUBACK, PacketType.PUBREC) and self.world.in_trouble():
            if identifier not in self.sent_again:  # else the first one may have been accepted
                self.world.refused(message, self.numbers[identifier])
            del self.in_flight[identifier]  # it was never accepted
            return
        # The answer to a PUBREL sent again, whose first answer was lost, is "not found" in 5.0.
        self.world.check(
            packet.reason < 0x80 or packet.reason == Reason.PACKET_IDENTIFIER_NOT_FOUND, f"{self.identifier}: {packet}"
        )
        if packet.type == PacketType.PUBACK:
            self.world.acknowledged(message, self.numbers[identifier])
            del self.in_flight[identifier]
        elif packet.type == PacketType.PUBREC:
            self.world.acknowledged(message, self.numbers[identifier])
            self.released.add(identifier)
            self.send(encode(Ack(PacketType.PUBREL, identifier), self.version))
        else:
            self.world.check(packet.type == PacketType.PUBCOMP, f"{self.identifier}: {packet}")
            self.released.discard(identifier)
            del self.in_flight[identifier]
