"""Whether what a process held was flat, from samples of it."""

from __future__ import annotations

import statistics

MEMORY = "resident KiB"
SECOND = "second"
FAULTS = "shoal/errors/unraisable"
GROWTH_MAX = 1.05  # resident memory of the last third of the judged time, to that of its first third


def what_grew(samples: list[dict[str, int]], warm_s: float) -> list[str]:
    """Return what grew, in words: the last third of the time after `warm_s` seconds against the first third of it.

    Args:
        samples: numbers by name, in order of time; all have the same names, SECOND, MEMORY and FAULTS among them.
    """
    judged = [sample for sample in samples if sample[SECOND] >= warm_s]
    third = len(judged) // 3
    if third < 2:
        return [f"{len(judged)} samples after {warm_s:.0f} s are too few for a verdict: let it run longer"]
    found = []
    for name in judged[0]:
        first = [sample[name] for sample in judged[:third]]
        last = [sample[name] for sample in judged[-third:]]
        if name == MEMORY:
            ratio = statistics.mean(last) / statistics.mean(first)
            print(
                f"resident memory: {statistics.mean(first) / 1024:.1f} MiB in the first third after warm-up, "
                f"{statistics.mean(last) / 1024:.1f} MiB in the last: {ratio:.3f}, at most {GROWTH_MAX}"
            )
            if ratio > GROWTH_MAX:
                found.append(f"resident memory grew by a factor of {ratio:.3f}")
        elif name == FAULTS:
            if max(last):
                found.append(f"{max(last)} exceptions could not be raised")
        elif name != SECOND and grows(first, last):
            found.append(f"{name} only grows: {first} ... {last}")
    return found


def grows(first: list[int], last: list[int]) -> bool:
    """Return whether a number went up and never came back: every later one is above every earlier one, by a tenth."""
    return min(last) > max(first) * 1.1 + 5
