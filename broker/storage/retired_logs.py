"""The logs of workers beyond the number that there are: no worker writes them; the archive's limits hold for them.

Their sessions have gone to others (broker.processes.reshard_main), so what a start with more workers needs of them is
a snapshot without sessions and the segment behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from broker.storage.retained_copies import complete, open_copy
from broker.storage.worker_folders import workers_of
from mesh.node_identity import owner_in
from router.log.disk import Disk
from router.log.remote_log import FollowedLog
from router.log.retention import archive_needs
from router.log.segments import remove_segments, snapshot_of
from router.recovery.open_log import remove_snapshots
from router.recovery.snapshot import compact

if TYPE_CHECKING:
    from broker.config.schema import Archive


def compact_left_logs(folder: Path, workers: int) -> None:
    """Make snapshots, so that the segments before are the archive's alone. Raises SegmentError, CopyError, OSError.

    Args:
        folder: the data folder, which no broker uses meanwhile.
        workers: how many there will be.
    """
    left = list(_left(folder, workers))
    if not left:
        return
    copy = open_copy(folder)
    complete(folder, copy)
    owner = owner_in(folder)
    for disk, number in left:
        made = compact(
            disk,
            number,
            lambda: SystemRandom().getrandbits(32),
            copy,
            owner=owner,
            now_us=time.time_ns() // 1000,
            is_left=True,
        )
        if made is not None:
            remove_snapshots(disk, made.segment)
    copy.close()


def trim_left_logs(folder: Path, workers: int, archive: Archive) -> None:
    """Remove the segments that neither the archive nor a start with more workers needs. Raises OSError.

    A replay that reads one finds a gap there, as in any other log.

    Args:
        folder: the data folder.
        workers: how many there are.
        archive: of the section `archive`.
    """
    copy = open_copy(folder)
    for disk, number in _left(folder, workers):
        log = FollowedLog(disk, number)
        log.catch_up()
        lacking = copy.covered(number) + 1
        snapshot = max((segment for name in disk.names() if (segment := snapshot_of(name)) is not None), default=0)
        if snapshot and log.headers:
            sizes = [(Path(disk.folder) / header.name).stat().st_size for header in log.headers]
            copied = max((header.segment for header in log.headers if header.first_number <= lacking), default=0)
            remove_segments(
                disk,
                min(
                    snapshot,
                    copied,
                    archive_needs(
                        log.headers,
                        sizes,
                        time.time_ns() // 1000,
                        archiving=bool(archive.topic_filters),
                        age_s=archive.retention_age_s,
                        bytes_max=archive.retention_bytes,
                    ),
                ),
            )
    copy.close()


def _left(folder: Path, workers: int) -> Iterator[tuple[Disk, int]]:
    for number, path in workers_of(folder).items():
        if number >= workers:
            yield Disk(str(path)), number
