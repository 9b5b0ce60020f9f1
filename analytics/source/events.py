"""What the log tells beside messages: what became of sessions, and when deliveries were acknowledged.

Both are about sessions that outlive their connection, or have a will: the log knows no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow

from analytics.source.batches import record_batch
from analytics.source.delivery_receipts import Receipts
from analytics.source.log_reader import LogError, Stretch, WorkerLog, clipped
from router.log.disk import Disk
from router.log.reader import RULES_MAX
from router.log.record_kinds import BY_NAME
from router.log.segments import Position, SegmentError, Segments

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS_PER_BATCH: Final = 16_384
KINDS: Final = ("session", "detached", "ended", "subscribe", "unsubscribe", "dropped", "skipped")

_NUMBERS: Final = {BY_NAME[kind].number for kind in KINDS}
_PEER: Final = b"\0"


def events(stretch: Stretch, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Yield the events of a stretch. Raises LogError."""
    rows: list[dict[str, Any]] = []
    header = stretch.header
    for cursor in _cursors(stretch):
        while cursor.step():
            if cursor.kind not in _NUMBERS:
                continue
            fields = cursor.fields()
            client = fields["client_identifier"]
            if client.startswith(_PEER):
                continue  # another worker, whose queue is told of as that of a session
            topic_filter = fields.get("topic_filter")
            rows.append({
                "time": cursor.time_us, "worker": header.worker, "incarnation": header.incarnation,
                "number": cursor.number, "kind": cursor.kind_name(), "client": client.decode("utf-8", "replace"),
                "topic_filter": topic_filter.decode("utf-8", "replace") if topic_filter is not None else None,
                "reason": fields.get("reason"), "expiry_interval_s": fields.get("expiry_interval_s"),
            })  # fmt: skip
            if len(rows) == ROWS_PER_BATCH:
                yield _batch(rows, schema)
                rows = []
    if rows:
        yield _batch(rows, schema)


def _batch(rows: list[dict[str, Any]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    arrays = [pyarrow.array([row[field.name] for row in rows], _plain(field.type)).cast(field.type) for field in schema]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(of_type: pyarrow.DataType) -> pyarrow.DataType:
    return pyarrow.int64() if pyarrow.types.is_timestamp(of_type) else of_type


def deliveries(log: WorkerLog, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Yield the acknowledged deliveries of one log; behind the snapshot, where its beginning is gone.

    Raises LogError.
    """
    end = log.end()
    if end is None:
        return
    receipts = Receipts()
    stretches = log.all_of(end)
    if stretches and stretches[0].number > 1:
        try:
            segment, _ = receipts.snapshot(Disk(log.folder), log.worker)
        except (SegmentError, OSError) as error:
            raise LogError(f"{log.folder}: {error}") from error
        stretches = [stretch for stretch in stretches if stretch.header.segment >= segment]
    for stretch in stretches:
        for cursor in _cursors(stretch):
            while receipts.feed(cursor, ROWS_PER_BATCH):
                yield _receipts_batch(receipts, log.worker, schema)
    if receipts.rows:
        yield _receipts_batch(receipts, log.worker, schema)


def _receipts_batch(receipts: Receipts, worker: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    rows = receipts.rows
    taken = receipts.take()
    without = pyarrow.schema([field for field in schema if field.name != "worker"])
    batch = record_batch(without, taken, rows)
    columns = dict(zip(without.names, batch.columns, strict=True))
    columns["worker"] = pyarrow.repeat(pyarrow.scalar(worker, pyarrow.int64()), rows)
    return pyarrow.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _cursors(stretch: Stretch) -> Iterator[Any]:
    try:
        segments = Segments(
            clipped(stretch), worker=stretch.header.worker, rules=RULES_MAX, headers=stretch.headers
        )  # fmt: skip
        yield from segments.segment_cursors(0, Position(stretch.header.segment, stretch.position, stretch.number))
    except OSError as error:
        name = f"{stretch.folder}/{stretch.header.name}"
        raise LogError(f"{name} cannot be read: {error.strerror} (at byte {stretch.position})") from error
