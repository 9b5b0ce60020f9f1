"""The LMDB environment of the retained messages: opened, checked, grown. docs/formats.md has every byte.

Importing this takes lmdb along, so it is imported by those who keep anything on disk, and then only.
"""

import errno
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import lmdb

from router.log.disk import Disk, FileLock, exists, make_folder, make_private, set_aside
from router.log.segments import FOREIGN, MissingSegmentError, NewerVersionError
from router.retained.link_waits import UNKNOWN
from router.retained.page_check import DATABASES, PageCheck, PagesError, meta_value
from router.retained.resident_pages import MappedPages
from router.retained.second_copy import CopyError, Manifest, RetainedCopy
from router.retained.values import due_of, is_tombstone, size_of, stamp_of

FORMAT_VERSION: Final = 3  # 1 had no check sums but those of the records in it, 2 no incarnation in APPLIED
TOTALS: Final = struct.Struct("<QQq")  # messages, their size in bytes, the highest stamp there ever was
APPLIED: Final = struct.Struct("<QQI")  # applied up to this record; none here is higher than that one; incarnation
APPLIED_2: Final = struct.Struct("<QQ")  # until format 2
FORMAT_KEY: Final = b"format"
TOTALS_KEY: Final = b"totals"
APPLIED_KEY: Final = b"applied"  # and the worker's number, big-endian
FORMAT: Final = struct.Struct("<I")
NODE_KEY: Final = b"node"  # whose it is, 8 bytes
DAMAGED_NAME: Final = "damaged"  # a file beside data.mdb: found damaged while it was used
DATA: Final = "data.mdb"
FILL_MESSAGES: Final = 16_384  # of the copy, put into a new environment at a time
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

    Before LMDB gets a file, all of it is read and checked (retained.page_check): by whoever has it alone, and by a
    worker that ended while others went on, for it may have been the file that ended it. One that is damaged, or lacks
    what no log has any more, is made anew of its copy (router.retained.second_copy) by whoever has it alone.

    Args:
        folder: made if there is none; its parent must exist. The copy is in `folder`-copy.
        map_size: bytes of address space to begin with; it doubles when it is full.
        tries: so often a damaged one that others use is looked at, 50 ms apart: they are to end when they learn of it.
        worker: who opens it.
        node: whose the files of the node are, 16 hexadecimal digits; nothing: any will do.
        logs: worker -> number of the first record that its log has: what is before that must be in here.
        accept_loss: go on without what is neither in here nor in the copy.

    Raises MissingSegmentError where something is lost, and NewerVersionError (both of router.log.segments); OSError if
    the folder cannot be used for a reason that is not damage, or is damaged and others go on with it.
    """

    def __init__(
        self,
        folder: str,
        map_size: int,
        tries: int = ALONE_TRIES,
        *,
        worker: int = 0,
        node: str = "",
        logs: Mapping[int, int] | None = None,
        accept_loss: bool = False,
    ) -> None:
        self.folder = folder
        self.worker = worker
        self.node = node
        self.copy_folder = f"{folder}-copy"
        self._logs = logs or {}
        self._accept_loss = accept_loss
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
        """Open it, and make it anew if it is damaged and no other process has it open; returns False if one has."""
        alone = self._users.try_to_take()
        if not alone:
            # Waits for whoever looks at it first.
            self._users.share()
        # Whose worker is back while others went on: perhaps it is the file that ends who reads it.
        came_back = not alone and str(self.worker) in self._users.said().split()
        try:
            if alone:
                self._check_alone()
            self._open(check=came_back)
        except DamagedError as damage:
            if not alone:
                self._users.free()
                return False
            self._mend(damage)
        self._users.say(f"{self.worker}\n", anew=alone)
        if alone:
            self._users.share()
        return True

    def _check_alone(self) -> None:
        """Raise DamagedError unless LMDB can have the file, and it has what is in no log any more."""
        make_folder(self.folder)
        for name in ("", f"/{DATA}", "/lock.mdb", ".lock"):
            make_private(self.folder + name)  # earlier versions let the group read it
        applied: dict[int, int] = {}
        if exists(f"{self.folder}/{DATA}"):
            applied = self._checked(PageCheck, f"{self.folder}/{DATA}")
        for worker, first in self._logs.items():
            known = applied.get(worker, 0)
            if known + 1 < first:
                raise DamagedError(
                    f"it has what the log of worker {worker} says up to record {known:,} only, and that"
                    f" log begins with record {first:,}"
                )

    def _checked(self, check: Callable[..., PageCheck], *arguments: Any) -> dict[int, int]:
        """Have the file checked; returns up to which record it has what each worker's log says."""
        try:
            meta: dict[bytes, bytes] = check(*arguments).meta
        except PagesError as error:
            raise DamagedError(str(error)) from None
        version = FORMAT.unpack(meta[b"format"])[0] if meta else 0
        if version > FORMAT_VERSION:
            raise NewerVersionError(
                self.folder, 0, f"has format {version}; this version of Shoal reads up to {FORMAT_VERSION}"
            )
        node = meta.get(NODE_KEY, b"").hex()
        if self.node and node not in ("", self.node):
            raise DamagedError(f"it {FOREIGN}")
        return {
            int.from_bytes(key[len(APPLIED_KEY) :], "big"): APPLIED_2.unpack_from(value)[0]
            for key, value in meta.items()
            if key.startswith(APPLIED_KEY)
        }

    def _mend(self, damage: DamagedError) -> None:
        """Set it aside and make it anew of its copy, if that has what is needed, or the loss is accepted."""
        copy = RetainedCopy.at(self.copy_folder, self.node) if exists(self.copy_folder) else None
        try:
            manifest, covered = Manifest(), {}
            problem = None
            try:
                if copy is not None:
                    manifest = copy.manifest()
                    copy.check(manifest)
                    covered = manifest.covered
            except CopyError as error:
                problem = f"its copy in {self.copy_folder} cannot be used: {error}"
            if any(covered.get(worker, 0) + 1 < first for worker, first in self._logs.items()):
                problem = problem or f"there is no copy of it in {self.copy_folder} that goes as far as the log begins"
                if not self._accept_loss:
                    raise MissingSegmentError(self.folder, 0, f"retained messages are lost: {damage}; and {problem}")
            kept = set_aside(self.folder) if self._has_anything() else None
            self.report = f"the index of retained messages, {self.folder}, is damaged ({damage}): it is " + (
                f"set aside as {kept} and " if kept else "") + "built anew " + (
                "from its copy and the log" if manifest.runs else "from the log")  # fmt: skip
            try:
                self._open()
            except DamagedError as again:
                raise OSError(errno.EIO, f"{self.folder}: a new environment is damaged: {again}") from again
            if copy is not None and (manifest.runs or covered):
                self._fill(copy.values(manifest.runs, whole=problem is None), covered)
        finally:
            if copy is not None:
                copy.close()

    def _has_anything(self) -> bool:
        try:
            return bool(set(Disk(self.folder).names()) - {"lock.mdb"})
        except NotADirectoryError:
            return True

    def _fill(self, values: Iterator[tuple[bytes, bytes]], covered: dict[int, int]) -> None:
        """Put into the new environment what the copy has; what it has counts when all of it is there."""
        count = size = stamp_us = 0
        while some := list(islice(values, FILL_MESSAGES)):
            try:
                with self.write() as transaction:
                    self._put(transaction, some)
            except lmdb.MapFullError:
                self.grow()
                with self.write() as transaction:
                    self._put(transaction, some)
            for _, value in some:
                count += not is_tombstone(value)
                size += size_of(value)
                stamp_us = max(stamp_us, stamp_of(value))
        with self.write() as transaction:
            self.put_meta(transaction, TOTALS_KEY, TOTALS.pack(count, size, stamp_us))
            for worker, number in covered.items():
                key = APPLIED_KEY + worker.to_bytes(4, "big")
                self.put_meta(transaction, key, APPLIED.pack(number, number, UNKNOWN))

    def _put(self, transaction: "lmdb.Transaction[bytes]", some: list[tuple[bytes, bytes]]) -> None:
        for key, value in some:
            transaction.put(key, value, db=self.tombstones if is_tombstone(value) else self.topics, append=True)
            due = due_of(value)
            if due is not None:
                transaction.put(due, key, db=self.due)

    def _open(self, *, check: bool = False) -> None:
        try:
            make_folder(self.folder)
            if DAMAGED_NAME in Disk(self.folder).names():
                raise DamagedError("it was found damaged while it was used")
            self._writer = FileLock(self.folder, is_folder=True)
            # So that it does not grow between one step and the next.
            self._writer.take()
            self._environment = lmdb.open(
                self.folder, map_size=self._map_size, max_dbs=len(DATABASES), mode=0o600, readahead=False,
                max_spare_txns=2,
            )  # fmt: skip
            if check:
                self._check_beside_others()
            self._pages = MappedPages(f"{self.folder}/{DATA}", MAPPED_BYTES_MAX)
            self.touched = self._pages.touched
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
        except (DamagedError, OSError, NewerVersionError):
            self._close()
            raise

    def _check_beside_others(self) -> None:
        """Check the file as it is now, which others are kept from writing meanwhile; mark it if it is damaged."""
        with self._environment.begin() as transaction:
            try:
                self._checked(PageCheck, f"{self.folder}/{DATA}", transaction.id())
            except DamagedError:
                self.mark_damaged()
                raise

    def forget_the_dead(self) -> None:
        """Free the pages that LMDB keeps for processes which were killed while they read."""
        self._environment.reader_check()

    def _check_format(self) -> None:
        with self._environment.begin(db=self.meta) as transaction:
            found = transaction.get(FORMAT_KEY)
            node = transaction.get(NODE_KEY)
        if found is not None and FORMAT.unpack_from(found)[0] == FORMAT_VERSION and (node or not self.node):
            return
        # What was there in format 1 or 2 is read as it is, and is as in this one when it is written again.
        with self._environment.begin(write=True, db=self.meta) as transaction:
            self.put_meta(transaction, FORMAT_KEY, FORMAT.pack(FORMAT_VERSION))
            if self.node:
                self.put_meta(transaction, NODE_KEY, bytes.fromhex(self.node))

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

    def put_meta(self, transaction: "lmdb.Transaction[bytes]", key: bytes, data: bytes) -> None:
        """Write what stands under a name of `meta`, with its check sum."""
        transaction.put(key, meta_value(key, data), db=self.meta)

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


def applied_in(value: bytes | None) -> tuple[int, int, int]:
    """Return what stands under APPLIED_KEY in `meta`: up to where, the highest record, and whose process wrote it.

    What was written in an earlier format, or is from the copy, does not know the last: it is of a process before all
    that are there.
    """
    if value is None:
        return 0, 0, UNKNOWN
    if len(value) > APPLIED.size:
        return APPLIED.unpack_from(value)
    return *APPLIED_2.unpack_from(value), UNKNOWN


def totals(transaction: "lmdb.Transaction[bytes]", meta: Any) -> tuple[int, int, int]:
    """Return how many messages there are, their size in bytes and the highest stamp there ever was."""
    found = transaction.get(TOTALS_KEY, db=meta)
    return TOTALS.unpack_from(found) if found is not None else (0, 0, 0)
