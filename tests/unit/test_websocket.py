"""Frames of WebSocket clients and ours (RFC 6455), with wsproto as the oracle, and the cases of Autobahn's suite."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping
from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from broker.wire.reasons import CloseReason
from tests.support.websocket_end import End
from tests.support.websockets import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    close_frame,
    cut,
    frame,
    frames_in,
    request,
)


def byte_by_byte(data: bytes) -> list[bytes]:
    return cut(data, range(len(data)))


# Against wsproto -----------------------------------------------------------------------------------------------------


class Oracle:
    """What wsproto's server makes of the same bytes."""

    def __init__(self, data: bytes) -> None:
        server = FrameProtocol(client=False, extensions=[])
        self.plain = bytearray()
        self.pings: list[bytes] = []
        self.closed: int | None = None
        self.text = False
        self.failed = False
        server.receive_bytes(data)
        try:
            for one in server.received_frames():
                if one.opcode in (Opcode.BINARY, Opcode.CONTINUATION):
                    self.plain += one.payload
                elif one.opcode is Opcode.PING:
                    self.pings.append(bytes(one.payload))
                self.text = one.opcode is Opcode.TEXT
                if one.opcode is Opcode.CLOSE:
                    self.closed = int(one.payload[0])
                if self.text or self.closed is not None:
                    break
        except ParseFailed:
            self.failed = True


masks = st.binary(min_size=4, max_size=4)
payloads = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 1000).map(lambda size: random.Random(size).randbytes(size)),
    st.sampled_from([125, 126, 127, 65_535, 65_536, 70_000])
    .map(lambda size: b"\xa5\x5a\x01" * size)
    .map(lambda data: data[: len(data) // 3]),
)
right_frames = st.builds(
    frame, st.sampled_from([CONTINUATION, BINARY, BINARY, PING, PONG]), payloads, fin=st.booleans(), mask=masks
)
codes = st.sampled_from([1000, 1001, 1003, 1007, 1013, 3000, 4999, 1005, 999])
closes = st.builds(close_frame, st.one_of(st.none(), codes), st.sampled_from([b"", b"bye", b"\xff"]), mask=masks)
wrong_frames = st.builds(
    frame,
    st.integers(0, 15),
    st.binary(max_size=130),
    fin=st.booleans(),
    mask=st.one_of(st.none(), masks),
    reserved=st.integers(0, 7),
    length_bytes=st.sampled_from([None, 8]),
)
streams = st.lists(st.one_of(right_frames, right_frames, right_frames, closes, wrong_frames), max_size=8).map(b"".join)
shares = st.lists(st.integers(0, 10_000), max_size=20)  # of the length, in ten thousandths: where it is cut


def cut_at(data: bytes, at: list[int]) -> list[bytes]:
    return cut(data, [len(data) * share // 10_000 for share in at])


@settings(max_examples=400)
@given(streams, shares)
@example(frame(BINARY, b"a", fin=False) + frame(PING, b"p") + frame(CONTINUATION, b"b"), [500, 1000, 3500, 4500])
def test_what_we_read_is_what_wsproto_reads_however_it_comes(data: bytes, at: list[int]) -> None:
    oracle = Oracle(data)
    end = End().feed(*cut_at(data, at))
    if oracle.text or (end.error is not None and end.error.close == CloseReason.WEBSOCKET_TEXT_FRAME):
        # We do not wait for the text, and refuse it by its first byte.
        assert end.error is not None
        assert oracle.plain.startswith(end.plain) or oracle.failed
        assert end.code in (1002, 1003)
        return
    assert (end.error is not None) == oracle.failed, (end.error, oracle.failed)
    # wsproto hands out of a frame what has come, as we do.
    assert end.plain == oracle.plain
    assert [one.payload for one in end.frames if one.opcode == PONG] == oracle.pings
    assert (oracle.closed is not None) == end.layers.state[1]
    if oracle.closed is not None:
        assert end.code == (None if oracle.closed == 1005 else oracle.closed)


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=300),
            st.sampled_from([125, 126, 65_525, 65_526, 65_532, 65_533, 65_535, 65_536, 200_000]).map(
                lambda size: (bytes(range(256)) * (size // 256 + 1))[:size]
            ),
        ),
        max_size=6,
    )
)
def test_what_we_send_is_what_wsproto_reads(pieces: list[bytes]) -> None:
    # Proves: [MQTT-6.0.0-1]
    end = End()
    client = Connection(ConnectionType.CLIENT)
    received = bytearray()
    for piece in pieces:
        end.layers.put(piece)
        client.receive_data(end.layers.take_raw())
        for event in client.events():
            assert isinstance(event, BytesMessage), event
            received += event.data
            assert event.message_finished or event.frame_finished is False
    assert received == b"".join(pieces)
    end.layers.end(CloseReason.KEEP_ALIVE_TIMEOUT)
    client.receive_data(end.layers.take_raw())
    (close,) = client.events()
    assert isinstance(close, CloseConnection)
    assert (close.code, close.reason) == (1008, "keep_alive_timeout")


@settings(max_examples=100)
@given(st.binary(max_size=3000), st.integers(0, 10_000), shares)
def test_bytes_that_wsproto_sends_arrive(data: bytes, seed: int, at: list[int]) -> None:
    # Proves: [MQTT-6.0.0-2]
    draw = random.Random(seed)
    client = Connection(ConnectionType.CLIENT)
    sent = bytearray()
    rest, within = data, False
    while rest or within:
        size = draw.choice([0, 1, 5, 200])
        ends = draw.random() < 0.5
        sent += client.send(BytesMessage(data=rest[:size], message_finished=ends))
        rest, within = rest[size:], not ends
        if draw.random() < 0.3:
            sent += client.send(Ping(payload=draw.randbytes(5)))
    assert End().feed(*cut_at(bytes(sent), at)).plain == data
    assert End().feed(*byte_by_byte(bytes(sent))).plain == data


# The cases of Autobahn's suite, 1 to 7, for who takes binary frames only ---------------------------------------------


@pytest.mark.parametrize("size", [0, 125, 126, 127, 128, 65_535, 65_536])
@pytest.mark.parametrize("chop", [None, 1, 997])
def test_binary_messages_of_all_lengths(size: int, chop: int | None) -> None:
    """1.2.1 to 1.2.8."""
    payload = random.Random(size).randbytes(size)
    data = frame(BINARY, payload)
    if chop is not None:
        step = chop if size < 10_000 else 997
        assert End().feed(*(data[at : at + step] for at in range(0, len(data), step))).plain == payload
    else:
        assert End().feed(data).plain == payload


@pytest.mark.parametrize("payload", [b"", b"Hello, world!", b"\0\xff\xfe\xfd\xfc\xfb\0\xff", b"\xfe" * 125])
@pytest.mark.parametrize("pieces", [lambda data: [data], byte_by_byte], ids=["whole", "bytes"])
def test_pings_are_answered_with_their_payload(payload: bytes, pieces: Any) -> None:
    """2.1 to 2.4, 2.6."""
    assert End().feed(*pieces(frame(PING, payload))).frames == [(PONG, payload)]


def test_a_ping_that_is_too_long_is_an_error() -> None:
    """2.5."""
    end = End().feed(frame(PING, b"\xfe" * 126))
    assert end.code == 1002
    assert [one.opcode for one in end.frames] == [CLOSE]


def test_pongs_that_were_not_asked_for_are_ignored() -> None:
    """2.7 to 2.9."""
    end = End().feed(frame(PONG), frame(PONG, b"unsolicited"), frame(PING, b"ping"))
    assert end.frames == [(PONG, b"ping")]


def test_ten_pings_are_answered_in_order() -> None:
    """2.10 and 2.11."""
    payloads = [b"payload-%d" % number for number in range(10)]
    whole = b"".join(frame(PING, payload) for payload in payloads)
    for pieces in ([whole], byte_by_byte(whole)):
        assert End().feed(*pieces).frames == [(PONG, payload) for payload in payloads]


def test_of_a_flood_of_pings_the_last_is_answered() -> None:
    end = End()
    count = 5000
    end.layers.feed(b"".join(frame(PING, b"%0125d" % number) for number in range(count)))
    sent = bytearray(end.layers.take_raw())
    pongs = frames_in(sent)
    assert len(sent) == 0
    assert 10 <= len(pongs) < 100
    assert pongs[-1] == (PONG, b"%0125d" % (count - 1))


def test_a_client_that_only_pings_and_never_reads_costs_no_memory() -> None:
    end = End()
    for number in range(3000):
        end.layers.feed(frame(PING, b"%0125d" % number))
    assert len(end.layers.take_raw()) < 80_000
    end.layers.put(b"x")  # it reads again
    sent = bytearray(end.layers.take_raw())
    assert frames_in(sent) == [(PONG, b"%0125d" % 2999), (BINARY, b"x")]


@pytest.mark.parametrize("reserved", range(1, 8))
@pytest.mark.parametrize("opcode", [BINARY, CONTINUATION, PING, CLOSE])
def test_reserved_bits_are_refused(reserved: int, opcode: int) -> None:
    """3.1 to 3.7. Without an extension, and none is agreed upon, they are 0."""
    end = End().feed(frame(BINARY, b"before"), frame(opcode, b"", reserved=reserved))
    assert end.plain == b"before"
    assert end.code == 1002


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 11, 12, 13, 14, 15])
@pytest.mark.parametrize("payload", [b"", b"reserved opcode payload"])
@pytest.mark.parametrize("pieces", [lambda data: [data], byte_by_byte], ids=["whole", "bytes"])
def test_reserved_opcodes_are_refused(opcode: int, payload: bytes, pieces: Any) -> None:
    """4.1.1 to 4.2.5."""
    end = End().feed(*pieces(frame(BINARY, b"before") + frame(opcode, payload) + frame(PING)))
    assert end.plain == b"before"
    assert [one.opcode for one in end.frames] == [CLOSE]
    assert end.code == 1002


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
def test_control_frames_are_not_fragmented(opcode: int) -> None:
    """5.1 and 5.2."""
    end = End().feed(frame(opcode, b"", fin=False) + frame(CONTINUATION, b""))
    assert end.code == 1002


@pytest.mark.parametrize("pieces", [lambda data: [data], byte_by_byte], ids=["whole", "bytes"])
def test_fragments_make_a_message_with_pings_between_them(pieces: Any) -> None:
    """5.3 to 5.8, 5.19, 5.20."""
    end = End().feed(
        *pieces(
            frame(BINARY, b"one ", fin=False)
            + frame(PING, b"1")
            + frame(CONTINUATION, b"two ", fin=False)
            + frame(CONTINUATION, b"", fin=False)
            + frame(PING, b"2")
            + frame(CONTINUATION, b"three")
        )
    )
    assert end.plain == b"one two three"
    assert end.frames == [(PONG, b"1"), (PONG, b"2")]


@pytest.mark.parametrize("fin", [False, True])
def test_a_continuation_of_nothing_is_refused(fin: bool) -> None:
    """5.9 to 5.14."""
    assert End().feed(frame(CONTINUATION, b"x", fin=fin) + frame(BINARY, b"y")).code == 1002
    end = End().feed(frame(BINARY, b"y"), frame(CONTINUATION, b"x", fin=fin))
    assert (end.plain, end.code) == (b"y", 1002)


def test_a_message_within_a_message_is_refused() -> None:
    """5.15 to 5.18."""
    end = End().feed(frame(BINARY, b"one", fin=False) + frame(BINARY, b"two"))
    assert (end.plain, end.code) == (b"one", 1002)


@pytest.mark.parametrize("fin", [False, True])
@pytest.mark.parametrize("text", [b"", b"Hello", b"\xce\xba\xe1\xbd\xb9", b"\xff"])
def test_text_is_refused_valid_or_not(text: bytes, fin: bool) -> None:
    """1.1 and 6: to the standard, any other frame than a binary one ends the connection.

    Proves: [MQTT-6.0.0-1]
    """
    end = End().feed(frame(BINARY, b"before") + frame(TEXT, text, fin=fin))
    assert (end.plain, end.code) == (b"before", 1003)
    assert end.error is not None
    assert end.error.close == CloseReason.WEBSOCKET_TEXT_FRAME


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1014, 3000, 3999, 4000, 4999])
@pytest.mark.parametrize("text", [b"", b"Hello World!", b"*" * 123])
@pytest.mark.parametrize("pieces", [lambda data: [data], byte_by_byte], ids=["whole", "bytes"])
def test_a_close_is_answered_with_its_code_and_nothing_counts_behind_it(code: int, text: bytes, pieces: Any) -> None:
    """7.1.1 to 7.1.5, 7.3.3 to 7.3.5, 7.7."""
    behind = frame(BINARY, b"behind") + frame(PING) + close_frame(1000)
    end = End().feed(*pieces(frame(BINARY, b"before") + close_frame(code, text) + behind))
    assert end.plain == b"before"
    assert end.frames == [(CLOSE, struct.pack("!H", code))]
    assert end.error is None
    assert end.layers.state == (True, True)
    end.layers.put(b"an answer")
    end.layers.end(CloseReason.CONNECTION_LOST)
    assert end.layers.take_raw() == b""


def test_a_close_without_a_code_is_answered_without_one() -> None:
    """7.3.1."""
    assert End().feed(close_frame()).frames == [(CLOSE, b"")]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x03",
        *(struct.pack("!H", code) for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)),
    ],
)
def test_a_close_that_is_malformed_is_a_protocol_error(payload: bytes) -> None:
    """7.3.2, 7.9, 7.13."""
    end = End().feed(frame(CLOSE, payload))
    assert end.code == 1002
    assert not end.layers.state[1]


def test_a_close_with_a_text_that_is_none() -> None:
    """7.5.1."""
    assert End().feed(close_frame(1000, b"\xce\xba\xe1\xed\xa0\x80")).code == 1007


def test_a_close_that_is_too_long() -> None:
    """7.3.6."""
    assert End().feed(close_frame(1000, b"*" * 124)).code == 1002


# What that suite leaves out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [BINARY, TEXT, PING, CLOSE])
def test_a_frame_that_is_not_masked_is_refused(opcode: int) -> None:
    end = End().feed(frame(opcode, b"", mask=None))
    assert end.code == 1002
    assert "not masked" in str(end.error)


@pytest.mark.parametrize(("size", "length_bytes"), [(0, 2), (125, 2), (5, 8), (126, 8), (65_535, 8)])
def test_a_length_has_as_few_bytes_as_possible(size: int, length_bytes: int) -> None:
    assert End().feed(frame(BINARY, b"x" * size, length_bytes=length_bytes)).code == 1002


def test_a_length_beyond_all_measure() -> None:
    assert End().feed(b"\x82\xff\x80\0\0\0\0\0\0\0abcd").code == 1002
    end = End().feed(b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", b"it may never end" * 1000)
    assert end.plain == b"it may never end" * 1000
    assert end.error is None


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (CloseReason.CLIENT_DISCONNECT, 1000),
        (CloseReason.SERVER_SHUTDOWN, 1001),
        (CloseReason.PACKET_TOO_LARGE, 1009),
        (CloseReason.NOT_AUTHORIZED, 1008),
        (CloseReason.TAKEN_OVER, 1008),
        (CloseReason.INTERNAL_ERROR, 1011),
    ],
)
def test_the_client_is_told_why_it_ends(reason: CloseReason, code: int) -> None:
    end = End()
    end.layers.put(b"a last packet")
    end.layers.end(reason)
    end.layers.put(b"too late")
    sent = bytearray(end.layers.take_raw())
    assert frames_in(sent) == [(BINARY, b"a last packet"), (CLOSE, struct.pack("!H", code) + reason.encode())]


def test_every_close_reason_fits_into_a_close_frame() -> None:
    assert all(len(reason) <= 123 for reason in CloseReason)


def test_frames_behind_the_request_count() -> None:
    end = End(opened=False)
    assert end.layers.state == (False, False)
    data = request() + frame(BINARY, b"early") + frame(PING, b"p")
    end.feed(data)
    head, _, rest = bytes(end.sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert rest == b"\x8a\x01p"
    assert end.plain == b"early"
    other = End(opened=False).feed(*byte_by_byte(data))
    assert (other.sent, other.plain) == (end.sent, end.plain)
