"""The broker is killed again and again under load. Short runs; `make soak-kill` makes a long one."""

from pathlib import Path

import pytest

from tests.tools.soak import kill


@pytest.mark.parametrize(("seed", "workers", "tls"), [(1, 1, False), (2, 1, False), (6, 3, False), (7, 3, True)])
def test_nothing_acknowledged_is_lost_though_it_is_killed(tmp_path: Path, seed: int, workers: int, tls: bool) -> None:
    faults = kill.run(
        tmp_path, seconds=9, rate=1500 / workers, every_s=1.5, seed=seed, publishers=8, workers=workers, tls=tls
    )
    assert faults == []
