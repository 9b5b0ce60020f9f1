"""Values of the retained messages' index: what is put in comes out, old bytes are read, and damaged ones do no harm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from router.message import message
from router.retained_keys import key_of
from router.retained_values import (
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
)

STAMP_US = 1_795_250_000_000_000
NUMBER = 2**32 + 7
# Format version 1. These bytes are never made again: they are what is on somebody's disk.
MESSAGE_1 = bytes.fromhex(
    "470000001b368536000000000700000000748836c5600600010700000001000000050000000300000000000d40bfd436c560060001000000"
    "612f6202000000057061796c6f61640300000009000000"
)
TOMBSTONE_1 = bytes.fromhex("00748836c560060003000000090000000700000001000000")


def test_bytes_of_version_1_are_read_and_still_written() -> None:
    kept = message(b"a/b", b"payload", 1, True, b"\x02\x00\x00\x00\x05", 1, 1000, 6000)
    assert encode(kept, STAMP_US, 1000, NUMBER, 3, 9) == MESSAGE_1
    assert tombstone(STAMP_US, NUMBER, 3, 9) == cleared(MESSAGE_1) == TOMBSTONE_1
    read = decode(MESSAGE_1, STAMP_US, 1000)
    assert (read.topic_name, read.body, read.property_block) == (b"a/b", b"payload", b"\x02\x00\x00\x00\x05")
    assert (read.quality_of_service, read.retained, read.expires_at_ms) == (1, True, 6000)
    assert (name_in(MESSAGE_1), record_of(MESSAGE_1), stamp_of(MESSAGE_1)) == (b"a\0b", NUMBER, STAMP_US)
    assert size_of(MESSAGE_1) == len(b"a/b") + len(b"payload") + 5
    assert due_of(MESSAGE_1) == due_key(b"\0", STAMP_US + 5_000_000) == bytes.fromhex("00000660c536d4bf40")
    assert due_of(TOMBSTONE_1) == due_key(b"\1", STAMP_US)
    assert (is_tombstone(MESSAGE_1), is_tombstone(TOMBSTONE_1), stamp_of(TOMBSTONE_1)) == (False, True, STAMP_US)
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
    other = tombstone(stamps[1], 2, origins[1], 0)
    assert is_newer(one, other) == ((stamps[0], origins[0]) > (stamps[1], origins[1]))
    assert is_newer(other, one) == ((stamps[1], origins[1]) > (stamps[0], origins[0]))
    assert size_of(one) == 1 + len(payload)
    assert size_of(other) == 0


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
