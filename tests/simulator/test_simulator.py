"""Short runs of the simulator; `make simulate` makes longer ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator import several
from tests.simulator.machine import PEER_STEPS, PUMP_STEPS
from tests.simulator.world import run_seed

ROOT = Path(__file__).resolve().parents[2]
# Seeds that once failed stay here with the fix, as (seed, steps).
FOUND = (
    (8, 1500),
    (37, 1500),
    (55, 1500),
    (60, 1500),
    (68, 1500),
    (162, 1500),
    (168, 1500),
    (208, 800),
    (425, 800),
    (583, 1500),
    (801, 1500),
)
FOUND_OF_SEVERAL = (
    17,
    22,
    52,
    346,
    368,
    442,
    470,
    527,
    579,
    624,
    884,
    2168,
    3080,
    4028,
    4102,
    5221,
    20426,
    30042,
    60150,
    60468,
    60618,
    62087,
    62107,
    63173,
    63239,
    71020,
    71559,
    7016,
    6986,
)
START, SEEDS = "1", "100"
SEEDS_OF_SEVERAL = "60"
DISK_STEPS = ("create", "write", "sync", "sync_folder", "torn write", "torn sync")


@pytest.mark.parametrize(("seed", "steps"), FOUND)
def test_what_once_failed_holds(seed: int, steps: int) -> None:
    run_seed(seed, steps)


@pytest.mark.parametrize("seed", FOUND_OF_SEVERAL)
def test_what_once_failed_with_several_workers_holds(seed: int) -> None:
    several.run_seed(seed)


def run_twice(*arguments: str) -> str:
    """Run the simulator under two hash seeds; returns what both said."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulator", "--trace", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    said = [each.communicate()[0] for each in running]
    assert [each.returncode for each in running] == [0, 0], said[0][-3000:] + said[1][-3000:]
    assert said[0] == said[1]
    assert len(set(said[0].split())) > 100
    return said[0]


def steps_of_death(said: str) -> set[str]:
    died = re.search(r"died at: (.*)", said)
    assert died is not None
    return {entry.rpartition(" ")[0] for entry in died[1].split(", ")}


def test_nothing_acknowledged_is_lost_and_a_run_is_the_same_under_every_hash_seed() -> None:
    # Proves: [MQTT-4.6.0-5]
    said = run_twice("--start", START, "--seeds", SEEDS, "--steps", "400")
    assert steps_of_death(said) >= {*PUMP_STEPS, *DISK_STEPS}, "there is a step at which nobody died"


def test_several_workers_keep_what_one_promises_over_deaths_and_broken_links() -> None:
    said = run_twice("--several", "--seeds", SEEDS_OF_SEVERAL)
    assert int(re.search(r"(\d+) times another number of workers", said)[1]) > 5  # type: ignore[index]
    assert steps_of_death(said) >= {*PUMP_STEPS, *PEER_STEPS, *DISK_STEPS}, "there is a step at which nobody died"
