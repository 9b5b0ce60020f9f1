"""A lake that is written without Spark: the log's messages as Arrow makes them, straight into files.

A batch is the messages between two positions of the logs. It counts when the state of the lake names its files and the
position behind it, which is one small file; so a kill at any moment neither loses nor repeats a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from analytics.lake import manifest as states
from analytics.lake.arrow_reading import local_files, within
from analytics.lake.compaction import compact
from analytics.lake.files_by_day import day_of, file_uris
from analytics.lake.id_set import IdSet
from analytics.lake.inference import extended, inferred
from analytics.lake.manifest import CHECKPOINT, STAGING
from analytics.lake.parquet_files import READ_ROWS, DayFiles, by_day
from analytics.lake.payload_decoders import (
    INFERENCE_EVERY,
    INFERENCE_ROWS,
    KEPT,
    MESSAGES,
    QUARANTINE,
    Payload,
    chosen,
    decoder,
    result_type,
)
from analytics.lake.writer import LakeWriter, Plan, Position
from analytics.source import columns
from analytics.source.column_types import fields_of, struct_of
from analytics.source.columns import ID
from analytics.source.log_batches import advanced, batches, between, open_logs, place_in
from analytics.source.log_reader import Place, node_of
from analytics.source.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from analytics.lake.file_store import Files
    from analytics.source.log_reader import End, WorkerLog

DECODED_ROWS: Final = 8_192  # that are Python objects at once
_BAD: Final = pa.schema([*columns.MESSAGES, ("reason", pa.string()), ("table", pa.string())])


@dataclass(slots=True)
class Decoding:
    """A decoder at work on a batch.

    Args:
        decode: makes result_type() of topics and payloads.
        good: the files of its table; None where its data has no field yet.
        bad: those of the quarantine.
        decoded, quarantined: rows so far.
    """

    payload: Payload
    decode: Any
    good: DayFiles | None
    bad: DayFiles
    decoded: int = 0
    quarantined: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Decode those messages of a batch that are for it."""
        wanted = chosen(batch.column("topic"), self.payload.topic_filter)
        rows = batch.filter(wanted)
        for start in range(0, len(rows), DECODED_ROWS):
            self._add(rows.slice(start, DECODED_ROWS))

    def _add(self, rows: pa.RecordBatch) -> None:
        made = self.decode(rows.column("topic"), rows.column("payload"))
        reasons = made.field("reason")
        is_good = reasons.is_null()
        all_good = reasons.null_count == len(rows)
        if self.good is not None:
            kept = [name for name in KEPT if name != "date"]
            names = [each.name for each in made.type if each.name != "reason"]
            table = pa.RecordBatch.from_arrays(
                [*(rows.column(name) for name in kept), *(made.field(name) for name in names)], names=[*kept, *names]
            )
            table = table if all_good else table.filter(is_good)
            self.good.add(table)
            self.decoded += len(table)
        if not all_good:
            named = pa.repeat(pa.scalar(self.payload.table), len(rows))
            bad = rows.select(columns.MESSAGES.names).append_column("reason", reasons).append_column("table", named)
            bad = bad.filter(pc.invert(is_good))
            self.bad.add(bad)
            self.quarantined += len(bad)


class ArrowLake(LakeWriter):
    """A lake in a folder of this machine, written by this process.

    Args:
        plan: what is written, and where to.
        damaged: files may be missing.

    Raises LakeError, LogError, here and when a batch is written.
    """

    def __init__(self, plan: Plan, *, damaged: bool = False, files: Files | None = None) -> None:
        self.options = parse_options({"path": plan.data_dir or ".", **plan.options})
        self._ends: Mapping[int, End | None] | None = None
        super().__init__(files if files is not None else local_files(plan.path), plan, damaged=damaged)
        # Spark's, of another time than the lake will be.
        self.files.remove(CHECKPOINT)

    def end_here(self) -> None:
        """Write no message that comes from now on."""
        self._ends = {worker: log.end() for worker, log in open_logs(self.options).items()}

    def write(self) -> int:
        """Put the next batch into the lake; return how many messages it has: 0 if there are none."""
        self.finish()
        logs = open_logs(self.options)
        end, count = advanced(logs, self.state.position, self.plan.messages_max, self._ends)
        if count:
            self.put(self._messages(logs, end), end)
        elif _segments(end) != _segments(self.state.position):
            # Records that are no messages; the broker may remove what has been passed.
            self.state.position = end
            states.commit(self.files, self.state)
        return count

    def put(self, messages: Iterable[pa.RecordBatch], end: Position) -> None:
        """Put all messages between the position of the lake and another one into the lake."""
        self._begin()
        found = self._found_out(end)
        tables = {MESSAGES: self._day_files(MESSAGES, columns.MESSAGES)}
        decoding = [self._decoding(payload, found) for payload in self.plan.payloads]
        for batch in messages:
            tables[MESSAGES].add(batch)
            for each in decoding:
                each.add(batch)
        self._close_files([tables[MESSAGES]], decoding)
        self._publish(end)
        if self.plan.compact:
            self._merge_small_files()

    def decode(self, payload: Payload, day: str, since_us: int, until_us: int) -> tuple[int, int]:
        """Decode messages of a day of the lake that are not in the decoder's table; returns how many are now, and not.

        Those of them that are in the quarantine leave it, or are in it with the reason of today.
        Memory: eight bytes for each row that the table has of the day.
        """
        self._begin()
        condition = within(since_us, until_us)
        known = IdSet()
        if payload.table in self.state.tables:
            for batch in self._rows(payload.table, day, condition, ID):
                known.add(batch)

        def messages() -> Iterator[pa.RecordBatch]:
            for batch in self._rows(MESSAGES, day, condition):
                yield known.without(batch)

        found = self.found_in([payload], messages()) if payload.finds_out else {}
        decoding = self._decoding(payload, found)
        for batch in messages():
            decoding.add(batch)
        self._close_files([], [decoding])
        mine = pc.field("table") == payload.table
        before = QUARANTINE in self.state.tables and any(
            len(batch) for batch in self._rows(QUARANTINE, day, mine if condition is None else mine & condition, ID)
        )
        old = self._leave_quarantine(payload.table, day, since_us, until_us) if before else []
        if decoding.decoded or decoding.quarantined or before:
            self._publish(self.state.position)
            for name in old:
                self.files.remove(name)
        self.files.remove(STAGING)
        return decoding.decoded, decoding.quarantined

    def _leave_quarantine(self, table: str, day: str, since_us: int, until_us: int) -> list[str]:
        """Take the messages of a decoder's that are being decoded again out; return the files that go with them."""
        condition = within(since_us, until_us)
        leaving = pc.field("table") == table
        leaving = leaving if condition is None else leaving & condition
        kept = self._day_files(QUARANTINE, _BAD, "_kept")
        for batch in self._rows(QUARANTINE, day, ~leaving):
            kept.add(batch)
        kept.close()
        files = self.state.tables[QUARANTINE].files
        old = [name for name in files if name.split("/")[1] == f"date={day}"]
        for name in old:
            del files[name]
        return old

    def restore(self) -> int:
        """Write messages of the log that the lake should have and has not; return how many.

        Memory: eight bytes for each message of the days that the log has.
        """
        self._begin()
        options = replace(self.options, fail_on_loss=False)
        logs, node = open_logs(options), node_of(options.path)

        def messages(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
            for worker, log in logs.items():
                stretches = log.stretches(Place(), place_in(self.state.position, worker))
                yield from batches(stretches, options, schema, worker, node)

        days = {day for batch in messages(pa.schema([columns.MESSAGES.field("time")])) for day, _ in by_day(batch)}
        known = IdSet()
        for day in sorted(days) if MESSAGES in self.state.tables else ():
            for batch in self._rows(MESSAGES, day, None, ID):
                known.add(batch)
        lost = self._day_files(MESSAGES, columns.MESSAGES)
        for batch in messages(columns.MESSAGES):
            for day, rows in by_day(known.without(batch)):
                if day >= self.state.since:
                    lost.add(rows)
        lost.close()
        if lost.rows:
            self._publish(self.state.position)
        self.files.remove(STAGING)
        return lost.rows

    def _rows(
        self, table: str, day: str, condition: pc.Expression | None, names: Iterable[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of a day that the lake has.

        Args:
            names: of the columns; None: all of them.
        """
        known = self._known(table)
        assert known is not None, table
        paths = [uri.removeprefix("file:") for uri in file_uris(self.files, self.state, table) if day_of(uri) == day]
        found = ds.FileSystemDataset.from_paths(
            paths, schema=pa.schema(fields_of(known)), format=ds.ParquetFileFormat(),
            filesystem=pyarrow.fs.LocalFileSystem(), partitions=[pc.scalar(True)] * len(paths),
        )  # fmt: skip
        chosen_names = None if names is None else list(names)
        yield from found.scanner(
            columns=chosen_names, filter=condition, batch_size=READ_ROWS, batch_readahead=1, fragment_readahead=1
        ).to_batches()

    def _begin(self) -> None:
        self.files.remove(STAGING)

    def _close_files(self, tables: Iterable[DayFiles], decoding: Iterable[Decoding]) -> None:
        for files in tables:
            files.close()
        for each in decoding:
            if each.good is not None:
                each.good.close()
            each.bad.close()

    def _decoding(self, payload: Payload, found: Mapping[str, pa.StructType]) -> Decoding:
        data = self._data_type(payload, found.get(payload.table, pa.struct([])))
        good = None
        if not pa.types.is_struct(data) or data.num_fields:
            kept = [columns.MESSAGES.field(name) for name in KEPT if name != "date"]
            made = [each for each in fields_of(result_type(data)) if each.name != "reason"]
            good = self._day_files(payload.table, pa.schema([*kept, *made]))
        return Decoding(payload, decoder(payload, data), good, self._day_files(QUARANTINE, _BAD, payload.table))

    def _day_files(self, table: str, rows: pa.Schema, part: str = "0") -> DayFiles:
        schema = pa.schema(fields_of(self._extend(table, struct_of(rows))))
        return DayFiles(self.files.path(f"{STAGING}/{table}/{part}"), schema, self.plan.file_bytes)

    def _messages(self, logs: Mapping[int, WorkerLog], end: Position) -> Iterator[pa.RecordBatch]:
        node = node_of(self.options.path)
        for worker, stretches in between(logs, self.state.position, end, self.options.path):
            yield from batches(stretches, self.options, columns.MESSAGES, worker, node)

    # Schemas that are found out -------------------------------------------------------------------------------------

    def _found_out(self, end: Position) -> dict[str, pa.StructType]:
        """Return what fields the messages of a batch have, by the table of the decoder that has no schema."""
        wanted = [each for each in self.plan.payloads if each.finds_out]
        if not wanted:
            return {}
        return self.found_in(wanted, self._messages(open_logs(self.options), end))

    def found_in(self, wanted: Iterable[Payload], messages: Iterable[pa.RecordBatch]) -> dict[str, pa.StructType]:
        """Return what fields messages have, by table. Looks at the first of each 10,000."""
        found = {each.table: pa.struct([]) for each in wanted}
        for batch in messages:
            for each in wanted:
                rows = batch.filter(chosen(batch.column("topic"), each.topic_filter)).column("payload")
                for start in range(0, len(rows), INFERENCE_EVERY):
                    some = rows.slice(start, INFERENCE_ROWS).to_pylist()
                    found[each.table] = extended(found[each.table], inferred(some, self.not_in_names))
        return found

    def _merge_small_files(self) -> None:
        compact(self.files, self.state, self.plan.file_bytes)


def _segments(position: Position) -> dict[str, int]:
    return {worker: place["segment"] for worker, place in position.items()}
