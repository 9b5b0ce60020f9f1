"""Files of a lake whose writer is stopped at a change of them."""

from __future__ import annotations

from typing import Any


class StoppedError(Exception):
    """The driver ends here."""


class StoppingFiles:
    """Files of a driver that is stopped before, or right after, the change of this number, or the nth of one kind."""

    def __init__(self, files: Any, changes: int, *, after: bool = False, kind: str = "") -> None:
        self.files = files
        self.left = changes
        self.after = after
        self.kinds = (kind,) if kind else ("write", "rename", "remove")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.files, name)
        if name not in self.kinds:
            return found

        def change(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise StoppedError
            result = found(*arguments)
            if self.left == 0:
                raise StoppedError
            return result

        return change
