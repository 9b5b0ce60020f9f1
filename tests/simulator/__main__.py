"""`python -m tests.simulator --seeds 1000 --start 1`: run many seeds, print those that fail."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

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
    failed = acknowledged = recoveries = 0
    deaths: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            world = run_seed(seed, arguments.steps)
        except Exception as error:
            failed += 1
            what = str(error) if isinstance(error, AssertionError) else f"seed {seed}: {error!r}"
            print(f"FAILED {what}", flush=True)
            continue
        acknowledged += world.acknowledged_count
        recoveries += world.recoveries
        if world.machine is not None:
            deaths += world.machine.death.deaths
            errors += world.machine.storage.errors
        if arguments.trace:
            print(seed, world.trace.hexdigest())
        elif seed % 100 == 0:
            print(f"seed {seed}: {failed} failed so far", file=sys.stderr)
    print(f"died at: {', '.join(f'{step} {count}' for step, count in sorted(deaths.items()))}")
    print(f"the disk refused: {', '.join(f'{what} {count}' for what, count in sorted(errors.items()))}")
    print(f"{acknowledged} messages acknowledged, {recoveries} recoveries")
    print(f"{arguments.seeds - failed} seeds held, {failed} failed")
    sys.exit(1 if failed else 0)


main()
