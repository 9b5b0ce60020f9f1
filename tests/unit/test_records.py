"""Records: what is encoded is decoded to the same, and nothing else is taken for a record."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.codec import decode_message
from router.core.message import message
from router.log.crc32c import checksum
from router.log.record_buffer import RecordBuffer, sealed
from router.log.record_cursor import Cursor
from router.log.record_kinds import BY_NAME, KINDS, Kind, RecordError

MARK = 0x5EA1B0A7
HEADER_BYTES = 25
OPEN, END, SHORT, BAD, SEALED, LIMIT = range(6)

names = st.binary(min_size=1, max_size=12)
times_us = st.integers(-(2**63), 2**63 - 1)
numbers = st.integers(0, 2**64 - 1)
values = {
    "int": st.integers(-(2**63), 2**64 - 1),
    "bin": st.binary(max_size=20),
    "str": st.text(max_size=8),
    "bool": st.booleans(),
    "array": st.lists(st.integers(0, 9), max_size=3),
}


@st.composite
def records(draw: st.DrawFn) -> tuple[str, int, Any]:
    """Return (kind, time in µs, arguments by which a buffer is given it)."""
    kind = draw(st.sampled_from([kind for kind in KINDS if kind.name not in ("sealed", "copy", "forwarded")]))
    time_us = draw(st.integers(0, 2**52))
    if kind.name in ("accepted", "stored"):
        expires = draw(st.booleans())
        properties = draw(st.binary(min_size=5 if expires else 0, max_size=20))
        qos = draw(st.integers(0, 2))
        kept = {"record": draw(st.integers(1, 2**63)), "origin": 0, "incarnation": draw(st.integers(0, 2**32 - 1))}
        return kind.name, time_us, {
            **(kept | {"accepted_us": time_us} if kind.name == "stored" else {}),
            "n": draw(numbers),
            "topic_name": draw(names),
            "publisher": draw(st.binary(max_size=10)),
            "packet_identifier": draw(st.integers(1, 65535)) if qos else 0,
            "qos": qos,
            "retain": draw(st.booleans()),
            "will": draw(st.booleans()),
            "picked": False,
            "expires_us": time_us + 5_000_000 if expires else 0,
            "expiry_offset": draw(st.integers(0, len(properties) - 4)) if expires else -1,
            "peers": tuple(draw(st.lists(st.integers(0, 2**32 - 1), max_size=5))),
            "properties": properties,
            "payload": draw(st.binary(max_size=100)),
        }  # fmt: skip
    if kind.name == "acknowledged":
        return kind.name, time_us, {
            "packet_type": draw(st.integers(0, 255)), "reason": draw(st.integers(0, 255)),
            "packet_identifier": draw(st.integers(0, 65535)), "client_identifier": draw(names),
        }  # fmt: skip
    if kind.name == "released":
        return kind.name, time_us, {"packet_identifier": draw(st.integers(0, 65535)), "client_identifier": draw(names)}
    return kind.name, time_us, {name: draw(values[of_type]) for name, of_type in kind.fields}


def put(buffer: RecordBuffer, kind: str, time_us: int, fields: dict[str, Any]) -> int:
    if kind == "stored":
        accepted = RecordBuffer(fields["record"] - 1)
        put(accepted, "accepted", time_us, fields)
        return int(buffer.add_stored(at_first(accepted), fields["incarnation"]))
    if kind == "accepted":
        published = message(
            fields["topic_name"], fields["payload"], fields["qos"], fields["retain"], fields["properties"],
            fields["expiry_offset"], 1000, 6000 if fields["expires_us"] else 0,
        )  # fmt: skip
        return int(buffer.add_accepted(
            time_us, fields["n"], published, fields["publisher"], fields["packet_identifier"], fields["peers"], 1000,
            fields["will"],
        ))  # fmt: skip
    if kind == "acknowledged":
        return int(buffer.add_acknowledged(
            time_us, fields["client_identifier"], fields["packet_type"], fields["packet_identifier"], fields["reason"]
        ))  # fmt: skip
    if kind == "released":
        return int(buffer.add_released(time_us, fields["client_identifier"], fields["packet_identifier"]))
    return int(buffer.add(kind, time_us, *fields.values()))


def stamped(buffer: RecordBuffer, mark: int = MARK) -> bytes:
    buffer.stamp(mark)
    return bytes(memoryview(buffer))


def at_first(buffer: RecordBuffer) -> Cursor:
    cursor = Cursor(stamped(buffer), 0, MARK, buffer.first_number - 1)
    assert cursor.step()
    return cursor


def with_body(kind: int, body: bytes, number: int = 1) -> bytes:
    """A record as its own description in docs/formats.md has it, of any kind and with any body."""
    rest = struct.pack("<IIqB", MARK, number & 0xFFFFFFFF, 0, kind) + body
    length = struct.pack("<I", 8 + len(rest))
    return length + struct.pack("<I", checksum(rest, checksum(length))) + rest


@given(st.lists(records(), max_size=8), numbers.filter(lambda number: number < 2**63))
def test_what_is_encoded_is_decoded_to_the_same(given_records: list[Any], last_number: int) -> None:
    buffer = RecordBuffer(last_number)
    for index, record in enumerate(given_records, 1):
        assert put(buffer, *record) == last_number + index
    cursor = Cursor(stamped(buffer), 0, MARK, last_number)
    decoded = list(cursor)
    assert cursor.status == END
    assert [(record.kind, record.time_us, record.fields) for record in decoded] == given_records
    assert [record.number for record in decoded] == [last_number + 1 + index for index in range(len(decoded))]
    if decoded:
        in_order = sorted(time_us for _, time_us, _ in given_records)
        assert buffer.times_us() == (in_order[0], in_order[-1])


@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_a_changed_bit_or_a_cut_ends_the_walk_before_the_record_it_hit(given_records: list[Any], data: Any) -> None:
    buffer = RecordBuffer(0)
    ends = []
    for record in given_records:
        put(buffer, *record)
        ends.append(buffer.size)
    encoded = stamped(buffer)
    at = data.draw(st.integers(0, len(encoded) - 1))
    whole = sum(end <= at for end in ends)
    cut = Cursor(encoded[:at], 0, MARK, 0)
    assert len(list(cut)) == whole
    assert cut.status == (END if at in (0, *ends) else SHORT)
    changed = bytearray(encoded)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    cursor = Cursor(bytes(changed), 0, MARK, 0)
    assert len(list(cursor)) == whole
    assert cursor.status in (BAD, SHORT)
    # And the search behind it finds the next whole record.
    found = cursor.find(cursor.offset)
    assert found == (ends[whole] if whole + 1 < len(ends) else -1)
    if found >= 0:
        assert cursor.resume(found) == 1
        assert [record.number for record in cursor] == list(range(whole + 2, len(ends) + 1))


@given(st.binary(max_size=300), st.integers(0, 60))
def test_any_bytes_are_walked_and_searched_without_an_error(data: bytes, start: int) -> None:
    for encoded in (data, struct.pack("<I", len(data)) + bytes(4) + struct.pack("<I", MARK) + data):
        cursor = Cursor(encoded, 0, MARK, 0)
        assert list(cursor) == []
        assert cursor.find(start) == -1


@given(st.sampled_from(KINDS), st.binary(max_size=80))
def test_any_body_under_a_right_check_sum_is_decoded_or_refused(kind: Kind, body: bytes) -> None:
    cursor = Cursor(with_body(kind.number, body), 0, MARK, 1 if kind.name == "sealed" else 0)
    cursor.step()
    try:
        fields = cursor.fields()
    except RecordError:
        return
    if kind.name not in ("accepted", "copy", "stored"):
        assert set(fields) == {name for name, _ in kind.fields}


@given(records().filter(lambda record: record[0] in ("accepted", "stored")), st.data())
def test_a_message_cut_anywhere_is_refused_or_has_a_shorter_payload(record: Any, data: Any) -> None:
    buffer = RecordBuffer(0)
    put(buffer, *record)
    body = stamped(buffer)[HEADER_BYTES:]
    at = data.draw(st.integers(0, len(body)))
    cut = with_body(BY_NAME[record[0]].number, body[:at])
    cursor = Cursor(cut + data.draw(st.sampled_from((b"", b"\xff" * 64, body[at:]))), 0, MARK, 0)
    assert cursor.step()
    payload = record[2]["payload"]
    if at < len(body) - len(payload):
        with pytest.raises(RecordError):
            cursor.fields()
    else:
        assert cursor.fields() == record[2] | {"payload": payload[: at - (len(body) - len(payload))]}


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (12, 0, "an empty topic name"),
        (18, 0x83, "QoS 3"),
        (18, 0x40, "a flag that has no meaning"),
        (18, 0x08, "an expiry that is not there"),
        (18, 0x10, "peers that are not there"),
        (15, 0xFF, "a publisher longer than the record"),
        (11, 0xFF, "properties longer than the record"),
        (16, 7, "a packet identifier at QoS 0"),
    ],
)  # fmt: skip
def test_a_message_with(offset: int, value: int, why: str) -> None:
    buffer = RecordBuffer(0)
    buffer.add_accepted(0, 1, message(b"t", b""), b"")
    body = bytearray(stamped(buffer)[HEADER_BYTES:])
    body[offset] = value
    # What follows the record must not be taken for what it lacks.
    cursor = Cursor(with_body(1, bytes(body)) + b"\xff" * 64, 0, MARK, 0)
    assert cursor.step()
    with pytest.raises(RecordError, match="record 1 is no well-formed accepted"):
        cursor.fields()


def test_a_kind_that_there_is_not_is_refused_by_number() -> None:
    cursor = Cursor(with_body(100, b""), 0, MARK, 0)
    assert cursor.step()
    with pytest.raises(RecordError, match="record 1 is of kind 100, which this version does not know"):
        cursor.record()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", b"\x81\xa1a\x01", b"\x91\xc4\x01a", b"\x92\xc4\x01a\xc3", b"\x93\xc4\x01a\x01\x01",
        b"\x92\xc4\x01a\x81\x90\x01",  # a map whose key is an array
    ],
)  # fmt: skip
def test_a_session_record_that_is_not_two_fields_of_the_right_types_is_refused(body: bytes) -> None:
    cursor = Cursor(with_body(16, body), 0, MARK, 0)
    assert cursor.step()
    with pytest.raises(RecordError, match=r"record 1 \(session\)"):
        cursor.fields()


def test_a_kind_is_not_encoded_with_fields_that_it_does_not_have() -> None:
    buffer = RecordBuffer(0)
    for wrong in ((b"c",), (b"c", True), ("c", 1), (b"c", 1, 1)):
        with pytest.raises(AssertionError, match="session"):
            buffer.add("session", 0, *wrong)
    assert buffer.count == 0
    assert buffer.last_number == 0


def test_a_topic_alias_is_not_stored_and_the_expiry_is_found_where_it_is_then() -> None:
    alias, expiry = b"\x23\x00\x07", b"\x02\x00\x00\x00\x3c"
    for properties in (alias + expiry, expiry + alias):
        body = b"\x00\x01t\x00\x05" + bytes([len(properties)]) + properties + b"body"
        published, packet_identifier, _ = decode_message(bytes([0x32, len(body)]) + body, 5)
        buffer = RecordBuffer(0)
        buffer.add_accepted(10, 1, published, b"c", packet_identifier)
        cursor = Cursor(stamped(buffer), 0, MARK, 0)
        assert cursor.step()
        fields = cursor.fields()
        assert fields["properties"] == b"\x02\x00\x00\x00\x3c"
        assert fields["expiry_offset"] == 1
        assert fields["topic_name"] == b"t"
        assert fields["payload"] == b"body"


def test_a_copy_keeps_the_id_through_any_number_of_copies() -> None:
    buffer = RecordBuffer(0)
    buffer.add_accepted(77, 9, message(b"t", b"p", 2, True, b"\x02\0\0\0\5", 1, 0, 5000), b"c", 3, (1, 2**32 - 1))
    cursor = Cursor(stamped(buffer), 0, MARK, 0)
    assert cursor.step()
    accepted = cursor.fields()
    for time_us in (100, 200):
        again = RecordBuffer(5)
        assert again.add_copy(cursor, time_us, 0, 4) == 6
        cursor = Cursor(stamped(again), 0, MARK, 5)
        assert cursor.step()
        assert cursor.time_us == time_us
        assert cursor.fields() == accepted | {"origin": 0, "incarnation": 4, "accepted_us": 77}


def test_a_stored_message_keeps_its_id_and_the_number_that_deliveries_know_it_by() -> None:
    buffer = RecordBuffer(40)
    buffer.add_accepted(77, 41, message(b"t", b"p", 2, True, b"\x02\0\0\0\5", 1, 0, 5000), b"c", 3, (1, 2**32 - 1))
    cursor = at_first(buffer)
    accepted = cursor.fields()
    copied = RecordBuffer(90)
    copied.add_copy(cursor, 100, 9, 4)
    for origin, record, time_us, first in ((0, 41, 77, cursor), (9, 91, 100, at_first(copied))):
        cursor = first
        # Stored by one snapshot, and again by the next.
        for number in (1, 2):
            stored = RecordBuffer(number - 1)
            assert stored.add_stored(cursor, 4) == number
            cursor = at_first(stored)
            assert (cursor.number, cursor.time_us) == (number, time_us)
            assert cursor.fields() == accepted | {
                "record": record, "origin": origin, "incarnation": 4, "accepted_us": 77
            }  # fmt: skip
            assert cursor.message(0, 0).record == record


def test_a_stored_message_that_does_not_say_which_record_it_was_is_refused() -> None:
    buffer = RecordBuffer(0)
    buffer.add_accepted(77, 1, message(b"t", b"p"), b"c")
    stored = RecordBuffer(0)
    stored.add_stored(at_first(buffer), 4)
    body = stamped(stored)[HEADER_BYTES:]
    for wrong in (bytes(8) + body[8:], body[:7], body[:23], body[:24]):
        cursor = Cursor(with_body(5, wrong) + b"\xff" * 64, 0, MARK, 0)
        assert cursor.step()
        with pytest.raises(RecordError, match="record 1 is no well-formed stored"):
            cursor.fields()
        with pytest.raises(RecordError, match="record 1 is no message"):
            cursor.message(0, 0)


def test_what_is_no_message_is_not_stored_as_one() -> None:
    buffer = RecordBuffer(0)
    buffer.add("ended", 1, b"c")
    stored = RecordBuffer(0)
    with pytest.raises(RecordError, match="record 1 is no message"):
        stored.add_stored(at_first(buffer), 4)
    assert stored.count == 0


def test_a_message_comes_back_and_expires_when_it_would_have() -> None:
    buffer = RecordBuffer(0)
    buffer.add_accepted(1_000_000, 9, message(b"t", b"p", 1, True, b"\x02\0\0\0\5", 1, 70, 5070), None, 3, (), 70)
    cursor = Cursor(stamped(buffer), 0, MARK, 0)
    assert cursor.step()
    # Two seconds later, on a machine whose monotonic clock began anew.
    back = cursor.message(3_000_000, 11)
    assert (back.topic_name, back.body, back.quality_of_service, back.retained) == (b"t", b"p", 1, True)
    assert back.property_block == b"\x02\0\0\0\5"
    assert back.expires_at_ms == 11 + 3000
    # The moment at which the monotonic clock shows 0 is a moment like any other, and not "never".
    assert cursor.message(6_000_000, 0).expires_at_ms == -1


def test_records_move_from_one_buffer_behind_those_of_another() -> None:
    first, second = RecordBuffer(0), RecordBuffer(0)
    for round_number in range(3):
        for _ in range(round_number):
            second.add("ended", 1, b"x" * 1000)
        first.take(second)
        assert second.count == second.size == 0
    with pytest.raises(AssertionError):
        first.take(RecordBuffer(7))
    assert [record.number for record in Cursor(stamped(first), 0, MARK, 0)] == [1, 2, 3]
    first.clear()
    assert first.count == 0
    assert first.add("ended", 1, b"x") == 4
    assert first.first_number == 4


def test_nothing_moves_while_a_buffer_is_being_written() -> None:
    buffer = RecordBuffer(0)
    buffer.add("ended", 1, b"x")
    with memoryview(buffer) as view:
        before = bytes(view)
        with pytest.raises(AssertionError):
            buffer.add("ended", 1, b"x" * 100_000)
        with pytest.raises(AssertionError):
            buffer.clear()
        with pytest.raises(AssertionError):
            RecordBuffer(0).take(buffer)
        assert bytes(view) == before
    buffer.add("ended", 1, b"x" * 100_000)
    assert buffer.count == 2


def test_numbers_go_on_where_their_lower_half_wraps_around() -> None:
    last_number = 2**32 - 2
    buffer = RecordBuffer(last_number)
    for _ in range(4):
        buffer.add("ended", 1, b"x")
    encoded = stamped(buffer)
    assert [record.number for record in Cursor(encoded, 0, MARK, last_number)] == [2**32 + i for i in range(-1, 3)]


def test_a_walk_ends_before_the_number_that_a_later_segment_begins_with_and_at_the_seal() -> None:
    buffer = RecordBuffer(0)
    for _ in range(4):
        buffer.add("ended", 1, b"x")
    encoded = stamped(buffer)
    cursor = Cursor(encoded, 0, MARK, 0, 3)
    assert [record.number for record in cursor] == [1, 2]
    assert cursor.status == LIMIT
    seal = sealed(4, 1, 9, [[1, 4160, 1]])
    cursor = Cursor(encoded + stamped(seal) + b"x", 0, MARK, 0)
    assert [record.number for record in cursor] == [1, 2, 3, 4]
    assert cursor.status == SEALED
    assert cursor.fields() == {"first_us": 1, "last_us": 9, "index": [[1, 4160, 1]]}
    assert cursor.offset == len(encoded) + seal.size


def test_a_walk_does_not_step_over_a_number_or_into_another_segment() -> None:
    buffer = RecordBuffer(0)
    for _ in range(3):
        buffer.add("ended", 1, b"x")
    length = buffer.size // 3
    encoded = stamped(buffer)
    cursor = Cursor(encoded[:length] + encoded[2 * length :], 0, MARK, 0)
    assert [record.number for record in cursor] == [1]
    assert cursor.status == BAD
    assert cursor.resume(cursor.find(length)) == 1
    assert [record.number for record in cursor] == [3]
    # What was once another segment's, whole and with the right number.
    cursor = Cursor(encoded[:length] + stamped(buffer, MARK ^ 1)[length:], 0, MARK, 0)
    assert [record.number for record in cursor] == [1]
    assert cursor.status == BAD
    assert cursor.find(length) == -1


def test_what_a_client_publishes_is_not_taken_for_a_record_behind_damage() -> None:
    # Whole records, right in everything but the mark, which nobody outside the broker knows.
    inner = RecordBuffer(1)
    inner.add("ended", 1, b"victim")
    payload = stamped(inner, MARK ^ 1) * 3
    buffer = RecordBuffer(0)
    buffer.add_accepted(1, 1, message(b"t", payload), b"c")
    buffer.add("session", 1, b"c", 5)
    encoded = bytearray(stamped(buffer))
    encoded[0] ^= 1
    cursor = Cursor(bytes(encoded), 0, MARK, 0)
    assert not cursor.step()
    assert cursor.resume(cursor.find(0)) == 1
    assert [record.kind for record in cursor] == ["session"]


def test_the_kinds_have_numbers_that_fit_a_byte_and_the_fixed_ones_are_those_that_are_compiled() -> None:
    assert all(0 < kind.number < 256 for kind in KINDS)
    assert [kind.name for kind in KINDS if kind.fixed] == [
        "accepted", "copy", "acknowledged", "released", "stored", "forwarded",
    ]  # fmt: skip
    assert BY_NAME["sealed"].number == 63


def test_searching_through_damage_takes_no_longer_because_a_payload_is_made_for_it() -> None:
    # Every four bytes look like the beginning of a record that goes to the end; without the mark none is looked into.
    piece = struct.pack("<IIII", 1 << 19, 0, 0, 2)
    data = piece * (1 << 16)
    cursor = Cursor(data, 0, MARK, 0)
    assert cursor.find(0) == -1
    # With it, at random places, in any bytes.
    noise = bytearray(random.Random(5).randbytes(1 << 16))
    for at in range(0, len(noise) - 4, 4096):
        noise[at : at + 4] = struct.pack("<I", MARK)
    assert Cursor(bytes(noise), 0, MARK, 0).find(0) == -1
