"""What a fuzz target is, the inputs that it is given, and how a failing input is written down and read again."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools.fuzz.mutate import mutated

MAGIC = b"shoal-fuzz "
POOL_MAX = 500


@dataclass(frozen=True, slots=True)
class Target:
    """An entry point of bytes that nobody vouches for.

    Attributes:
        name: on the command line, and in the names of files.
        inputs: how many of them `make test` tries.
        make: draws an input, mostly a valid one with mutations.
        check: raises if the input breaks a promise. What it returns says what the input was good for: an input
            whose answer is new is kept, and mutated further.
    """

    name: str
    inputs: int
    make: Callable[[random.Random], bytes]
    check: Callable[[bytes], Hashable]


class FailingInputError(Exception):
    """An input that broke a promise; the cause is what was raised.

    Attributes:
        target: its name.
        data: the input.
        number: how many inputs came before it.
    """

    def __init__(self, target: str, data: bytes, number: int) -> None:
        super().__init__(f"target {target}, input {number}, {len(data)} bytes: {data[:200].hex(' ')}")
        self.target = target
        self.data = data
        self.number = number


def run(target: Target, seed: int, before: Callable[[int, bytes], bool]) -> int:
    """Try inputs that follow from a seed, until `before(number, input)` says no. Returns how many were tried.

    Raises:
        FailingInputError: for the first input that breaks a promise.
    """
    draw = random.Random(f"{target.name} {seed}")
    kept: list[bytes] = []
    seen: set[Hashable] = set()
    for number, data in enumerate(_inputs(target, draw, kept)):
        if not before(number, data):
            return number
        try:
            answer = target.check(data)
        except Exception as error:
            raise FailingInputError(target.name, data, number) from error
        if answer not in seen and len(kept) < POOL_MAX:
            seen.add(answer)
            kept.append(data)
    raise AssertionError("there is always another input")


def _inputs(target: Target, draw: random.Random, kept: list[bytes]) -> Iterator[bytes]:
    while True:
        if kept and draw.random() < 0.3:
            yield mutated(draw, draw.choice(kept), draw.choice(kept))
        else:
            yield target.make(draw)


def shortened(target: Target, data: bytes, tries: int = 3000) -> bytes:
    """Return an input that fails as well and is not longer: stretches are taken out as long as it goes on failing."""
    size = max(len(data) // 2, 1)
    while tries:
        length = len(data)
        start = 0
        while start < len(data) and tries:
            tries -= 1
            shorter = data[:start] + data[start + size :]
            try:
                target.check(shorter)
            except Exception:
                data = shorter
            else:
                start += size
        if size > 1:
            size //= 2
        elif len(data) == length:
            break
    return data


def written(data: bytes, target: str) -> bytes:
    """Return what a file with an input holds: the target's name in a line, then the input as it is."""
    return MAGIC + target.encode() + b"\n" + data


def read(file: Path) -> tuple[str, bytes]:
    """Return target and input from a file. Raises ValueError if it holds none."""
    first, _, data = file.read_bytes().partition(b"\n")
    if not first.startswith(MAGIC):
        raise ValueError(f"{file} does not begin with {MAGIC.decode()!r}")
    return first[len(MAGIC) :].decode(), data
