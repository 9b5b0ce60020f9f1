"""WebSocket frames of a client: any bytes are frames or their sender's fault, whole and cut, with wsproto beside them.

An input is what comes behind the request.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from broker.wire.reasons import CloseReason
from tests.support.websocket_end import End
from tests.support.websockets import BINARY, CLOSE, CONTINUATION, PING, PONG, close_frame, cut, frame
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

SIZES = (0, 1, 2, 7, 8, 9, 124, 125, 126, 127, 300, 70_000)
PIECES = (1, 2, 3, 5, 13)


def make(draw: random.Random) -> bytes:
    """Return frames, mostly with mutations."""
    data = bytearray()
    fragmented = False
    for _ in range(draw.randint(1, 6)):
        opcode = draw.choice((BINARY, BINARY, BINARY, PING, PONG))
        sizes = SIZES[:8] if opcode != BINARY else SIZES if draw.random() < 0.1 else SIZES[:-1]
        payload = draw.randbytes(draw.choice(sizes))
        fin = opcode != BINARY or draw.random() < 0.6
        if opcode == BINARY:
            opcode, fragmented = CONTINUATION if fragmented else BINARY, not fin
        data += frame(opcode, payload, fin=fin, mask=draw.randbytes(4))
    if draw.random() < 0.3:
        data += close_frame(draw.choice((1000, 1001, 3000, 4999, 1005, 999)), draw.choice((b"", b"bye", b"\xff")))
    return mutated(draw, bytes(data)) if draw.random() < 0.8 else bytes(data)


def check(data: bytes) -> Hashable:
    """What comes through, what is answered and how it ends is the same however it comes, and what wsproto says."""
    whole = outcome([data])
    for size in PIECES if len(data) < 3000 else PIECES[-1:]:
        assert outcome(cut(data, range(0, len(data), size))) == whole, size
    plain, frames, end, state = whole
    assert state == (True, any(one.opcode == CLOSE for one in frames) and end is None)
    if end is None:
        assert expected(data) == plain
    return len(frames), end, state, len(plain).bit_length()


def outcome(pieces: list[bytes]) -> tuple[bytes, tuple[object, ...], tuple[str, CloseReason] | None, tuple[bool, bool]]:
    """Return what came through, the frames that were answered, the error, and the state."""
    end = End().feed(*pieces)
    assert end.error is None or str(end.error).isprintable()
    return (
        bytes(end.plain),
        tuple(end.frames),
        None if end.error is None else (end.error.detail, end.error.close),
        end.layers.state,
    )


def expected(data: bytes) -> bytes:
    """Return what wsproto's server reads, up to a Close frame."""
    server = FrameProtocol(client=False, extensions=[])
    server.receive_bytes(data)
    plain = bytearray()
    try:
        for one in server.received_frames():
            if one.opcode in (Opcode.BINARY, Opcode.CONTINUATION):
                assert isinstance(one.payload, bytes)
                plain += one.payload
    except ParseFailed as error:
        # It does not know the code 1014, Bad Gateway, and looks at a length before the mask has come.
        assert "unknown reserved code" in str(error) or End().feed(data + bytes(4)).error is not None, error
    return bytes(plain)


TARGET = Target("websocket_frames", 600, make, check)
