"""`python -m tests.simulator [--several] --seeds 1000 --start 1`: run many seeds, print those that fail."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

from broker import logs
from broker.config.loader import Log
from tests.simulator import several, world
from tests.simulator.several import SeveralWorld
from tests.simulator.world import World


def main() -> None:
    """Run seeds; the exit code says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--several", action="store_true", help="several workers, with links between them")
    parser.add_argument("--trace", action="store_true", help="print a hash of what the broker sent, per seed")
    arguments = parser.parse_args()
    logs.configure(Log(level="error"))
    run_seed: Callable[[int, int], World | SeveralWorld] = several.run_seed if arguments.several else world.run_seed
    steps = arguments.steps or (600 if arguments.several else 1500)
    failed = acknowledged = recoveries = reshards = 0
    deaths: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            run = run_seed(seed, steps)
        except Exception as error:
            failed += 1
            what = str(error) if isinstance(error, AssertionError) else f"seed {seed}: {error!r}"
            print(f"FAILED {what}", flush=True)
            continue
        acknowledged += run.acknowledged_count
        recoveries += run.recoveries
        reshards += getattr(run, "reshards", 0)
        for machine in run.machines:
            deaths += machine.death.deaths
            errors += machine.storage.errors
        if arguments.trace:
            print(seed, run.trace.hexdigest())
        elif seed % 100 == 0:
            print(f"seed {seed}: {failed} failed so far", file=sys.stderr)
    print(f"died at: {', '.join(f'{step} {count}' for step, count in sorted(deaths.items()))}")
    print(f"the disk refused: {', '.join(f'{what} {count}' for what, count in sorted(errors.items()))}")
    print(f"{acknowledged} messages acknowledged, {recoveries} recoveries, {reshards} times another number of workers")
    print(f"{arguments.seeds - failed} seeds held, {failed} failed")
    sys.exit(1 if failed else 0)


main()
