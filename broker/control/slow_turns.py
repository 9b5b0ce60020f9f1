"""Turns of the reactor that took long, and what the log says of them."""

from __future__ import annotations

from typing import Final

from broker.logs import get

log = get("connections")

TOLD_FROM_US: Final = 50_000  # shorter ones are counted, and have a line each at debug only
EVERY_MS: Final = 10_000  # at most one line in so long


class SlowTurns:
    """Counts them, and tells of the longest now and then.

    Attributes:
        count: turns of 10 ms or more since the start.
    """

    __slots__ = ("_longest", "_told_ms", "_untold", "count")

    def __init__(self) -> None:
        self.count = 0
        self._untold = 0  # of those that are long enough
        self._longest: dict[str, int] = {}  # its phases, of those
        self._told_ms = -EVERY_MS

    def add(self, phases: dict[str, int], now_ms: int) -> None:
        """Take notice of a turn of 10 ms or more.

        Args:
            phases: `turn_us`, and how long each part of it took.
            now_ms: monotonic.
        """
        self.count += 1
        log.debug("slow_turn", **phases)
        if phases["turn_us"] < TOLD_FROM_US:
            return
        self._untold += 1
        if phases["turn_us"] > self._longest.get("turn_us", 0):
            self._longest = phases
        self.tell(now_ms)

    def tell(self, now_ms: int) -> None:
        """Write the line that is due, if there is something to tell."""
        if self._untold and now_ms - self._told_ms >= EVERY_MS:
            log.warning("slow_turns", count=self._untold, **self._longest)
            self._untold, self._longest, self._told_ms = 0, {}, now_ms
