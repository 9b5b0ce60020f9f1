"""What the machine, or the control group, has for a broker: cores and memory."""

from __future__ import annotations

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WORKERS_BY_DEFAULT_MAX = 64  # each has a link to each other one
CONTROL_GROUP = Path("/sys/fs/cgroup")
CONTROL_GROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


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
            quota, period = (
                (control_group / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                for name in ("quota", "period")
            )
        except OSError:
            return cores
    if quota.isdigit() and period.isdigit() and int(period):  # else "max", or -1
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
