"""CRC-32C: every way to it gives the published values, and the same as every other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.log import crc32c

# RFC 3720, B.4; and the check value of the catalogue of CRCs.
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
        ),
        0xD9963A56,
    ),
]


def bit_by_bit(data: bytes) -> int:
    """The definition: reflected, polynomial 0x1EDC6F41, all ones before and after."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("way", crc32c.ways())
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_every_way_gives_the_published_values(way: str, data: bytes, expected: int) -> None:
    assert crc32c.checksum(data, way=way) == expected


def test_the_table_is_always_there_and_the_fastest_way_comes_first() -> None:
    assert crc32c.ways()[-1] == "table"
    assert crc32c.checksum(b"123456789") == crc32c.checksum(b"123456789", way=crc32c.ways()[0])


@given(data=st.binary(max_size=300), start=st.integers(0, 20))
def test_every_way_gives_what_the_definition_gives_wherever_the_bytes_begin(data: bytes, start: int) -> None:
    for way in crc32c.ways():
        assert crc32c.checksum(memoryview(data)[start:], way=way) == bit_by_bit(data[start:])


@given(first=st.binary(max_size=50), second=st.binary(max_size=50))
def test_a_sum_can_be_taken_piece_by_piece(first: bytes, second: bytes) -> None:
    for way in crc32c.ways():
        assert crc32c.checksum(second, crc32c.checksum(first, way=way), way=way) == crc32c.checksum(first + second)


@given(first=st.binary(min_size=4, max_size=4), own=st.binary(min_size=4, max_size=4), rest=st.binary(max_size=200))
def test_a_record_s_sum_leaves_out_the_four_bytes_that_it_stands_in(first: bytes, own: bytes, rest: bytes) -> None:
    for way in crc32c.ways():
        assert crc32c.record_checksum(first + own + rest, way=way) == bit_by_bit(first + rest)
    assert crc32c.record_checksum(first + own + rest) == bit_by_bit(first + rest)
