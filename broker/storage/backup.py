"""Copies of a broker's data: made while it runs, and laid out again as a data folder.

A backup is a folder with the data folder's layout, every file whole and synced, and a manifest written last: without
it, a backup is not one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.storage.worker_folders import WORKER, worker_folder, workers_of
from broker.version import VERSION
from router.log.crc32c import checksum
from router.log.disk import Disk, sync_folder
from router.log.last_run import INCARNATION
from router.log.reader import open_segments
from router.log.replay_position import format_time
from router.log.segments import Header, Segments, segment_of, snapshot_of
from router.log.verify import read_incarnation

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
MANIFEST_BYTES_MAX: Final = 268_435_456
RETAINED: Final = "retained"
RETAINED_FILE: Final = "data.mdb"
NODE_FILES: Final = ("node", "workers")  # which sessions are in which worker's log follows from them
ATTEMPTS: Final = 8  # to copy what a broker removes meanwhile
PIECE_BYTES: Final = 1_048_576
SYNC_EVERY_BYTES: Final = 16_777_216  # a broker on the same disk must not wait behind a large heap of unwritten pages
UNFINISHED: Final = "restore-unfinished"  # what is being restored, until it is whole

# A worker that was started again after the backup was made has used the incarnations that follow, and ids with them.
INCARNATIONS_SKIPPED: Final = 1_000

_FILE = re.compile(rf"worker-(?:0|[1-9]\d{{0,9}})/(?:segment-\d{{12}}\.log|snapshot-\d{{12}}\.log|incarnation)|"
                   rf"{RETAINED}/{re.escape(RETAINED_FILE)}|{'|'.join(NODE_FILES)}")  # fmt: skip

Progress = Callable[[int], None]


class BackupError(Exception):
    """Why a backup was not made or not restored, in one sentence."""


class DamagedError(BackupError):
    """What was to be copied is not what was written once."""


class _MovedError(Exception):
    """The broker has removed files that were to be copied."""


@dataclass(slots=True)
class Manifest:
    """What a backup holds.

    Args:
        made_us: when it was begun, µs since 1970: what was acknowledged before is in it.
        files: name within the folder -> (bytes, CRC-32C).
        workers: worker -> numbers of its first and last record and its incarnation.
    """

    made_us: int
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    workers: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(length for length, _ in self.files.values())

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps(
            {
                "shoal_backup": MANIFEST_VERSION,
                "shoal": VERSION,
                "made": format_time(self.made_us),
                "made_us": self.made_us,
                "workers": {str(worker): numbers for worker, numbers in sorted(self.workers.items())},
                "files": [
                    {"name": name, "bytes": size, "crc32c": f"{crc:08x}"}
                    for name, (size, crc) in sorted(self.files.items())
                ],
            },
            indent=1,
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return what encode() was called on. Raises BackupError."""
        try:
            told: dict[str, Any] = json.loads(data)
            if told["shoal_backup"] != MANIFEST_VERSION:
                raise BackupError(
                    f"the backup has version {told['shoal_backup']}; this version of Shoal reads {MANIFEST_VERSION}"
                )
            manifest = cls(int(told["made_us"]))
            for row in told["files"]:
                name, size, crc = row["name"], row["bytes"], int(row["crc32c"], 16)
                if not isinstance(size, int) or not _FILE.fullmatch(name) or name in manifest.files:
                    raise ValueError
                manifest.files[name] = size, crc
            manifest.workers = {
                int(worker): {name: int(numbers[name]) for name in ("incarnation", "first_number", "last_number")}
                for worker, numbers in told["workers"].items()
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DamagedError(f"{MANIFEST} is damaged") from None
        if any(_worker_of(name) not in {None, *manifest.workers} for name in manifest.files):
            raise DamagedError(f"{MANIFEST} is damaged: it does not say which records there are")
        return manifest


def _worker_of(name: str) -> int | None:
    """Return whose log a file is of, None if it is of none."""
    found = WORKER.match(name)
    return int(found[1]) if found else None


# Making one ----------------------------------------------------------------------------------------------------------


def back_up(data_folder: Path, target: Path, now_us: int, progress: Progress = lambda done: None) -> Manifest:
    """Copy a broker's data, which it may be writing to, into a folder that is not there yet or is empty.

    Args:
        now_us: the present, µs since 1970.
        progress: called with the bytes that were copied, again and again.

    What was acknowledged before the call is in the backup. Raises BackupError, OSError; the folder is empty then.
    """
    import shutil

    _make_empty(target)
    manifest = Manifest(now_us)
    try:
        for _ in range(ATTEMPTS):
            try:
                _copy_all(data_folder, target, manifest, progress)
                break
            except _MovedError:
                continue  # what has been copied and is still there is not copied again
        else:
            raise BackupError(f"the broker removed files faster than they were copied, {ATTEMPTS} times over")
        _write(target / MANIFEST, manifest.encode())
        sync_folder(target)
        sync_folder(target.parent)
    except BaseException:
        for path in list(target.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
    return manifest


def _make_empty(target: Path) -> None:
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise BackupError(f"{target} is not empty")


def _copy_all(data_folder: Path, target: Path, manifest: Manifest, progress: Progress) -> None:
    workers = workers_of(data_folder)
    for name in NODE_FILES:
        if (data_folder / name).is_file():
            manifest.files[name] = _copy(data_folder / name, target / name, progress)
            (target / name).chmod(0o600)  # one of them is secret
    # The retained messages first: what they have applied must be in the log that is copied after them. And what they
    # have not applied must be there too, so no segment may go in between.
    oldest = {worker: _oldest(folder) for worker, folder in workers.items()}
    _copy_retained(data_folder / RETAINED, target / RETAINED, manifest, progress)
    for worker, folder in workers.items():
        _copy_log(worker, folder, target / folder.name, manifest, progress)
        if _oldest(folder) != oldest[worker]:
            raise _MovedError


def _oldest(folder: Path) -> int:
    return min((segment for name in Disk(str(folder)).names() if (segment := segment_of(name)) is not None), default=0)


def _copy_retained(source: Path, target: Path, manifest: Manifest, progress: Progress) -> None:
    import shutil

    name = f"{RETAINED}/{RETAINED_FILE}"
    manifest.files.pop(name, None)
    if not (source / RETAINED_FILE).is_file():
        return
    import lmdb

    from broker.storage.retained_copies import DamagedIndexError, checked_index
    from router.retained.page_check import PageCheck, PagesError

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    try:
        # LMDB ends the process over a page that is not what it should be, and copies a value whatever it is.
        with checked_index(source.parent) as found:
            assert found is not None
            found[0].copy(str(target), compact=True)
        PageCheck(str(target / RETAINED_FILE))
    except DamagedIndexError as error:
        raise DamagedError(f"{error}; the broker mends it when it is started again") from None
    except (lmdb.Error, PagesError) as error:
        raise DamagedError(f"the retained messages in {source} cannot be copied: {error}") from error
    _sync(target / RETAINED_FILE)
    sync_folder(target)
    manifest.files[name] = _checked(target / RETAINED_FILE, progress)


def _copy_log(worker: int, source: Path, target: Path, manifest: Manifest, progress: Progress) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    names = Disk(str(source)).names()
    segments = sorted(name for name in names if segment_of(name) is not None)
    wanted = [*(name for name in names if snapshot_of(name) is not None), *segments]
    for name in [name for name in Disk(str(target)).names() if name not in wanted]:
        (target / name).unlink()
        manifest.files.pop(f"{target.name}/{name}", None)
    for name in wanted:
        key = f"{target.name}/{name}"
        # A segment that others follow does not change any more.
        if key in manifest.files and name in segments[:-1] and (source / name).stat().st_size == manifest.files[key][0]:
            continue
        try:
            manifest.files[key] = _copy(source / name, target / name, progress)
        except FileNotFoundError:
            raise _MovedError from None
    try:
        incarnation = read_incarnation(Disk(str(source)))
    except ValueError as error:
        raise DamagedError(f"{source / INCARNATION} {error}") from None
    if incarnation is not None:
        _write(target / INCARNATION, b"%d\n" % incarnation)
        manifest.files[f"{target.name}/{INCARNATION}"] = _checked(target / INCARNATION)
    headers = _cut_to_records(worker, target, manifest)
    manifest.workers[worker]["incarnation"] = max([incarnation or 0, *(header.incarnation for header in headers)])
    sync_folder(target)


def _cut_to_records(worker: int, target: Path, manifest: Manifest) -> list[Header]:
    """Cut off what is unfinished at the end of a copied log, and note which records there are; returns its segments."""
    segments = open_segments(Disk(str(target)), worker)
    for damage in segments.damages:
        if damage.torn:  # a segment that was only begun when it was copied: there is no record in it
            (target / damage.file).unlink()
            del manifest.files[f"{target.name}/{damage.file}"]
    numbers = manifest.workers[worker] = {"first_number": 0, "last_number": 0}
    headers = segments.headers
    if headers:
        # What was damaged further on in the log is copied as it is.
        newest = Segments(segments.disk, worker=worker, rules=segments.rules, headers=headers)
        for cursor in newest.segment_cursors(len(headers) - 1):
            while cursor.step():
                pass
        numbers["first_number"], numbers["last_number"] = headers[0].first_number, newest.last_number
        for damage in newest.damages:
            if damage.torn:
                path = target / damage.file
                os.truncate(path, damage.offset)
                _sync(path)
                manifest.files[f"{target.name}/{damage.file}"] = _checked(path)
    return headers


# Laying it out again -------------------------------------------------------------------------------------------------


def read_manifest(source: Path) -> Manifest:
    """Return what a backup says that it holds. Raises BackupError, OSError."""
    try:
        with open(source / MANIFEST, "rb") as file:
            return Manifest.decode(file.read(MANIFEST_BYTES_MAX))
    except FileNotFoundError:
        raise BackupError(f"{source} is not a backup: it has no {MANIFEST}, which is written last") from None


def restore(source: Path, folder: Path, progress: Progress = lambda done: None) -> Manifest:
    """Make of a backup the data of a broker, in a folder that holds nothing and is locked by the caller.

    Args:
        progress: called with the bytes that were copied, again and again.

    Everything is checked against the manifest, and durable, before any of it gets its name. The incarnations are
    raised. Raises BackupError, OSError; the folder is as before then.
    """
    import shutil

    manifest = read_manifest(source)
    check_unused(folder)
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        for name, expected in manifest.files.items():
            target = unfinished / name
            target.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                found = _copy(source / name, target, progress)
                if name in NODE_FILES:
                    target.chmod(0o600)
            except FileNotFoundError:
                raise DamagedError(f"{source / name} is missing") from None
            if found != expected:
                raise DamagedError(f"{source / name} is damaged: its {_difference(found, expected)}")
        for worker, numbers in manifest.workers.items():
            path = worker_folder(unfinished, worker)
            path.mkdir(mode=0o700, exist_ok=True)
            raised = numbers["incarnation"] + INCARNATIONS_SKIPPED
            _write(path / INCARNATION, b"%d restored\n" % raised)
        parts = sorted(unfinished.iterdir())
        for part in parts:
            _sync(part)
        # Nothing that can fail for want of room or of bytes comes after this.
        for part in parts:
            part.rename(folder / part.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync_folder(folder)
    sync_folder(folder.parent)
    return manifest


def check_unused(folder: Path) -> None:
    """Raise BackupError unless a folder holds nothing but a lock and what an interrupted restore has left."""
    for path in sorted(folder.iterdir()):
        if path.name not in ("lock", UNFINISHED):
            raise BackupError(f"the data folder {folder} is not empty: it has {path.name}")


def _difference(found: tuple[int, int], expected: tuple[int, int]) -> str:
    if found[0] != expected[0]:
        return f"length is {found[0]:,} bytes, not {expected[0]:,}"
    return f"check sum is {found[1]:08x}, not {expected[1]:08x}"


# Files ---------------------------------------------------------------------------------------------------------------


def _copy(source: Path, target: Path, progress: Progress) -> tuple[int, int]:
    """Copy a file, replacing what is there, and make it durable; returns its length and its CRC-32C."""
    size = crc = 0
    with open(source, "rb", buffering=0) as reading, _replaced(target) as descriptor:
        while piece := reading.read(PIECE_BYTES):
            size, crc = size + len(piece), checksum(piece, crc)
            _write_all(descriptor, piece)
            if size % SYNC_EVERY_BYTES == 0:
                os.fdatasync(descriptor)
            progress(len(piece))
    return size, crc


def _checked(path: Path, progress: Progress = lambda done: None) -> tuple[int, int]:
    """Return a file's length and its CRC-32C."""
    size = crc = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            size, crc = size + len(piece), checksum(piece, crc)
            progress(len(piece))
    return size, crc


def _write(path: Path, content: bytes) -> None:
    with _replaced(path) as descriptor:
        _write_all(descriptor, content)


@contextmanager
def _replaced(path: Path) -> Iterator[int]:
    """Give a new empty file to write to, and make it durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        yield descriptor
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    with memoryview(content) as view:
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done:])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
