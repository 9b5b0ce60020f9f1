"""The file `incarnation` of a worker: how often it was started, and what its log has. docs/formats.md has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from router.log.segments import ForeignFileError, MissingSegmentError, segment_of

if TYPE_CHECKING:
    from router.log.disk import Storage

INCARNATION: Final = "incarnation"
LOST: Final = "lost"  # in place of a durability: nobody knows what the last run was like
UNSYNCED: Final = ("os", "none")
_TEXT = re.compile(rb"([0-9]{1,10})(?: ([a-z]+)(?: ([0-9]{1,12}) ([0-9]{1,12}))?)?\s*")


@dataclass(frozen=True, slots=True)
class LastRun:
    """What the file says.

    Attributes:
        incarnation: of the last run; 0 before the first.
        durability: of the last run, or `restored` or `lost`.
        begins: the segment that the log begins with while no snapshot stands for what was before; 0: an earlier version
            wrote this, and did not say.
        newest: the newest segment that was ever made; 0: none was, or nobody said.
    """

    incarnation: int = 0
    durability: str = "fsync"
    begins: int = 1
    newest: int = 0

    @property
    def synced(self) -> bool:
        """What the last run acknowledged was on the disk; else a loss of power may have taken any of it."""
        return self.durability not in UNSYNCED

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return f"{self.incarnation} {self.durability} {self.begins} {self.newest}\n".encode()


def parse(text: bytes) -> LastRun:
    """Return what the bytes of the file say. Raises ValueError."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("does not hold the number of the worker's last run")
    number, durability, begins, newest = found.groups()
    return LastRun(int(number), (durability or b"fsync").decode(), int(begins or 0), int(newest or 0))


def read_last_run(disk: Storage, *, accept_loss: bool) -> LastRun:
    """Return what the file of a worker's folder says.

    Raises ForeignFileError where it is damaged and MissingSegmentError where it is gone, unless the loss is accepted:
    then clients are taken to know more than the log; OSError.
    """
    names = disk.names()
    if INCARNATION not in names:
        others = [name for name in names if segment_of(name) is not None or name.startswith("snapshot-")]
        if not others:
            return LastRun()
        if not accept_loss:
            raise MissingSegmentError(INCARNATION, 0, f"is missing, and {others[0]} is there")
        return LastRun(durability=LOST, begins=0)
    file = disk.open(INCARNATION)
    try:
        text = disk.read(file, 0, 64)
    finally:
        disk.close(file)
    try:
        return parse(text)
    except ValueError as error:
        if not accept_loss:
            raise ForeignFileError(INCARNATION, 0, str(error)) from None
        return LastRun(durability=LOST, begins=0)


def write_last_run(disk: Storage, run: LastRun) -> None:
    """Write the file, durably. Raises OSError."""
    following = INCARNATION + ".new"
    if following in disk.names():
        disk.remove(following)
    file = disk.create(following)
    try:
        disk.write(file, run.encode(), 0)
        disk.sync(file)
    finally:
        disk.close(file)
    disk.rename(following, INCARNATION)
    disk.sync_folder()
