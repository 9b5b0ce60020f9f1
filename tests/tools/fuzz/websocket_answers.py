"""A server's answer to our client's request, and its frames: any bytes are taken or refused, whole and cut.

The client's key is the one of RFC 6455's example, so that an input is the same for each client.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.cli.mqtt_errors import WebSocketError
from broker.cli.websocket_client import WebSocketClient
from tests.support.websockets import ACCEPT, BINARY, CONTINUATION, KEY, PING, PONG, close_frame, cut, frame
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

HEADS = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    + ACCEPT
    + b"\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
    b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + ACCEPT + b"\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nno.\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
)
SIZES = (0, 1, 2, 124, 125, 126, 127, 300)
PIECES = (1, 2, 3, 5, 13)


def make(draw: random.Random) -> bytes:
    """Return an answer and frames, mostly with mutations."""
    head = draw.choice(HEADS[:2]) if draw.random() < 0.8 else draw.choice(HEADS)
    data = bytearray()
    for _ in range(draw.randint(0, 6)):
        opcode = draw.choice((BINARY, BINARY, CONTINUATION, PING, PONG))
        payload = draw.randbytes(draw.choice(SIZES if opcode in (BINARY, CONTINUATION) else SIZES[:5]))
        data += frame(opcode, payload, fin=opcode != BINARY or draw.random() < 0.6, mask=None)
    if draw.random() < 0.3:
        data += close_frame(draw.choice((1000, 1001, 4999)), draw.choice((b"", b"bye", b"\xff")), mask=None)
    if draw.random() < 0.2:
        return mutated(draw, head + bytes(data))
    return head + (mutated(draw, bytes(data)) if data and draw.random() < 0.7 else bytes(data))


def check(data: bytes) -> Hashable:
    """What comes through and what ends it is the same however it comes."""
    whole = outcome(data, len(data) + 1000)
    for size in PIECES:
        assert outcome(data, size) == whole, size
    plain, words, opened, ended = whole
    assert words is None or words.isprintable()
    assert opened or not plain
    return len(plain).bit_length(), words, opened, ended


def outcome(data: bytes, size: int) -> tuple[bytes, str | None, bool, bool]:
    """Return what came through if nothing was wrong, why it ended, and whether it is open and ended.

    Args:
        size: of the pieces that it comes in.
    """
    client = WebSocketClient("broker.example", "/mqtt")
    client._key = KEY
    plain = bytearray()
    error: WebSocketError | None = None
    for piece in cut(data, range(0, len(data), size)):
        try:
            plain += client.receive(piece)
        except WebSocketError as caught:
            error = caught
            break
    # What came with the byte that was wrong is lost with it: it depends on the cut how much that is.
    return (bytes(plain) if error is None else b"", None if error is None else str(error), client.opened, client.ended)


TARGET = Target("websocket_answers", 600, make, check)
