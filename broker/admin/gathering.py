"""What is asked of all workers for many who want to know it: however many ask, workers are asked seldom."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

Found = TypeVar("Found")


class Gathering(Generic[Found]):
    """Asks once for all who came before it asks, and not again before a while has passed.

    Args:
        gather: asks.
        gap_s: the while.
    """

    def __init__(self, gather: Callable[[], Awaitable[Found]], gap_s: float) -> None:
        self._gather = gather
        self._gap_s = gap_s
        self._lock = trio.Lock()
        self._begun = 0  # number of the last one that was begun
        self._has = 0  # ... and of the one that was found
        self._ended_s = -math.inf
        self._found: Found

    async def found(self) -> Found:
        """Return what was found by asking that began after this call."""
        wanted = self._begun + 1
        async with self._lock:
            if self._has < wanted:
                await trio.sleep_until(self._ended_s + self._gap_s)
                self._begun += 1
                try:
                    self._found = await self._gather()
                    self._has = self._begun
                finally:
                    self._ended_s = trio.current_time()
            return self._found
