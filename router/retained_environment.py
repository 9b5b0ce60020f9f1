"""The LMDB environment of the retained messages: opened, checked, grown. docs/formats.md has every byte.

Importing this takes lmdb along, so it is imported by those who keep anything on disk, and then only.
"""

import errno
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import lmdb
from lmdb.verify import VerifyError, verify

from router.disk import Disk, FileLock, exists, make_folder, set_aside
from router.mapped import MappedPages

FORMAT_VERSION: Final = 1
TOTALS: Final = struct.Struct("<QQq")  # messages, their size in bytes, the highest stamp there ever was
APPLIED: Final = struct.Struct("<QQ")  # applied up to this record; none here is higher than that one
FORMAT_KEY: Final = b"format"
TOTALS_KEY: Final = b"totals"
APPLIED_KEY: Final = b"applied"  # and the worker's number, big-endian
FORMAT: Final = struct.Struct("<I")
DAMAGED_NAME: Final = "damaged"  # a file beside data.mdb: found damaged while it was used
DATABASES: Final = (b"topics", b"tombstones", b"due", b"meta")
ALONE_TRIES: Final = 200  # to have a damaged environment for oneself, so that it can be set aside
ALONE_PAUSE_S: Final = 0.05
MAPPED_BYTES_MAX: Final = 128 << 20  # of files in the process's memory: this one, and some 15 MiB of libraries

# What LMDB calls a file that is not, or no longer, what it wrote.
DAMAGE: Final = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError,
                 lmdb.IncompatibleError)  # fmt: skip


class DamagedError(Exception):
    """The environment cannot be used, and says why."""


class RetainedEnvironment:
    """The four databases, all in one file, for all workers of a node at once; each opens it after exec.

    Read transactions are opened and ended under `lock`, because growing moves the file in memory: a read transaction
    that is open then would read what is no longer there.

    The file `folder`.lock says who uses it (flock): whoever has it alone may set it aside. Who writes has the folder
    itself locked, and LMDB's own lock is free then: LMDB moves the file in memory as it begins to write, and a thread
    that waited in there could not be kept from that while another one reads.

    Args:
        folder: made if there is none; its parent must exist.
        map_size: bytes of address space to begin with; it doubles when it is full.
        tries: so often a damaged one that others use is looked at, 50 ms apart: they are to end when they learn of it.

    Raises OSError if the folder cannot be used for a reason that is not damage, or is damaged and others go on with it.
    """

    def __init__(self, folder: str, map_size: int, tries: int = ALONE_TRIES) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.report: str | None = None  # what was found damaged, in one sentence
        self._map_size = map_size
        self._writer: FileLock | None = None
        self._environment: Any = None
        self._pages: Any = None
        # To be told how many pages of the file were read, by who holds `lock`: it keeps in bounds what stays in memory.
        self.touched: Callable[[int], None]
        self._users = FileLock(f"{folder}.lock")
        try:
            pause = threading.Event()
            while not self._open_shared():
                tries -= 1
                if tries <= 0:
                    raise OSError(errno.EIO, f"{folder} is damaged, and cannot be set aside while other workers use it")
                pause.wait(ALONE_PAUSE_S)
        except BaseException:
            self._users.close()
            raise

    def _open_shared(self) -> bool:
        """Open it, and set it aside if it is damaged and no other process has it open; returns False if one has."""
        alone = self._users.try_to_take()
        if not alone:
            # Waits for whoever looks at it first.
            self._users.share()
        try:
            self._open()
        except DamagedError as damage:
            if not alone:
                self._users.free()
                return False
            kept = set_aside(self.folder)
            self.report = (
                f"the index of retained messages, {self.folder}, is damaged ({damage}): it is set aside as {kept} and"
                " built anew from the log"
            )
            try:
                self._open()
            except DamagedError as again:
                raise OSError(errno.EIO, f"{self.folder}: a new environment is damaged: {again}") from again
        if alone:
            self._users.share()
        return True

    def _open(self) -> None:
        try:
            make_folder(self.folder)
            if DAMAGED_NAME in Disk(self.folder).names():
                raise DamagedError("it was found damaged while it was used")
            self._writer = FileLock(self.folder, is_folder=True)
            # So that it does not grow between one step and the next.
            self._writer.take()
            self._environment = lmdb.open(
                self.folder, map_size=self._map_size, max_dbs=len(DATABASES), mode=0o640, readahead=False,
                max_spare_txns=2,
            )  # fmt: skip
            self._pages = MappedPages(f"{self.folder}/data.mdb", MAPPED_BYTES_MAX)
            self.touched = self._pages.touched
            self._check_length()
            self.topics, self.tombstones, self.due, self.meta = (
                self._environment.open_db(name, dupsort=name == b"due") for name in DATABASES
            )
            self._check_format()
            self._writer.free()
            self.forget_the_dead()
        except DAMAGE as error:
            self._close()
            raise DamagedError(str(error)) from error
        except NotADirectoryError as error:
            raise DamagedError("it is no folder") from error
        except lmdb.Error as error:
            self._close()
            raise OSError(error.code, str(error)) from error
        except (DamagedError, OSError):
            self._close()
            raise

    def forget_the_dead(self) -> None:
        """Free the pages that LMDB keeps for processes which were killed while they read."""
        self._environment.reader_check()

    def _check_length(self) -> None:
        """Find out whether the file was cut: LMDB itself would read behind its end, which ends the process.

        While nobody writes.
        """
        disk = Disk(self.folder)
        file = disk.open("data.mdb")
        try:
            length = disk.size(file)
        finally:
            disk.close(file)
        page_bytes: int = self._environment.stat()["psize"]
        if length >= (self._environment.info()["last_pgno"] + 1) * page_bytes:
            return
        # Pages that were taken and given back within one transaction are never written, so this may still be right.
        try:
            problems: list[str] = verify(self.folder)  # type: ignore[no-untyped-call]
        except VerifyError as error:
            problems = [str(error)]
        if problems:
            raise DamagedError(f"its file ends early: {problems[0]}")

    def _check_format(self) -> None:
        with self._environment.begin(db=self.meta) as transaction:
            found = transaction.get(FORMAT_KEY)
        if found is None:
            with self._environment.begin(write=True, db=self.meta) as transaction:
                transaction.put(FORMAT_KEY, FORMAT.pack(FORMAT_VERSION))
        elif found != FORMAT.pack(FORMAT_VERSION):
            version = int.from_bytes(found, "little")
            raise DamagedError(f"its format is {version}, and this version reads {FORMAT_VERSION}")

    def read(self) -> "lmdb.Transaction[bytes]":
        """Begin a read transaction. The caller holds `lock` until he has aborted it."""
        transaction: lmdb.Transaction[bytes]
        try:
            transaction = self._environment.begin()
        except lmdb.MapResizedError:
            # Another process has made it grow.
            self._environment.set_mapsize(0)
            transaction = self._environment.begin()
        return transaction

    def value_of(self, transaction: "lmdb.Transaction[bytes]", key: bytes) -> bytes | None:
        """Return what lies under a topic's key, a message or a tombstone."""
        return transaction.get(key, None, self.topics) or transaction.get(key, None, self.tombstones)

    @contextmanager
    def write(self) -> "Iterator[lmdb.Transaction[bytes]]":
        """Have a write transaction, which is synced and committed at the end; waits for other workers' to end."""
        assert self._writer is not None
        self._writer.take()
        try:
            with self.lock:
                try:
                    transaction = self._environment.begin(write=True)
                except lmdb.MapResizedError:
                    # Another process has made it grow.
                    self._environment.set_mapsize(0)
                    transaction = self._environment.begin(write=True)
            with transaction:
                yield transaction
        finally:
            self._writer.free()

    def grow(self) -> None:
        """Double the address space. No transaction of the caller's may be open."""
        with self.lock:
            self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def reopen(self) -> None:
        """Open it again after an error that LMDB does not go on after. Raises OSError; then call it again."""
        with self.lock:
            self._close()
            try:
                self._open()
            except DamagedError as damage:
                raise OSError(errno.EIO, str(damage)) from damage

    def mark_damaged(self) -> None:
        """Have the next start set it aside: a page was read that cannot be right."""
        disk = Disk(self.folder)
        if DAMAGED_NAME not in disk.names():
            disk.close(disk.create(DAMAGED_NAME))
            disk.sync_folder()

    def is_marked_damaged(self) -> bool:
        """Return whether any worker has found it damaged, so that all have to begin again. Costs a system call."""
        return exists(f"{self.folder}/{DAMAGED_NAME}")

    def _close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        if self._environment is not None:
            self._environment.close()
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        """Close it; nothing of it may be used any more."""
        with self.lock:
            self._close()
            self._users.close()


def totals(transaction: "lmdb.Transaction[bytes]", meta: Any) -> tuple[int, int, int]:
    """Return how many messages there are, their size in bytes and the highest stamp there ever was."""
    found = transaction.get(TOTALS_KEY, db=meta)
    return TOTALS.unpack(found) if found is not None else (0, 0, 0)
