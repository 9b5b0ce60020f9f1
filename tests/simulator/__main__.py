"""`python -m tests.simulator --seeds 1000 --start 1`: run many seeds, print those that fail."""

from __future__ import annotations

import argparse
import sys

from broker import logs
from broker.config import Log
from tests.simulator.world import run_seed


def main() -> None:
    """Run seeds; the exit code says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--trace", action="store_true", help="print a hash of what the broker sent, per seed")
    arguments = parser.parse_args()
    logs.configure(Log(level="error"))
    failed = 0
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            trace = run_seed(seed, arguments.steps)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {error}", flush=True)
            continue
        if arguments.trace:
            print(seed, trace)
        elif seed % 100 == 0:
            print(f"seed {seed}: {failed} failed so far", file=sys.stderr)
    print(f"{arguments.seeds - failed} seeds held, {failed} failed")
    sys.exit(1 if failed else 0)


main()
