"""The lines of a password file, mosquitto's: reading and changing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from broker.auth.password_hash import SCRAM, PasswordHash

NAME_BYTES_MAX: Final = 65_535
BLANK: Final = b" \t\r\n\v\f"
SHOWN_MAX: Final = 20  # users of a difference that are told


class PasswordLineError(ValueError):
    """What is wrong with a line.

    Attributes:
        line: its number, from 1.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: found {what}")
        self.line = line


class PasswordLines:
    """A password file, taken apart: `USER:HASH`, one in a line.

    A line that begins with # is a comment, one without a colon is skipped; blanks around user and hash do not count.

    Args:
        data: the file.

    Attributes:
        hashes: of the users, by name, in the file's order.
        stored: the same without the names.
        scram_iterations: those that most users of a method have, by method.
        skipped: numbers of the lines that are neither blank nor a comment and have no colon.

    Raises PasswordLineError, whose text holds no hash, and nothing that may be a password.
    """

    def __init__(self, data: bytes) -> None:
        self.hashes: dict[str, bytes] = {}
        self.skipped: list[int] = []
        self._line_of: dict[str, int] = {}
        # Not splitlines(): a carriage return alone ends no line of mosquitto's.
        self._lines = data.split(b"\n")
        for number, line in enumerate(self._lines, 1):
            if line.startswith(b"#"):
                continue
            found, colon, stored = line.partition(b":")
            if not colon:
                if line.strip(BLANK):
                    self.skipped.append(number)
                continue
            try:
                name = _name(found.strip(BLANK))
                PasswordHash(stored.strip(BLANK))
            except ValueError as error:  # a HashError is one
                raise PasswordLineError(number, str(error)) from None
            if name in self._line_of:
                raise PasswordLineError(
                    number, f"the user of line {self._line_of[name]} again, expected each user once"
                )
            self._line_of[name] = number
            self.hashes[name] = stored.strip(BLANK)
        self.stored = tuple(self.hashes.values())
        counts: dict[str, Counter[int]] = {}
        for stored in self.stored:
            if stored.startswith(SCRAM):
                method, _, rest = stored.partition(b"$")
                counts.setdefault(method.decode(), Counter())[int(rest.partition(b":")[0])] += 1
        self.scram_iterations = {method: count.most_common(1)[0][0] for method, count in counts.items()}

    def with_user(self, name: str, stored: bytes) -> bytes:
        """Return the file with a user added at its end, or with another hash where the user is."""
        lines = list(self._lines)
        new = name.encode() + b":" + stored
        if name in self._line_of:
            lines[self._line_of[name] - 1] = new
        elif lines[-1]:
            lines += [new, b""]  # its last line has no end
        else:
            lines[-1:] = [new, b""]
        return b"\n".join(lines)

    def without_user(self, name: str) -> bytes:
        """Return the file without a user, who is in it."""
        at = self._line_of[name] - 1
        return b"\n".join(self._lines[:at] + self._lines[at + 1 :])


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes], file: str) -> dict[str, Any]:
    """Return which users have come, have gone, or have another hash; SHOWN_MAX of them, and how many there are of each.

    Args:
        before, after: hashes of users, by name.
        file: what stands before the name of a user.
    """
    gone = [name for name in before if name not in after]
    come = [name for name in after if name not in before]
    altered = [name for name, stored in after.items() if before.get(name, stored) != stored]
    shown = [
        *(f"- {file}: {name}" for name in gone),
        *(f"+ {file}: {name}" for name in come),
        *(f"~ {file}: {name}" for name in altered),
    ]
    return {"come": len(come), "gone": len(gone), "altered": len(altered), "shown": shown[:SHOWN_MAX]}


def checked_name(name: bytes) -> str:
    """Return a user name that a line can begin with. Raises ValueError with what was found and expected."""
    text = _name(name)
    if any(character in text for character in ":\n") or name.startswith(b"#") or name.strip(BLANK) != name:
        raise ValueError("a user name with a colon or a line's end in it, a # before it or blanks around it")
    return text


def _name(name: bytes) -> str:
    if not name:
        raise ValueError("an empty user name, expected USER:HASH")
    if len(name) > NAME_BYTES_MAX:
        raise ValueError(f"a user name of {len(name)} bytes, expected up to {NAME_BYTES_MAX}")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise ValueError("a user name that is not UTF-8") from None
    if "\0" in text:
        raise ValueError("a user name with NUL in it")
    return text
