"""Commit logs on a simulated disk: written, read back, and written on."""

from __future__ import annotations

from random import Random
from typing import Any

from router.core.message import message
from router.log.disk import Storage
from router.log.log_writer import Log
from router.log.record_buffer import RecordBuffer
from router.log.record_kinds import Record
from router.log.segments import Segments


def read_log(disk: Storage, **options: Any) -> tuple[Segments, list[Record]]:
    """Return the segments and every record that can be read of worker 0's log; nothing is repaired."""
    segments = Segments(disk, **{"worker": 0, "rules": 1, **options})
    return segments, [record for cursor in segments.cursors() for record in cursor]


def open_log(disk: Storage, incarnation: int = 1, seed: int = 0, **options: Any) -> tuple[Log, list[Record]]:
    """Read, repair and go on writing, without a thread: log.commit() is a step of it."""
    reading = {name: options.pop(name) for name in ("accept_loss", "first_needed", "owner", "rules") if name in options}
    segments, records = read_log(disk, **reading)
    segments.repair()
    make_mark = Random(seed * 1000 + incarnation).getrandbits
    return Log(segments, incarnation=incarnation, make_mark=lambda: make_mark(32), **options), records


def turn(log: Log, number: int, size: int = 40, time_us: int = 0) -> RecordBuffer:
    """Return a buffer with `number` messages, each of which says which one it is, that come next in a log."""
    buffer = RecordBuffer(log.appended)
    for _ in range(number):
        following = log.appended + buffer.count + 1
        text = b"%d " % following
        buffer.add_accepted(time_us or following, following, message(b"t", text.ljust(size, b"."), 1), b"c", 1)
    return buffer


def whole(records: list[Record]) -> list[int]:
    """Return the numbers of records that turn() made, each of which must say so itself."""
    for record in records:
        assert record.kind == "accepted", record
        assert record.fields["n"] == record.number == int(record.fields["payload"].split()[0]), record
    return [record.number for record in records]
