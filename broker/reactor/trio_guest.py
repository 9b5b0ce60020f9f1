"""trio as the reactor's guest: what it wants to run waits here for the reactor's turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from outcome import Outcome

    from broker.reactor.epoll import Reactor


class Guest:
    """Hosts one trio run inside a reactor (trio.lowlevel.start_guest_run).

    trio's own waits run in its thread; each of its ticks is queued here, and the reactor runs one per turn.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queue: deque[tuple[Callable[[], object], int]] = deque()  # what to call, since when (monotonic ns)
        self.outcome: Outcome[Any] | None = None

    def start(self, main: Callable[[], Awaitable[Any]]) -> None:
        """Start `main` as the guest. When it has ended, `outcome` holds its result and the reactor stops."""
        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=self._soon_from_thread,
            run_sync_soon_not_threadsafe=self._soon,
            done_callback=self._done,
        )

    def _soon_from_thread(self, function: Callable[[], object]) -> None:
        self._queue.append((function, time.monotonic_ns()))
        self._reactor.wake()

    def _soon(self, function: Callable[[], object]) -> None:
        self._queue.append((function, time.monotonic_ns()))
        self._reactor.guest_is_due()

    def _done(self, outcome: Outcome[Any]) -> None:
        self.outcome = outcome
        self._reactor.stop()

    def due(self) -> bool:
        """Return whether a tick waits."""
        return bool(self._queue)

    def tick(self) -> bool:
        """Run one tick; returns whether another one waits."""
        if self._queue:
            function, due_ns = self._queue.popleft()
            self._reactor.note_guest_lag(time.monotonic_ns() - due_ns)
            function()
        return bool(self._queue)
