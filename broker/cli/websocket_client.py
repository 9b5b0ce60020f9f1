"""The client's end of a WebSocket (RFC 6455): bytes in, bytes out, no socket.

The broker's end is compiled and takes no answer; this one serves a person's command, one connection at a time.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import Final

import h11

from broker.cli.mqtt_errors import WebSocketError

SUBPROTOCOL: Final = b"mqtt"  # [MQTT-6.0.0-3]
KEY_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
WORDS_MAX: Final = 200  # characters of an answer that are shown to a person
ANSWER_BYTES_MAX: Final = 16384  # of the head, and of the body of a refusal
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN, RESERVED_BITS, MASKED = 0x80, 0x70, 0x80
NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002


class WebSocketClient:
    """One WebSocket, from the request that opens it to its end.

    Args:
        host: HOST:PORT as the request names it.
        path: with the query, if there is one.

    Attributes:
        opened: frames can be sent.
        ended: nothing more comes from the server.
    """

    def __init__(self, host: str, path: str) -> None:
        self.opened = False
        self.ended = False
        self._path = path
        self._key = base64.b64encode(os.urandom(16))
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=ANSWER_BYTES_MAX)
        request = h11.Request(
            method="GET",
            target=path,
            headers=[
                (b"Host", host.encode("ascii")),
                (b"Upgrade", b"websocket"),
                (b"Connection", b"Upgrade"),
                (b"Sec-WebSocket-Key", self._key),
                (b"Sec-WebSocket-Version", b"13"),
                (b"Sec-WebSocket-Protocol", SUBPROTOCOL),
            ],
        )
        self._output = bytearray((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        self._refusal: h11.Response | None = None
        self._body = bytearray()  # of a refusal
        self._begun = False
        self._input = bytearray()  # of a frame: its header, or a control frame, as far as it has come
        self._opcode = BINARY  # of the frame whose payload comes
        self._left = 0  # of its payload
        self._said_close = False

    def receive(self, data: bytes) -> bytes:
        """Take what has come from the server; return the payload of its data frames. Raises WebSocketError."""
        if not self.opened:
            if data[:1] == b"\x15" and not self._begun:
                raise WebSocketError("what answers there speaks TLS: wss://")
            self._begun = self._begun or bool(data)
            data = self._open(data)
            if not self.opened:
                return b""
        try:
            return self._frames(data)
        except WebSocketError:
            self._close(PROTOCOL_ERROR)
            raise

    @property
    def refusal(self) -> WebSocketError | None:
        """What the server has answered in place of opening it, as far as that has come; None: nothing."""
        return None if self._refusal is None else self._refused(self._refusal)

    def send(self, data: bytes) -> None:
        """Put a frame around what is for the server; only once it is opened."""
        assert self.opened
        if data and not self._said_close:
            self._send_frame(BINARY, data)

    def take(self) -> bytes:
        """Return what is to be sent to the server, and forget it."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def finish(self) -> None:
        """Say that nothing more comes from us."""
        if self.opened:
            self._close(NORMAL)

    # The answer -----------------------------------------------------------------------------------------------------

    def _open(self, data: bytes) -> bytes:
        """Take the answer to our request; return what came behind it: frames already."""
        try:
            if data:
                self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.InformationalResponse):
                    if event.status_code != 101:
                        continue
                    self._check(event)
                    self.opened = True
                    return bytes(self._http.trailing_data[0])
                if isinstance(event, h11.Response):
                    self._refusal = event
                elif isinstance(event, h11.Data):
                    self._body += event.data
                else:
                    assert event is not h11.PAUSED, event
                    if self._refusal is not None and (
                        isinstance(event, h11.EndOfMessage) or len(self._body) >= ANSWER_BYTES_MAX
                    ):
                        raise self._refused(self._refusal)
                    return b""
        except h11.RemoteProtocolError:
            raise WebSocketError("what answers there speaks no HTTP") from None

    def _check(self, answer: h11.InformationalResponse) -> None:
        fields = {bytes(name): bytes(value) for name, value in answer.headers}
        expected = base64.b64encode(hashlib.sha1(self._key + KEY_SUFFIX, usedforsecurity=False).digest())
        if fields.get(b"sec-websocket-accept") != expected or fields.get(b"upgrade", b"").lower() != b"websocket":
            raise WebSocketError("the answer is not one to our request")
        if fields.get(b"sec-websocket-protocol", SUBPROTOCOL) != SUBPROTOCOL:
            raise WebSocketError(f"the server speaks {_shown(fields[b'sec-websocket-protocol'])} there, not mqtt")
        if b"sec-websocket-extensions" in fields:
            raise WebSocketError("the server uses an extension that nobody has offered")

    def _refused(self, answer: h11.Response) -> WebSocketError:
        """Say what came in place of 101: the status, where it leads to, and the words of its body if it is text."""
        fields = {bytes(name): bytes(value) for name, value in answer.headers}
        said = f"{answer.status_code} {_shown(bytes(answer.reason))}".rstrip()
        where = fields.get(b"location")
        if where is not None:
            said += f", go to {_shown(where)}"
        elif fields.get(b"content-type", b"").startswith(b"text/plain") and self._body.strip():
            said += f": {_shown(bytes(self._body).strip().splitlines()[0]).rstrip('.')}"
        return WebSocketError(
            f"at {self._path} it answers {said}", for_now=answer.status_code >= 500 or answer.status_code in (408, 429)
        )

    # Frames ---------------------------------------------------------------------------------------------------------

    def _frames(self, data: bytes) -> bytes:
        received = []
        self._input += data
        at = 0
        while not self.ended:
            if self._left == 0:
                header = _header(self._input, at)
                if header is None:
                    break
                self._opcode, self._left, size = header
                if self._opcode & 0x8 and len(self._input) - at < size + self._left:
                    self._left = 0
                    break  # a control frame is taken whole; it has 125 bytes at most
                at += size
                if self._opcode & 0x8:
                    payload = bytes(self._input[at : at + self._left])
                    at += self._left
                    self._left = 0
                    self._take_control(payload)
                continue
            part = self._input[at : at + self._left]
            if not part:
                break
            received.append(part)
            at += len(part)
            self._left -= len(part)
        del self._input[:at]
        return b"".join(received)

    def _take_control(self, payload: bytes) -> None:
        if self._opcode == PING:
            self._send_frame(PONG, payload)
        elif self._opcode == CLOSE:
            self.ended = True
            self._close(struct.unpack_from("!H", payload)[0] if len(payload) >= 2 else None)

    def _close(self, code: int | None) -> None:
        if not self._said_close:
            self._send_frame(CLOSE, b"" if code is None else struct.pack("!H", code))
            self._said_close = True

    def _send_frame(self, opcode: int, payload: bytes) -> None:
        if self._said_close:
            return
        length = len(payload)
        self._output.append(FIN | opcode)
        if length <= 125:
            self._output.append(MASKED | length)
        elif length <= 0xFFFF:
            self._output += struct.pack("!BH", MASKED | 126, length)
        else:
            self._output += struct.pack("!BQ", MASKED | 127, length)
        mask = os.urandom(4)
        self._output += mask
        self._output += _masked(payload, mask)


def _header(data: bytearray, at: int) -> tuple[int, int, int] | None:
    """Return opcode and length of the payload of the frame that begins there, and how long its header is.

    None: it has not come whole. Raises WebSocketError.
    """
    if len(data) - at < 2:
        return None
    first, second = data[at], data[at + 1]
    opcode = first & 0x0F
    if (
        first & RESERVED_BITS
        or second & MASKED
        or opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)
        or (opcode & 0x8 and (second > 125 or not first & FIN))
    ):
        raise WebSocketError("the server broke the protocol of WebSocket")
    if opcode == TEXT:
        raise WebSocketError("the server sent a text frame, and MQTT comes in binary ones")
    if second <= 125:
        return opcode, second, 2
    size = 2 if second == 126 else 8
    if len(data) - at < 2 + size:
        return None
    return opcode, int.from_bytes(data[at + 2 : at + 2 + size], "big"), 2 + size


def _masked(payload: bytes, mask: bytes) -> bytes:
    """Return a payload XOR its mask, which is its own reverse."""
    length = len(payload)
    whole = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(whole, "little")).to_bytes(length, "little")


def _shown(data: bytes) -> str:
    """Return what a server says so that it can do no harm on a terminal."""
    text = data.decode("utf-8", "replace")[:WORDS_MAX]
    return "".join(character if character.isprintable() else "?" for character in text)
