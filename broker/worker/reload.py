"""Files of listeners and authenticators that are read again while the broker runs: all of them, or none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.config.start_error import StartError
from broker.logs import get

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.auth.chain import Member
    from broker.transport.listener import Entrance
    from broker.transport.tls_context import TlsContext

log = get("reload")

LOOK_S: Final = 2.0              # between two looks at the files: one to five system calls for each


class Reload:
    """Has files read again, those of listeners and authenticators, when they are others than before, or on demand.

    A file is another one when its name leads to another file, or that was written: certbot and Kubernetes swap symbolic
    links. What is read is checked as a whole; on any fault everything stays as it is, and is said to. Connections keep
    what they began with, and clients that were let in stay.

    Args:
        entrances: those of the worker.
        authenticators: likewise.

    Attributes:
        done: how often it was read again.
        failed: how often that could not be used.
        authenticators: those whose files it reads.
        error: why, in one sentence, the last time; None: it could.
    """

    def __init__(self, entrances: Sequence[Entrance], authenticators: Sequence[Member] = ()) -> None:
        self.done = self.failed = 0
        self.error: str | None = None
        self._entrances = [entrance for entrance in entrances if entrance.context is not None]
        self.authenticators = tuple(authenticators)
        self._asked = trio.Event()
        self._reading = trio.Lock()
        self._seen = self._state()

    def ask(self) -> None:
        """Read everything again soon, whether or not a file has changed. From trio's thread."""
        self._asked.set()

    async def run(self) -> None:
        """Look at the files from time to time. Runs until cancelled."""
        while self._entrances or self.authenticators:
            with trio.move_on_after(LOOK_S):
                await self._asked.wait()
            if self._asked.is_set() or self._state() != self._seen:
                self._asked = trio.Event()
                await self.reload()

    async def reload(self) -> None:
        """Read all files again; what they say holds for the connections that come from now on.

        `error` says whether it does.
        """
        async with self._reading:
            await self._reload()

    async def _reload(self) -> None:
        seen = self._state()
        try:
            contexts, found = await trio.to_thread.run_sync(self._read)
        except StartError as error:
            self.failed += 1
            self.error = str(error)
            log.error("reload_failed", what=f"{error} What was read before stays in use.")
        else:
            for entrance, context in zip(self._entrances, contexts, strict=True):
                entrance.context = context
            for authenticator, one in zip(self.authenticators, found, strict=True):
                authenticator.use(one)
            self.done += 1
            self.error = None
            log.info("reloaded", certificates=[
                {"subject": certificate.dn, "not_after_s": certificate.not_after_s}
                for context in contexts for certificate in context.certificates],
                authenticators=[authenticator.describe() for authenticator in self.authenticators])
        self._seen = seen

    def _read(self) -> tuple[list[TlsContext], list[Any]]:
        """Return what all files say, those of entrances and those of authenticators. From any thread. StartError."""
        return ([entrance.context_anew() for entrance in self._entrances],
                [authenticator.read() for authenticator in self.authenticators])

    def _state(self) -> list[tuple[str, int, int, int]]:
        """Return which files there are behind the names, and when they were written."""
        lists = [entrance.files for entrance in self._entrances] + [one.files for one in self.authenticators]
        return [_state_of(path) for files in lists for path in files]


def _state_of(path: str) -> tuple[str, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, found.st_ino, found.st_mtime_ns, found.st_size
