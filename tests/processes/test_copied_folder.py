"""A copy of a data folder, started beside the broker that it was copied from."""

import shutil
from pathlib import Path

from tests.support.raw_client import RawClient
from tests.support.workers import Workers


def test_a_copy_started_beside_it_hurts_nobody_and_both_are_told(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as first:
        (name,) = first.names(1)
        with RawClient(first.port) as client:
            client.connect(name, keep=True)
        (tmp_path / "second").mkdir()
        shutil.copytree(
            tmp_path / "data", tmp_path / "second" / "data", symlinks=True, ignore=shutil.ignore_patterns("*.sock")
        )
        with Workers(tmp_path / "second", 2) as second:
            second.wait_for("node_in_use_twice", folder=str(tmp_path / "data"))
            first.wait_for("node_in_use_twice", folder=str(tmp_path / "second" / "data"))
            for broker in (first, second):
                broker.kill_worker(1)
                broker.wait_for("worker_listening", worker=1, restarts=1)
                with RawClient(broker.port) as client:
                    assert client.connect(name, keep=True).session_present
        first.kill_worker(0)
        first.wait_for("worker_listening", worker=0, restarts=1)
        with RawClient(first.port) as client:
            assert client.connect(name, keep=True).session_present
