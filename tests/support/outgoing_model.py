"""What a session owes, in plain Python: the model that test_outgoing_model.py holds the compiled one against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from broker.wire.packets import Publish
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason

QUEUE_MESSAGES_MAX = 5
QUEUE_BYTES_MAX = 126
INFLIGHT_MAX = 6
TOPICS = (b"t/0", b"t/1", b"t/2")
FILLING = 105  # bytes: such a message, of 112 bytes, and two without fill the queue exactly
SMALL_PACKET = 60  # a client's Maximum Packet Size: without such a filling
PACKET_IDENTIFIERS = 65_535
IN_FLIGHT = ("sent", "released")


@dataclass
class Delivery:
    """One message that the session is owed, or at QoS 0 one that waits for its connection."""

    identifier: int
    payload: bytes
    qos: int
    expires_ms: int  # 0: never
    state: str = "queued"  # then "sent", then at QoS 2 "released"
    uses_quota: bool = False  # it was sent on this connection
    released_here: bool = False  # its PUBREL was sent on this connection

    @property
    def size(self) -> int:
        return len(TOPICS[0]) + len(self.payload) + (5 if self.expires_ms else 0)


class Model:
    """What the session must do. `expected` are the packets that it has to send in this step."""

    def __init__(self, queue_qos0: bool) -> None:
        self.queue_qos0 = queue_qos0
        self.memory_full = False
        self.connected = self.durable = False
        self.expected: list[Any] = []
        self.dropped: Counter[str] = Counter()
        self.start_anew()

    def start_anew(self) -> None:
        self.owed: list[Delivery] = []
        self.to_resend: list[Delivery] = []
        self.waiting_qos0: list[Delivery] = []  # beside the others: they have no number
        self.granted: dict[bytes, int] = {}
        self.accepted = 0  # what was sent, and what waited: each had a number

    @property
    def queued(self) -> list[Delivery]:
        return [delivery for delivery in self.owed if delivery.state == "queued"]

    @property
    def waiting(self) -> list[Delivery]:
        """All that counts against the limits of the queue."""
        return self.queued + self.waiting_qos0

    @property
    def in_flight(self) -> list[Delivery]:
        return [delivery for delivery in self.owed if delivery.state in IN_FLIGHT]

    def deliver(self, payload: bytes, qos: int, expires_ms: int, now_ms: int) -> None:
        delivery = Delivery(1 + self.accepted % PACKET_IDENTIFIERS, payload, qos, expires_ms)
        if qos == 0 and (self.connected or not self.queue_qos0):
            if self.connected:
                self._publish(delivery, False, now_ms)
            else:
                self.dropped["offline"] += 1
        elif qos and self.connected and self.quota > 0 and not self.to_resend and not self.queued:
            if self._publish(delivery, False, now_ms):
                self.accepted += 1
                self.owed.append(delivery)
        elif (
            len(self.waiting) == QUEUE_MESSAGES_MAX
            or sum(waiting.size for waiting in self.waiting) + delivery.size > QUEUE_BYTES_MAX
        ):
            self.dropped["queue_full"] += 1
        elif self.memory_full:
            self.dropped["memory"] += 1
        elif qos == 0:
            self.waiting_qos0.append(delivery)
        else:
            self.accepted += 1
            self.owed.append(delivery)

    def send(self, now_ms: int) -> None:
        """QoS 0 first; then resend, in the first order; then what waits; the last two as far as quota allows."""
        while self.waiting_qos0:
            self._publish(self.waiting_qos0.pop(0), False, now_ms)
        while self.to_resend:
            delivery = self.to_resend[0]
            if delivery.state == "sent":
                if self.quota == 0:
                    return
                if not self._publish(delivery, True, now_ms):
                    self.owed.remove(delivery)
            elif not delivery.released_here:
                self.release(delivery)
            self.to_resend.pop(0)
        for delivery in self.queued:
            if self.quota == 0:
                return
            if not self._publish(delivery, False, now_ms):
                self.owed.remove(delivery)

    def _publish(self, delivery: Delivery, dup: bool, now_ms: int) -> bool:
        if delivery.expires_ms and now_ms > delivery.expires_ms and not dup:
            self.dropped["expired"] += 1
            return False
        if len(delivery.payload) >= FILLING and self.maximum_packet_size == SMALL_PACKET:
            self.dropped["too_large"] += 1
            return False
        self.expected.append((delivery.payload, delivery.qos, dup, delivery.identifier if delivery.qos else 0))
        if delivery.qos:
            self.quota -= 1
            delivery.uses_quota = True
            delivery.state = "sent"
        return True

    def release(self, delivery: Delivery) -> None:
        self.expected.append((PacketType.PUBREL, delivery.identifier, Reason.SUCCESS))
        delivery.state = "released"
        delivery.released_here = True

    def finish(self, delivery: Delivery, now_ms: int) -> None:
        self.owed.remove(delivery)
        if delivery in self.to_resend:
            self.to_resend.remove(delivery)
        self.quota += delivery.uses_quota
        self.send(now_ms)

    def connect(self, receive_maximum: int, maximum_packet_size: int, durable: bool, clean: bool, now_ms: int) -> None:
        if clean:
            self.end_session()
        self.connected, self.durable, self.maximum_packet_size = True, durable, maximum_packet_size
        self.quota = min(receive_maximum, INFLIGHT_MAX)
        self.to_resend = self.in_flight
        for delivery in self.owed:
            delivery.uses_quota = delivery.released_here = False
        self.send(now_ms)

    def disconnect(self) -> None:
        self.connected = False
        if not self.durable:
            self.end_session()

    def end_session(self) -> None:
        self.dropped["session_ended"] += len(self.waiting)
        self.start_anew()


class Client:
    """The subscriber's end: what it may see whatever the model says."""

    def __init__(self) -> None:
        self.unfinished: dict[int, bytes] = {}  # over all connections: packet identifier -> payload
        self.qos2_seen: set[bytes] = set()
        self.sent_here: set[int] = set()  # on this connection and without an end
        self.receive_maximum = 0

    def connected(self, receive_maximum: int, session_present: bool) -> None:
        self.sent_here.clear()
        self.receive_maximum = receive_maximum
        if not session_present:
            self.unfinished.clear()

    def on_publish(self, packet: Publish) -> None:
        identifier = packet.packet_identifier
        if packet.qos == 0:
            assert not packet.dup  # [MQTT-3.3.1-2]
            return
        assert identifier not in self.sent_here  # [MQTT-4.4.0-1]
        self.sent_here.add(identifier)
        assert len(self.sent_here) <= self.receive_maximum  # [MQTT-3.3.4-9]
        if packet.dup:
            assert self.unfinished[identifier] == packet.payload  # [MQTT-2.2.1-3]
        else:
            assert identifier not in self.unfinished  # [MQTT-2.2.1-4]
            if packet.qos == 2:
                assert packet.payload not in self.qos2_seen
                self.qos2_seen.add(packet.payload)
        self.unfinished[identifier] = packet.payload

    def finished(self, identifier: int) -> None:
        self.unfinished.pop(identifier, None)
        self.sent_here.discard(identifier)
