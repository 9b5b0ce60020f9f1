"""Values of the retained messages' index: what is put in comes out, old bytes are read, and damaged ones do no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.message import message
from router.retained.keys import key_of
from router.retained.values import (
    check,
    cleared,
    decode,
    due_key,
    due_of,
    encode,
    is_newer,
    is_tombstone,
    name_in,
    record_of,
    size_of,
    stamp_of,
    tombstone,
    without_record,
)

STAMP_US = 1_795_250_000_000_000
NUMBER = 2**32 + 7
# Format version 1. These bytes are never made again: they are what is on somebody's disk.
MESSAGE_1 = bytes.fromhex(
    "470000001b368536000000000700000000748836c5600600010700000001000000050000000300000000000d40bfd436c560060001000000"
    "612f6202000000057061796c6f61640300000009000000"
)
TOMBSTONE_1 = bytes.fromhex("00748836c560060003000000090000000700000001000000")


# Format version 2: with check sums of what is behind the record, and of a tombstone and its key.
MESSAGE_2 = MESSAGE_1 + bytes.fromhex("432d3bba")
TOMBSTONE_2 = TOMBSTONE_1 + bytes.fromhex("bbe97d5e")


def test_values_are_written_in_version_2() -> None:
    kept = message(b"a/b", b"payload", 1, True, b"\x02\x00\x00\x00\x05", 1, 1000, 6000)
    assert encode(kept, STAMP_US, 1000, NUMBER, 3, 9) == MESSAGE_2
    for value in (MESSAGE_1, MESSAGE_2):
        assert tombstone(b"a\0b", STAMP_US, NUMBER, 3, 9) == cleared(b"a\0b", value) == TOMBSTONE_2
    assert without_record(MESSAGE_1) == without_record(MESSAGE_2)[:-4]
    assert record_of(without_record(MESSAGE_2)) == 0


@pytest.mark.parametrize(("message_bytes", "tombstone_bytes"), [(MESSAGE_1, TOMBSTONE_1), (MESSAGE_2, TOMBSTONE_2)])
def test_bytes_of_all_versions_are_read(message_bytes: bytes, tombstone_bytes: bytes) -> None:
    read = decode(message_bytes, STAMP_US, 1000)
    assert (read.topic_name, read.body, read.property_block) == (b"a/b", b"payload", b"\x02\x00\x00\x00\x05")
    assert (read.quality_of_service, read.retained, read.expires_at_ms) == (1, True, 6000)
    assert (name_in(message_bytes), record_of(message_bytes), stamp_of(message_bytes)) == (b"a\0b", NUMBER, STAMP_US)
    assert size_of(message_bytes) == len(b"a/b") + len(b"payload") + 5
    assert due_of(message_bytes) == due_key(b"\0", STAMP_US + 5_000_000) == bytes.fromhex("00000660c536d4bf40")
    assert due_of(tombstone_bytes) == due_key(b"\1", STAMP_US)
    assert (is_tombstone(message_bytes), is_tombstone(tombstone_bytes)) == (False, True)
    assert stamp_of(tombstone_bytes) == STAMP_US
    assert check(b"a\0b", message_bytes)
    assert check(b"a\0b", tombstone_bytes)
    assert not check(b"a\0c", message_bytes)
    # The first 478 bytes of a long name, 0xFF, and 32 bytes of hash.
    assert key_of(b"x" * 479) == b"x" * 478 + bytes.fromhex(
        "ff6b0cb3f99ddd2e6f56043e4698b191a6e19371fe8da28010025024ce56dfda06"
    )


def test_a_message_expires_with_the_first_whole_millisecond_after_its_time_and_never_before() -> None:
    expires_us = STAMP_US + 5_000_000
    for late_us, expires_ms in ((-1500, 102), (-1000, 101), (-1, 101), (0, 100), (999, 100), (1000, 99), (1999, 99)):
        assert decode(MESSAGE_1, expires_us + late_us, 100).expires_at_ms == expires_ms, late_us


@given(
    payload=st.binary(min_size=1, max_size=100), expires_ms=st.sampled_from([0, 1, 5000]),
    stamps=st.tuples(st.integers(0, 2), st.integers(0, 2)), origins=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)  # fmt: skip
def test_the_greater_stamp_is_newer_and_then_the_greater_origin(
    payload: bytes, expires_ms: int, stamps: tuple[int, int], origins: tuple[int, int]
) -> None:
    kept = message(b"t", payload, retain=True, expires_ms=expires_ms)
    one = encode(kept, stamps[0], 0, 1, origins[0], 0)
    other = tombstone(b"t", stamps[1], 2, origins[1], 0)
    assert is_newer(one, other) == ((stamps[0], origins[0]) > (stamps[1], origins[1]))
    assert is_newer(other, one) == ((stamps[1], origins[1]) > (stamps[0], origins[0]))
    assert size_of(one) == 1 + len(payload)
    assert size_of(other) == 0


@given(at=st.integers(0, len(TOMBSTONE_2) * 8 - 1))
def test_any_flipped_bit_of_a_message_or_a_tombstone_is_seen(at: int) -> None:
    for value in (MESSAGE_2, TOMBSTONE_2):
        flipped = bytearray(value)
        flipped[-1 - at // 8] ^= 1 << at % 8
        assert not check(b"a\0b", bytes(flipped))
    assert check(b"a\0b", MESSAGE_2)
    assert not check(b"a\0c", TOMBSTONE_2)


@given(length=st.integers(0, len(MESSAGE_1) - 1), at=st.integers(0, len(MESSAGE_1) - 9), bit=st.integers(0, 7))
def test_a_damaged_value_is_no_message_and_is_not_read_behind_its_end(length: int, at: int, bit: int) -> None:
    flipped = bytearray(MESSAGE_1)
    flipped[at] ^= 1 << bit
    for damaged in (bytes(flipped), MESSAGE_1[:length]):
        assert decode(damaged, STAMP_US, 0) is None
        assert name_in(damaged) == b""
        for ask in (size_of, stamp_of, record_of, due_of):
            ask(damaged)
        is_newer(damaged, MESSAGE_1)
