"""Frames between routers: what is written is read back, and any other bytes are refused by name."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.frames import KINDS, VERSION, FrameError, FrameReader, FrameWriter
from router.core.message import Message, message

NOW_MS = 5_000_000
NOW_US = 1_760_000_000_000_000
DATA, HEARTBEAT = KINDS.index("data"), KINDS.index("heartbeat")
ENTRY_HEADER = 12
numbers = st.integers(0, 2**64 - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    properties = draw(st.binary(max_size=30))
    expires = draw(st.none() | st.integers(NOW_MS - 1000, NOW_MS + 10**9))
    return message(
        draw(st.binary(min_size=1, max_size=40)),
        draw(st.binary(max_size=200)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        properties,
        draw(st.integers(0, len(properties) - 4)) if expires and len(properties) >= 4 else -1,
        NOW_MS,
        expires or 0,
    )


entries = st.fixed_dictionaries(
    {
        "sequence": st.just(0) | numbers,
        "n": st.just(0) | numbers,
        "publisher_key": st.just(0) | numbers,
        "ids": st.binary(max_size=255),
    }
)


def frame_of(*pairs: tuple[Message, dict[str, Any]], header: tuple[int, ...] = (7, 0)) -> bytes:
    """A DATA frame of messages with the fields beside them."""
    writer = FrameWriter()
    for sent, fields in pairs:
        writer.append(sent, retain=sent.retained, now_us=NOW_US, now_ms=NOW_MS, **fields)
    frame: bytes = writer.take(DATA, *header)
    return frame


def read(frame: bytes) -> list[dict[str, Any]]:
    """All entries of a frame."""
    found: list[dict[str, Any]] = FrameReader().read(frame, NOW_US, NOW_MS)
    return found


def looks(sent: Message) -> tuple[Any, ...]:
    """What a receiver may see of a message."""
    return (sent.topic_name, sent.body, sent.property_block, sent.quality_of_service, sent.retained, sent.expires_at_ms)


@settings(max_examples=150)
@given(st.lists(st.tuples(messages(), entries), max_size=8), numbers, numbers)
def test_what_is_written_is_read_back(pairs: list[tuple[Message, dict[str, Any]]], epoch: int, index: int) -> None:
    frame = frame_of(*pairs, header=(epoch, index))
    reader = FrameReader()
    found = reader.read(frame, NOW_US, NOW_MS)
    assert (reader.version, reader.kind, reader.header) == (VERSION, DATA, (epoch, index))
    assert [{**entry, "message": looks(entry["message"])} for entry in found] == [
        {**fields, "message": looks(sent)} for sent, fields in pairs
    ]


@given(st.lists(numbers, max_size=6), st.integers(1, len(KINDS) - 1))
@settings(max_examples=100)
def test_a_header_is_msgpack(values: list[int], kind: int) -> None:
    frame = FrameWriter().take(kind, *values)
    assert frame == msgpack.packb([VERSION, kind, *values])
    assert len(frame) <= 64
    reader = FrameReader()
    assert reader.read(frame, NOW_US, NOW_MS) == []
    assert (reader.kind, reader.header) == (kind, tuple(values))


def test_a_writer_is_used_again_after_each_frame_and_gives_a_large_buffer_back() -> None:
    writer = FrameWriter()
    for size in (10, 3_000_000, 100, 0):
        sent = message(b"t", bytes(size))
        writer.append(sent, sequence=size, now_us=NOW_US, now_ms=NOW_MS)
        assert len(writer) == 1
        (found,) = read(writer.take(DATA, 1, 2))
        assert (found["message"].body, found["sequence"]) == (bytes(size), size)
        assert len(writer) == 0


def test_expiry_travels_by_the_wall_clock_since_monotonic_clocks_differ() -> None:
    frame = frame_of((message(b"t", b"", expires_ms=NOW_MS + 1500, now_ms=NOW_MS), {}))
    (found,) = FrameReader().read(frame, NOW_US + 400_000, 77)
    assert found["message"].expires_at_ms == 77 + 1100
    (found,) = FrameReader().read(frame, NOW_US + 1_500_001, 77)
    assert found["message"].expires_at_ms == 77, "overdue"
    (found,) = read(frame_of((message(b"t", b""), {})))
    assert found["message"].expires_at_ms == 0, "never"


def later_version(version: int, *more: object, tail: bytes = b"") -> bytes:
    """A frame of another version, which has more in its header and more behind each payload."""
    frame = frame_of((message(b"one", b"1"), {"sequence": 1}), (message(b"two", b"22"), {"sequence": 2}), header=())
    at = len(msgpack.packb([VERSION, DATA]))
    made = msgpack.packb([version, DATA, 7, 0, *more])
    while at < len(frame):
        length = int.from_bytes(frame[at : at + 4], "little")
        made += (length + len(tail)).to_bytes(4, "little") + frame[at + 4 : at + length] + tail
        at += length
    return bytes(made)


@pytest.mark.parametrize("more", [(), (9,), (2**40, "text", {"a": [1, 2]}), tuple(range(40))])
@pytest.mark.parametrize("tail", [b"", b"x", bytes(70)])
def test_a_frame_of_the_next_version_is_read_without_what_it_has_more(more: tuple[object, ...], tail: bytes) -> None:
    frame = later_version(VERSION + 1, *more, tail=tail)
    reader = FrameReader()
    found = reader.read(frame, NOW_US, NOW_MS)
    assert [(entry["message"].topic_name, entry["message"].body, entry["sequence"]) for entry in found] == [
        (b"one", b"1", 1),
        (b"two", b"22", 2),
    ]
    assert reader.header[:2] == (7, 0)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_frame_of_a_version_before_is_read(version: int) -> None:
    # 1: without the last number of an epoch's first frame.
    reader = FrameReader()
    found = reader.read(later_version(version), NOW_US, NOW_MS)
    assert (reader.version, reader.header) == (version, (7, 0))
    assert [(entry["message"].body, entry["sequence"]) for entry in found] == [(b"1", 1), (b"22", 2)]


def test_a_version_or_kind_that_cannot_be_read_is_refused_by_name() -> None:
    with pytest.raises(FrameError, match=r"a frame of version 6; this is version 4"):
        read(later_version(VERSION + 2))
    with pytest.raises(FrameError, match=r"a frame of kind 11 in version 2, which version 4 does not know"):
        read(msgpack.packb([2, 11]))
    with pytest.raises(FrameError, match=r"a frame of kind 0"):
        read(msgpack.packb([1, 0]))


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"", "of 0 bytes"),
        (b"\x92\x01", "of 2 bytes"),
        (b"GET / HTTP/1.1", "first byte is 0x47, at offset 0"),
        (b"\x90\x01\x01", "does not begin with its version and its kind, at offset 1"),
        (b"\x91\x01\x01", "does not begin with"),
        (b"\x92\x00\x01", "does not begin with"),
        (b"\x92\xa1x\x01", "does not begin with"),
        (b"\x93\x01\x01\xcf\x00", "ends within a number, at offset 3"),
        (b"\x94\x02\x01\x05\xc1" + bytes(60), "no msgpack, at offset 4"),
        (b"\x94\x02\x01\x05\xd9", "no msgpack"),
        (b"\x92\x01\x01" + bytes(10), "an entry of 10 bytes, at offset 3"),
        (b"\x92\x01\x01" + bytes(11), "an entry of 11 bytes, at offset 3"),
        (b"\x92\x01\x01" + bytes(60), "says it has 0 bytes of 60, at offset 3"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_offset(frame: bytes, complaint: str) -> None:
    with pytest.raises(FrameError, match=complaint):
        read(frame)


@pytest.mark.parametrize(
    ("at", "value", "complaint"),
    [
        (0, b"\xff\xff\xff\x7f", r"says it has 2147483647 bytes of 60, at offset 5"),
        (0, b"\x0b\0\0\0", r"says it has 11 bytes of 60, at offset 5"),
        (4, b"\xff\xff\xff\xff", r"an entry of 60 bytes with texts for \d+, at offset 5"),
        (4, b"\x03\0\0\0", "with texts for 61"),
        (8, b"\0\0", "without a topic name"),
        (10, b"\xff", "with texts for"),
        (11, b"\x03", "the flags 0x03"),
        (11, b"\x80", "the flags 0x80"),
        (36, b"\xff" * 8, "expires at -1 us"),
        (36, b"\xff" * 7 + b"\x7f", "expires at 9223372036854775807 us"),
        (44, b"\xff\xff\xff\xff", "with texts for 4294967350"),
        (44, b"\x06\0\0\0", "with texts for 61"),
        (48, b"\x02\0\0\0", "expiry is outside of its properties"),
        (48, b"\xfe\xff\xff\xff", "expiry is outside of its properties"),
    ],
)
def test_an_entry_with_a_wrong_field_is_refused(at: int, value: bytes, complaint: str) -> None:
    fields = {"sequence": 1, "n": 2, "publisher_key": 3}
    frame = bytearray(frame_of((message(b"t", b"12", properties=b"12345"), fields)))
    start = len(frame) - 60
    frame[start + at : start + at + len(value)] = value
    with pytest.raises(FrameError, match=complaint):
        read(bytes(frame))


@pytest.mark.parametrize(("fields", "more"), [({}, 0), ({"sequence": 5}, 8), ({"sequence": 5, "n": 6}, 16)])
def test_what_a_message_does_not_have_takes_no_room(fields: dict[str, int], more: int) -> None:
    assert len(frame_of((message(b"topic", b"body"), fields))) == 5 + ENTRY_HEADER + more + 9


@settings(max_examples=200)
@given(st.data())
def test_any_bytes_are_read_or_refused_whole_cut_and_changed(data: st.DataObject) -> None:
    frame = bytearray(frame_of(*data.draw(st.lists(st.tuples(messages(), entries), max_size=3))))
    del frame[data.draw(st.integers(0, len(frame))) :]
    for _ in range(data.draw(st.integers(0, 4)) if frame else 0):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(frame) + data.draw(st.binary(max_size=10)))
    except FrameError:
        return
    assert all(1 <= len(entry["message"].topic_name) <= 65535 for entry in found)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(frame: bytes) -> None:
    try:
        read(frame)
    except FrameError as error:
        assert str(error).startswith(("a frame", "an entry"))
