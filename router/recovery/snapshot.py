"""A snapshot of the log, made by a process of its own (broker.processes.snapshot_main).

The running worker writes its log and stands still for nothing. Beside it, this reads what is sealed, feeds it to a
router as a restart would, and writes down what came out, so that the segments before are needed no more.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from router.log.record_buffer import RecordBuffer
from router.log.segments import HEADER_COPY_AT, RECORDS_AT, Header, Position, Segments, snapshot_name
from router.recovery.apply import Recovery
from router.recovery.open_log import RULES, feed_snapshot
from router.recovery.session_records import record_fences, record_owed, record_wishes
from router.retained.second_copy import CopyError, Gathered
from router.router import Router
from router.sessions.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.log.disk import Storage
    from router.log.message_fetch import Stored
    from router.log.record_cursor import Cursor
    from router.retained.second_copy import RetainedCopy
    from router.sessions.session import Session

FLUSH_BYTES: Final = 1_048_576
QUEUED, SENT = 1, 2  # router.sessions.outgoing.DeliveryState: whose messages may have to be sent
PLACE: Final = struct.Struct("<QQ")


class Snapshot(NamedTuple):
    """A snapshot that was made.

    Attributes:
        name: of its file.
        segment: the first one that is still needed beside it.
        end_offset: where its `snapshot_end` begins, bytes.
        sessions: in it.
        messages: in it, that wait or may have to be sent again.
        size: bytes.
    """

    name: str
    segment: int
    end_offset: int
    sessions: int
    messages: int
    size: int


class _Writer:
    """Writes records to a file, one behind another."""

    def __init__(self, disk: Storage, file: int, mark: int) -> None:
        self.records = RecordBuffer()
        self.offset = RECORDS_AT
        self._disk = disk
        self._file = file
        self._mark = mark

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + int(self.records.size)

    def flush(self, at_least: int = 0) -> None:
        """Write what has gathered, if it is that many bytes."""
        if self.records.count == 0 or self.records.size < at_least:
            return
        self.records.stamp(self._mark)
        with memoryview(self.records) as data:
            self._disk.write(self._file, data, self.offset)
        self.offset += self.records.size
        self.records.clear()


def compact(
    disk: Storage,
    worker: int,
    make_mark: Callable[[], int],
    copy: RetainedCopy | None = None,
    *,
    owner: int = 0,
    now_us: int = 0,
    is_left: bool = False,
) -> Snapshot | None:
    """Make a snapshot of everything before the newest segment; None if the newest snapshot is that already.

    The log may be written meanwhile. What is there stays: removing what is needed no more is its owner's part. Retained
    messages are not in the snapshot: what the log says of them is added to their second copy first.

    Args:
        disk: the worker's folder.
        worker: its number.
        make_mark: returns 32 bits that nobody outside can know.
        copy: of the retained messages; None: there is none.
        owner: of the node whose data folder it is in; 0: any will do, and the snapshot is of whom the log is.
        now_us: the present, µs since 1970.
        is_left: no worker of this number runs any more.

    Raises SegmentError (of router.log.segments), CopyError if the copy does not go as far as the log begins, OSError.

    Memory: as the worker itself, without connections. Time: as a restart, and to copy the messages that wait.
    """
    gathered = Gathered(copy, worker, copy.covered(worker)) if copy is not None else None
    router = Router(Ledger(), index=gathered, retains=gathered is not None)
    recovery = Recovery(router, lambda _, *fields: fields, 0, 0, worker)
    first_segment, stored, first_number = feed_snapshot(disk, worker, recovery, owner)
    segments = Segments(disk, worker=worker, rules=RULES, owner=owner, first_needed=first_segment)
    if not segments.headers or segments.headers[-1].segment <= max(first_segment, segments.headers[0].segment):
        return None
    newest = segments.headers[-1]
    start = Position(first_segment, RECORDS_AT, first_number) if first_segment else None
    if gathered is not None:
        _gather_earlier(segments, first_segment, gathered, recovery)
    for header, cursor in _sealed(segments, start):
        if gathered is not None:
            gathered.incarnation = header.incarnation
        recovery.feed(cursor)
    if gathered is not None:
        gathered.finish(newest.first_number - 1, None if is_left else newest.created_us, now_us)
    name = snapshot_name(newest.segment)
    unfinished = name + ".new"
    if unfinished in disk.names():
        disk.remove(unfinished)
    header = Header(worker, newest.incarnation, make_mark(), newest.segment, 1, newest.created_us, RULES,
                    owner=owner or newest.owner)  # fmt: skip
    file = disk.create(unfinished)
    try:
        encoded = header.encode()
        disk.write(file, encoded.ljust(HEADER_COPY_AT, b"\0") + encoded, 0)
        writer = _Writer(disk, file, header.mark)
        writer.records.add("snapshot", newest.created_us, newest.first_number, router.ledger.stamp_us)
        _write_sessions(writer, router, recovery, newest.created_us)
        needed = _needed([*router.sessions.values(), *(peer.session for peer in router.peers.values())])
        places = _write_messages(writer, segments, needed, stored, newest)
        end_offset = writer.end
        count = writer.records.last_number
        writer.records.add("snapshot_end", newest.created_us, count, b"".join(PLACE.pack(*place) for place in places))
        writer.flush()
        disk.sync(file)
    except BaseException:
        disk.close(file)
        disk.remove(unfinished)  # it may have taken all the room that there was
        raise
    disk.close(file)
    disk.rename(unfinished, name)
    disk.sync_folder()
    return Snapshot(name, newest.segment, end_offset, len(router.sessions), len(places), writer.offset)


def _gather_earlier(segments: Segments, first_segment: int, gathered: Gathered, recovery: Recovery) -> None:
    """Gather what segments before a snapshot say of retained messages, as far as the copy does not have it."""
    if segments.headers[0].first_number > gathered.applied + 1:
        raise CopyError(
            f"the copy has what the log says up to record {gathered.applied}, and the log begins with"
            f" record {segments.headers[0].first_number}"
        )
    for index, header in enumerate(segments.headers[:-1]):
        if header.segment < first_segment and segments.headers[index + 1].first_number > gathered.applied + 1:
            gathered.incarnation = header.incarnation
            for cursor in segments.segment_cursors(index):
                recovery.feed_retained(cursor)


def _sealed(segments: Segments, start: Position | None) -> Iterator[tuple[Header, Cursor]]:
    """Yield a cursor for each stretch of the log from a place to where the newest segment begins, and its segment."""
    for index, header in enumerate(segments.headers[:-1]):
        if start is None or header.segment >= start.segment:
            place = start if start is not None and header.segment == start.segment else None
            for cursor in segments.segment_cursors(index, place):
                yield header, cursor


def _write_sessions(writer: _Writer, router: Router, recovery: Recovery, now_us: int) -> None:
    add = writer.records.add
    for peer in sorted(router.peers.values(), key=lambda peer: peer.number):
        add("peer", now_us, peer.number, peer.router_identifier, peer.heard)
        if peer.heard_incarnation:
            add("peer_heard", now_us, peer.number, peer.heard_incarnation, peer.heard)
    sessions: list[tuple[bytes, Session]] = sorted(router.sessions.items())
    sessions += [(identifier, peer.session) for identifier, peer in sorted(router.peers.items())]
    # Subscriptions first: a delivery may name a group, which is there once its first member is.
    for client_identifier, session in sessions:
        if client_identifier in router.sessions:
            add("session", now_us, client_identifier, session.expiry_interval_s)
        record_wishes(writer.records, now_us, router, session)
        record_fences(writer.records, now_us, router, session)
        writer.flush(FLUSH_BYTES)
    for client_identifier, session in sessions:
        record_owed(writer.records, now_us, session, session.owed.deliveries() if session.owed is not None else ())
        gone_us = recovery.detached_us.get(client_identifier)
        if gone_us is not None:
            number = session.owed.numbers[0] if session.owed is not None else 0
            add("detached", gone_us, client_identifier, session.expiry_interval_s, number)
        writer.flush(FLUSH_BYTES)


def _needed(sessions: Iterable[Session]) -> list[int]:
    """Return the numbers of the records whose messages may have to be sent, ascending."""
    return sorted({delivery[1] for session in sessions if session.owed is not None
                   for delivery in session.owed.deliveries() if delivery[4] in (QUEUED, SENT)})  # fmt: skip


def _write_messages(
    writer: _Writer, segments: Segments, needed: list[int], stored: Stored | None, newest: Header
) -> list[tuple[int, int]]:
    """Copy the messages of these records; returns (number, offset) of those that were found, ascending."""
    places: list[tuple[int, int]] = []
    wanted: Iterator[int] = iter(needed)
    number = next(wanted, None)
    while stored is not None and number is not None and number <= stored.last_number:
        cursor = stored.cursor(number)
        if cursor is not None:
            places.append((number, writer.end))
            writer.records.add_stored(cursor, 0)
            writer.flush(FLUSH_BYTES)
        number = next(wanted, None)
    if number is None:
        return places
    reader = Segments(segments.disk, worker=newest.worker, rules=RULES, headers=segments.headers)
    first = next((header for header in reversed(segments.headers) if header.first_number <= number), None)
    start = Position(first.segment, RECORDS_AT, first.first_number) if first is not None else None
    for header, cursor in _sealed(reader, start):
        while cursor.step():
            while number is not None and number < cursor.number:
                number = next(wanted, None)  # its bytes are lost
            if number is not None and number == cursor.number:
                places.append((number, writer.end))
                writer.records.add_stored(cursor, header.incarnation)
                writer.flush(FLUSH_BYTES)
    return places
