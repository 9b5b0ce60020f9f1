"""The second copy of the retained messages, as processes of a broker see it: where it is, and made where it lacks."""

from __future__ import annotations

import heapq
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.storage.worker_folders import workers_of
from router.log.disk import Disk
from router.log.segments import read_header, segment_of
from router.retained.second_copy import CopyError, RetainedCopy, write_anew

if TYPE_CHECKING:
    from collections.abc import Iterator

RETAINED: Final = "retained"
COPY: Final = "retained-copy"        # beside the index, as router.retained.lmdb_environment has it


def open_copy(folder: Path) -> RetainedCopy:
    """Return the copy in a data folder, which is made if there is none. Raises OSError."""
    copy = RetainedCopy.at(str(folder / COPY))
    copy.workers = workers_of(folder)
    return copy


def log_begins(folder: Path) -> dict[int, int]:
    """Return the number of the first record that each worker's log in a data folder has. Raises OSError."""
    found = {}
    for worker, path in workers_of(folder).items():
        disk = Disk(str(path))
        for name in disk.names():
            header = read_header(disk, name) if segment_of(name) is not None else None
            if header is not None:
                found[worker] = header.first_number
                break
    return found


def is_complete(folder: Path, copy: RetainedCopy) -> bool:
    """Return whether the copy has what no log has any more, and all its files are there. Raises OSError."""
    try:
        manifest = copy.manifest()
        names = copy.disk.names()
        return all(run.name in names for run in manifest.runs) and all(
            manifest.covered.get(worker, 0) + 1 >= first for worker, first in log_begins(folder).items())
    except CopyError:
        return False


def complete(folder: Path, copy: RetainedCopy) -> str | None:
    """Make the copy anew of the index where it is damaged or lacks something; returns why, None if it was whole.

    The broker may be running. Raises CopyError if the index is damaged as well, OSError.
    """
    reason = "it does not go as far as the logs begin"
    try:
        with copy.locked():
            copy.check(copy.manifest())
        if is_complete(folder, copy):
            return None
    except CopyError as error:
        reason = str(error)
    import lmdb

    from router.retained.page_check import PageCheck, PagesError

    if not (folder / RETAINED / "data.mdb").exists():
        raise CopyError(f"{reason}, and there is no index to make it anew of")
    now_us = time.time_ns() // 1000
    with lmdb.open(str(folder / RETAINED), readonly=True, create=False, max_dbs=4) as environment:
        # Others go on writing; what this transaction sees stays as it is.
        with environment.begin() as transaction:
            try:
                meta = PageCheck(str(folder / RETAINED / "data.mdb"), transaction.id()).meta
            except PagesError as error:
                raise CopyError(f"{reason}, and the index is damaged: {error}") from None
        databases = [environment.open_db(name, create=False) for name in (b"topics", b"tombstones")]
        with environment.begin() as transaction:

            def entries() -> Iterator[tuple[bytes, bytes]]:
                yield from heapq.merge(*(transaction.cursor(db=database) for database in databases))

            applied = {worker: int.from_bytes(meta.get(b"applied" + worker.to_bytes(4, "big"), bytes(8))[:8], "little")
                       for worker in workers_of(folder)}
            write_anew(copy, entries(), applied, now_us)
    return reason
