"""What is kept of logs that nobody writes any more."""

from __future__ import annotations

from pathlib import Path

from broker.config.schema import Archive
from broker.storage.retired_logs import compact_left_logs, trim_left_logs
from router.log.disk import Disk
from tests.support.commit_logs import open_log, turn


def write_segment(disk: Disk, incarnation: int) -> None:
    """Write a run's messages; each run has a segment of its own."""
    log, _ = open_log(disk, incarnation)
    log.append(turn(log, 3))
    log.commit()
    assert log.close()


def test_one_snapshot_is_kept_and_what_is_before_it_goes_unless_it_is_archived(tmp_path: Path) -> None:
    folder = tmp_path / "worker-0"
    folder.mkdir()
    disk = Disk(str(folder))
    for incarnation in (1, 2, 3):
        write_segment(disk, incarnation)
        compact_left_logs(tmp_path, 0)
    segments = [f"segment-{number:012d}.log" for number in (1, 2, 3)]
    assert disk.names() == [*segments, "snapshot-000000000003.log"]
    trim_left_logs(tmp_path, 0, Archive(topic_filters=("#",)))
    assert disk.names() == [*segments, "snapshot-000000000003.log"]
    trim_left_logs(tmp_path, 1, Archive())  # it is not one of those that are left
    assert disk.names() == [*segments, "snapshot-000000000003.log"]
    trim_left_logs(tmp_path, 0, Archive())
    assert disk.names() == [segments[2], "snapshot-000000000003.log"]
