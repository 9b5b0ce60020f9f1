"""A bounded run of every fuzz target from one seed; `make fuzz` runs as long as it is asked to."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.fuzz.target import FailingInputError, Target, read, run, shortened, written
from tests.tools.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[3]
SEED = 1


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    target = TARGETS[name]
    assert run(target, SEED, lambda number, data: number < target.inputs) == target.inputs


def bad_check(data: bytes) -> int:
    assert b"\xff" not in data, "a byte that it cannot stand"
    return len(data)


BAD = Target("bad", 1, lambda draw: draw.randbytes(40), bad_check)


def test_the_same_seed_finds_the_same_input_and_it_gets_short() -> None:
    found = []
    for _ in range(2):
        with pytest.raises(FailingInputError) as failure:
            run(BAD, 5, lambda number, data: True)
        found.append((failure.value.number, failure.value.data))
    assert found[0] == found[1]
    assert shortened(BAD, found[0][1]) == b"\xff"


def test_an_input_that_is_good_for_something_new_is_built_upon() -> None:
    seen: list[bytes] = []

    def check(data: bytes) -> bytes:
        seen.append(data)
        return data[:1]

    run(Target("narrow", 1, lambda draw: b"same", check), 1, lambda number, data: number < 300)
    assert seen.count(b"same") < 250
    assert len(set(seen)) > 40


def test_every_draw_of_a_target_follows_from_the_seed_alone() -> None:
    for target in TARGETS.values():
        assert target.make(random.Random(9)) == target.make(random.Random(9)), target.name


def test_a_file_holds_an_input_that_can_be_replayed(tmp_path: Path) -> None:
    data = TARGETS["connection"].make(random.Random(3))
    file = tmp_path / "input"
    file.write_bytes(written(data, "connection"))
    assert read(file) == ("connection", data)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.fuzz", "--replay", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "connection held" in done.stdout
