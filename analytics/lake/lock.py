"""Which job may write to a lake: one at a time."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from analytics.lake.manifest import LakeError

if TYPE_CHECKING:
    from analytics.lake.file_store import Files

NAME: Final = "_shoal/lock"


class WriterLock:
    """The right to write to a lake. On a folder of this machine it dies with its holder; elsewhere it holds no job
    back, and one that is overtaken finds that out at its next commit.

    Raises LakeError if somebody else has it.
    """

    def __init__(self, files: Files) -> None:
        lock = files.lock(NAME)
        if lock is None and files.has_locks:
            raise LakeError(f"somebody else writes to the lake {files.root}: one at a time may")
        self.close = weakref.finalize(self, lock.close) if lock is not None else lambda: None
