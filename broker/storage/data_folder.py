"""The data folder: its lock, its room, and over how many workers its sessions are spread."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.config.start_error import StartError
from broker.storage.worker_folders import worker_folder
from router.log.disk import replace_file

ORPHANS_S = 10.0  # for the workers of a killed broker to end
SPREAD = "workers"  # file in the data folder: over how many workers its sessions are spread
ROOM_BYTES = 131_072  # that a start may take, and as much again for each worker
UNFINISHED = ("worker-*/snapshot-*.log.new", "worker-*/incarnation.new", "node.new", f"{SPREAD}.new")


@contextmanager
def locked_folder(data_dir: str) -> Iterator[Path]:
    """Create the data folder if need be and hold its lock, as lock_folder() does, until the end of the block."""
    folder, descriptor = lock_folder(data_dir)
    try:
        yield folder
    finally:
        os.close(descriptor)


def lock_folder(data_dir: str) -> tuple[Path, int]:
    """Create the data folder if need be and lock it; returns its path, and the descriptor that holds the lock.

    The lock ends when all processes that have inherited the descriptor have closed it. One whose broker was killed is
    waited for: its workers are ending.

    What somebody was writing when he was killed, beside what counts, is removed before anything is written: on a full
    disk it may be all the room that there is.

    Raises:
        StartError: another process holds it, or it cannot be created or written.
    """
    folder = Path(data_dir).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(unusable(folder, error)) from error
    deadline_s = time.monotonic() + ORPHANS_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                if time.monotonic() > deadline_s or not holder.isdigit() or Path("/proc", holder).exists():
                    raise StartError(
                        f"The data folder {folder} is in use by the broker with process id {holder}: stop that one or "
                        "choose another folder with --data-dir."
                    ) from None
                time.sleep(0.05)
        try:
            _remove_unfinished(folder)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise StartError(unusable(folder, error)) from error
    except BaseException:
        os.close(descriptor)
        raise
    return folder, descriptor


def _remove_unfinished(folder: Path) -> None:
    for pattern in UNFINISHED:
        for path in folder.glob(pattern):
            if path.is_file():
                path.unlink()


def check_room(folder: Path, workers: int) -> None:
    """Raise StartError unless the disk has room for what a start writes.

    Without room some of it would fail, and not all of that with an error: the system ends a process that writes to a
    page of a mapped file for which there is no room.
    """
    needed = ROOM_BYTES * (1 + workers)
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise StartError(
            f"The disk of the data folder {folder} is full: {free:,} bytes are free, and a start needs {needed:,}."
        )


def unusable(folder: Path, error: OSError) -> str:
    """Return in one sentence why a data folder, or something in it, cannot be used."""
    # Here, because whoever only asks for help has no need of it.
    from router.log.disk import is_full

    if is_full(error):
        return f"The disk of the data folder {folder} is full: make room, and start the broker again."
    where = f" ({error.filename})" if error.filename else ""
    return f"The data folder {folder} cannot be used: {error.strerror or error}{where}."


def spread_of(folder: Path) -> int | None:
    """Return over how many workers the sessions in a data folder are spread, None if there are none.

    Below zero: they were being spread over so many, and that was interrupted. Raises StartError.
    """
    try:
        return int((folder / SPREAD).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 1 if worker_folder(folder, 0).exists() else None
    except (OSError, ValueError) as error:
        raise StartError(f"The file {folder / SPREAD} cannot be read: {error}.") from error


def note_spread(folder: Path, count: int) -> None:
    """Write down, durably, what spread_of() returns from now on."""
    replace_file(folder, SPREAD, b"%d\n" % count)
