"""The second copy of the retained messages: runs of what the log said, for when the index cannot be read any more.

The index in LMDB is written in place, so a disk that damages a page of it may damage any message. The copy is files
that are written once and synced, each in the order of its keys: runs. Whoever makes a snapshot of a log adds a run of
what that log said of retained messages since the last one, before the segments that said it may go. A run is merged
with those behind it when together they are half as large: so a million messages are not written again for each
snapshot, but when half a million have changed. What is older and replaced goes then.

For the processes of all workers; whoever changes the copy has it locked.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from router.log.crc32c import checksum
from router.log.disk import Disk, FileLock, make_folder
from router.log.segments import FOREIGN
from router.retained.keys import key_of
from router.retained.sorted_runs import MAGIC, RunError, RunReader, entry
from router.retained.values import (
    cleared,
    due_of,
    encode,
    is_newer,
    is_tombstone,
    origin_of,
    record_of,
    stamp_of,
    tombstone,
    without_record,
)

if TYPE_CHECKING:
    from router.core.message import Message
    from router.log.disk import Storage

VERSION: Final = 1
MANIFEST: Final = "manifest"
LOCK: Final = "lock"
RUN_BYTES_MAX: Final = 67_108_864  # that gather in memory before they become a run
FLUSH_BYTES: Final = 1_048_576
MERGE_RATIO: Final = 2  # a run of up to so many times the size of those behind it is merged with them
NEVER_US: Final = 1 << 62
FORGET_US: Final = 3_600_000_000  # tombstones stay longer than any worker's clock can be set back

Entries = Iterable[tuple[bytes, bytes]]


class CopyError(Exception):
    """Why the copy, or a part of it, cannot be used, in one sentence."""


@dataclass(slots=True)
class Run:
    """A file of the copy.

    Attributes:
        size: bytes.
        count: entries.
        cuts: worker -> number of a record: what has a higher one of that worker's log is in no log any more.
    """

    name: str
    size: int
    count: int
    cuts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Manifest:
    """What the copy has.

    Attributes:
        node: of which node it is, as its other files say it, or nothing.
        following: number of the next run.
        runs: the older ones first.
        covered: worker -> number of the record up to which what its log says is in here.
        open_from_us: worker -> no record of its log that is not in here has a lower stamp.
    """

    node: str = ""
    following: int = 1
    runs: list[Run] = field(default_factory=list)
    covered: dict[int, int] = field(default_factory=dict)
    open_from_us: dict[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return it as JSON, with its check sum on a line of its own."""
        told = {
            "version": VERSION, "node": self.node, "following": self.following,
            "runs": [{"name": run.name, "bytes": run.size, "count": run.count,
                      "cuts": {str(worker): number for worker, number in run.cuts.items()}} for run in self.runs],
            "covered": {str(worker): number for worker, number in sorted(self.covered.items())},
            "open_from_us": {str(worker): us for worker, us in sorted(self.open_from_us.items())},
        }  # fmt: skip
        text = json.dumps(told, indent=1).encode()
        return text + b"\n%08x\n" % checksum(text)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return what encode() was called on. Raises CopyError."""
        text = data[: -len(b"\n00000000\n")]
        try:
            told: dict[str, Any] = json.loads(text)
            if told["version"] > VERSION:
                raise CopyError(f"its format is {told['version']}, and this version of Shoal reads {VERSION}")
            if data != text + b"\n%08x\n" % checksum(text):
                raise ValueError
            runs = [Run(run["name"], run["bytes"], run["count"], _by_worker(run["cuts"])) for run in told["runs"]]
            return cls(told["node"], told["following"], runs, _by_worker(told["covered"]),
                       _by_worker(told["open_from_us"]))  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CopyError(f"its {MANIFEST} is damaged") from None


def _by_worker(told: dict[str, int]) -> dict[int, int]:
    return {int(worker): int(number) for worker, number in told.items()}


class RetainedCopy:
    """The copy of one node.

    Args:
        disk: its folder.
        lock: of that folder, between processes; None: nobody else is there.
        node: whose the files of the node are, 16 hexadecimal digits; nothing: any will do.

    Attributes:
        workers: those that have a log, which may say more than is in here.
    """

    def __init__(self, disk: Storage, lock: FileLock | None = None, node: str = "") -> None:
        self.disk = disk
        self.workers: Collection[int] = ()
        self.node = node
        self._lock = lock

    @classmethod
    def at(cls, folder: str, node: str = "") -> RetainedCopy:
        """Return the copy in a folder, which is made if there is none. Raises OSError."""
        make_folder(folder)
        return cls(Disk(folder, 0o600), FileLock(f"{folder}/{LOCK}"), node)

    def close(self) -> None:
        """Let go of its lock; nothing of it may be used any more."""
        if self._lock is not None:
            self._lock.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have it alone among all processes; waits for the one that has it. Not to be nested."""
        if self._lock is not None:
            self._lock.take()
        try:
            yield
        finally:
            if self._lock is not None:
                self._lock.free()

    # What is in it --------------------------------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        """Return what there is; nothing, if there is no manifest. Raises CopyError, OSError."""
        if MANIFEST not in self.disk.names():
            return Manifest(self.node)
        file = self.disk.open(MANIFEST)
        try:
            found = Manifest.decode(self.disk.read(file, 0, self.disk.size(file)))
        finally:
            self.disk.close(file)
        if self.node and found.node not in ("", self.node):
            raise CopyError(f"it {FOREIGN}")
        return found

    def covered(self, worker: int) -> int:
        """Return up to which record what a worker's log says is in here; 0 if nothing is, or it cannot be read."""
        try:
            return self.manifest().covered.get(worker, 0)
        except CopyError:
            return 0

    def check(self, manifest: Manifest) -> None:
        """Read all of it. Raises CopyError, OSError. Cost: 0.1 s for a million messages, beside reading them."""
        for run in manifest.runs:
            try:
                with closing(self._reader(run)) as reader:
                    reader.check()
            except RunError as error:
                raise CopyError(str(error)) from None

    def values(self, runs: list[Run], *, whole: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Yield the newest value of each key in these runs, a message or a tombstone, in the order of the keys.

        Args:
            whole: raise CopyError where a run is damaged; False: go on without what is behind the damage.
        """
        key: bytes | None = None
        newest = b""
        sources = [self._entries(run, whole) for run in runs]
        try:
            for following, value in heapq.merge(*sources):
                if following == key:
                    if is_newer(value, newest):
                        newest = value
                    continue
                if key is not None:
                    yield key, newest
                key, newest = following, value
            if key is not None:
                yield key, newest
        finally:
            for source in sources:
                source.close()

    def _entries(self, run: Run, whole: bool) -> Generator[tuple[bytes, bytes]]:
        try:
            with closing(self._reader(run)) as reader:
                for key, value in reader:
                    last = run.cuts.get(origin_of(value)) if run.cuts else None
                    if last is not None and record_of(value) > last:
                        value = without_record(value)
                    yield key, value
        except RunError as error:
            if whole:
                raise CopyError(str(error)) from None

    def _reader(self, run: Run) -> RunReader:
        return RunReader(self.disk, run.name, run.size, run.count)

    # Changing it; whoever does that has it locked --------------------------------------------------------------------

    def add(self, manifest: Manifest, entries: Entries) -> None:
        """Write a run, and have the manifest name it behind the others; it counts when that is published."""
        run = self.write(f"run-{manifest.following:012d}", entries)
        manifest.following += 1
        if run.count:
            manifest.runs.append(run)

    def write(self, name: str, entries: Entries) -> Run:
        """Write and sync a file of entries, which come in the order of their keys."""
        if name in self.disk.names():
            self.disk.remove(name)
        file = self.disk.create(name)
        try:
            size, count = 0, 0
            pieces, gathered = [MAGIC], len(MAGIC)
            for key, value in entries:
                piece = entry(key, value)
                pieces.append(piece)
                gathered += len(piece)
                count += 1
                if gathered >= FLUSH_BYTES:
                    self.disk.write(file, b"".join(pieces), size)
                    size += gathered
                    pieces, gathered = [], 0
            self.disk.write(file, b"".join(pieces), size)
            self.disk.sync(file)
        finally:
            self.disk.close(file)
        return Run(name, size + gathered, count)

    def merge(self, manifest: Manifest, now_us: int) -> None:
        """Merge the newest runs as far as that is due; what is replaced goes, and from the oldest run old tombstones.

        Args:
            now_us: the present, µs since 1970.
        """
        runs = manifest.runs
        first = len(runs) - 1
        size = runs[first].size if runs else 0
        while first > 0 and runs[first - 1].size <= MERGE_RATIO * size:
            first -= 1
            size += runs[first].size
        if first >= len(runs) - 1:
            return
        merged = runs[first:]
        del runs[first:]
        # A tombstone is needed while an older message of its topic may be in here, or come from a log.
        open_us = [manifest.open_from_us.get(worker, 0) for worker in self.workers]
        forget_us = min(now_us, *open_us) - FORGET_US if first == 0 and open_us else 0
        self.add(manifest, self._lasting(self.values(merged), forget_us))

    def _lasting(self, entries: Entries, forget_us: int) -> Iterator[tuple[bytes, bytes]]:
        for key, value in entries:
            if is_tombstone(value):
                if stamp_of(value) >= forget_us:
                    yield key, value
                continue
            due = due_of(value) if forget_us else None
            if due is None or int.from_bytes(due[1:], "big") >= forget_us:
                yield key, value
            elif stamp_of(value) >= forget_us:
                yield key, cleared(key, value)

    def publish(self, manifest: Manifest) -> None:
        """Have this count, durably, and remove what does not belong to it."""
        manifest.node = self.node or manifest.node
        following = MANIFEST + ".new"
        names = self.disk.names()
        if following in names:
            self.disk.remove(following)
        file = self.disk.create(following)
        try:
            self.disk.write(file, manifest.encode(), 0)
            self.disk.sync(file)
        finally:
            self.disk.close(file)
        self.disk.sync_folder()
        self.disk.rename(following, MANIFEST)
        self.disk.sync_folder()
        wanted = {run.name for run in manifest.runs}
        for name in names:
            if name.startswith("run-") and name not in wanted:
                self.disk.remove(name)

    def cut(self, worker: int, last_number: int) -> None:
        """Take notice that a worker's log ends with this record, and what had higher numbers is lost (a loss of power).

        Their numbers are given again. Raises CopyError, OSError.
        """
        if self.covered(worker) <= last_number:
            return
        with self.locked():
            manifest = self.manifest()
            for run in manifest.runs:
                run.cuts[worker] = min(last_number, run.cuts.get(worker, last_number))
            manifest.covered[worker] = last_number
            self.publish(manifest)


class Gathered:
    """What a log says of retained messages beyond what the copy has: it stands in for the index of a Router.

    Args:
        copy: what it is added to.
        worker: whose log it is.
        covered: number of the record up to which the copy has it.
    """

    is_shared = False
    last_stamp_us = 0

    def __init__(self, copy: RetainedCopy, worker: int, covered: int) -> None:
        self.worker = worker
        self.incarnation = 0
        self.applied = covered
        self._copy = copy
        self._values: dict[bytes, bytes] = {}
        self._size = 0
        self._runs: list[Run] = []
        for name in copy.disk.names():
            if name.startswith(f"gathered-{worker}-"):
                copy.disk.remove(name)  # of a process that was killed

    def apply(self, record: int, topic_name: bytes, message: Message | None, *, stamp_us: int, now_ms: int = 0) -> bool:
        """Take what a record says, as RetainedIndex.apply()."""
        key = key_of(topic_name)
        if message is None:
            value = tombstone(key, stamp_us, record, self.worker, self.incarnation)
        else:
            value = encode(message, stamp_us, now_ms, record, self.worker, self.incarnation)
        older = self._values.get(key)
        if older is None or is_newer(value, older):
            self._values[key] = value
            self._size += len(key) + len(value) - (0 if older is None else len(key) + len(older))
            if self._size >= RUN_BYTES_MAX:
                self._flush()
        return True

    def _flush(self) -> None:
        if self._values:
            # Under a name that is this worker's, since others may write theirs at the same time.
            name = f"gathered-{self.worker}-{len(self._runs)}"
            self._runs.append(self._copy.write(name, sorted(self._values.items())))
            self._values = {}
            self._size = 0

    def finish(self, covered: int, open_from_us: int | None, now_us: int) -> None:
        """Add it all to the copy, durably. Raises CopyError, OSError.

        Args:
            covered: the number of the last record that was looked at.
            open_from_us: no record behind that one has a lower stamp; None: there will be none.
            now_us: the present, µs since 1970.
        """
        self._flush()
        with self._copy.locked():
            manifest = self._copy.manifest()
            for run in self._runs:
                name = f"run-{manifest.following:012d}"
                manifest.following += 1
                self._copy.disk.rename(run.name, name)
                manifest.runs.append(Run(name, run.size, run.count))
            manifest.covered[self.worker] = max(covered, manifest.covered.get(self.worker, 0))
            manifest.open_from_us[self.worker] = NEVER_US if open_from_us is None else open_from_us
            self._copy.merge(manifest, now_us)
            self._copy.publish(manifest)


def write_anew(copy: RetainedCopy, entries: Entries, covered: dict[int, int], open_from_us: int) -> None:
    """Make the copy anew of all that the index has: of a folder that had none, or whose copy is damaged.

    Args:
        entries: messages and tombstones, in the order of their keys.
        covered: worker -> number of the record up to which the index has applied its log.
        open_from_us: no record behind these has a lower stamp.
    """
    with copy.locked():
        try:
            following = copy.manifest().following
        except CopyError:
            following = 1 + max((int(name[4:]) for name in copy.disk.names() if name.startswith("run-")), default=0)
        manifest = Manifest(copy.node, following, covered=dict(covered),
                            open_from_us=dict.fromkeys(covered, open_from_us))  # fmt: skip
        copy.add(manifest, entries)
        copy.publish(manifest)
