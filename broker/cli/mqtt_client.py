"""A small MQTT client for one connection: blocking calls, no threads; `shoal pub` and `shoal sub` are made of it."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from broker.cli.connection import Connection
from broker.cli.mqtt_errors import ConnectionLostError, MqttError
from broker.cli.mqtt_url import Way
from broker.wire import packets
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError, ConnectReturn, Reason

if TYPE_CHECKING:
    from broker.transport.tls_client import ClientContext

OUTPUT_BYTES_MAX = 1 << 20  # publish() waits while more than this is unsent
GOODBYE_TIMEOUT_S = 2.0  # how long disconnect() tries to get rid of what is unsent


class RefusedError(MqttError):
    """The broker said no; `reason` is its reason code or, before 5.0, its return code."""

    def __init__(self, what: str, reason: Reason | ConnectReturn, properties: dict[str, Any] | None = None) -> None:
        self.reason = reason
        text = f"{what}: {reason.name.lower().replace('_', ' ')} (0x{reason:02x})"
        explanation = (properties or {}).get("reason_string")
        super().__init__(f"{text}, it says: {explanation}" if explanation else text)


class TurnedAwayError(RefusedError, ConnectionLostError):
    """The broker said no, and may say yes to the same later."""


FOR_NOW = frozenset({
    Reason.SUCCESS, Reason.UNSPECIFIED_ERROR, Reason.IMPLEMENTATION_SPECIFIC_ERROR, Reason.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY, Reason.SERVER_SHUTTING_DOWN, Reason.KEEP_ALIVE_TIMEOUT, Reason.MESSAGE_RATE_TOO_HIGH,
    Reason.QUOTA_EXCEEDED, Reason.ADMINISTRATIVE_ACTION, Reason.CONNECTION_RATE_EXCEEDED, Reason.MAXIMUM_CONNECT_TIME,
})  # fmt: skip
"""Why a broker of 5.0 turns a client away that may come again. Not 0x8E: another client has taken over."""


def _refused(what: str, reason: Reason | ConnectReturn, properties: dict[str, Any]) -> RefusedError:
    for_now = reason in FOR_NOW if isinstance(reason, Reason) else reason == ConnectReturn.SERVER_UNAVAILABLE
    return (TurnedAwayError if for_now else RefusedError)(what, reason, properties)


class Client:
    """One connection to a broker, for one thread.

    Packets are sent and received, and keep alive is kept, only while one of the blocking methods runs. Every method
    raises MqttError when the connection is gone.

    Args:
        way: where the broker is, and what is spoken there.
        connect: the CONNECT to send; it also fixes the version.
        answer_timeout_s: how long an answer that the broker owes us may take, each.
        context: what TLS is made with; None without TLS.
    """

    def __init__(
        self, way: Way, connect: packets.Connect, answer_timeout_s: float = 30.0, context: ClientContext | None = None
    ) -> None:
        self.way = way
        self.context = context
        self.connect = connect
        self.version = connect.version
        self.answer_timeout_s = answer_timeout_s
        self.connack = packets.Connack()
        self._connection: Connection | None = None
        self._input = bytearray()
        self._received: deque[packets.Publish] = deque()  # handed out by receive(), acknowledged then
        self._answers: dict[int, packets.Suback | packets.Unsuback] = {}
        self._connected = False
        self._aliases: dict[int, bytes] = {}  # of the broker's, alias -> topic name
        self._incoming: set[int] = set()  # QoS 2 identifiers between PUBLISH and PUBREL
        self._outgoing: dict[int, PacketType] = {}  # packet identifier -> the answer it waits for
        self._refusals: list[packets.Ack] = []
        self._last_packet_identifier = 0
        self._keep_alive_s = float(connect.keep_alive_s)
        self._last_sent = 0.0  # monotonic seconds
        self._ping_sent: float | None = None  # monotonic seconds, while PINGRESP is owed

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.disconnect()
        else:
            self.close()

    @property
    def window(self) -> int:
        """How many QoS 1 and 2 messages the broker lets us have unfinished."""
        return int(self.connack.properties.get("receive_maximum", 0xFFFF))

    @property
    def tls(self) -> str | None:
        """Version of TLS and cipher suite; None without TLS."""
        return None if self._connection is None else self._connection.tls

    def open(self) -> packets.Connack:
        """Connect, and return the CONNACK that accepted us; raise RefusedError if it did not."""
        self._connection = Connection(self.way, self.context, self.answer_timeout_s)
        self._send(self.connect)
        self._until(lambda: self._connected, "CONNECT")
        reason = self.connack.reason
        if reason:
            self.close()
            where = f"the broker at {self.way} refused the connection"
            raise _refused(where, reason, self.connack.properties)
        self._keep_alive_s = float(self.connack.properties.get("server_keep_alive", self._keep_alive_s))
        return self.connack

    def open_again(self) -> packets.Connack:
        """Connect once more after the connection was lost, and go on with the session if it outlived it.

        Raises MqttError as open() does. Of messages to the broker, those that were not answered are given up.
        """
        self.close()
        if self.connect.properties.get("session_expiry_interval"):
            self.connect = replace(self.connect, clean_start=False)
        self._input.clear()
        for of_connection in (self._answers, self._aliases, self._outgoing, self._refusals):
            of_connection.clear()
        self._connected = False
        self._ping_sent = None
        self._keep_alive_s = float(self.connect.keep_alive_s)
        connack = self.open()
        if not connack.session_present:
            self._incoming.clear()
        return connack

    def publish(
        self, topic: bytes, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        """Send a message; return when it is on its way. `flush` waits until it has arrived.

        Waits while the broker's Receive Maximum is used up or too much is unsent.
        """
        allowed = self.connack.properties
        if qos > allowed.get("maximum_qos", 2):
            raise MqttError(f"the broker takes QoS {allowed['maximum_qos']} at most")
        if retain and not allowed.get("retain_available", 1):
            raise MqttError("the broker has no retained messages")
        self._until(
            lambda: self._unsent <= OUTPUT_BYTES_MAX and (not qos or len(self._outgoing) < self.window), "PUBLISH"
        )
        packet_identifier = self._next_packet_identifier() if qos else 0
        self._send(packets.Publish(topic, payload, qos, retain, False, packet_identifier, properties or {}))
        if qos:
            self._outgoing[packet_identifier] = PacketType.PUBACK if qos == 1 else PacketType.PUBREC

    def flush(self) -> None:
        """Wait until everything is sent and every QoS 1 and 2 message is complete; RefusedError if one was refused."""
        self._until(lambda: not self._unsent and not self._outgoing, "PUBLISH")
        if self._refusals:
            ack = self._refusals[0]
            raise RefusedError("the broker refused the message", ack.reason, ack.properties)

    def subscribe(
        self, subscriptions: Sequence[packets.Subscription], properties: dict[str, Any] | None = None
    ) -> packets.Suback:
        """Subscribe, and return the broker's SUBACK, whose reasons may be refusals."""
        identifier = self._next_packet_identifier()
        self._send(packets.Subscribe(identifier, tuple(subscriptions), properties or {}))
        answer = self._answer(identifier, "SUBSCRIBE")
        if not isinstance(answer, packets.Suback) or len(answer.reasons) != len(subscriptions):
            raise MqttError("the broker's answer to SUBSCRIBE does not fit it")
        return answer

    def unsubscribe(self, topic_filters: Sequence[bytes]) -> packets.Unsuback:
        """Unsubscribe, and return the broker's UNSUBACK; before 5.0 it has no reasons."""
        identifier = self._next_packet_identifier()
        self._send(packets.Unsubscribe(identifier, tuple(topic_filters)))
        answer = self._answer(identifier, "UNSUBSCRIBE")
        if not isinstance(answer, packets.Unsuback):
            raise MqttError("the broker's answer to UNSUBSCRIBE does not fit it")
        return answer

    def receive(self, timeout_s: float | None = None) -> packets.Publish | None:
        """Return the next message, waiting for it; None if the time is over before one has come.

        The message is acknowledged as it is handed out, and its topic name is never empty: an alias is resolved.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self._received:
            remaining = None if deadline is None else deadline - monotonic()
            if remaining is not None and remaining < 0:
                return None
            self.turn(remaining)
        message = self._received.popleft()
        if self._connection is None:
            return message  # it had come before the connection was lost
        if message.qos == 1:
            self._send(packets.Ack(PacketType.PUBACK, message.packet_identifier))
        elif message.qos == 2:
            self._send(packets.Ack(PacketType.PUBREC, message.packet_identifier))
        return message

    def disconnect(
        self, reason: Reason = Reason.NORMAL_DISCONNECTION, properties: dict[str, Any] | None = None
    ) -> None:
        """Send DISCONNECT behind what is unsent, and close. A broker that is gone already is no error."""
        connection = self._connection
        if connection is None:
            return
        try:
            self._send(packets.Disconnect(reason, properties or {}))
            connection.finish()
            deadline = monotonic() + GOODBYE_TIMEOUT_S
            while connection.has_output and monotonic() < deadline:
                select.select([], [connection], [], deadline - monotonic())
                connection.flush()
        except (MqttError, OSError):
            pass
        self.close()

    def close(self) -> None:
        """Close the connection without DISCONNECT: the broker publishes the will."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def turn(self, timeout_s: float | None, also: int | None = None) -> bool:
        """Send and receive what is possible, waiting for something at most this long (None: no bound).

        Args:
            also: a file descriptor to wait for as well.

        Returns:
            whether `also` can be read.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLostError("the connection is closed")
        waits = [wait for wait in (timeout_s, self._keep_alive_wait_s()) if wait is not None]
        readers: list[Any] = [connection] if also is None else [connection, also]
        readable, writable, _ = select.select(
            readers, [connection] if connection.has_output else [], [], max(0.0, min(waits)) if waits else None
        )
        if writable:
            connection.flush()
        if connection in readable:
            self._read(connection)
        return also in readable

    # ------------------------------------------------------------------------------------------------------ inside

    def _until(self, condition: Callable[[], bool], question: str) -> None:
        deadline = monotonic() + self.answer_timeout_s
        progress = (len(self._outgoing), self._unsent)
        while not condition():
            if monotonic() >= deadline:
                kind = ConnectionLostError if question == "CONNECT" else MqttError
                question = (self._connection and self._connection.opening) or question
                raise kind(f"the broker did not answer {question} within {self.answer_timeout_s:g} seconds")
            self.turn(deadline - monotonic())
            if progress != (len(self._outgoing), self._unsent):
                progress = (len(self._outgoing), self._unsent)
                deadline = monotonic() + self.answer_timeout_s

    def _answer(self, packet_identifier: int, question: str) -> packets.Suback | packets.Unsuback:
        self._until(lambda: packet_identifier in self._answers, question)
        return self._answers.pop(packet_identifier)

    def _next_packet_identifier(self) -> int:
        while True:
            self._last_packet_identifier = self._last_packet_identifier % 0xFFFF + 1
            if self._last_packet_identifier not in self._outgoing:
                return self._last_packet_identifier

    def _keep_alive_wait_s(self) -> float | None:
        """Send PINGREQ if one is due; return the seconds until the next thing is due for keep alive."""
        if not self._keep_alive_s or not self._connected:
            return None
        now = monotonic()
        if self._ping_sent is not None:
            remaining = self._ping_sent + self.answer_timeout_s - now
            if remaining <= 0:
                raise ConnectionLostError(f"the broker did not answer PINGREQ within {self.answer_timeout_s:g} seconds")
            return remaining
        # Three quarters, so that a slow network does not make us late [MQTT-3.1.2-20].
        remaining = self._last_sent + self._keep_alive_s * 0.75 - now
        if remaining <= 0:
            self._send(packets.Pingreq())
            self._ping_sent = now
            return self.answer_timeout_s
        return remaining

    @property
    def _unsent(self) -> int:
        return 0 if self._connection is None else self._connection.unsent

    def _send(self, packet: packets.Packet) -> None:
        if self._connection is None:
            raise ConnectionLostError("the connection is closed")
        frame = packets.encode(packet, self.version)
        size_max = self.connack.properties.get("maximum_packet_size")
        if size_max is not None and len(frame) > size_max:
            raise MqttError(f"the broker takes packets of {size_max} bytes at most, this one has {len(frame)}")
        self._last_sent = monotonic()
        self._connection.send(frame)

    def _read(self, connection: Connection) -> None:
        try:
            self._input += connection.receive()
        except MqttError:
            self.close()
            raise
        try:
            while (frame := packets.next_frame(self._input)) is not None:
                self._take(packets.decode(*frame, self.version))
        except ClientError as error:
            self.close()
            raise MqttError(f"the broker broke the protocol: {error}") from None
        if connection.ended and self._connection is not None:
            self.close()
            raise connection.lost()

    def _take(self, packet: packets.Packet) -> None:
        if not self._connected:
            if not isinstance(packet, packets.Connack):
                raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.2.0-1", "a packet before CONNACK")
            self.connack = packet
            self._connected = True
        elif isinstance(packet, packets.Publish):
            self._take_publish(packet)
        elif isinstance(packet, packets.Ack):
            self._take_ack(packet)
        elif isinstance(packet, packets.Suback | packets.Unsuback):
            self._answers[packet.packet_identifier] = packet
        elif isinstance(packet, packets.Pingresp):
            self._ping_sent = None
        elif isinstance(packet, packets.Disconnect) and self.version == 5:
            self.close()
            raise _refused("the broker ended the connection", packet.reason, packet.properties)
        else:
            raise ClientError(Reason.PROTOCOL_ERROR, "section 4.13", "a packet that no broker sends")

    def _take_publish(self, message: packets.Publish) -> None:
        alias = message.properties.get("topic_alias")
        if alias is not None:
            if alias > self.connect.properties.get("topic_alias_maximum", 0) or not (
                message.topic or alias in self._aliases
            ):
                raise ClientError(Reason.TOPIC_ALIAS_INVALID, "MQTT-3.1.2-26", f"topic alias {alias}")
            topic = self._aliases[alias] = message.topic or self._aliases[alias]
            properties = {name: value for name, value in message.properties.items() if name != "topic_alias"}
            message = packets.Publish(
                topic, message.payload, message.qos, message.retain, message.dup, message.packet_identifier, properties
            )
        if message.qos == 2:
            if message.packet_identifier in self._incoming:
                self._send(packets.Ack(PacketType.PUBREC, message.packet_identifier))
                return
            self._incoming.add(message.packet_identifier)
        self._received.append(message)

    def _take_ack(self, ack: packets.Ack) -> None:
        identifier = ack.packet_identifier
        if ack.type == PacketType.PUBREL:
            known = identifier in self._incoming
            self._incoming.discard(identifier)
            reason = Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND
            self._send(packets.Ack(PacketType.PUBCOMP, identifier, reason))
            return
        if self._outgoing.get(identifier) != ack.type:
            # A PUBREC that nothing here waits for belongs to a session of an earlier run: it still needs its end.
            if ack.type == PacketType.PUBREC and ack.reason < 0x80:
                self._send(packets.Ack(PacketType.PUBREL, identifier, Reason.PACKET_IDENTIFIER_NOT_FOUND))
            return
        if ack.type == PacketType.PUBREC and ack.reason < 0x80:
            self._outgoing[identifier] = PacketType.PUBCOMP
            self._send(packets.Ack(PacketType.PUBREL, identifier))
            return
        del self._outgoing[identifier]
        if ack.reason >= 0x80 and ack.type != PacketType.PUBCOMP:
            self._refusals.append(ack)
