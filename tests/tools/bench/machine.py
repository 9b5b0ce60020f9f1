"""The machine that a figure belongs to."""

import os
import platform
import subprocess

from broker.version import VERSION


def machine() -> str:
    """Return the processor, its cores and the kernel."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "unknown")
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


class Run:
    """A run of a benchmark, from here on."""

    def __init__(self) -> None:
        self._before = _processor_ticks()

    def described(self) -> list[str]:
        """Return where and with what it was made, in lines of a list."""
        passed, stolen = (after - then for after, then in zip(_processor_ticks(), self._before, strict=True))
        helped = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False)
        return [
            f"- Machine: {machine()}; shared with other machines,",
            f"  which had {stolen / max(passed, 1):.0%} of its cores' time in this run, so read ratios, not times.",
            f"- Versions: Shoal {VERSION}, Python {platform.python_version()}, {helped.stdout.splitlines()[0]}",
        ]


def _processor_ticks() -> tuple[int, int]:
    """Return how much time this machine's cores have had, and how much of it its host gave to others (proc(5))."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return sum(ticks), ticks[7]
