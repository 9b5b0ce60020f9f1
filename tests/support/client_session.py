"""A client's half of a session, as the standard asks for it, without sockets: it outlives connections and brokers.

Whoever drives it moves bytes: `start` at each new connection, `feed` for what came, `output` for what is to be sent.
PUBLISH and acknowledgements are read and written here, not by the broker's own code: that is cheap, and a second pair
of eyes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.wire.packets import Connack, Connect, Disconnect, Suback, Subscribe, Will, decode, encode, subscription

UNAVAILABLE = (3, 0x88)  # of a CONNACK: the broker ends just now
NOT_FOUND = 0x92  # Packet Identifier not found: the answer to a PUBREL whose first answer was lost
DUP = 0x08


class WrongPacketError(Exception):
    """The broker sent what it must not send."""


class ClientSession:
    """What one client remembers from one connection to the next, and the packets of its present connection.

    Attributes:
        output: bytes to send; whoever sends them takes them out.
        connected: CONNACK came on this connection.
        session_present: as the last CONNACK said.
        established: a CONNACK came at any time, so there is a session to come back to.
        subscribed: topic filters with a SUBACK.
        in_flight: packet identifier -> (frame, what the caller tagged it with), in sending order.
        resent: how many PUBLISH packets were sent again.
        gone: the broker said that it ends the connection; its reason code.

    Args:
        version: 4 or 5.
        on_message: called with topic, payload, QoS, RETAIN and DUP of every message; at QoS 2 once.
        on_acknowledged: called with the tag of a message when its PUBACK or PUBREC has come.
        session_expiry_s: 0 is a session that ends with its connection, and starts clean.
    """

    def __init__(
        self,
        identifier: str,
        version: int,
        *,
        on_message: Callable[[bytes, bytes, int, bool, bool], None] = lambda *_: None,
        on_acknowledged: Callable[[Any], None] = lambda tag: None,
        receive_maximum: int = 65_535,
        session_expiry_s: int = 7200,
        will: Will | None = None,
    ) -> None:
        self.identifier = identifier
        self.version = version
        self.on_message = on_message
        self.on_acknowledged = on_acknowledged
        self.receive_maximum = receive_maximum
        self.session_expiry_s = session_expiry_s
        self.will = will
        self.output = bytearray()
        self.connected = self.session_present = self.established = False
        self.subscribed: set[str] = set()
        self.in_flight: dict[int, tuple[bytes, Any]] = {}
        self.resent = 0
        self.gone: int | None = None
        self._released: set[int] = set()  # of in_flight: PUBREC came, so only PUBREL is sent from then on
        self._unreleased: set[int] = set()  # QoS 2 messages that we have, whose PUBREL has not come
        self._asked: dict[int, str] = {}  # SUBSCRIBE packets of this connection
        self._input = bytearray()
        self._next_identifier = 0

    # A connection ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin on a new connection: nothing of the last one's bytes counts any more."""
        self.output.clear()
        self._input.clear()
        self._asked.clear()
        self.connected = False
        self.gone = None
        properties: dict[str, Any] = {}
        if self.version == 5:
            properties = {"session_expiry_interval": self.session_expiry_s, "receive_maximum": self.receive_maximum}
        self.output += encode(
            Connect(
                self.version, self.identifier.encode(), not self.session_expiry_s, 0, self.will, None, None, properties
            ),
            self.version,
        )

    def goodbye(self) -> None:
        """Say DISCONNECT: no will."""
        self.output += b"\xe0\0"

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Ask for a subscription; `subscribed` has it when the SUBACK came."""
        identifier = self._free_identifier()
        self._asked[identifier] = topic_filter
        self.output += encode(Subscribe(identifier, (subscription(topic_filter.encode(), qos),)), self.version)

    def publish(self, topic: bytes, payload: bytes, qos: int, retain: bool = False, tag: Any = None) -> None:
        """Send a message; at QoS 1 and 2 it is kept, and sent again, until its exchange is over."""
        assert self.connected
        body = len(topic).to_bytes(2, "big") + topic
        if qos:
            identifier = self._free_identifier()
            body += identifier.to_bytes(2, "big")
        if self.version == 5:
            body += b"\0"
        body += payload
        length = len(body)
        assert length < 16_384, length
        remaining = bytes((length,)) if length < 128 else bytes((length & 0x7F | 0x80, length >> 7))
        frame = bytes((0x30 | qos << 1 | retain,)) + remaining + body
        if qos:
            self.in_flight[identifier] = (frame, tag)
        self.output += frame

    def _free_identifier(self) -> int:
        identifier = self._next_identifier
        while True:
            identifier = identifier % 65_535 + 1
            if identifier not in self.in_flight and identifier not in self._asked:
                self._next_identifier = identifier
                return identifier

    def feed(self, data: bytes) -> None:
        """Take bytes of the broker, in pieces of any length. Raises WrongPacketError."""
        buffer = self._input
        buffer += data
        position, end = 0, len(buffer)
        while end - position >= 2:
            at = position + 1
            length = shift = 0
            while at < end:
                byte = buffer[at]
                length |= (byte & 0x7F) << shift
                at += 1
                shift += 7
                if byte < 0x80:
                    break
            else:
                break
            if at + length > end:
                break
            first = buffer[position]
            packet_type = first >> 4
            if packet_type == 3:
                self._on_publish(first, bytes(buffer[at : at + length]))
            elif 4 <= packet_type <= 7:
                reason = buffer[at + 2] if length > 2 else 0
                self._on_ack(packet_type, buffer[at] << 8 | buffer[at + 1], reason)
            else:
                self._on_other(decode(first, bytes(buffer[at : at + length]), self.version))
            position = at + length
        del buffer[:position]

    # What came ------------------------------------------------------------------------------------------------------

    def _wrong(self, what: str) -> WrongPacketError:
        return WrongPacketError(f"{self.identifier}: {what}")

    def _on_publish(self, first: int, body: bytes) -> None:
        at = 2 + (body[0] << 8 | body[1])
        topic = body[2:at]
        qos = first >> 1 & 3
        dup = bool(first & DUP)
        identifier = 0
        if qos:
            identifier = body[at] << 8 | body[at + 1]
            at += 2
        if self.version == 5:
            length = shift = 0
            while True:
                byte = body[at]
                length |= (byte & 0x7F) << shift
                at += 1
                shift += 7
                if byte < 0x80:
                    break
            at += length
        if qos == 2:
            self.output += bytes((0x50, 2, identifier >> 8, identifier & 0xFF))
            if identifier in self._unreleased:
                if not dup:
                    raise self._wrong(f"identifier {identifier} is in use, and comes without DUP [MQTT-3.3.1-1]")
                return
            self._unreleased.add(identifier)
        elif qos == 1:
            self.output += bytes((0x40, 2, identifier >> 8, identifier & 0xFF))
        self.on_message(topic, body[at:], qos, bool(first & 1), dup)

    def _on_ack(self, packet_type: int, identifier: int, reason: int) -> None:
        if packet_type == 6:
            self._unreleased.discard(identifier)
            self.output += bytes((0x70, 2, identifier >> 8, identifier & 0xFF))
            return
        kept = self.in_flight.get(identifier)
        if kept is None:
            raise self._wrong(f"packet type {packet_type} for identifier {identifier}, of which nothing is in flight")
        if reason >= 0x80 and not (packet_type == 7 and reason == NOT_FOUND):
            raise self._wrong(f"packet type {packet_type} with reason code 0x{reason:02x}")
        qos = kept[0][0] >> 1 & 3
        if (packet_type == 4) != (qos == 1) or (packet_type == 7 and identifier not in self._released):
            raise self._wrong(f"packet type {packet_type} for a message of QoS {qos}")
        if packet_type == 5:
            if identifier not in self._released:
                self._released.add(identifier)
                self.on_acknowledged(kept[1])
            self.output += bytes((0x62, 2, identifier >> 8, identifier & 0xFF))
            return
        del self.in_flight[identifier]
        self._released.discard(identifier)
        if packet_type == 4:
            self.on_acknowledged(kept[1])

    def _on_other(self, packet: Any) -> None:
        if isinstance(packet, Connack):
            if packet.reason in UNAVAILABLE:
                self.gone = int(packet.reason)
                return
            if packet.reason:
                raise self._wrong(f"was refused: {packet}")
            self.connected = True
            self.session_present = packet.session_present
            if not packet.session_present:
                self.in_flight.clear()
                self._released.clear()
                self._unreleased.clear()
                self.subscribed.clear()
            self.established = True
            self._send_again()
        elif isinstance(packet, Suback):
            topic_filter = self._asked.pop(packet.packet_identifier)
            if max(packet.reasons) > 2:
                raise self._wrong(f"{packet} for {topic_filter}")
            self.subscribed.add(topic_filter)
        elif isinstance(packet, Disconnect):
            self.gone = int(packet.reason)

    def _send_again(self) -> None:
        """Send in order what is not acknowledged, PUBLISH with DUP [MQTT-4.4.0-1]."""
        for identifier, (frame, _) in self.in_flight.items():
            if identifier in self._released:
                self.output += bytes((0x62, 2, identifier >> 8, identifier & 0xFF))
            else:
                self.resent += 1
                self.output.append(frame[0] | DUP)
                self.output += frame[1:]
