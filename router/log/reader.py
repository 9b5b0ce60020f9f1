"""Reading the log in a worker's folder from outside: what was stored, and what is stored from now on.

Nothing here writes. A broker may be writing to the folder meanwhile: what is unfinished at the end is the end so far,
and files may go while they are looked for.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from router.log.disk import Storage
from router.log.record_cursor import Cursor
from router.log.record_kinds import FORMAT_VERSION, RecordError
from router.log.record_scan import TIME_MAX, TIME_MIN, Scan
from router.log.segments import (
    BAD,
    END,
    HEADER,
    RECORDS_AT,
    SEALED,
    SHORT,
    WINDOW_BYTES,
    ForeignFileError,
    Header,
    Segments,
    read_header,
    segment_name,
)

RULES_MAX: Final = 0xFFFF  # what records mean to a router is no matter here
LISTINGS_MAX: Final = 10
LOOK_AROUND_POLLS: Final = 25

Progress = Callable[[int], None]


class Row(NamedTuple):
    """A record, and the log and incarnation that it is from."""

    worker: int
    incarnation: int
    number: int
    time_us: int
    kind: str
    fields: dict[str, Any]


def no_progress(length: int) -> None:
    """Take how many bytes have been read, and show nothing."""


def file_size(disk: Storage, name: str) -> int:
    """Return a file's length in bytes. Raises OSError."""
    file = disk.open(name)
    try:
        return disk.size(file)
    finally:
        disk.close(file)


def open_segments(disk: Storage, worker: int, owner: int = 0) -> Segments:
    """Return the segments of a folder, as far as they can be read; what cannot is in `damages`. Raises OSError.

    Args:
        owner: of the node that they are to be of; 0: of any.
    """
    for _ in range(LISTINGS_MAX):
        try:
            return Segments(disk, worker=worker, rules=RULES_MAX, owner=owner, accept_loss=True)
        except FileNotFoundError as error:
            removed = error  # by the broker, since it was listed
    raise removed


class Reader:
    """The records of one log that a caller wants, in the order in which they were written.

    Args:
        scan: which ones.
        since_us, until_us: the same times as the scan's: what is wholly outside is not read.
        progress: called with how many bytes of segments are done with, again and again.

    Raises OSError, here and in rows().
    """

    def __init__(
        self,
        disk: Storage,
        worker: int,
        scan: Scan,
        *,
        since_us: int = TIME_MIN,
        until_us: int = TIME_MAX,
        progress: Progress = no_progress,
    ) -> None:
        self.disk = disk
        self.worker = worker
        self.scan = scan
        self.since_us = since_us
        self.until_us = until_us
        self.progress = progress
        self.segments = open_segments(disk, worker)
        self._problems: list[str] = []

    @property
    def problems(self) -> list[str]:
        """What could not be read, as sentences; what is unfinished at the end of the log is none of it."""
        return [str(damage) for damage in self.segments.damages if not damage.torn] + self._problems

    def size(self) -> int:
        """Return how many bytes all segments have: what progress adds up to."""
        return sum(_size_if_there(self.disk, header.name) for header in self.segments.headers)

    def rows(self) -> Iterator[Row]:
        """Yield each record that is wanted. Memory: one window, or one record if it is larger."""
        for index, header in enumerate(self.segments.headers):
            try:
                size = file_size(self.disk, header.name)
                if self._is_outside(header):
                    self.progress(size)
                else:
                    yield from self._rows_of(index, header, size)
            except FileNotFoundError:
                continue  # removed by the broker: too old to be kept

    def _is_outside(self, header: Header) -> bool:
        """Return whether a segment's seal says that none of its records is of the wanted time."""
        if self.since_us == TIME_MIN and self.until_us == TIME_MAX:
            return False
        try:
            seal = self.segments.seal(header)
        except RecordError:
            return False
        return seal is not None and (seal["last_us"] < self.since_us or seal["first_us"] >= self.until_us)

    def _rows_of(self, index: int, header: Header, size: int) -> Iterator[Row]:
        done = 0
        for cursor in self.segments.segment_cursors(index):
            while self.scan.next(cursor):
                row = row_of(cursor, header, self._problems)
                if row is not None:
                    yield row
            self.progress(cursor.base + cursor.offset - done)
            done = cursor.base + cursor.offset
        self.progress(size - done)


def _size_if_there(disk: Storage, name: str) -> int:
    try:
        return file_size(disk, name)
    except FileNotFoundError:
        return 0


def row_of(cursor: Cursor, header: Header, problems: list[str]) -> Row | None:
    """Return the record that a cursor stands at; if its body is not what its kind says, None and one more problem."""
    try:
        return Row(
            header.worker, header.incarnation, cursor.number, cursor.time_us, cursor.kind_name(), cursor.fields()
        )
    except RecordError as error:
        problems.append(f"{header.name}: {error} (at byte {cursor.base + cursor.start})")
        return None


def snapshot_cursors(disk: Storage, name: str) -> Iterator[Cursor]:
    """Yield a cursor for each stretch of a snapshot; run each to its end before the next.

    Raises OSError, and SegmentError where it cannot be read. Memory: one window, or one record if it is larger.
    """
    file = disk.open(name)
    try:
        header = Header.decode(disk.read(file, 0, HEADER.size))
        if header is None or header.version > FORMAT_VERSION:
            raise ForeignFileError(name, 0, "is not a snapshot that this version of Shoal can read")
        offset, number, window, size = RECORDS_AT, 0, WINDOW_BYTES, disk.size(file)
        while offset < size:
            data, checked = disk.read_records(file, offset, min(window, size - offset), header.mark)
            cursor = Cursor(data, offset, header.mark, number, checked=checked)
            yield cursor
            if cursor.status not in (END, SHORT) or (cursor.offset == 0 and offset + window >= size):
                raise ForeignFileError(name, offset + cursor.offset, "is damaged: it has bytes that are no record")
            offset, number = offset + cursor.offset, cursor.number
            window = max(WINDOW_BYTES, cursor.needed()) if cursor.offset == 0 else WINDOW_BYTES
    finally:
        disk.close(file)


class Follower:
    """The records of one log that are written from now on.

    A broker that is killed or whose disk fails may leave bytes that it writes again elsewhere; each number is reported
    once.

    Args:
        scan: which records are wanted.

    Raises OSError, here and in poll().
    """

    def __init__(self, disk: Storage, worker: int, scan: Scan) -> None:
        self.disk = disk
        self.worker = worker
        self.scan = scan
        self.problems: list[str] = []  # sentences; whoever has told them may clear the list
        self.header: Header | None = None
        self.number = 0  # of the newest record that has been passed
        self._file = -1
        self._offset = RECORDS_AT
        self._ended = False  # the segment is sealed
        self._idle_polls = 0
        segments = open_segments(disk, worker)
        if segments.headers:
            newest = len(segments.headers) - 1
            for cursor in segments.segment_cursors(newest):
                while cursor.step():
                    pass
                self._offset = cursor.base + cursor.offset
                self._ended = cursor.status == SEALED
            self.number = segments.last_number
            self.header = segments.headers[newest]
            self._file = disk.open(self.header.name)

    def close(self) -> None:
        """Close the file that is open."""
        if self._file >= 0:
            self.disk.close(self._file)
            self._file = -1

    def poll(self) -> Iterator[Row]:
        """Yield what is wanted of what has been written since. Cost with nothing new: two or three system calls."""
        while True:
            before = self.number
            yield from self._read_on(0)
            following = self._next_segment()
            if following is None:
                self._idle_polls = 0 if self.number > before else self._idle_polls + 1
                return
            # Nothing is written to a segment once there is another one, so this is the rest.
            yield from self._read_on(following.first_number)
            if following.first_number > self.number + 1:
                missing = following.first_number - 1 - self.number
                self.problems.append(f"{missing} records are missing from number {self.number + 1} on")
            self.close()
            self._file = self.disk.open(following.name)
            self.header = following
            self._offset, self._ended, self._idle_polls = RECORDS_AT, False, 0

    def _read_on(self, limit: int) -> Iterator[Row]:
        header = self.header
        if header is None or self._ended:
            return
        window = WINDOW_BYTES
        while True:
            left = self.disk.size(self._file) - self._offset
            if left <= 0:
                return
            data = self.disk.read(self._file, self._offset, min(window, left))
            # A segment that goes on from an earlier one may begin with numbers that have been passed.
            last_number = self.number if self._offset > RECORDS_AT else header.first_number - 1
            cursor = Cursor(data, self._offset, header.mark, last_number, limit)
            while True:
                yield from self._rows_of(cursor, header)
                if cursor.status != BAD or (found := cursor.find(cursor.offset)) < 0:
                    break
                # A batch is written from its beginning on, so what comes before a whole record will not change.
                length = found - cursor.offset
                missing = cursor.resume(found)
                self.problems.append(
                    f"{header.name}: bytes that are no record at byte {cursor.base + found - length} ({length} bytes);"
                    f" {missing} records are missing"
                )
            self._offset = cursor.base + cursor.offset
            self._ended = cursor.status == SEALED
            if cursor.status == END:
                window = WINDOW_BYTES
            elif cursor.status == SHORT and left > len(data):
                window = max(WINDOW_BYTES, cursor.needed())
            else:
                return

    def _rows_of(self, cursor: Cursor, header: Header) -> Iterator[Row]:
        while self.scan.next(cursor):
            if cursor.number > self.number:
                row = row_of(cursor, header, self.problems)
                if row is not None:
                    yield row
        self.number = max(self.number, cursor.number)

    def _next_segment(self) -> Header | None:
        """Return the header of the next segment that can be read, None if there is none yet."""
        if self.header is None or self._idle_polls % LOOK_AROUND_POLLS == LOOK_AROUND_POLLS - 1:
            # Nothing for a while: perhaps what we wait for was removed before we came to it.
            headers = open_segments(self.disk, self.worker).headers
            known = self.header.segment if self.header is not None else 0
            return next((header for header in headers if header.segment > known), None)
        segment = self.header.segment
        while True:
            segment += 1
            try:
                header = read_header(self.disk, segment_name(segment))
            except FileNotFoundError:
                return None
            if header is not None:
                return header
            # One without any bytes stands for one that is lost; another one may still be being made.
