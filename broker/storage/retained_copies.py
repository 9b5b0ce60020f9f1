"""The second copy of the retained messages, as processes of a broker see it: where it is, and made where it lacks."""

from __future__ import annotations

import heapq
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.storage.worker_folders import workers_of
from mesh.node_identity import owner_in
from router.log.disk import Disk
from router.log.segments import FOREIGN, read_header, segment_of
from router.retained.second_copy import CopyError, RetainedCopy, write_anew

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lmdb

RETAINED: Final = "retained"
COPY: Final = "retained-copy"  # beside the index, as router.retained.lmdb_environment has it
DAMAGED_NAME: Final = "damaged"  # in the index: as there
LOOKS_MAX: Final = 100  # for the meta page of a state that others follow with new ones


def owner_text(folder: Path) -> str:
    """Return whose the retained messages in a data folder are, as index and copy say it. Raises OSError."""
    owner = owner_in(folder)
    return f"{owner:016x}" if owner else ""


def open_copy(folder: Path) -> RetainedCopy:
    """Return the copy in a data folder, which is made if there is none. Raises OSError."""
    copy = RetainedCopy.at(str(folder / COPY), owner_text(folder))
    copy.workers = workers_of(folder)
    return copy


def log_begins(folder: Path) -> dict[int, int]:
    """Return the number of the first record that each worker's log in a data folder has. Raises OSError."""
    found = {}
    owner = owner_in(folder)
    for worker, path in workers_of(folder).items():
        disk = Disk(str(path))
        for name in disk.names():
            header = read_header(disk, name) if segment_of(name) is not None else None
            # One that is another broker's is put aside, or refused.
            if header is not None and not header.is_foreign(owner):
                found[worker] = header.first_number
                break
    return found


def is_complete(folder: Path, copy: RetainedCopy) -> bool:
    """Return whether the copy has what no log has any more, and all its files are there. Raises OSError."""
    try:
        manifest = copy.manifest()
        names = copy.disk.names()
        return all(run.name in names for run in manifest.runs) and all(
            manifest.covered.get(worker, 0) + 1 >= first for worker, first in log_begins(folder).items()
        )
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
    now_us = time.time_ns() // 1000
    try:
        with checked_index(folder) as found:
            if found is None:
                raise CopyError(f"{reason}, and there is no index to make it anew of")
            environment, meta = found
            databases = [environment.open_db(name, create=False) for name in (b"topics", b"tombstones")]
            with environment.begin() as transaction:

                def entries() -> Iterator[tuple[bytes, bytes]]:
                    yield from heapq.merge(*(transaction.cursor(db=database) for database in databases))

                applied = {
                    worker: int.from_bytes(meta.get(b"applied" + worker.to_bytes(4, "big"), bytes(8))[:8], "little")
                    for worker in workers_of(folder)
                }
                write_anew(copy, entries(), applied, now_us)
    except DamagedIndexError as error:
        raise CopyError(f"{reason}, and the index is damaged: {error}") from None
    return reason


def owner_of_index(folder: Path) -> int:
    """Return whose the index in a data folder says that it is; 0 if it does not, or is damaged. Raises OSError."""
    try:
        with checked_index(folder, of_any_node=True) as found:
            return int(found[1].get(b"node", b"").hex() or "0", 16) if found is not None else 0
    except DamagedIndexError:
        return 0


class DamagedIndexError(Exception):
    """The index of retained messages is damaged, or is not this broker's: a sentence that names it."""


@contextmanager
def checked_index(
    folder: Path, *, of_any_node: bool = False
) -> Iterator[tuple[lmdb.Environment, dict[bytes, bytes]] | None]:
    """Open the index in a data folder to be read, after all of it was read and checked; None if there is none.

    The broker may be running: others go on writing then. Gives the environment, and what stands in its database `meta`.

    Raises DamagedIndexError, OSError. Cost: as of router.retained.page_check.PageCheck.
    """
    import lmdb

    from router.retained.page_check import PageCheck, PagesError, StateGoneError

    path = folder / RETAINED
    data = path / "data.mdb"
    if not data.exists():
        yield None
        return
    if (path / DAMAGED_NAME).exists():
        raise DamagedIndexError(f"{path} is damaged: it was found so while it was used")
    try:
        # Without its lock file nobody uses it, and none is made: it may be a backup's.
        environment = lmdb.open(str(path), readonly=True, create=False, max_dbs=4, lock=(path / "lock.mdb").exists())
    except lmdb.Error as error:
        raise DamagedIndexError(f"{path} is damaged: {str(error).removeprefix(f'{path}: ')}") from None
    with environment:
        for look in range(LOOKS_MAX):
            # What the transaction sees stays as it is.
            with environment.begin() as transaction:
                try:
                    meta = PageCheck(str(data), transaction.id()).meta
                    break
                except PagesError as error:
                    # Others may have written two newer states before this one's meta page was read.
                    if not isinstance(error, StateGoneError) or look + 1 == LOOKS_MAX:
                        raise DamagedIndexError(f"{path} is damaged: {error}") from None
        node, owner = meta.get(b"node", b"").hex(), owner_text(folder)
        if owner and not of_any_node and node not in ("", owner):
            raise DamagedIndexError(f"{path} {FOREIGN}")
        yield environment, meta
