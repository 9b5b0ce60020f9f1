"""The machine that a figure belongs to."""

import os
import platform


def machine() -> str:
    """Return the processor, its cores and the kernel."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "unknown")
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
