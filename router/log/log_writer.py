"""The commit log: records gather, are written and synced in batches by a thread, and are durable then.

While one batch is synced the next one gathers, so under load one fdatasync serves many records, and nobody waits for a
disk but the thread. What could not be written stays in memory and is tried again; it is never counted as durable.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from router.log.disk import is_full
from router.log.message_fetch import Bodies, Stored
from router.log.record_buffer import RecordBuffer, sealed
from router.log.segment_index import Places, Reach
from router.log.segments import RECORDS_AT, Header, Segments, create_segment, remove_segments, segment_name

if TYPE_CHECKING:
    from router.core.message import Message

SEGMENT_BYTES_MAX: Final = 67_108_864
BACKLOG_BYTES_MAX: Final = 67_108_864
RETRY_S: Final = 0.5
INDEX_EVERY_BYTES: Final = 65_536

Durability = Literal["fsync", "os", "none"]


@dataclass(slots=True)
class _OpenSegment:
    """The segment that is written to."""

    header: Header
    file: int
    end: int = RECORDS_AT  # behind the last record that was written whole
    last_number: int = 0  # the last one written and synced; 0 while there is none
    first_us: int = 0
    last_us: int = 0
    index: list[list[int]] = field(default_factory=list)  # [number, offset, time in µs], ascending


class Log(Places):
    """The log of one worker, from where `segments` ended.

    Numbers of records are Python's to read at any time; they never go back.

    Args:
        segments: read to the end, and repaired.
        incarnation: of this run of the worker.
        make_mark: returns 32 bits that nobody outside can know, for each segment.
        durability: `fsync`: durable means synced; `os`: written, the operating system syncs when it likes; `none`:
            appended.
        backlog_bytes_max: with more than that in memory, `accepting` is False; nothing is refused or dropped here.
        retry_s: how long to wait after an error before trying again.
        note_newest: is told of each segment that is made, durably, before there is a record in it. May raise OSError.
    """

    def __init__(
        self,
        segments: Segments,
        *,
        incarnation: int,
        make_mark: Callable[[], int],
        durability: Durability = "fsync",
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        retry_s: float = RETRY_S,
        note_newest: Callable[[int], None] = lambda segment: None,
    ) -> None:
        super().__init__(segments.disk, segments.worker, segments.rules)
        self.owner = segments.owner
        self.incarnation = incarnation
        self.durability = durability
        self.segment_bytes_max = segment_bytes_max
        self.backlog_bytes_max = backlog_bytes_max
        self.retry_s = retry_s
        self._on_durable: Callable[[], None] = lambda: None
        self.durable: int = segments.last_number
        self.appended: int = segments.last_number
        self.written: int = segments.last_number  # up to there it can be read back
        self.trouble: str | None = None  # what the disk said last; None while all is well
        self.full = False  # what it said is that there is no room
        self.failure: BaseException | None = None  # what ended the thread before it was closed: a bug of ours
        self.started_after: int = segments.last_number  # the newest record before this run
        self.batches = 0  # written, since the start
        self.syncs = 0
        self.bytes_written = 0
        self.snapshot = 0  # the first segment that the newest snapshot needs beside it; 0: there is none
        self.errors = 0
        self.read_errors = 0
        self.headers = list(segments.headers)
        self._make_mark = make_mark
        self._note_newest = note_newest
        self._next_segment = segments.next_segment
        self._segment: _OpenSegment | None = None
        self._unused: int | None = None  # a segment that may have a file and holds nothing durable
        self._gathering = RecordBuffer(self.appended)
        self._writing = RecordBuffer(self.appended)
        self._discard_before = 0
        self.bodies = Bodies(self.disk, self.locate, lambda: self.headers)
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # For whoever appends --------------------------------------------------------------------------------------------

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call this, from the thread, whenever `durable` or `trouble` has changed; it must only wake a thread."""
        self._on_durable = callback

    def append(self, records: RecordBuffer) -> None:
        """Take all records out of a buffer; they are durable when `durable` has reached their numbers.

        Never waits for the disk. Raises what ended the thread, if something did: a log that is not written any more.

        Cost: moves memory, copies it only while earlier records wait.
        """
        if self.failure is not None:
            raise RuntimeError("the log's thread has ended") from self.failure
        with self._wake:
            self._gathering.take(records)
            self.appended = self._gathering.last_number
            if self.durability == "none":
                self.durable = self.appended
            self._wake.notify_all()

    @property
    def backlog_bytes(self) -> int:
        """Bytes of records that are not written yet."""
        return int(self._gathering.size + self._writing.size)

    @property
    def accepting(self) -> bool:
        """Whether the disk keeps up: False while it refuses or the backlog is over its limit."""
        # `backlog_bytes`, without a property more: this is asked in every turn.
        return self.trouble is None and self._gathering.size + self._writing.size <= self.backlog_bytes_max

    def reach(self) -> Reach:
        """Return how far this log can be read: what a reader in another process must know."""
        # The number first: what it counts is in the segments that are there then.
        readable = min(self.durable, self.written)
        headers = self.headers
        if not headers:
            return Reach(readable, 0, 0, 0)
        return Reach(readable, headers[0].segment, headers[-1].segment, headers[-1].mark)

    def replayed_from_us(self) -> int:
        """Return when the segment was begun that a restart would read first, µs since 1970; 0 of an empty log."""
        headers = self.headers
        at = bisect_left(headers, self.snapshot, key=lambda header: header.segment)
        return headers[min(at, len(headers) - 1)].created_us if headers else 0

    def fetch(self, number: int, now_us: int, now_ms: int) -> Message | None:
        """Return the message of a record; None if it cannot be read now, but perhaps later.

        Args:
            now_us, now_ms: the same moment, since 1970 and monotonic, for its expiry.

        Raises LookupError if it is lost. Cost: some 10 µs, a third of it if the one before it was asked for last; on a
        disk that must be waited for, its time.
        """
        if number > self.written:
            return None
        try:
            return self.bodies.fetch(number, now_us, now_ms)
        except OSError:
            self.read_errors += 1
            return None  # it may pass: too many open files, a disk that comes back

    def adopt(self, name: str, segment: int, end_offset: int) -> None:
        """Read messages from a new snapshot from here on, where it has them. Raises ValueError, OSError.

        Args:
            name: of its file.
            segment: the first one that is needed beside it.
            end_offset: where its `snapshot_end` begins.
        """
        self.bodies.stored = Stored.at(self.disk, name, end_offset)
        self.snapshot = segment

    def discard(self, before: int) -> None:
        """Have the thread remove all segments before this one, the oldest first; the one being written stays."""
        with self._wake:
            self._discard_before = max(self._discard_before, before)
            self._wake.notify_all()

    # The thread -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Without it, commit() does its work, for those who want to see every step."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that has been appended is durable; returns whether it is. Not for the reactor."""
        with self._wake:
            appended = self.appended
            self._wake.wait_for(lambda: self.durable >= appended or self.failure is not None, timeout_s)
        return self.durable >= appended

    def close(self, timeout_s: float | None = None) -> bool:
        """Write and sync what is left, seal the segment, end the thread; returns whether everything is durable.

        A disk that refuses is tried once more, not waited for.
        """
        self._closing.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        while self.commit():
            pass
        if self._segment is not None:
            self._seal(self._segment)
            self.disk.close(self._segment.file)
            self._segment = None
        return self.backlog_bytes == 0

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(self._has_work)
                if self._closing.is_set():
                    return
                if not self.commit():
                    self._closing.wait(self.retry_s)
        except BaseException as failure:
            self.failure = failure
            self._changed()

    def _has_work(self) -> bool:
        return bool(self._writing.count or self._gathering.count or self._discard_before or self._closing.is_set())

    def _changed(self) -> None:
        with self._wake:
            self._wake.notify_all()
        self._on_durable()

    def commit(self) -> bool:
        """Write and sync what has gathered, as one batch. Returns False if there was nothing to do, or it failed.

        Raises nothing that a disk can cause: `trouble` says what it was, and the next call tries again.
        """
        if self._writing.count == 0:
            with self._wake:
                self._writing.take(self._gathering)
        try:
            if self._writing.count == 0:
                return self._discard()
            self._write_batch()
        except OSError as error:
            self._note(error)
            self.full = is_full(error)
            self._changed()
            return False
        self.batches += 1
        self.bytes_written += self._writing.size
        self.written = self._writing.last_number
        if self.durability != "none":
            self.durable = self._writing.last_number
        self._writing.clear()
        self.trouble = None
        self.full = False
        self._changed()
        return True

    def _write_batch(self) -> None:
        batch = self._writing
        segment = self._segment
        if segment is not None and segment.last_number and segment.end + batch.size > self.segment_bytes_max:
            self._segment = None
            self._seal(segment)
            self.disk.close(segment.file)
            segment = None
        if segment is None:
            segment = self._segment = self._create()
        batch.stamp(segment.header.mark)
        try:
            with memoryview(batch) as records:
                self.disk.write(segment.file, records, segment.end)
        except OSError as error:
            # For want of room, the same bytes go to the same place again: nothing has been synced in between.
            if not is_full(error):
                self._abandon(segment)
            raise
        if self.durability == "fsync":
            try:
                self.disk.sync(segment.file)
            except OSError:
                # The system may have dropped the pages and call the next sync of this file a success. Only a new file
                # is known to have what is written to it.
                self._abandon(segment)
                raise
            self.syncs += 1
        earliest_us, latest_us = batch.times_us()
        segment.first_us = min(segment.first_us, earliest_us) if segment.last_number else earliest_us
        segment.last_us = max(segment.last_us, latest_us) if segment.last_number else latest_us
        if not segment.index or segment.end - segment.index[-1][1] >= INDEX_EVERY_BYTES:
            segment.index.append([batch.first_number, segment.end, earliest_us])
        segment.end += batch.size
        segment.last_number = batch.last_number

    def _create(self) -> _OpenSegment:
        header = Header(
            worker=self.worker,
            incarnation=self.incarnation,
            mark=self._make_mark(),
            segment=self._next_segment,
            first_number=self._writing.first_number,
            created_us=self._writing.times_us()[0],
            rules=self.rules,
            owner=self.owner,
        )
        self._remove_unused()
        try:
            file = create_segment(self.disk, header)
            try:
                self._note_newest(header.segment)
            except BaseException:
                self.disk.close(file)
                raise
        except FileExistsError:
            raise  # somebody else's: not ours to remove
        except OSError:
            self._unused = header.segment
            raise
        self._next_segment += 1
        self.headers.append(header)
        segment = _OpenSegment(header, file)
        self._indexes[header.segment] = segment.index
        return segment

    def _remove_unused(self) -> None:
        """Remove the segment that was begun in vain, if there is one; its number is used again, so there is no hole."""
        if self._unused is not None:
            # It may have been noted. A crash before its number has a header again is no loss of what was in it.
            self._note_newest(self.headers[-1].segment if self.headers else 0)
            try:
                self.disk.remove(segment_name(self._unused))
            except FileNotFoundError:
                pass
            self._unused = None

    def _abandon(self, segment: _OpenSegment) -> None:
        """Write no more to a segment; what it holds that is durable stays, the batch goes to the next one."""
        self._segment = None
        try:
            # If we are killed now, the next start must not read from memory what the disk may not have.
            self.disk.truncate(segment.file, segment.end)
        except OSError:
            pass
        try:
            self.disk.close(segment.file)
        except OSError:
            pass  # it reports what the failed write or sync has reported
        if segment.last_number == 0:
            self.headers.pop()
            del self._indexes[segment.header.segment]
            self._next_segment = self._unused = segment.header.segment

    def _seal(self, segment: _OpenSegment) -> None:
        """End a segment with what helps to read it. All its records are durable already, so nothing hangs on this."""
        if segment.last_number == 0:
            return
        seal = sealed(segment.last_number, segment.first_us, segment.last_us, segment.index)
        seal.stamp(segment.header.mark)
        try:
            with memoryview(seal) as record:
                self.disk.write(segment.file, record, segment.end)
            if self.durability != "none":
                self.disk.sync(segment.file)
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        segment = self._segment.header.segment if self._segment is not None else self._next_segment
        self.errors += 1
        self.trouble = f"{segment_name(segment)}: {error.strerror or error}"

    def _discard(self) -> bool:
        before = self._discard_before
        if not before:
            return False
        # The newest segment tells the next start which numbers are used, so it stays.
        keep = min(before, self.headers[-1].segment) if self.headers else 0
        remove_segments(self.disk, keep)
        self.headers = [header for header in self.headers if header.segment >= keep]
        self._indexes = {segment: index for segment, index in self._indexes.items() if segment >= keep}
        with self._wake:
            if self._discard_before == before:
                self._discard_before = 0
        return True
