"""Variable Byte Integers, as what is not compiled reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.varint import encode_varint, find_varint


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_a_number_that_was_written_is_found_where_it_was(number: int, before: bytes, behind: bytes) -> None:
    encoded = encode_varint(number, 10)
    assert len(encoded) == max(1, -(-number.bit_length() // 7))
    assert find_varint(before + encoded + behind, len(before), 10) == (number, len(before) + len(encoded))
    assert find_varint(bytearray(before + encoded), len(before), 10) == (number, len(before) + len(encoded))
    for end in range(len(encoded)):
        assert find_varint(before + encoded[:end], len(before), 10)[1] == 0


def test_one_that_is_longer_than_it_may_be_is_told_from_one_that_is_not_whole() -> None:
    assert find_varint(b"\x80\x80\x80\x80\x01", 0)[1] == -1
    assert find_varint(b"\x80\x80\x80", 0)[1] == 0
    assert find_varint(b"", 7)[1] == 0
    assert find_varint(b"\x80\x80\x80\x00", 0) == (0, 4)
    with pytest.raises(AssertionError):
        encode_varint(268_435_456)
