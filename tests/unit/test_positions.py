"""Times and position tokens: what is read is what was meant, and everything else is refused in a sentence."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.log.crc32c import checksum
from router.log.replay_position import decode_position, encode_position, format_time, is_position, parse_time

NOW_US = 1_795_258_800_123_456  # 2026-11-21T11:00:00.123456Z
POSITIONS = st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), max_size=20)
ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-21T11:00:00.123456Z", NOW_US),
        ("2026-11-21t11:00:00.123456z", NOW_US),
        ("2026-11-21 11:00:00.123456Z", NOW_US),
        ("2026-11-21T12:30:00.123456+01:30", NOW_US),
        ("2026-11-21T06:00:00.123456-05:00", NOW_US),
        ("2026-11-21T11:00:00.123456999Z", NOW_US),
        ("2026-11-21T11:00:00.1Z", NOW_US - 23_456),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ("2000-02-29T00:00:00Z", 951_782_400_000_000),
        ("1969-12-31T23:59:59Z", -1_000_000),
        ("-0s", NOW_US),
        ("-90", NOW_US - 90_000_000),
        ("-90s", NOW_US - 90_000_000),
        ("-15m", NOW_US - 900_000_000),
        ("-1h", NOW_US - 3_600_000_000),
        ("-2d", NOW_US - 172_800_000_000),
        ("-999999999999999d", 0),
    ],
)
def test_a_time_is_the_moment_that_it_names(text: str, expected_us: int) -> None:
    assert parse_time(text, NOW_US) == expected_us


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a time like 2026-11-21T09:30:00Z, or how long ago, like -90s, -15m, -1h or -2d"),
        ("yesterday", "'yesterday' is not a time like"),
        ("2026-11-21", "'2026-11-21' is not a time like"),
        ("1h", "'1h' is not a time like"),
        ("-1w", "'-1w' is not a time like"),
        ("--1h", "'--1h' is not a time like"),
        ("-1.5h", "'-1.5h' is not a time like"),
        ("-١h", "'-١h' is not a time like"),
        ("2026-11-21T11:00:00Z\n", r"'2026-11-21T11:00:00Z\n' is not a time like"),
        ("2026-11-21T11:00:00", "has no time zone: end it with Z for UTC, or with one like +01:00"),
        ("2026-02-29T11:00:00Z", "names a day that there is not"),
        ("1900-02-29T11:00:00Z", "names a day that there is not"),
        ("2026-13-01T11:00:00Z", "names a day that there is not"),
        ("2026-00-01T11:00:00Z", "names a day that there is not"),
        ("2026-04-31T11:00:00Z", "names a day that there is not"),
        ("2026-04-00T11:00:00Z", "names a day that there is not"),
        ("2026-11-21T24:00:00Z", "names a time of day that there is not"),
        ("2026-11-21T11:60:00Z", "names a time of day that there is not"),
        ("2026-11-21T11:00:61Z", "names a time of day that there is not"),
        ("2026-11-21T11:00:00+24:00", "has a time zone that there is not"),
        ("2026-11-21T11:00:00+01:60", "has a time zone that there is not"),
    ],
)
def test_what_is_not_a_time_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_time(text, NOW_US)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), ZONES)
@settings(max_examples=200)
def test_times_are_those_of_the_calendar(moment: datetime, zone: timezone) -> None:
    aware = moment.replace(tzinfo=zone)
    expected_us = microseconds(aware)
    assert parse_time(aware.isoformat(timespec="microseconds"), NOW_US) == expected_us
    written = format_time(expected_us)
    assert written == aware.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert parse_time(written, NOW_US) == expected_us


def test_a_time_that_has_no_year_of_four_digits_is_written_all_the_same() -> None:
    assert format_time(-(2**63)) == "@-9223372036854775808"
    assert format_time(2**63 - 1) == "@9223372036854775807"
    assert format_time(253_402_300_799_999_999) == "9999-12-31T23:59:59.999999Z"
    assert format_time(253_402_300_800_000_000) == "@253402300800000000"
    assert format_time(-62_167_219_200_000_000) == "0000-01-01T00:00:00.000000Z"


@given(POSITIONS)
@settings(max_examples=200)
def test_a_position_is_what_its_token_says(numbers: dict[int, int]) -> None:
    token = encode_position(numbers)
    assert decode_position(token) == numbers
    assert is_position(token)
    assert token.isascii()
    assert token.replace("-", "").replace("_", "").isalnum()  # nothing of a topic filter, a path or a URL
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(token, NOW_US)


def test_tokens_of_the_first_version_are_read_for_ever() -> None:
    assert encode_position({0: 300, 7: 2**64 - 1}) == "pAQCsAgf___________8Bl3LeBw"
    assert decode_position("pAQCsAgf___________8Bl3LeBw") == {0: 300, 7: 2**64 - 1}


@given(POSITIONS, st.data())
@settings(max_examples=200)
def test_a_token_that_was_changed_is_no_position(numbers: dict[int, int], data: st.DataObject) -> None:
    token = encode_position(numbers)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from([char for char in "pAz09-_+/= \n!é" if char != token[at]]))
    for changed in (token[:at] + other + token[at + 1 :], token[:at], token[:at] + other + token[at:], token + "="):
        if changed != token:
            with pytest.raises(ValueError, match="is not a position: it has been changed, or is not whole"):
                decode_position(changed)


@given(st.text(max_size=40) | st.text("pAZaz09-_", max_size=40).map("p".__add__))
@settings(max_examples=200)
def test_any_text_is_a_position_or_is_refused(text: str) -> None:
    try:
        assert encode_position(decode_position(text)) == text
    except ValueError as refused:
        assert "\n" not in str(refused)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (bytes([2, 0, 1]), "is a position of version 2; this version of Shoal reads 1"),
        (bytes([1, 1, 5, 0, 5]), "is not a position"),  # out of order
        (bytes([1, 0, 5, 0, 6]), "is not a position"),  # the same log twice
        (bytes([1, 0, 0x85, 0x00]), "is not a position"),  # a number longer than need be
        (bytes([1, 0]), "is not a position"),  # a worker without a number
        (bytes([1, 0, 0x80]), "is not a position"),  # a number without its end
        (bytes([1, 0, *[0xFF] * 9, 0x7F]), "is not a position"),  # more than 64 bits
        (bytes([1, *[0xFF] * 4, 0x1F, 0]), "is not a position"),  # a worker of more than 32 bits
    ],
)
def test_only_one_token_stands_for_a_position(content: bytes, sentence: str) -> None:
    token = "p" + urlsafe_b64encode(content + checksum(content).to_bytes(4, "little")).decode().rstrip("=")
    with pytest.raises(ValueError, match=sentence):
        decode_position(token)


def test_a_token_is_bounded() -> None:
    with pytest.raises(ValueError, match=r"'pA{56}\.\.\.' is not a position"):
        decode_position("p" + "A" * 1_000_000)
