"""Opening a worker's commit log: what it holds goes to a router, and from there on the log grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from router.log.last_run import LOST, LastRun, read_last_run, write_last_run
from router.log.log_writer import Log
from router.log.message_fetch import Stored
from router.log.record_buffer import RecordBuffer
from router.log.record_cursor import Cursor
from router.log.record_kinds import FORMAT_VERSION, RecordError
from router.log.segments import (
    END,
    FOREIGN,
    HEADER,
    OWNER_AT,
    RECORDS_AT,
    SHORT,
    WINDOW_BYTES,
    Damage,
    ForeignFileError,
    Header,
    MissingSegmentError,
    NewerVersionError,
    Position,
    SegmentError,
    Segments,
    read_header,
    segment_name,
    snapshot_name,
    snapshot_of,
)
from router.recovery.apply import Recovery

if TYPE_CHECKING:
    from router.log.disk import Storage
    from router.retained.lmdb_index import RetainedIndex
    from router.router import Router

RULES: Final = 1  # what the router makes of its records; raised when it makes something else of the same ones
DEADLINES_PER_SLICE: Final = 5000  # started between two turns: about 1 ms
DAMAGED_SNAPSHOT: Final = "is damaged: it has bytes that are no record, or no end"


@dataclass(slots=True)
class Opened:
    """A log that has been read, and what came of it.

    Attributes:
        log: not started yet.
        records: that were fed to the router, those of a snapshot included.
        damages: what should have been there and was not; each is one sentence.
        problems: records that did not fit the ones before them, the first hundred; each is one sentence.
        problem_count: of those, all.
        lost_connections: client identifiers of sessions whose connection the log knows no end of.
        forgetful: the last run did not sync, or the log comes from a backup: clients may know more than it.
        detached_us: client identifier -> when its connection ended, of those whose end the log knows.
    """

    log: Log
    records: int
    damages: list[Damage]
    problems: list[str]
    problem_count: int
    lost_connections: list[bytes]
    forgetful: bool
    detached_us: dict[bytes, int]


def feed_snapshot(disk: Storage, worker: int, recovery: Recovery, owner: int = 0) -> tuple[int, Stored | None, int]:
    """Feed the newest snapshot, if there is one; of any node, if owner is 0.

    Returns the first segment to be read behind it (0: there is no snapshot), its messages, and the number of the first
    record that it does not have.

    Raises ForeignFileError, NewerVersionError, OSError. Memory: one window, or one record if it is larger.
    """
    segments = [segment for name in disk.names() if (segment := snapshot_of(name)) is not None]
    if not segments:
        return 0, None, 0
    newest = max(segments)
    name = snapshot_name(newest)
    file = disk.open(name)
    try:
        header = Header.decode(disk.read(file, 0, HEADER.size))
        _check_snapshot(name, header, worker, newest, owner)
        assert header is not None
        offset, number, window, size = RECORDS_AT, 0, WINDOW_BYTES, disk.size(file)
        while offset < size:
            data, checked = disk.read_records(file, offset, window, header.mark)
            cursor = Cursor(data, offset, header.mark, number, checked=checked)
            recovery.feed(cursor)
            offset, number = offset + cursor.offset, cursor.number
            if cursor.status not in (END, SHORT) or (cursor.offset == 0 and offset + window >= size):
                break
            window = max(WINDOW_BYTES, cursor.needed()) if cursor.offset == 0 else WINDOW_BYTES
    finally:
        disk.close(file)
    if offset < size or not recovery.ended:
        raise ForeignFileError(name, offset, DAMAGED_SNAPSHOT)
    return newest, Stored(disk, header, name, recovery.places), recovery.first_number


def _check_snapshot(name: str, header: Header | None, worker: int, segment: int, owner: int) -> None:
    """Raise SegmentError unless a snapshot's header is what its name says."""
    if header is None or header.worker != worker or header.segment != segment:
        raise ForeignFileError(name, 0, f"is not a snapshot of worker {worker}")
    if header.version > FORMAT_VERSION:
        raise NewerVersionError(
            name, 8, f"has format version {header.version}; this version of Shoal reads up to {FORMAT_VERSION}"
        )
    if header.rules > RULES:
        raise NewerVersionError(
            name, 10, f"was made under rules version {header.rules}; this version of Shoal knows {RULES}"
        )
    if header.is_foreign(owner):
        raise ForeignFileError(name, OWNER_AT, FOREIGN)


def _check_index(index: RetainedIndex) -> None:
    """Nothing of the log is there: the index must not have been written of one."""
    if index.applied:
        raise MissingSegmentError(
            segment_name(1), 0, f"is missing: retained messages are from a log with {index.applied} records"
        )


def _check_fit(segments: Segments, first_segment: int, first_number: int) -> None:
    """Raise ForeignFileError where a snapshot does not end where the segment begins that is to follow it."""
    for header in segments.headers if first_segment else ():
        if header.segment == first_segment and header.first_number != first_number:
            raise ForeignFileError(
                snapshot_name(first_segment), 0, f"ends before record {first_number}, and {header.name} begins with"
                f" record {header.first_number}: they are not of one log")  # fmt: skip


def put_aside_snapshots(disk: Storage, worker: int, owner: int = 0) -> None:
    """Rename the newest snapshots that cannot be used, whose loss is accepted. Raises OSError."""
    found = [segment for name in disk.names() if (segment := snapshot_of(name)) is not None]
    for segment in sorted(found, reverse=True):
        name = snapshot_name(segment)
        file = disk.open(name)
        try:
            header = Header.decode(disk.read(file, 0, HEADER.size))
            try:
                _check_snapshot(name, header, worker, segment, owner)
                assert header is not None
                data = disk.read(file, RECORDS_AT, disk.size(file))
                cursor = Cursor(data, RECORDS_AT, header.mark, 0)
                kind, first_number = "", 0
                while cursor.step():
                    kind = cursor.kind_name()
                    if kind == "snapshot":
                        first_number = cursor.fields()["first_number"]
                following = read_header(disk, segment_name(segment)) if segment_name(segment) in disk.names() else None
                if (
                    cursor.status == END
                    and kind == "snapshot_end"
                    and (following is None or following.first_number == first_number)
                ):
                    return
            except (SegmentError, RecordError):
                pass
        finally:
            disk.close(file)
        disk.rename(name, f"{name}.foreign")
        disk.sync_folder()


def _feed_segments(
    segments: Segments, start: Position | None, recovery: Recovery, index: Any, progress: Callable[[int], None]
) -> None:
    """Feed what a log's segments hold, from a position on; None: all of it."""
    for position, header in enumerate(segments.headers):
        if index is not None:
            index.incarnation = header.incarnation
        if start is not None and header.segment < start.segment:
            # In the snapshot, but for retained messages.
            if (
                index is not None
                and segments.headers[position + 1 :]
                and (segments.headers[position + 1].first_number > index.applied + 1)
            ):
                for cursor in segments.segment_cursors(position):
                    recovery.feed_retained(cursor)
            continue
        begins = start if start is not None and header.segment == start.segment else None
        for cursor in segments.segment_cursors(position, begins):
            recovery.feed(cursor)
            progress(recovery.fed)


def open_log(
    disk: Storage,
    router: Router,
    *,
    worker: int,
    owner: int = 0,
    make_will: Callable[..., Any],
    make_mark: Callable[[], int],
    now_us: int,
    now_ms: int,
    accept_loss: bool = False,
    progress: Callable[[int], None] = lambda records: None,
    **options: Any,
) -> Opened:
    """Feed a router with everything that a worker's log holds, and return the log for what comes.

    The router is empty, and records nothing until its pump has got the log. Sessions have no connection then, and no
    deadline: begin() and start_deadlines() are for that, and who only reads a log calls neither. The router's index of
    retained messages, if it has one, is brought up to what the log says.

    Args:
        disk: the worker's folder.
        worker: its number.
        owner: of the node whose data folder it is in; 0: nobody knows.
        make_will: makes a session's will of the fields of its record.
        make_mark: returns 32 bits that nobody outside can know.
        now_us, now_ms: the same moment, since 1970 and monotonic.
        accept_loss: go on without what is missing, foreign or newer.
        progress: called now and then with the number of records so far.
        options: of router.log.log_writer.Log.

    Raises SegmentError (of router.log.segments) if the log cannot be used as it is, OSError.

    Cost: some 1.5 s per GB on a machine of 2024, beside reading it.
    """
    router.ledger.now_us, router.ledger.now_ms = now_us, now_ms
    remove_unfinished(disk)
    recovery = Recovery(router, make_will, now_us, now_ms, worker)
    last_run = read_last_run(disk, accept_loss=accept_loss)
    if accept_loss:
        put_aside_snapshots(disk, worker, owner)
    first_segment, stored, first_number = feed_snapshot(disk, worker, recovery, owner)
    segments = Segments(
        disk, worker=worker, rules=RULES, owner=owner, first_needed=first_segment, begins=last_run.begins or 1,
        newest=last_run.newest, strict=last_run.begins > 0, synced=last_run.synced,
        accept_loss=accept_loss)  # fmt: skip
    _check_fit(segments, first_segment, first_number)
    if first_segment and not segments.headers:
        segments.last_number = first_number - 1  # those before are in the snapshot, though all others are lost
    index = router.retaining.index
    if index is not None and last_run.synced and not (segments.headers or first_segment or accept_loss):
        _check_index(index)
    start = Position(first_segment, RECORDS_AT, first_number) if first_segment else None
    _feed_segments(segments, start, recovery, index, progress)
    lost_connections = recovery.finish()
    # Before anything is written: on a full disk it is room.
    remove_snapshots(disk, first_segment)
    segments.repair()
    incarnation = 1 + max([
        last_run.incarnation, index.applied_incarnation if index is not None else 0,
        *(header.incarnation for header in segments.headers)])  # fmt: skip
    run = LastRun(
        incarnation, options.get("durability", "fsync"), segments.begins,
        segments.headers[-1].segment if segments.headers else 0)  # fmt: skip
    write_last_run(disk, run)
    durability_before = LOST if segments.lost_newest else last_run.durability
    log = Log(
        segments, incarnation=incarnation, make_mark=make_mark,
        note_newest=lambda segment: write_last_run(disk, replace(run, newest=segment)), **options)  # fmt: skip
    log.bodies.stored = stored
    log.snapshot = first_segment
    router.ledger.incarnation = incarnation
    if index is not None:
        index.incarnation = incarnation
        index.rewind(log.appended)
    return Opened(
        log, recovery.fed, segments.damages, recovery.problems, recovery.problem_count, lost_connections,
        durability_before != "fsync", recovery.detached_us,
    )  # fmt: skip


def remove_snapshots(disk: Storage, before: int) -> None:
    """Remove snapshots older than this one, and what a compaction that was interrupted has left. Raises OSError."""
    remove_unfinished(disk)
    for name in disk.names():
        segment = snapshot_of(name)
        if segment is not None and segment < before:
            disk.remove(name)


def remove_unfinished(disk: Storage) -> None:
    """Remove snapshots that a compaction began, while none is under way. Raises OSError."""
    for name in disk.names():
        if name.endswith(".new") and snapshot_of(name.removesuffix(".new")) is not None:
            disk.remove(name)


def begin(router: Router, opened: Opened) -> None:
    """Tell the log, which the router records into now, of the connections that were lost, once and for all."""
    records: RecordBuffer = router.ledger.records
    for client_identifier in opened.lost_connections:
        session = router.sessions[client_identifier]
        next_number = session.owed.numbers[0] if session.owed is not None else 0
        records.add("detached", router.ledger.now_us, client_identifier, session.expiry_interval_s, next_number)
    for client_identifier, session in router.sessions.items() if opened.forgetful else ():
        # What comes is not to be taken for a repeat of what the log has lost, in neither direction.
        if session.durable:
            records.add("shifted", router.ledger.now_us, client_identifier, *session.doubt_identifiers())


def start_deadlines(router: Router, opened: Opened) -> None:
    """deadlines_in_slices() at once."""
    for _ in deadlines_in_slices(router, opened):
        pass


def deadlines_in_slices(router: Router, opened: Opened) -> Iterator[None]:
    """Let sessions end in their time, and wills be published; what has fallen due by now is the router's expire()'s.

    To be done once, when whoever may want these wills is known: a will goes to those that the router knows of. Between
    two slices the router may do anything but let a client in.
    """
    # Some end meanwhile, since they are due.
    for index, client_identifier in enumerate(list(router.sessions)):
        if index and index % DEADLINES_PER_SLICE == 0:
            yield
        session = router.sessions.get(client_identifier)
        if session is not None:
            now_us = router.ledger.now_us
            gone_us = opened.detached_us.get(client_identifier, now_us)
            router.start_deadlines(session, max(0, (now_us - gone_us) // 1000))
    opened.detached_us.clear()
