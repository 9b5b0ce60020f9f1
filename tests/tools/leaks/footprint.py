"""What a process holds, so exactly that one object left per cycle shows."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import Counter
from dataclasses import dataclass

from broker.wire.output_buffer import chunk_counts, trim_pools

MALLOC_SMALLEST = 32  # bytes


class _Mallinfo(ctypes.Structure):
    # struct mallinfo2 of glibc, ten numbers: what is allocated is hblkhd (as whole pages) and uordblks.
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Mallinfo


@dataclass(frozen=True)
class Footprint:
    """What this process holds at one moment.

    Attributes:
        blocks: small blocks of Python's allocator; every Python object but the largest is one.
        malloc_bytes: allocated by malloc: everything else, that of compiled code too.
        chunks: output chunks in use.
        descriptors: open files.
        objects: objects that the garbage collector knows, by type.
        own_blocks, own_malloc_bytes: what this account itself takes, which the two above do not count.
    """

    blocks: int
    malloc_bytes: int
    chunks: int
    descriptors: int
    objects: Counter[str]
    own_blocks: int
    own_malloc_bytes: int


def malloc_bytes() -> int:
    """Return what malloc has given and not got back: all that Python's own allocator does not hold, in bytes."""
    malloc = _mallinfo2()
    total: int = malloc.uordblks + malloc.hblkhd
    return total


def measure(last: Footprint | None = None) -> Footprint:
    """Return what this process holds, after garbage is collected and the pools of output chunks are empty.

    Args:
        last: the one footprint that is held, and so would be counted.
    """
    trim_pools()
    gc.collect()
    gc.collect()
    blocks, allocated = sys.getallocatedblocks(), malloc_bytes()
    objects = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    descriptors = len(os.listdir("/proc/self/fd"))
    gc.collect()
    own_blocks, own_malloc_bytes = sys.getallocatedblocks() - blocks, malloc_bytes() - allocated
    if last is not None:
        blocks -= last.own_blocks
        allocated -= last.own_malloc_bytes
    return Footprint(blocks, allocated, chunk_counts()["in_use"], descriptors, objects, own_blocks, own_malloc_bytes)


class Account:
    """Looks at what this process holds, again and again; a leak grows every time, a cache that fills does not.

    Args:
        cycles: that are run before every look; many, so that one thing left by each shows.
    """

    def __init__(self, cycles: int) -> None:
        self.cycles = cycles
        self._before = measure()

    def growth(self) -> list[str]:
        """Return what has grown by half a thing per cycle or more since the last look, in words."""
        before, after = self._before, measure(self._before)
        self._before = after
        found = []
        for name, number in (
            ("blocks", after.blocks - before.blocks),
            ("chunks", after.chunks - before.chunks),
            ("descriptors", after.descriptors - before.descriptors),
        ):
            if number * 2 >= self.cycles:
                found.append(f"{number} {name} in {self.cycles} cycles")
        allocated = after.malloc_bytes - before.malloc_bytes
        if allocated >= self.cycles * MALLOC_SMALLEST // 2:
            found.append(f"{allocated} bytes of malloc in {self.cycles} cycles")
        for name in after.objects:
            number = after.objects[name] - before.objects[name]
            if number * 2 >= self.cycles:
                found.append(f"{number} of {name} in {self.cycles} cycles")
        return found
