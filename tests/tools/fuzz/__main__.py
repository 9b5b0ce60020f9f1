"""`python -m tests.tools.fuzz --seconds 60 [--target NAME] [--seed N]` fuzzes; `--replay FILE` tries one input again.

While it runs, the input under way lies in build/fuzz/NAME.now, so that one that ends the process can be replayed.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import IO

from broker import logs
from broker.config.loader import Log
from tests.tools.fuzz.target import FailingInputError, Target, read, run, shortened, written
from tests.tools.fuzz.targets import TARGETS

FOLDER = Path("build") / "fuzz"
PROGRESS_S = 10.0
INPUT_S = 30  # one input takes milliseconds; who takes so long hangs
WARM_INPUTS = 2000  # after which memory is looked at
GROWTH_BYTES_MAX = 64 << 20


def resident_bytes() -> int:
    """Return the resident set of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Looks on while a target is tried: keeps the input under way, prints progress, ends it in time."""

    def __init__(self, target: Target, seconds: float, now: IO[bytes]) -> None:
        self.target = target
        self.started_s = self.told_s = time.monotonic()
        self.ends_s = self.started_s + seconds
        self.now = now
        self.warm_bytes = 0

    def before(self, number: int, data: bytes) -> bool:
        """Take note of the next input; returns whether there is time for it."""
        now_s = time.monotonic()
        if now_s >= self.ends_s:
            signal.alarm(0)
            return False
        whole = written(data, self.target.name)
        os.ftruncate(self.now.fileno(), len(whole))
        os.pwrite(self.now.fileno(), whole, 0)
        signal.alarm(INPUT_S)
        if number == WARM_INPUTS:
            self.warm_bytes = resident_bytes()
        if now_s - self.told_s >= PROGRESS_S:
            self.told_s = now_s
            self.tell(number)
        return True

    def tell(self, number: int) -> None:
        """Print how far it is, and fail if memory has grown out of all proportion."""
        resident = resident_bytes()
        spent_s = time.monotonic() - self.started_s
        print(f"  {self.target.name}: {number} inputs in {spent_s:.0f} s, {resident >> 20} MiB resident", flush=True)
        if self.warm_bytes and resident > self.warm_bytes + GROWTH_BYTES_MAX:
            raise AssertionError(f"memory grew from {self.warm_bytes} to {resident} bytes in {number} inputs")


def fuzz(target: Target, seed: int, seconds: float) -> bool:
    """Fuzz one target; returns whether all inputs kept the promises."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    now = FOLDER / f"{target.name}.now"
    print(f"{target.name}: seed {seed}, {seconds:.0f} s; if the process dies: make fuzz REPLAY={now}", flush=True)
    with now.open("wb") as file:
        watch = Watch(target, seconds, file)
        try:
            number = run(target, seed, watch.before)
        except FailingInputError as failure:
            signal.alarm(0)
            tell_failure(target, seed, failure)
            return False
    watch.tell(number)
    now.unlink()
    return True


def tell_failure(target: Target, seed: int, failure: FailingInputError) -> None:
    """Write the failing input down, as short as it gets, and say how to see it again."""
    traceback.print_exception(failure.__cause__)
    file = FOLDER / f"{target.name}-{seed}-{failure.number}"
    file.write_bytes(written(failure.data, target.name))
    short = shortened(target, failure.data)
    file.write_bytes(written(short, target.name))
    print(
        f"FAILED: {target.name}, seed {seed}, input {failure.number}: {len(failure.data)} bytes, "
        f"of which {len(short)} are enough"
    )
    print(f"again:  make fuzz REPLAY={file}", flush=True)


def replay(file: Path) -> bool:
    """Try one input again; returns whether it keeps the promises."""
    name, data = read(file)
    target = TARGETS[name]
    try:
        answer = target.check(data)
    except Exception:
        traceback.print_exc()
        print(f"{file}: {name} still fails, {len(data)} bytes: {data[:2000].hex(' ')}")
        return False
    print(f"{file}: {name} held: {answer}")
    return True


def main() -> None:
    """Fuzz the targets one after another, or replay; the exit code says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, shared by the targets")
    parser.add_argument("--target", choices=tuple(TARGETS), action="append", help="one of them; all if not given")
    parser.add_argument("--seed", type=int, help="what the inputs follow from; another one each time if not given")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try the input in a file, and nothing else")
    arguments = parser.parse_args()
    logs.configure(Log(level="error"))
    faulthandler.enable()
    faulthandler.register(signal.SIGALRM, chain=True)  # a hang: where, then the end
    if arguments.replay is not None:
        sys.exit(0 if replay(arguments.replay) else 1)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    names = arguments.target or list(TARGETS)
    held = [fuzz(TARGETS[name], seed, arguments.seconds / len(names)) for name in names]
    print(f"make fuzz: {sum(held)} of {len(held)} targets held, seed {seed}")
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
