"""The limit on a worker's memory: measured, and what is not taken in any more while it is reached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.config.host_resources import PAGE_BYTES, memory_available_bytes
from broker.logs import get

if TYPE_CHECKING:
    from broker.reactor.turn import Hub
    from router.sessions.ledger import Ledger

log = get("limits")

RECOVERED = 0.9  # of the limit: below it, the worker takes in again
FULL_OUTPUT_BYTES_MAX = 65_536  # of one connection's output while the worker is at its limit
FULL_ROUTES_SHARE = 16  # of what routes may take, one part is left to them then


class MemoryGuard:
    """Keeps a worker below its limit of memory by what it measures: its resident set.

    At the limit nothing more is queued or retained, only clients that have a session get in (they may take what is
    queued), a packet of more than 64 KiB is not gathered, QoS 0 waits in outputs up to 64 KiB per connection only,
    routes have a sixteenth of their room, and no topic alias is added beyond some KiB.
    Below nine tenths of the limit all goes on.

    Its file stays open, so that it measures where no file can be opened any more.

    Args:
        limit_bytes: 0 for three quarters of what the machine or its control group has.
        hub, ledger: the worker's.

    Attributes:
        times_full: how often the limit was reached.
    """

    def __init__(self, limit_bytes: int, hub: Hub, ledger: Ledger) -> None:
        self.limit_bytes = limit_bytes or memory_available_bytes() // 4 * 3
        self.times_full = 0
        self._hub = hub
        self._ledger = ledger
        self._output_bytes_max: int = hub.output_bytes_max
        self._route_bytes_max: int = hub.router.tree.cache.bytes_max
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file that is measured by."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1

    def resident_bytes(self) -> int:
        """Return the resident set of this process; 0 since close(). Costs about 3 microseconds."""
        if self._statm < 0:
            return 0
        return int(os.pread(self._statm, 128, 0).split(maxsplit=2)[1]) * PAGE_BYTES

    def allow_output(self, output_bytes_max: int) -> None:
        """From now on so much may be unsent to a connection while there is memory."""
        self._output_bytes_max = output_bytes_max
        self._hub.output_bytes_max = (
            min(output_bytes_max, FULL_OUTPUT_BYTES_MAX) if self._ledger.memory_full else output_bytes_max
        )

    def check(self) -> None:
        """Measure, and stop or take up what costs memory. Called every 250 ms, and after every 16 MiB received."""
        resident_bytes = self.resident_bytes()
        full = bool(self._ledger.memory_full)
        if not full and resident_bytes > self.limit_bytes:
            self.times_full += 1
            log.warning("memory_full", resident_bytes=resident_bytes, limit_bytes=self.limit_bytes)
        elif full and resident_bytes < self.limit_bytes * RECOVERED:
            log.info("memory_available", resident_bytes=resident_bytes, limit_bytes=self.limit_bytes)
        elif full:
            self._hub.trim()
            return
        else:
            return
        self._ledger.memory_full = not full
        self._hub.router.tree.cache.bytes_max = self._route_bytes_max // (1 if full else FULL_ROUTES_SHARE)
        self._hub.output_bytes_max = (
            self._output_bytes_max if full else min(self._output_bytes_max, FULL_OUTPUT_BYTES_MAX)
        )
