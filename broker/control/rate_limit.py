"""So many events a second: the limit on CONNECTs."""

from __future__ import annotations


class Rate:
    """So many events a second, and `burst` of them at once (the virtual scheduling form of a leaky bucket, GCRA).

    Args:
        per_second: 0 for any number.
        burst: 1 or more.
    """

    __slots__ = ("_burst_us", "_due_us", "_step_us")

    def __init__(self, per_second: int, burst: int) -> None:
        self._step_us = 1_000_000 / per_second if per_second else 0.0
        self._burst_us = self._step_us * burst
        self._due_us = 0.0

    def take(self, now_ms: int) -> bool:
        """Return whether one more event fits at a time (monotonic ms), and count it if it does."""
        now_us = now_ms * 1000.0
        due_us = max(self._due_us, now_us) + self._step_us
        if due_us - now_us > self._burst_us:
            return False
        self._due_us = due_us
        return True
