"""What is in a worker's folder, and what is wrong with it: everything is read, nothing is written."""

import re
import struct
from dataclasses import dataclass, field
from typing import Final

from router.log.disk import Storage
from router.log.last_run import INCARNATION, parse
from router.log.reader import Progress, file_size, no_progress, open_segments
from router.log.record_cursor import Cursor
from router.log.record_kinds import FORMAT_VERSION, RecordError
from router.log.record_scan import Census
from router.log.segments import (
    END,
    FOREIGN,
    HEADER,
    HEADER_COPY_AT,
    OWNER_AT,
    RECORDS_AT,
    SEALED,
    SHORT,
    WINDOW_BYTES,
    Damage,
    Header,
    Segments,
    snapshot_of,
)

_PLACE: Final = struct.Struct("<QQ")  # in snapshot_end: number of a message's record, offset
_ASIDE = re.compile(r"(?:segment|snapshot)-\d+\.log\.(?:torn-\d+|bad-\d+|foreign)")


@dataclass(slots=True)
class LogFile:
    """A segment or a snapshot: what its header, its seal and its records say.

    Args:
        number: in the file's name.
        first_number, last_number: of its records; last_number is 0 while it has none.
        first_us, last_us: the earliest and the latest time of its records; 0 while it has none.
        whole: a segment is sealed, a snapshot has its end.
        records_from: snapshot only: the first record that is needed beside it; 0 if it does not say.
    """

    name: str
    number: int
    bytes: int
    incarnation: int = 0
    rules: int = 0
    first_number: int = 0
    last_number: int = 0
    first_us: int = 0
    last_us: int = 0
    whole: bool = False
    records_from: int = 0


@dataclass(slots=True)
class Aside:
    """A file that was kept for people when damage was found."""

    name: str
    bytes: int


@dataclass(slots=True)
class Report:
    """What is in a worker's folder.

    Args:
        incarnation: the worker's, from its file; 0 if there is none.
        census: of the records of all segments.
        damages: what is missing or is no record, in the order of the log, without the unfinished end.
        unfinished: bytes at the end that are no record yet, or were torn when the power went.
        moved: files went while they were read: the broker removed what it needs no more.
    """

    worker: int
    incarnation: int = 0
    segments: list[LogFile] = field(default_factory=list)
    snapshots: list[LogFile] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    census: Census = field(default_factory=Census)
    damages: list[Damage] = field(default_factory=list)
    unfinished: Damage | None = None
    moved: bool = False


def read_incarnation(disk: Storage) -> int | None:
    """Return the worker's incarnation from its file, None if there is no such file. Raises ValueError, OSError."""
    try:
        file = disk.open(INCARNATION)
    except FileNotFoundError:
        return None
    try:
        text = disk.read(file, 0, 64)
    finally:
        disk.close(file)
    return parse(text).incarnation


def examine(disk: Storage, worker: int, progress: Progress = no_progress, owner: int = 0) -> Report:
    """Read everything in a worker's folder, check it, and return what there is. Raises OSError.

    Args:
        owner: of the node that it is to be of; 0: of any.

    What is checked: check sums, numbering, what each record's body says, that each segment goes on where the one before
    it ends, and that snapshot and segments together leave nothing out.
    """
    report = Report(worker)
    segments = open_segments(disk, worker, owner)
    names = disk.names()
    for name in names:
        if _ASIDE.fullmatch(name):
            report.aside.append(Aside(name, file_size(disk, name)))
    found: list[Damage] = []
    for index, header in enumerate(segments.headers):
        try:
            report.segments.append(_examine_segment(segments, index, report.census, found, progress))
        except FileNotFoundError:
            report.moved = True
            found = [damage for damage in found if damage.file != header.name]
    _examine_incarnation(disk, segments.headers, report)
    for name in names:
        number = snapshot_of(name)
        if number is not None:
            try:
                report.snapshots.append(_examine_snapshot(disk, name, number, worker, owner, report.damages, progress))
            except FileNotFoundError:
                report.moved = True
    for damage in segments.damages:
        if damage.torn:
            report.unfinished = damage
        else:
            aside = f"{damage.file}.bad-{damage.offset}"
            damage.aside = aside if aside in names else ""
            found.append(damage)
    report.damages += sorted(found, key=lambda damage: (damage.file, damage.offset))
    if not report.moved:
        _examine_coverage(report)
    return report


def _examine_incarnation(disk: Storage, headers: list[Header], report: Report) -> None:
    newest = max((header.incarnation for header in headers), default=0)
    try:
        report.incarnation = read_incarnation(disk) or 0
    except ValueError as error:
        report.damages.append(Damage(INCARNATION, 0, 0, 0, 0, False, str(error)))
        return
    if 0 < report.incarnation < newest:
        what = f"says {report.incarnation}, and there is a segment of incarnation {newest}"
        report.damages.append(Damage(INCARNATION, 0, 0, 0, 0, False, what))


def _examine_segment(
    segments: Segments, index: int, total: Census, damages: list[Damage], progress: Progress
) -> LogFile:
    header = segments.headers[index]
    found = LogFile(
        header.name, header.segment, file_size(segments.disk, header.name), header.incarnation, header.rules,
        header.first_number,
    )  # fmt: skip
    census = Census()
    done = 0
    for cursor in segments.segment_cursors(index):
        census.count(cursor)
        progress(cursor.base + cursor.offset - done)
        done = cursor.base + cursor.offset
        found.whole = cursor.status == SEALED
    progress(max(0, found.bytes - done))
    if segments.last_number >= header.first_number:
        found.last_number = segments.last_number
    found.first_us, found.last_us = census.first_us, census.last_us
    damages += [Damage(header.name, offset, 0, 0, 0, False, what) for offset, what in census.problems]
    total.add(census)
    return found


def _examine_snapshot(
    disk: Storage, name: str, number: int, worker: int, owner: int, damages: list[Damage], progress: Progress
) -> LogFile:
    file = disk.open(name)
    try:
        found = LogFile(name, number, disk.size(file))
        header = _snapshot_header(disk.read(file, 0, RECORDS_AT), found, worker, owner, damages)
        if header is not None:
            _walk_snapshot(disk, file, header, found, damages, progress)
        return found
    finally:
        disk.close(file)


def _snapshot_header(start: bytes, found: LogFile, worker: int, owner: int, damages: list[Damage]) -> Header | None:
    def note(offset: int, length: int, what: str) -> None:
        damages.append(Damage(found.name, offset, length, 0, 0, False, what))

    copies = [Header.decode(start[at : at + HEADER.size]) for at in (0, HEADER_COPY_AT)]
    header = copies[0] or copies[1]
    if header is None:
        note(0, len(start), "is no snapshot of Shoal's, or both copies of its header are damaged")
        return None
    for at, copy in zip((0, HEADER_COPY_AT), copies, strict=True):
        if copy is None:
            note(at, HEADER.size, "one of the two copies of the header is damaged")
    if header.version > FORMAT_VERSION:
        note(8, 2, f"has format version {header.version}, and this version of Shoal reads up to {FORMAT_VERSION}")
        return None
    if header.is_foreign(owner):
        note(OWNER_AT, 8, FOREIGN)
    if header.worker != worker:
        note(12, 4, f"belongs to worker {header.worker} and not to worker {worker}")
    if header.segment != found.number:
        note(24, 8, f"says that it is snapshot {header.segment}")
    found.incarnation, found.rules = header.incarnation, header.rules
    return header


def _walk_snapshot(
    disk: Storage, file: int, header: Header, found: LogFile, damages: list[Damage], progress: Progress
) -> None:
    def note(offset: int, length: int, what: str) -> None:
        damages.append(Damage(found.name, offset, length, 0, 0, False, what))

    offset, number, window = RECORDS_AT, 0, WINDOW_BYTES
    kind, fields = "", {}
    places = bytearray()
    while offset < found.bytes:
        length = min(window, found.bytes - offset)
        cursor = Cursor(disk.read(file, offset, length), offset, header.mark, number)
        while cursor.step():
            try:
                kind, fields = cursor.kind_name(), cursor.fields()
            except RecordError as error:
                note(cursor.base + cursor.start, 0, str(error))
                continue
            if kind == "snapshot":
                found.records_from = fields["first_number"]
            elif kind == "stored":
                places += _PLACE.pack(fields["record"], cursor.base + cursor.start)
            found.first_us = min(found.first_us or cursor.time_us, cursor.time_us)
            found.last_us = max(found.last_us, cursor.time_us)
        more = offset + length < found.bytes
        progress(cursor.base + cursor.offset - offset)
        offset, number = cursor.base + cursor.offset, cursor.number
        if cursor.status != END and not (cursor.status == SHORT and more):
            break
        window = WINDOW_BYTES if cursor.status == END else max(WINDOW_BYTES, cursor.needed())
    if number:
        found.first_number, found.last_number = 1, number
    if offset < found.bytes:
        note(offset, found.bytes - offset, "bytes that are no record")
    elif kind != "snapshot_end":
        note(offset, 0, "ends early")
    elif fields["records"] != number - 1:
        note(offset, 0, f"has {number - 1:,} records before its end, which says {fields['records']:,}")
    elif sorted(_PLACE.iter_unpack(fields["places"])) != sorted(_PLACE.iter_unpack(places)):
        note(offset, 0, "says at its end that messages are where they are not")
    else:
        found.whole = True


def _examine_coverage(report: Report) -> None:
    """The newest whole snapshot and the segments together leave nothing out."""
    newest = max(report.snapshots, key=lambda snapshot: snapshot.number, default=None)
    first = report.segments[0] if report.segments else None
    needed = newest.records_from if newest is not None and newest.whole else 1
    if first is None:
        if newest is not None:
            what = "is there, and not one segment: the newest always stays"
            report.damages.append(Damage(newest.name, 0, 0, 0, 0, False, what))
    elif first.first_number > needed:
        missing = first.first_number - needed
        without = "" if needed > 1 else ", and no whole snapshot stands for what came before"
        report.damages.append(Damage(first.name, 0, 0, needed, missing, False, f"is the oldest segment{without}"))
