"""WebSocket frames as a client makes and reads them, and the requests that open one."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
KEY, ACCEPT = b"dGhlIHNhbXBsZSBub25jZQ==", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # the example of RFC 6455, 1.3


class Frame(NamedTuple):
    """A frame that came from the broker."""

    opcode: int
    payload: bytes


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    mask: bytes | None = b"\x37\xfa\x21\x3d",
    reserved: int = 0,
    length_bytes: int | None = None,
) -> bytes:
    """Return a frame of a client's, right or wrong.

    Args:
        mask: four bytes; None: it is not masked.
        reserved: the three bits that only extensions set.
        length_bytes: 0, 2 or 8 of the extended length; None: as many as it takes.
    """
    size = len(payload)
    if length_bytes is None:
        length_bytes = 0 if size < 126 else 2 if size < 65_536 else 8
    short = {0: size, 2: 126, 8: 127}[length_bytes]
    extended = {0: b"", 2: struct.pack("!H", size) if size < 65_536 else b"", 8: struct.pack("!Q", size)}[length_bytes]
    head = bytes((fin << 7 | reserved << 4 | opcode, (mask is not None) << 7 | short)) + extended
    if mask is None:
        return head + payload
    wide = (mask * (size // 4 + 1))[:size]
    return head + mask + (int.from_bytes(payload, "big") ^ int.from_bytes(wide, "big")).to_bytes(size, "big")


def close_frame(code: int | None = None, text: bytes = b"", **how: Any) -> bytes:
    """Return a Close frame of a client's."""
    return frame(CLOSE, b"" if code is None else struct.pack("!H", code) + text, **how)


def frames_in(buffer: bytearray) -> list[Frame]:
    """Take whole frames of the broker's out of a buffer; they are never masked, fragmented or reserved."""
    found = []
    while len(buffer) >= 2:
        assert buffer[0] & 0xF0 == 0x80, buffer[:2]
        at, size = 2, buffer[1]
        assert size < 0x80, "a masked frame"
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(buffer) < at:
                break
            size = int.from_bytes(buffer[2:at], "big")
            assert size > (125 if at == 4 else 65_535), "as few bytes as possible"
        if len(buffer) < at + size:
            break
        found.append(Frame(buffer[0] & 0x0F, bytes(buffer[at : at + size])))
        del buffer[: at + size]
    return found


def request(path: str = "/mqtt", **fields: str | None) -> bytes:
    """Return the request that opens a WebSocket, with header fields changed, added or, by None, left out."""
    headers: dict[str, str | None] = {
        "host": "broker.example.org",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec_websocket_key": KEY.decode(),
        "sec_websocket_version": "13",
        "sec_websocket_protocol": "mqtt",
    }
    headers.update(fields)
    lines = [f"GET {path} HTTP/1.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def cut_into_frames(draw: random.Random, data: bytes) -> bytes:
    """Return frames that carry bytes, cut anywhere: fragments, empty ones, and pings and pongs between them."""
    out = bytearray()
    at, fragmented = 0, False
    while at < len(data) or fragmented:
        if draw.random() < 0.2:
            out += frame(draw.choice((PING, PONG)), draw.randbytes(draw.choice((0, 1, 7, 125))), mask=draw.randbytes(4))
        size = draw.choice((0, 1, 2, 3, 9, 130, 70_000))
        fin = draw.random() < 0.6
        out += frame(CONTINUATION if fragmented else BINARY, data[at : at + size], fin=fin, mask=draw.randbytes(4))
        at += size
        fragmented = not fin
    return bytes(out)


class ClientEnd:
    """A client's end of a WebSocket, whose frames are cut anywhere.

    Args:
        seed: of how they are cut.
    """

    def __init__(self, seed: object) -> None:
        self._draw = random.Random(str(seed))
        self._head: bytearray | None = bytearray()
        self._frames = bytearray()
        self.closed: bytes | None = None  # payload of the Close frame that came

    def received(self, data: bytes) -> list[bytes]:
        """Take what the broker sent; returns what was in its frames."""
        if self._head is not None:
            self._head += data
            head, found, data = bytes(self._head).partition(b"\r\n\r\n")
            if not found:
                return []
            assert head.startswith(b"HTTP/1.1 101 "), head
            assert ACCEPT in head, head
            self._head = None
        self._frames += data
        plain = []
        for opcode, payload in frames_in(self._frames):
            assert self.closed is None, "a frame behind a Close frame"
            if opcode == CLOSE:
                self.closed = payload
            elif opcode == BINARY:
                assert payload, "an empty frame"
                plain.append(payload)
            else:
                assert opcode == PONG
        return plain

    def send(self, data: bytes) -> bytes:
        """Return frames for the broker."""
        return cut_into_frames(self._draw, data)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Return bytes in pieces, cut in some places; empty pieces are left out."""
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]
