"""Segment files: their headers and names, and reading a whole log, whatever happened to its bytes.

A segment begins with a header, twice: a damaged sector then loses no segment. Records follow without a gap, each with
its segment's mark, which nobody outside can know: what a client publishes never looks like a record.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from router.log.crc32c import checksum
from router.log.disk import Storage
from router.log.record_cursor import Cursor
from router.log.record_kinds import FORMAT_VERSION

MAGIC: Final = b"SHOALSEG"
HEADER: Final = struct.Struct("<8sHHIIIQQqQ4xI")
HEADER_COPY_AT: Final = 4096  # another sector, whatever a sector's size
RECORDS_AT: Final = HEADER_COPY_AT + HEADER.size
WINDOW_BYTES: Final = 1_048_576
HOLE: Final = b"SHOALGAP"  # what the file of a segment holds whose loss was accepted
MARK_AT: Final = 8  # in a record
NUMBER_AT: Final = 12
OWNER_AT: Final = 48  # in a header
FOREIGN: Final = "belongs to another broker's data folder"

# CursorStatus of record_cursor.pxd.
OPEN, END, SHORT, BAD, SEALED, LIMIT = range(6)

_NAME = re.compile(r"segment-(\d{12})\.log")
_SNAPSHOT = re.compile(r"snapshot-(\d{12})\.log")


class Position(NamedTuple):
    """Where a record lies. It holds for one worker, and only as long as its segment."""

    segment: int
    offset: int
    number: int


class SegmentError(Exception):
    """A log that cannot be opened as it is: which file, where in it (bytes), and one sentence."""

    def __init__(self, file: str, offset: int, sentence: str) -> None:
        super().__init__(f"{file}: {sentence}")
        self.file = file
        self.offset = offset
        self.sentence = sentence


class ForeignFileError(SegmentError):
    """A file with a segment's name that is none of this worker's segments."""


class NewerVersionError(SegmentError):
    """A segment whose format or rules are newer than this version's."""


class MissingSegmentError(SegmentError):
    """A segment between others, or one that is needed, is not there."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a segment, or of a snapshot.

    Attributes:
        owner: of the node whose it is (mesh.node_identity.Node.owner); 0: it does not say, as until format version 2.
    """

    worker: int
    incarnation: int
    mark: int
    segment: int
    first_number: int
    created_us: int
    rules: int
    version: int = FORMAT_VERSION
    owner: int = 0

    @property
    def name(self) -> str:
        """The name of its file; names sort as segments do."""
        return segment_name(self.segment)

    def encode(self) -> bytes:
        """Return the 64 bytes of the header."""
        packed = HEADER.pack(
            MAGIC, self.version, self.rules, self.worker, self.incarnation, self.mark, self.segment,
            self.first_number, self.created_us, self.owner, 0,
        )  # fmt: skip
        return packed[:-4] + struct.pack("<I", checksum(packed[:-4]))

    @classmethod
    def decode(cls, data: bytes) -> "Header | None":
        """Return the header that 64 bytes are, None if they are none."""
        if len(data) != HEADER.size:
            return None
        magic, version, rules, worker, incarnation, mark, segment, first_number, created_us, owner, crc = HEADER.unpack(
            data
        )
        if magic != MAGIC or crc != checksum(data[:-4]):
            return None
        return cls(worker, incarnation, mark, segment, first_number, created_us, rules, version, owner)

    def is_foreign(self, owner: int) -> bool:
        """Return whether it says that it is of another node than this one; 0: that is not known."""
        return bool(owner and self.owner and self.owner != owner)


@dataclass(slots=True)
class Damage:
    """Something that should be in the log and is not, or the other way around.

    Args:
        offset: where in the file, bytes; `length` bytes from there on are no records.
        first_missing: the number of the first record that is not there; 0 if none is missing.
        missing: how many records are not there; 0 also where nobody can tell: at the end of the log.
        torn: nothing valid follows in the whole log, so it is cut here: written, but not synced, when the power went.
        aside: the file that keeps the bytes, once repair() has been called; empty if there are none to keep.
    """

    file: str
    offset: int
    length: int
    first_missing: int
    missing: int
    torn: bool
    what: str
    aside: str = ""

    def __str__(self) -> str:
        """One sentence."""
        kept = f", kept in {self.aside}" if self.aside else ""
        lost = f"; {self.missing} records are missing from number {self.first_missing} on" if self.missing else ""
        return f"{self.file}: {self.what} at byte {self.offset} ({self.length} bytes{kept}){lost}"


def segment_name(segment: int) -> str:
    """Return the name of a segment's file."""
    return f"segment-{segment:012d}.log"


def segment_of(name: str) -> int | None:
    """Return the number of the segment whose file has this name, None if it is no segment's."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def snapshot_name(segment: int) -> str:
    """Return the name of the snapshot behind which the records of this segment and later ones come."""
    return f"snapshot-{segment:012d}.log"


def snapshot_of(name: str) -> int | None:
    """Return the segment that is in a snapshot's name, None if it is no snapshot's."""
    found = _SNAPSHOT.fullmatch(name)
    return int(found[1]) if found else None


def remove_segments(disk: Storage, before: int) -> None:
    """Remove the segments before this one, the oldest first. Raises OSError."""
    for name in disk.names():
        segment = segment_of(name)
        if segment is not None and segment < before:
            disk.remove(name)
            # One by one: a crash in between must not leave a hole.
            disk.sync_folder()


def create_segment(disk: Storage, header: Header) -> int:
    """Make a segment's file and make it durable, without records; returns the file. Raises OSError."""
    file = disk.create(header.name)
    try:
        encoded = header.encode()
        disk.write(file, encoded.ljust(HEADER_COPY_AT, b"\0") + encoded, 0)
        disk.sync(file)
        disk.sync_folder()
    except BaseException:
        disk.close(file)
        raise
    return file


def read_header(disk: Storage, name: str) -> Header | None:
    """Return the header of a segment in a folder that a worker writes; None of what is none or is still being made.

    Raises FileNotFoundError, OSError.
    """
    file = disk.open(name)
    try:
        start = disk.read(file, 0, RECORDS_AT)
    finally:
        disk.close(file)
    header = Header.decode(start[: HEADER.size]) or Header.decode(start[HEADER_COPY_AT:])
    return header if len(start) == RECORDS_AT else None


class Segments:
    """The segments of one worker's log, in their order, to be read; nothing is changed before repair().

    Args:
        worker: whose log it is.
        rules: the newest version of the router's rules that the caller knows.
        owner: of the node whose data folder it is in; 0: any will do.
        first_needed: the number of the oldest segment that must be there; 0 if any will do.
        begins: the segment that the log begins with where first_needed is 0; 0 if any will do.
        newest: a segment that was written to, so that it and those before it must be there; 0: nobody knows of one.
        strict: an empty file does not stand for a segment whose loss was accepted, as it did in earlier versions.
        synced: what was written to them was on the disk before anything rested on it. Else a loss of power may have
            taken any of it, and segments that have lost their beginning are in `damages` and refused no more.
        accept_loss: go on without what is missing, foreign or newer; it is in `damages` then.
        headers: those of a log that is open already; nothing is looked for or refused then.

    Raises ForeignFileError, NewerVersionError, MissingSegmentError, OSError.
    """

    def __init__(
        self,
        disk: Storage,
        *,
        worker: int,
        rules: int,
        owner: int = 0,
        first_needed: int = 0,
        begins: int = 0,
        newest: int = 0,
        strict: bool = False,
        synced: bool = True,
        accept_loss: bool = False,
        headers: list[Header] | None = None,
    ) -> None:
        self.disk = disk
        self.worker = worker
        self.rules = rules
        self.owner = owner
        self.accept_loss = accept_loss
        self.headers: list[Header] = []
        self.next_segment = 1
        self.last_number = 0  # the newest record's, as far as has been read
        self._found: dict[tuple[str, int], Damage] = {}
        self._put_aside: dict[str, str] = {}  # name -> new name
        self._holes: list[int] = []  # segments that are not there, and whose loss was accepted
        self._batch_at = RECORDS_AT  # in the segment read last: where the last batch begins, as far as has been read
        self._stand_ins: list[str] = []  # of files that say so of earlier losses
        self._unfinished: dict[int, int] = {}  # segment -> bytes; without a header or a record
        self._strict = strict
        self._synced = synced
        self.begins = begins  # as the argument; where the loss of the beginning was accepted, what is the beginning now
        self.lost_newest = False  # and that was accepted
        if headers is None:
            self._open(first_needed)
            self._look_for(newest)
        else:
            self.headers = list(headers)

    @property
    def damages(self) -> list[Damage]:
        """What was found so far, in the order of the log."""
        return [self._found[key] for key in sorted(self._found)]

    def _open(self, first_needed: int) -> None:
        names = {segment: name for name in self.disk.names() if (segment := segment_of(name)) is not None}
        oldest = min(names, default=0)
        if self.begins and not first_needed and oldest > self.begins:
            self._lose(MissingSegmentError(
                segment_name(self.begins), 0,
                f"is missing, {names[oldest]} is the oldest, and no snapshot stands for what came before"
            ))  # fmt: skip
            self.begins = oldest
        expected = first_needed
        for segment, name in sorted(names.items()):
            for missing in range(expected, segment) if expected else ():
                self._lose(MissingSegmentError(
                    segment_name(missing), 0, f"is missing, and {name} is there: the log has a hole"
                ))  # fmt: skip
                self._holes.append(missing)
            expected = segment + 1
            try:
                header = self._read_header(name, segment)
            except SegmentError as error:
                self._lose(error)
                self._put_aside[name] = f"{name}.foreign"
                self._holes.append(segment)
                header = None
            if header is not None:
                self.headers.append(header)
        if first_needed and expected == first_needed:
            self._lose(MissingSegmentError(segment_name(first_needed), 0, "is missing, and it is needed"))
        self.next_segment = max(expected, 1)
        # Files at the end that were never finished being made: their numbers are free once they are put aside.
        while self.next_segment - 1 in self._unfinished:
            self.next_segment -= 1
            name = segment_name(self.next_segment)
            self._put_aside[name] = f"{name}.torn-0"
            size = self._unfinished[self.next_segment]
            self._note(Damage(name, 0, size, 0, 0, True, "a segment that was never finished being made"))
        if self.headers:
            self.last_number = self.headers[0].first_number - 1

    def _look_for(self, newest: int) -> None:
        """Refuse segments without a header that cannot have been so when they were made."""
        there = {header.segment for header in self.headers}
        last = max(there, default=0)
        for segment, size in self._unfinished.items():
            if segment < max(last, newest) and (self._strict or size):
                self._lose_unsynced(
                    MissingSegmentError(segment_name(segment), 0, f"has {size} bytes, and records were in it")
                )
                if segment < last:
                    self._holes.append(segment)
            elif segment < last:
                self._holes.append(segment)  # says so in today's way from now on
        if newest > last:
            self._lose_unsynced(MissingSegmentError(
                segment_name(newest), 0,
                "is missing, and records were in it" if newest not in self._unfinished else
                f"has {self._unfinished[newest]} bytes, and records were in it"
            ))  # fmt: skip
            self.lost_newest = True

    def _lose(self, error: SegmentError) -> None:
        if not self.accept_loss:
            raise error
        self._note(Damage(error.file, error.offset, 0, 0, 0, False, error.sentence))

    def _lose_unsynced(self, error: SegmentError) -> None:
        if self._synced:
            self._lose(error)
        else:
            self._note(Damage(error.file, error.offset, 0, 0, 0, True, error.sentence))

    def _note(self, damage: Damage) -> None:
        self._found.setdefault((damage.file, damage.offset), damage)

    def _read_header(self, name: str, segment: int) -> Header | None:
        """Return a segment's header, None if its file was never finished being made."""
        file = self.disk.open(name)
        try:
            size = self.disk.size(file)
            start = self.disk.read(file, 0, RECORDS_AT)
        finally:
            self.disk.close(file)
        copies = [Header.decode(start[at : at + HEADER.size]) for at in (0, HEADER_COPY_AT)]
        header = copies[0] or copies[1]
        if header is None and size > RECORDS_AT:
            raise ForeignFileError(name, 0, "is not a segment of Shoal's log, or both copies of its header are damaged")
        if size < RECORDS_AT or header is None:
            # The header is synced before the first record goes in, so where this was never finished being made, nothing
            # that was acknowledged was ever here.
            if start == HOLE:
                self._stand_ins.append(name)
            else:
                self._unfinished[segment] = size
            return None
        if header.version > FORMAT_VERSION:
            raise NewerVersionError(
                name, 8, f"has format version {header.version}; this version of Shoal reads up to {FORMAT_VERSION}"
            )
        if header.rules > self.rules:
            raise NewerVersionError(
                name, 10, f"was written under rules version {header.rules}; this version of Shoal knows {self.rules}"
            )
        if header.is_foreign(self.owner):
            raise ForeignFileError(name, OWNER_AT, FOREIGN)
        if header.worker != self.worker:
            raise ForeignFileError(name, 12, f"belongs to worker {header.worker} and not to worker {self.worker}")
        if header.segment != segment:
            raise ForeignFileError(name, 24, f"says that it is segment {header.segment}")
        for at, copy in zip((0, HEADER_COPY_AT), copies, strict=True):
            if copy is None:
                self._note(Damage(name, at, HEADER.size, 0, 0, False, "one of the two copies of the header is damaged"))
        return header

    def cursors(self, start: Position | None = None, window_bytes: int = WINDOW_BYTES) -> Iterator[Cursor]:
        """Yield a cursor for each stretch of the log; run each to its end (until step() is False) before the next.

        What is no record is passed over, and noted in `damages`. When all has been read, `last_number` is the number
        of the newest record.

        Args:
            start: begin there; None is the beginning.
            window_bytes: how much to read at a time.

        Memory: one window, or one record if it is larger; after damage the rest of the segment.
        """
        for index, header in enumerate(self.headers):
            if start is None or header.segment > start.segment:
                yield from self.segment_cursors(index, None, window_bytes)
            elif header.segment == start.segment:
                yield from self.segment_cursors(index, start, window_bytes)

    def segment_cursors(
        self, index: int, start: Position | None = None, window_bytes: int = WINDOW_BYTES
    ) -> Iterator[Cursor]:
        """As cursors(), for the segment of `headers[index]` alone: for a caller that knows which ones it needs."""
        header = self.headers[index]
        offset, number = (RECORDS_AT, header.first_number) if start is None else (start.offset, start.number)
        limit = self.headers[index + 1].first_number if index + 1 < len(self.headers) else 0
        self.last_number = number - 1
        self._batch_at = offset
        file = self.disk.open(header.name)
        try:
            yield from self._segment(file, header, offset, limit, window_bytes)
        finally:
            self.disk.close(file)

    def _segment(self, file: int, header: Header, offset: int, limit: int, window_bytes: int) -> Iterator[Cursor]:
        size = self.disk.size(file)
        window = window_bytes
        while True:
            data, checked = self.disk.read_records(file, offset, min(window, size - offset), header.mark)
            cursor = Cursor(data, offset, header.mark, self.last_number, limit, checked)
            while True:
                yield cursor
                assert cursor.status != OPEN, "a cursor must be run to its end"
                offset = cursor.base + cursor.offset
                self.last_number = cursor.number
                self._batch_at = cursor.batch_at or self._batch_at
                if cursor.status in (END, SEALED, LIMIT):
                    break
                if cursor.base + len(data) < size:
                    if cursor.status == SHORT:
                        break
                    data = self.disk.read(file, offset, size - offset)
                    cursor = Cursor(data, offset, header.mark, self.last_number, limit)
                found = cursor.find(cursor.offset)
                if found < 0:
                    self._note_tail(header, offset, size, limit)
                    return
                if limit == 0 and not self._durable_behind(data[found:], header):
                    self._note_tail(header, offset, size, limit)
                    return
                length = cursor.base + found - offset
                missing = cursor.resume(found)
                if limit and self.last_number + missing + 1 >= limit:
                    self._note_tail(header, offset, size, limit)
                    return
                self._note(Damage(header.name, offset, length, self.last_number + 1 if missing else 0, missing, False,
                                  "bytes that are no record"))  # fmt: skip
            if cursor.status in (SEALED, LIMIT) or offset >= size:
                self._note_missing_end(header, offset, limit)
                return
            window = window_bytes if cursor.status == END else max(window_bytes, cursor.needed())

    def _durable_behind(self, data: bytes, header: Header) -> bool:
        """Return whether records behind a hole prove that it was durable once: then it is damage, and they count.

        Else hole and records are of one batch that was never synced, and whose sectors reached the disk in any order.
        Nothing in it was acknowledged, and what comes behind a hole must not count without what came before.
        """
        ahead = Cursor(data, 0, header.mark, self.last_number)
        at = 0
        while at >= 0:
            ahead.resume(at)
            while ahead.step():
                if ahead.begins_batch:
                    return True
            if ahead.status == SEALED:
                return True
            at = ahead.find(ahead.offset) if ahead.status != END else -1
        return False

    def seal(self, header: Header) -> dict[str, Any] | None:
        """Return the fields of the record that seals a segment; None if it is not sealed, or the seal is damaged.

        Cost: one read, of at most 1 MiB.
        """
        file = self.disk.open(header.name)
        try:
            size = self.disk.size(file)
            start = max(RECORDS_AT, size - WINDOW_BYTES)
            tail = self.disk.read(file, start, size - start)
        finally:
            self.disk.close(file)
        # The last place where the mark is begins the last record, but for the few bytes in front of it.
        at = tail.rfind(struct.pack("<I", header.mark)) - MARK_AT
        if at < 0 or len(tail) - at < NUMBER_AT + 4:
            return None
        number = header.first_number + (struct.unpack_from("<I", tail, at + NUMBER_AT)[0] - header.first_number) % 2**32
        cursor = Cursor(tail[at:], start + at, header.mark, number)
        cursor.step()
        return dict(cursor.fields()) if cursor.status == SEALED else None

    def _note_tail(self, header: Header, offset: int, size: int, limit: int) -> None:
        if limit == 0:
            self._note(Damage(header.name, offset, size - offset, 0, 0, True, "the log ends within a record"))
        elif self.last_number + 1 < limit:
            missing = limit - 1 - self.last_number
            self._note(Damage(header.name, offset, size - offset, self.last_number + 1, missing, False,
                              "bytes that are no record"))  # fmt: skip
        # Otherwise the next segment has what was written here: after a failed sync, a batch is written again there.

    def _note_missing_end(self, header: Header, offset: int, limit: int) -> None:
        if self.last_number + 1 < limit:
            missing = limit - 1 - self.last_number
            self._note(Damage(header.name, offset, 0, self.last_number + 1, missing, False, "the end is missing"))

    def repair(self) -> None:
        """Make sure of what was read: it is durable, what is no record is kept aside, and the torn end is cut.

        To be called once, when all has been read, before a Log goes on writing. It may be interrupted anywhere and be
        called again: the same names are used. Raises OSError.
        """
        for damage in self.damages:
            if damage.file in self._put_aside:
                damage.aside = self._put_aside[damage.file]
            elif damage.length:
                self._keep_aside(damage)
        for name, aside in self._put_aside.items():
            self.disk.rename(name, aside)
        # A file that says so stands for a segment that is known to be lost: the next start finds no hole.
        names = self.disk.names()
        for segment in self._holes:
            if segment_name(segment) in names:
                self.disk.remove(segment_name(segment))
            file = self.disk.create(segment_name(segment))
            try:
                self.disk.write(file, HOLE, 0)
                self.disk.sync(file)
            finally:
                self.disk.close(file)
        # What a killed process has left may be written and not synced; from now on, decisions rest on it. It is written
        # once more: after a sync that failed, the system may call pages clean that the disk never got.
        for name in self._stand_ins:
            self._write_again(name, 0, len(HOLE))
        if self.headers:
            if self._batch_at == RECORDS_AT:
                self._write_again(self.headers[-1].name, 0, RECORDS_AT)
            self._write_again(self.headers[-1].name, self._batch_at)
        if self.headers or self._put_aside or self._holes or self._stand_ins:
            self.disk.sync_folder()
        self._put_aside.clear()
        self._holes.clear()

    def _write_again(self, name: str, start: int, end: int | None = None) -> None:
        file = self.disk.open(name, writable=True)
        try:
            length = (self.disk.size(file) if end is None else end) - start
            self.disk.write(file, self.disk.read(file, start, length), start)
            self.disk.sync(file)
        finally:
            self.disk.close(file)

    def _keep_aside(self, damage: Damage) -> None:
        aside = f"{damage.file}.{'torn' if damage.torn else 'bad'}-{damage.offset}"
        file = self.disk.open(damage.file, writable=damage.torn)
        try:
            data = self.disk.read(file, damage.offset, damage.length)
            if aside in self.disk.names():
                self.disk.remove(aside)
            copy = self.disk.create(aside)
            try:
                self.disk.write(copy, data, 0)
                self.disk.sync(copy)
            finally:
                self.disk.close(copy)
            self.disk.sync_folder()
            if damage.torn:
                self.disk.truncate(file, damage.offset)
                self.disk.sync(file)
        finally:
            self.disk.close(file)
        damage.aside = aside
