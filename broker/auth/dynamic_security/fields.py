"""What a request says, read as mosquitto's JSON library reads it: names in any case, the first of two counts."""

from __future__ import annotations

import json
from typing import Any, Final

Fields = dict[str, Any]  # by name in small letters

INT_MAX: Final = 0x7FFFFFFF
NAME_BYTES_MAX: Final = 10_000  # of a user, group or role: it is part of the topic that it is stored under
CONTROLS: Final = frozenset((*range(0x20), *range(0x7F, 0xA0)))


class WrongFieldError(Exception):
    """A command that is answered with an error, in mosquitto's words."""


def parsed(payload: bytes) -> Any:
    """Return what JSON says. Raises ValueError for what is none."""
    try:
        return json.loads(payload.decode(), object_pairs_hook=_fields, parse_constant=_refuse, parse_int=_cut)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _fields(pairs: list[tuple[str, Any]]) -> Fields:
    fields: Fields = {}
    for name, value in pairs:
        if isinstance(value, str):
            value.encode()  # half a surrogate pair is no text: UnicodeEncodeError is a ValueError
        fields.setdefault(name.lower(), value)
    return fields


def _cut(digits: str) -> int:
    """Return a number, cut to an int of C, as integer() does: there may be millions of digits."""
    if len(digits) > 15:
        return -INT_MAX - 1 if digits.startswith("-") else INT_MAX
    return max(-INT_MAX - 1, min(INT_MAX, int(digits)))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def text(fields: Fields, name: str, error: str) -> str:
    """Return a text that has to be there. Raises WrongFieldError."""
    value = fields.get(name.lower())
    if not isinstance(value, str):
        raise WrongFieldError(error)
    return value


def text_or_none(fields: Fields, name: str, error: str) -> str | None:
    """Return a text, None if there is none. Raises WrongFieldError if it is something else."""
    return text(fields, name, error) if name.lower() in fields else None


def name_of(fields: Fields, what: str, shown: str, *, new: bool = False) -> str:
    """Return the name of what a command is about.

    Args:
        what: the field's name.
        shown: what it is called in an error.
        new: it is given to something now, so it cannot be empty.

    Raises WrongFieldError.
    """
    name = text(fields, what, f"Invalid/missing {what}")
    if new and not name:
        raise WrongFieldError(f"Empty {what}")
    if not is_valid_text(name):
        raise WrongFieldError(f"{shown} not valid UTF-8")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise WrongFieldError(f"{shown} too long")
    return name


def integer(fields: Fields, name: str, default: int) -> int:
    """Return a number, cut to an int of C; the default for what is none."""
    value = fields.get(name.lower())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return int(max(-INT_MAX - 1, min(INT_MAX, value)))


def boolean(fields: Fields, name: str, *, default: bool) -> bool:
    """Return a truth value; the default for what is none."""
    value = fields.get(name.lower())
    return value if isinstance(value, bool) else default


def array(fields: Fields, name: str) -> list[Any] | None:
    """Return an array; None for what is none."""
    value = fields.get(name.lower())
    return value if isinstance(value, list) else None


def is_valid_text(value: str) -> bool:
    """Return whether a text has no characters that names must not have [MQTT-1.5.4-2]: control and non-characters."""
    return not any(
        ord(letter) in CONTROLS or ord(letter) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(letter) <= 0xFDEF for letter in value
    )
