"""The few packets of MQTT 5.0 that the sink, `shoal replay` and the network source need, over a blocking socket.

It takes a quarter of the CPU of `broker/cli/mqtt_client.py`, acknowledges when its caller says so, and sends again on
the next connection what the last one left unfinished: docs/decisions/0025-analytics-has-an-mqtt-client-of-its-own.md.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from router.core.varint import encode_varint, find_varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK = range(1, 10)
PINGREQ, PINGRESP, DISCONNECT = 12, 13, 14
REFUSED: Final = 0x80  # reason codes from here on
IDENTIFIERS: Final = 65_535
OUTPUT_BYTES: Final = 65_536
RECEIVE_BYTES: Final = 262_144
KEEP_ALIVE_S: Final = 60
TIMEOUT_S: Final = 30.0

# name -> (identifier, kind) of properties that a PUBLISH may have; b1, b4: bytes of a number.
PROPERTIES: Final = {
    "payload_format_indicator": (0x01, "b1"),
    "message_expiry_interval": (0x02, "b4"),
    "content_type": (0x03, "text"),
    "response_topic": (0x08, "text"),
    "correlation_data": (0x09, "bytes"),
    "user_properties": (0x26, "pairs"),
}
# Bytes of the properties that are numbers.
_SIZES: Final = {
    0x01: 1, 0x17: 1, 0x19: 1, 0x24: 1, 0x25: 1, 0x28: 1, 0x29: 1, 0x2A: 1,
    0x13: 2, 0x21: 2, 0x22: 2, 0x23: 2,
    0x02: 4, 0x11: 4, 0x18: 4, 0x27: 4,
}  # fmt: skip
_TEXTS: Final = {0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F}


class NetworkError(Exception):
    """The broker is not there, refused, or was lost: one sentence."""


@dataclass(slots=True)
class Received:
    """A message that came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_identifier: int
    properties: dict[int, Any]

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """The user properties, in their order."""
        found: list[tuple[str, str]] = self.properties.get(0x26, [])
        return found


@dataclass(slots=True)
class Unfinished:
    """What a session remembers over connections: packet identifier -> PUBLISH, None once a PUBREC came."""

    packets: dict[int, bytes | None] = field(default_factory=dict)
    last: int = 0

    def next(self) -> int:
        """Return a packet identifier that is free."""
        while True:
            self.last = self.last % IDENTIFIERS + 1
            if self.last not in self.packets:
                return self.last


def pair(data: bytes) -> bytes:
    """Return bytes behind their length. Raises ValueError for more than 65,535."""
    if len(data) > 0xFFFF:
        raise ValueError(f"{len(data)} bytes are too many for a string of MQTT")
    return len(data).to_bytes(2, "big") + data


def publish_properties(given: dict[str, Any]) -> bytes:
    """Return properties of a PUBLISH, without their length; those that are None are left out.

    Args:
        given: by the names in PROPERTIES.
    """
    encoded = b""
    for name, value in given.items():
        identifier, kind = PROPERTIES[name]
        if value is None:
            continue
        match kind:
            case "b1":
                encoded += bytes([identifier, value])
            case "b4":
                encoded += bytes([identifier]) + int(value).to_bytes(4, "big")
            case "text":
                encoded += bytes([identifier]) + pair(value.encode())
            case "bytes":
                encoded += bytes([identifier]) + pair(bytes(value))
            case _:
                for key, text in value:
                    encoded += bytes([identifier]) + pair(key.encode()) + pair(text.encode())
    return encoded


def packet(first: int, *parts: bytes) -> bytes:
    """Return a packet with its length."""
    return b"".join((bytes([first]), encode_varint(sum(map(len, parts))), *parts))


def _properties(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the properties that begin with their length at `at`, and where they end."""
    length, at = find_varint(data, at)
    end = at + length
    found: dict[int, Any] = {}
    while at < end:
        name = data[at]
        at += 1
        if name == 0x26:
            key, at = _pair(data, at)
            value, at = _pair(data, at)
            found.setdefault(name, []).append((key.decode(), value.decode()))
        elif name in _TEXTS:
            found[name], at = _pair(data, at)
        elif name == 0x0B:
            found[name], at = find_varint(data, at)
        else:
            size = _SIZES.get(name)
            if size is None:
                raise NetworkError(f"the broker sent property {name:#x}, which there is not")
            found[name] = int.from_bytes(data[at : at + size], "big")
            at += size
    return found, end


def _pair(data: bytes, at: int) -> tuple[bytes, int]:
    length = int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : at + 2 + length], at + 2 + length


class Client:
    """A connection to a broker, open from the beginning.

    Args:
        url: `tcp://HOST:PORT`, or `tls://HOST:PORT` with the certificates that this machine trusts.
        client_identifier: empty: the broker chooses one.
        session_expiry_s: 0: the session ends with the connection.
        unfinished: of the session, if it was there before.
        receive_maximum: messages at QoS 1 that may come before they are acknowledged.

    Raises NetworkError, here and everywhere.
    """

    def __init__(
        self, url: str, *, client_identifier: str = "", username: str | None = None, password: str | None = None,
        session_expiry_s: int = 0, unfinished: Unfinished | None = None, receive_maximum: int = IDENTIFIERS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.timeout_s = timeout_s
        self.unfinished = unfinished if unfinished is not None else Unfinished()
        self.arrived: deque[Received] = deque()
        self.refused: list[int] = []  # reason codes of PUBACK and PUBREC since somebody looked
        self._input = bytearray()
        self._output = bytearray()
        self._heard_s = self._sent_s = time.monotonic()
        self._answers: dict[int, bytes] = {}
        self._window = IDENTIFIERS
        self.url = url
        self._socket = _connected(url, timeout_s)
        hello = bytes([0, 4]) + b"MQTT" + bytes([5, self._flags(username, password, session_expiry_s, unfinished)])
        properties = b"\x11" + session_expiry_s.to_bytes(4, "big") + b"\x21" + receive_maximum.to_bytes(2, "big")
        hello += KEEP_ALIVE_S.to_bytes(2, "big") + encode_varint(len(properties)) + properties
        hello += pair(client_identifier.encode())
        for secret in (username, password):
            hello += pair(secret.encode()) if secret is not None else b""
        self._socket.sendall(packet(CONNECT << 4, hello))
        answer = self._wait(lambda: self._answers.pop(0, None), "CONNACK")
        if answer[1] >= REFUSED:
            reason = _properties(answer, 2)[0].get(0x1F, b"").decode()
            raise NetworkError(f"{url} refused us with reason code {answer[1]:#04x}{': ' + reason if reason else ''}")
        self._window = _properties(answer, 2)[0].get(0x21, IDENTIFIERS)
        self._resend(session_present=bool(answer[0] & 1))

    @staticmethod
    def _flags(username: str | None, password: str | None, session_expiry_s: int, unfinished: Unfinished | None) -> int:
        clean = not session_expiry_s or unfinished is None or not unfinished.last
        return (username is not None) << 7 | (password is not None) << 6 | clean << 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say DISCONNECT, if that is still possible."""
        try:
            self._output += packet(DISCONNECT << 4)
            self._flush()
        except (OSError, NetworkError):
            pass
        self._socket.close()

    def _resend(self, *, session_present: bool) -> None:
        waiting = self.unfinished.packets
        for identifier, sent in list(waiting.items()):
            if sent is not None:
                self._output += bytes([sent[0] | 8]) + sent[1:]
            elif session_present:
                self._output += packet(PUBREL << 4 | 2, identifier.to_bytes(2, "big"))
            else:
                del waiting[identifier]
        self._flush()

    # Sending --------------------------------------------------------------------------------------------------------

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, properties: bytes = b"") -> None:
        """Publish; returns when there is room for the next one, so up to Receive Maximum messages are on their way."""
        name = pair(topic.encode())
        first = PUBLISH << 4 | qos << 1 | retain
        if qos == 0:
            self._output += packet(first, name, encode_varint(len(properties)), properties, payload)
        else:
            waiting = self.unfinished.packets
            if len(waiting) >= self._window:
                self._wait(lambda: len(waiting) < self._window, "an acknowledgement")
            identifier = self.unfinished.next()
            encoded = packet(
                first, name, identifier.to_bytes(2, "big"), encode_varint(len(properties)), properties, payload
            )
            waiting[identifier] = encoded
            self._output += encoded
        if len(self._output) >= OUTPUT_BYTES:
            self._flush()
            self._take_what_is_there()

    def send(self) -> None:
        """Send what has been published, without waiting for an answer."""
        self._flush()

    def look_after(self, seconds: float) -> None:
        """Wait so long, or until something comes, and answer it."""
        self._read(seconds)
        self._flush()

    def flush(self) -> None:
        """Wait until everything that was published is acknowledged."""
        self._flush()
        self._wait(lambda: not self.unfinished.packets, "an acknowledgement")

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        """Subscribe. Raises NetworkError if the broker refuses."""
        identifier = self.unfinished.next()
        content = identifier.to_bytes(2, "big") + b"\0" + pair(topic_filter.encode()) + bytes([qos])
        self._output += packet(SUBSCRIBE << 4 | 2, content)
        answer = self._wait(lambda: self._answers.pop(identifier, None), "SUBACK")
        _, at = _properties(answer, 2)
        if answer[at] >= REFUSED:
            raise NetworkError(f"{self.url} refuses a subscription to {topic_filter!r}: reason code {answer[at]:#04x}")

    def acknowledge(self, messages: Iterable[Received]) -> None:
        """Acknowledge messages of QoS 1."""
        for message in messages:
            if message.qos == 1:
                self._output += packet(PUBACK << 4, message.packet_identifier.to_bytes(2, "big"))
        self._flush()

    def _flush(self) -> None:
        if self._output:
            data, self._output = self._output, bytearray()
            self._sent_s = time.monotonic()
            view = memoryview(data)
            while view:
                # Who only sends may wait for a broker that only waits for us to read.
                readable, writable = _ready(self._socket, self.timeout_s, writing=True)
                if not readable and not writable:
                    raise NetworkError(f"{self.url} has taken nothing for {self.timeout_s:.0f} s")
                if readable:
                    self._receive()
                if writable:
                    try:
                        view = view[self._socket.send(view) :]
                    except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                        continue
                    except OSError as error:
                        raise NetworkError(f"the connection to {self.url} was lost: {error.strerror}") from error

    # Receiving ------------------------------------------------------------------------------------------------------

    def messages(self, idle_s: float) -> Iterator[Received]:
        """Yield messages as they come, until none has come for so long."""
        while True:
            while self.arrived:
                yield self.arrived.popleft()
            if not self._read(idle_s):
                return

    def _wait(self, condition: Any, what: str) -> Any:
        self._flush()
        while not (found := condition()):
            if not self._read(self.timeout_s):
                raise NetworkError(f"{self.url} did not send {what} for {self.timeout_s:.0f} s")
            self._flush()
        return found

    def _read(self, seconds: float) -> bool:
        """Read what comes within so long; False if nothing does."""
        until_s = time.monotonic() + max(0.0, seconds)
        while True:
            now_s = time.monotonic()
            if now_s - self._sent_s > KEEP_ALIVE_S / 2:
                self._output += packet(PINGREQ << 4)
                self._flush()
            pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
            if pending or _ready(self._socket, min(1.0, max(0.0, until_s - now_s)))[0]:
                self._receive()
                return True
            if now_s >= until_s:
                return False

    def _take_what_is_there(self) -> None:
        while _ready(self._socket, 0)[0]:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise NetworkError(f"the connection to {self.url} was lost: {error.strerror}") from error
        if not data:
            raise NetworkError(f"{self.url} has closed the connection")
        self._input += data
        at = 0
        while (frame := self._frame(at)) is not None:
            first, start, at = frame
            self._on_packet(first, bytes(self._input[start:at]))
        del self._input[:at]

    def _frame(self, at: int) -> tuple[int, int, int] | None:
        length, start = find_varint(self._input, at + 1)
        if start < 0:
            raise NetworkError(f"{self.url} sent a packet whose length has more than four bytes")
        end = start + length
        return (self._input[at], start, end) if start and end <= len(self._input) else None

    def _on_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind in (PUBACK, PUBREC, PUBCOMP):
            identifier = int.from_bytes(body[:2], "big")
            reason = body[2] if len(body) > 2 else 0
            if kind == PUBREC and reason < REFUSED:
                self.unfinished.packets[identifier] = None
                self._output += packet(PUBREL << 4 | 2, body[:2])
            else:
                self.unfinished.packets.pop(identifier, None)
            if reason >= REFUSED and kind != PUBCOMP:
                self.refused.append(reason)
        elif kind == PUBLISH:
            self._on_publish(first, body)
        elif kind == CONNACK:
            self._answers[0] = body
        elif kind == SUBACK:
            self._answers[int.from_bytes(body[:2], "big")] = body
        elif kind == DISCONNECT:
            reason = body[0] if body else 0
            raise NetworkError(f"{self.url} has ended the connection with reason code {reason:#04x}")

    def _on_publish(self, first: int, body: bytes) -> None:
        topic, at = _pair(body, 0)
        qos = first >> 1 & 3
        identifier = 0
        if qos:
            identifier = int.from_bytes(body[at : at + 2], "big")
            at += 2
        properties, at = _properties(body, at)
        self.arrived.append(Received(topic.decode(), body[at:], qos, bool(first & 1), identifier, properties))


def _ready(waited: socket.socket, seconds: float, *, writing: bool = False) -> tuple[bool, bool]:
    """Wait until a socket can be read, or written if that is asked for; return whether it can be read, and written."""
    poll = select.poll()  # select() ends at 1,024 descriptors
    poll.register(waited, select.POLLIN | (select.POLLOUT if writing else 0))
    events = sum(event for _, event in poll.poll(seconds * 1000))
    # Whoever has hung up is read from: that says so.
    return bool(events & ~select.POLLOUT), bool(events & select.POLLOUT)


def _connected(url: str, timeout_s: float) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme not in ("tcp", "tls", "mqtt", "mqtts") or not parts.hostname:
        raise NetworkError(f"{url!r} is no address of a broker, like tcp://127.0.0.1:1883 or tls://HOST:8883")
    secure = parts.scheme in ("tls", "mqtts")
    try:
        made = socket.create_connection((parts.hostname, parts.port or (8883 if secure else 1883)), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure:
            made = ssl.create_default_context().wrap_socket(made, server_hostname=parts.hostname)
        return made
    except OSError as error:
        raise NetworkError(f"{url} cannot be reached: {error.strerror or error}") from error
