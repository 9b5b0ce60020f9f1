"""Limits that hold for a worker as a whole, and those on topics: what is counted, and what is said at the bound."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from broker.logs import get
from broker.wire.reasons import ClientError, Reason

if TYPE_CHECKING:
    from collections.abc import Sized

    from broker.reactor.shared_counts import Places
    from broker.reactor.turn import Hub
    from router.sessions.ledger import Ledger

log = get("limits")

RECOVERED = 0.9                  # of the limit: below it, the worker takes in again
FULL_OUTPUT_BYTES_MAX = 65_536   # of one connection's output while the worker is at its limit
FULL_ROUTES_SHARE = 16           # of what routes may take, one part is left to them then
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WORKERS_BY_DEFAULT_MAX = 64      # each has a link to each other one
CONTROL_GROUP = Path("/sys/fs/cgroup")
CONTROL_GROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def topic_problem(topic: bytes, levels_max: int, bytes_max: int) -> str | None:
    """Return which limit a topic name or topic filter breaks, in words; None if it breaks none."""
    if len(topic) > bytes_max:
        return f"{len(topic)} bytes of topic, {bytes_max} are allowed"
    levels = topic.count(b"/") + 1
    if levels > levels_max:
        return f"{levels} topic levels, {levels_max} are allowed"
    return None


def wildcard_problem(inner_filter: bytes, levels_max: int) -> str | None:
    """Return which limit a topic filter breaks by a + in it, in words; None if it breaks none.

    Args:
        inner_filter: valid, without $share/name/.
    """
    if b"+" not in inner_filter:
        return None
    levels = inner_filter.count(b"/") + 1
    return f"{levels} levels in a topic filter with +, {levels_max} are allowed" if levels > levels_max else None


def check_topic_size(topic: bytes, levels_max: int, bytes_max: int) -> None:
    """Raise ClientError for a topic name that breaks a limit."""
    problem = topic_problem(topic, levels_max, bytes_max)
    if problem is not None:
        raise ClientError(Reason.TOPIC_NAME_INVALID, "section 4.7.3", problem)


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


class SessionLimit:
    """How many sessions there may be, on this worker or on all workers of a broker together.

    With others, each worker writes how many it has where all see it: before it has one more, and some time after it has
    fewer. So they never have more than the maximum, and a client may be refused whose place has just become free. What
    a worker wrote stays when it is killed, for its sessions are there when it is back.

    Args:
        sessions: the router's, by client identifier.
        maximum: of all workers together.

    Attributes:
        places: where all see it; None where there are no others.
    """

    __slots__ = ("_maximum", "_sessions", "places")

    def __init__(self, sessions: Sized, maximum: int) -> None:
        self._sessions = sessions
        self._maximum = maximum
        self.places: Places | None = None

    @property
    def is_reached(self) -> bool:
        """Whether there may be no more."""
        self.tell()
        count = len(self._sessions) if self.places is None else self.places.total()
        return count >= self._maximum

    def take(self) -> bool:
        """Return whether there may be one more, which comes into being at once."""
        if self.places is None:
            return len(self._sessions) < self._maximum
        self.places.set(len(self._sessions) + 1)
        if self.places.total() <= self._maximum:
            return True
        self.tell()
        return False

    def tell(self) -> None:
        """Let the other workers know how many there are here."""
        if self.places is not None:
            self.places.set(len(self._sessions))


def cores_available(control_group: Path = CONTROL_GROUP) -> int:
    """Return how many cores this process may use: those of its CPU set, or as many as its control group has time for.

    Args:
        control_group: its folder.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (control_group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota, period = ((control_group / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                             for name in ("quota", "period"))
        except OSError:
            return cores
    if quota.isdigit() and period.isdigit() and int(period):     # else "max", or -1
        cores = min(cores, -(-int(quota) // int(period)))
    return max(cores, 1)


def memory_available_bytes() -> int:
    """Return the memory that this process may use: the machine's, or less if its control group has less."""
    available = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    for file in CONTROL_GROUP_FILES:
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            available = min(available, int(text))
    return available


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
        """Return the resident set of this process. Costs about 3 microseconds."""
        return int(os.pread(self._statm, 128, 0).split(maxsplit=2)[1]) * PAGE_BYTES

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
            self._output_bytes_max if full else min(self._output_bytes_max, FULL_OUTPUT_BYTES_MAX))
