"""What a log line looks like: JSON for programs, a line with colours for a person at a terminal."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

import msgspec

Fields = MutableMapping[str, Any]
Renderer = Callable[[Fields], bytes]

FIRST: Final = ("timestamp", "level", "event", "logger")
EVENT_WIDTH: Final = 28
LEVEL_WIDTH: Final = 9
PLAIN, BOLD, DIM, RED, GREEN, YELLOW, MAGENTA, CYAN = (
    "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[36m")  # fmt: skip
LEVEL_COLOURS: Final = {"debug": GREEN, "info": GREEN, "warning": YELLOW, "error": RED, "critical": RED}


def timestamp() -> str:
    """Return the time as lines say it: RFC 3339, UTC, microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def with_traceback(fields: Fields) -> Fields:
    """Put text in place of `exc_info`: an exception, what sys.exc_info() gives, or True for the present one."""
    given = fields.pop("exc_info", None)
    if given is None or given is False:
        return fields
    error = given
    if isinstance(given, tuple):
        error = given[1]
    elif not isinstance(given, BaseException):
        import sys

        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        where: TracebackType | None = error.__traceback__
        fields["exception"] = "".join(traceback.format_exception(type(error), error, where)).rstrip("\n")
    return fields


_encode = msgspec.json.Encoder(enc_hook=repr).encode


def json_line(fields: Fields) -> bytes:
    """Return a line as a JSON object: when, how bad, what, who, and then what it says."""
    fields = with_traceback(fields)
    first = {key: fields.pop(key) for key in FIRST if key in fields}
    try:
        return _encode({**first, **fields})
    except UnicodeEncodeError:
        # A lone surrogate, from a file name for instance; json.dumps writes it as an escape.
        return json.dumps({**first, **fields}, default=repr).encode()


def console(*, colours: bool) -> Renderer:
    """Return what renders lines for a terminal; tracebacks stand below their line."""

    def painted(text: str, *colour: str) -> str:
        return f"{''.join(colour)}{text}{PLAIN}" if colours else text

    def console_line(fields: Fields) -> bytes:
        fields = with_traceback(fields)
        below = str(fields.pop("exception", ""))
        # A client identifier must not move the cursor of whoever looks at the log.
        shown = {key: _printable(value) for key, value in fields.items()}
        level = shown.pop("level", "")
        parts = [
            painted(shown.pop("timestamp", ""), DIM),
            f"[{painted(level.ljust(LEVEL_WIDTH), LEVEL_COLOURS.get(level, PLAIN), BOLD)}]",
            painted(shown.pop("event", "").ljust(EVENT_WIDTH), BOLD),
        ]
        if "logger" in shown:
            parts.append(f"[{painted(shown.pop('logger'), BOLD)}]")
        parts += [f"{painted(key, CYAN)}={painted(shown[key], MAGENTA)}" for key in sorted(shown)]
        line = " ".join(parts).rstrip()
        return (f"{line}\n{below}" if below else line).encode("utf-8", "backslashreplace")

    return console_line


def _printable(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    # Text with blanks in it is told from the next key by its quotes.
    return repr(text) if isinstance(value, str) and any(character in text for character in " =\"'") else text
