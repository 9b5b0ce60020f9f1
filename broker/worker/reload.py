"""Files of listeners, authenticators and authorizers that are read again while the broker runs: all, or none."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import trio

from broker.config.start_error import StartError
from broker.logs import get

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.auth.authorizers import Authorizers, ReadRules
    from broker.auth.chain import Member
    from broker.auth.shadow import Shadow
    from broker.transport.listener import Entrance
    from broker.transport.tls_context import TlsContext

log = get("reload")

LOOK_S: Final = 2.0  # between two looks at the files: one to five system calls for each
Settings = Callable[[], Callable[[], None]]

SHOWN_MAX: Final = 20  # lines of a difference that are told


@runtime_checkable
class HasUsers(Protocol):
    """An authenticator whose file says who its users are: broker.auth.password_file.PasswordFile."""

    def users_changed(self, found: Any) -> dict[str, Any]:
        """Return which users would be others by what read() has returned: come, gone, altered, shown."""


class LastChange:
    """What the last change of one kind was that changed anything.

    The broker looks at its files by itself: so a change may be behind it when an operator asks for one.
    """

    def __init__(self) -> None:
        self._what: dict[str, Any] | None = None
        self._noted_s = 0.0

    def note(self, what: dict[str, Any] | None) -> None:
        """Keep what a reload has changed, unless that is nothing and something was changed before."""
        if what is not None and (self._what is None or any(what.get(name) for name in ("come", "gone", "altered"))):
            self._what, self._noted_s = what, time.monotonic()

    def told(self) -> dict[str, Any] | None:
        """Return what it was, and how long ago; None: there is nothing of this kind."""
        if self._what is None:
            return None
        return {**self._what, "seconds_ago": round(time.monotonic() - self._noted_s, 1)}


class Found(NamedTuple):
    """What all files say: those of entrances, of authenticators, of authorizers; and what is different in them."""

    contexts: list[TlsContext]
    authenticators: list[Any]
    read_rules: ReadRules | None
    rules: dict[str, Any] | None
    users: dict[str, Any] | None


class Reload:
    """Has files read again when they are others than before, or on demand.

    A file is another one when its name leads to another file, or that was written: certbot and Kubernetes swap symbolic
    links. What is read is checked as a whole; on any fault everything stays as it is, and is said to. Connections keep
    what they began with, and clients that were let in stay.

    Args:
        entrances: those of the worker.
        authenticators, authorizers: likewise.

    Attributes:
        done: how often it was read again.
        failed: how often that could not be used.
        authenticators, authorizers: those whose files it reads.
        error: why, in one sentence, the last time; None: it could.
        settings: reads the settings again, too, in a thread, when it is asked to and nothing else is said; returns what
            puts them in force, or raises StartError. None: they stay.
        around: entered for as long as something is read that was asked for.
    """

    def __init__(
        self,
        entrances: Sequence[Entrance],
        authenticators: Sequence[Member] = (),
        authorizers: Authorizers | None = None,
    ) -> None:
        self.done = self.failed = 0
        self.error: str | None = None
        self._entrances = [entrance for entrance in entrances if entrance.context is not None]
        self.authenticators = tuple(authenticators)
        self.authorizers = authorizers
        self._rules, self._users = LastChange(), LastChange()
        self.settings: Settings | None = None
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self._settings_asked: Settings | None = None
        self._asked = trio.Event()
        self._reading = trio.Lock()
        self._seen = self._state()

    def ask(self, settings: Settings | None = None) -> None:
        """Read everything again soon, whether or not a file has changed. From trio's thread.

        Args:
            settings: likewise of settings; None: `settings`.
        """
        self._settings_asked = settings or self.settings
        self._asked.set()

    @property
    def rules_changed(self) -> dict[str, Any] | None:
        """What last changed in the rules of authorizers, and how long ago; None: there are none."""
        return self._rules.told()

    @property
    def users_changed(self) -> dict[str, Any] | None:
        """What last changed in the users of password files, and how long ago; None: there are none."""
        return self._users.told()

    @property
    def members(self) -> list[Member | Authorizers]:
        """What has something to do beside its answers: each runs until cancelled."""
        return [*self.authenticators, *(() if self.authorizers is None else (self.authorizers,))]

    @property
    def shadow(self) -> Shadow | None:
        """What is on trial beside the rules that count; None: nothing is."""
        return None if self.authorizers is None else self.authorizers.shadow

    @property
    def reads_files(self) -> bool:
        """Whether there are files to read again."""
        return bool(self._entrances or self.authenticators or self.authorizers is not None)

    async def run(self) -> None:
        """Look at the files from time to time. Runs until cancelled."""
        while True:
            with trio.move_on_after(LOOK_S if self.reads_files else math.inf):
                await self._asked.wait()
            if self.authorizers is not None:
                self.authorizers.look_at_clock(time.time())
            if self._asked.is_set() or self._state() != self._seen:
                is_asked = self._asked.is_set()
                self._asked = trio.Event()
                settings, self._settings_asked = self._settings_asked, None
                with self.around() if is_asked else nullcontext():
                    await self.reload(settings)

    async def reload(self, settings: Settings | None = None) -> None:
        """Read all files again; what they say holds for the connections that come from now on.

        `error` says whether it does.

        Args:
            settings: these as well, together with the files or not at all.
        """
        async with self._reading:
            await self._reload(settings)

    async def _reload(self, settings: Settings | None) -> None:
        seen = self._state()
        try:
            use_settings = None if settings is None else await trio.to_thread.run_sync(settings)
            found = await trio.to_thread.run_sync(self._read)
        except StartError as error:
            self.failed += 1
            self.error = str(error)
            log.error("reload_failed", what=f"{error} What was read before stays in use.")
        else:
            if use_settings is not None:
                use_settings()
            self._use(found)
        self._seen = seen

    def _use(self, found: Found) -> None:
        for entrance, context in zip(self._entrances, found.contexts, strict=True):
            entrance.context = context
        for authenticator, one in zip(self.authenticators, found.authenticators, strict=True):
            authenticator.use(one)
        if self.authorizers is not None and found.read_rules is not None:
            self.authorizers.use(found.read_rules)
        self._rules.note(found.rules)
        self._users.note(found.users)
        self.done += 1
        self.error = None
        log.info(
            "reloaded",
            certificates=[
                {"subject": certificate.dn, "not_after_s": certificate.not_after_s}
                for context in found.contexts
                for certificate in context.certificates
            ],
            authenticators=[authenticator.describe() for authenticator in self.authenticators],
            users=found.users,
            rules=found.rules,
        )

    def _read(self) -> Found:
        """Return what all files say. From any thread. Raises StartError."""
        contexts = [entrance.context_anew() for entrance in self._entrances]
        found = [authenticator.read() for authenticator in self.authenticators]
        users = _joined(
            member.users_changed(one)
            for member, one in zip(self.authenticators, found, strict=True)
            if isinstance(member, HasUsers)
        )
        if self.authorizers is None:
            return Found(contexts, found, None, None, users)
        rules = self.authorizers.read()
        return Found(contexts, found, rules, self.authorizers.difference(rules), users)

    def _state(self) -> list[tuple[str, int, int, int]]:
        """Return which files there are behind the names, and when they were written."""
        lists = [entrance.files for entrance in self._entrances] + [one.files for one in self.authenticators]
        if self.authorizers is not None:
            lists.append(self.authorizers.files)
        return [_state_of(path) for files in lists for path in files]


def _joined(changes: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the changes of several files as one; None of none."""
    found = list(changes)
    if not found:
        return None
    counts: dict[str, Any] = {name: sum(one[name] for one in found) for name in ("come", "gone", "altered")}
    return {**counts, "shown": [line for one in found for line in one["shown"]][:SHOWN_MAX]}


def _state_of(path: str) -> tuple[str, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, found.st_ino, found.st_mtime_ns, found.st_size
