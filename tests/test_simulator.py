"""Short runs of the simulator; `make simulate` makes longer ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.world import run_seed

ROOT = Path(__file__).resolve().parents[1]
# Seeds that once failed stay here with the fix.
SEEDS = range(1, 61)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_arrives(seed: int) -> None:
    # Proves: [MQTT-4.6.0-5]
    run_seed(seed, steps=1000)


def test_a_run_is_the_same_under_every_hash_seed() -> None:
    traces = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulator", "--seeds", "3", "--start", "901", "--steps", "600", "--trace"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        traces.append(done.stdout)
    assert traces[0] == traces[1]
    assert len(set(traces[0].split())) > 3
