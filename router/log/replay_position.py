"""Places in the history of messages as people and programs write them: a time, or a position token.

A time begins with a digit or with `-`, a token with `p`, so one text can be either. Neither has a `/`, and a token has
nothing that means something in a topic filter.
"""

import binascii
import functools
import re
from collections.abc import Mapping
from typing import Final

from router.core.varint import encode_varint, find_varint
from router.log.crc32c import checksum

SECOND_US: Final = 1_000_000
DAY_S: Final = 86_400
WORKER_MAX: Final = 2**32 - 1
NUMBER_MAX: Final = 2**64 - 1
LOGS_MAX: Final = 1_024  # in one token
TOKEN_CHARACTERS_MAX: Final = 32_768

_TOKEN_VERSION: Final = 1
_TOKEN_PREFIX: Final = "p"
_CHECKSUM_BYTES: Final = 4
_NUMBER_BYTES_MAX: Final = 10  # of a worker, or of a record

# Of the years 0 to 9999.
_FIRST_SECOND: Final = -719_528 * DAY_S
_LAST_SECOND: Final = 2_932_897 * DAY_S - 1

_AGO = re.compile(r"-([0-9]{1,15})([smhd]?)")
_SPAN = re.compile(r"([0-9]{1,15})([smhd])")
TIME_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": DAY_S}
_RFC_3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
_EXAMPLES: Final = "like 2026-11-21T09:30:00Z, or how long ago, like -90s, -15m, -1h or -2d"


# Times --------------------------------------------------------------------------------------------------------------


def parse_time(text: str, now_us: int) -> int:
    """Return the moment that a text names, in µs since 1970.

    Args:
        text: RFC 3339 with a time zone (`2026-11-21T09:30:00.5Z`, `2026-11-21T10:30:00+01:00`), or how long ago: `-`,
            digits, and `s`, `m`, `h`, `d` or nothing for seconds. What is finer than a microsecond is cut off.
        now_us: the present, µs since 1970.

    Raises ValueError with one sentence. What is longer ago than 1970 is 0.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_us - int(ago[1]) * TIME_UNITS_S[ago[2] or "s"] * SECOND_US)
    found = _RFC_3339.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time {_EXAMPLES}")
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if found[8] is None and found[9] is None:
        raise ValueError(f"{text!r} has no time zone: end it with Z for UTC, or with one like +01:00")
    if not 1 <= month <= 12 or not 1 <= day <= _days_in_month(year, month):
        raise ValueError(f"{text!r} names a day that there is not")
    # 60 is a leap second: the same moment as the beginning of the next minute.
    if hour > 23 or minute > 59 or second > 60:
        raise ValueError(f"{text!r} names a time of day that there is not")
    offset_s = 0
    if found[9] is not None:
        if int(found[10]) > 23 or int(found[11]) > 59:
            raise ValueError(f"{text!r} has a time zone that there is not")
        offset_s = (int(found[10]) * 60 + int(found[11])) * (60 if found[9] == "+" else -60)
    moment_s = _days_since_1970(year, month, day) * DAY_S + (hour * 60 + minute) * 60 + second - offset_s
    return moment_s * SECOND_US + int((found[7] or "")[:6].ljust(6, "0"))


def parse_span(text: str) -> int:
    """Return the seconds of a time such as 90s, 10m, 24h or 7d. Raises ValueError with one sentence."""
    span = _SPAN.fullmatch(text)
    if span is None:
        raise ValueError(f"{text!r}: expected a number and one of {', '.join(TIME_UNITS_S)}, such as 10m")
    return int(span[1]) * TIME_UNITS_S[span[2]]


def format_time(time_us: int) -> str:
    """Return a time as RFC 3339 in UTC, to the microsecond. Of a year that has no four digits: `@` and the number."""
    moment_s, us = divmod(time_us, SECOND_US)
    if not _FIRST_SECOND <= moment_s <= _LAST_SECOND:
        return f"@{time_us}"
    return f"{_second_text(moment_s)}.{us:06}Z"


@functools.lru_cache(64)  # who writes many times mostly writes the same seconds again
def _second_text(moment_s: int) -> str:
    days, second = divmod(moment_s, DAY_S)
    year, month, day = _civil_date(days)
    return f"{year:04}-{month:02}-{day:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def _days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _days_since_1970(year: int, month: int, day: int) -> int:
    # Years that begin in March end with the day that is not always there; 1970-01-01 is day 719,468 of that calendar.
    year -= month <= 2
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 719_468


def _civil_date(days: int) -> tuple[int, int, int]:
    era, day_of_era = divmod(days + 719_468, 146_097)  # of 400 years
    year = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153  # 0 is March
    day = day_of_year - (153 * month + 2) // 5 + 1
    return era * 400 + year + (month >= 10), (month + 2) % 12 + 1, day


# Position tokens ----------------------------------------------------------------------------------------------------


def is_position(text: str) -> bool:
    """Return whether a text is meant to be a position token and not a time."""
    return text.startswith(_TOKEN_PREFIX)


def encode_position(numbers: Mapping[int, int]) -> str:
    """Return the token of a position: letters, digits, `-` and `_`, beginning with `p`.

    Args:
        numbers: worker -> the number of the last record of its log that counts as seen, 0 if none does; at most 1,024.
    """
    assert len(numbers) <= LOGS_MAX, len(numbers)
    content = bytearray([_TOKEN_VERSION])
    for worker, number in sorted(numbers.items()):
        assert 0 <= worker <= WORKER_MAX, worker
        assert 0 <= number <= NUMBER_MAX, number
        content += encode_varint(worker, _NUMBER_BYTES_MAX) + encode_varint(number, _NUMBER_BYTES_MAX)
    content += checksum(bytes(content)).to_bytes(_CHECKSUM_BYTES, "little")
    return _TOKEN_PREFIX + binascii.b2a_base64(content, newline=False).decode().translate(_TO_URL).rstrip("=")


def decode_position(text: str) -> dict[int, int]:
    """Return what encode_position() was given. Raises ValueError with one sentence; nothing is taken for another one.

    Args:
        text: whatever somebody sent.
    """
    short = text if len(text) <= 60 else f"{text[:57]}..."
    wrong = ValueError(f"{short!r} is not a position: it has been changed, or is not whole")
    if not is_position(text) or len(text) > TOKEN_CHARACTERS_MAX or not text.isascii():
        raise wrong
    encoded = text[1:].translate(_FROM_URL)
    try:
        content = binascii.a2b_base64(encoded + "=" * (-len(encoded) % 4), strict_mode=True)
    except binascii.Error:
        raise wrong from None
    body, check = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    if not body or checksum(body).to_bytes(_CHECKSUM_BYTES, "little") != check:
        raise wrong
    if body[0] != _TOKEN_VERSION:
        raise ValueError(f"{short!r} is a position of version {body[0]}; this version of Shoal reads {_TOKEN_VERSION}")
    numbers: dict[int, int] = {}
    at = 1
    while at < len(body):
        worker, at = find_varint(body, at, _NUMBER_BYTES_MAX)
        if at > 0:
            numbers[worker], at = find_varint(body, at, _NUMBER_BYTES_MAX)
        if at <= 0:
            raise wrong
    # One position has one token: what is out of order, there twice, too large or written longer than need be is none.
    if len(numbers) > LOGS_MAX or max(numbers, default=0) > WORKER_MAX or encode_position(numbers) != text:
        raise wrong
    return numbers


_TO_URL: Final = str.maketrans("+/", "-_")
_FROM_URL: Final = str.maketrans("-_+/", "+/!!")
