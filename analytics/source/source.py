"""The source "shoal" of Spark: the messages of a data folder, as a table and as a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from analytics.source.log_batches import WITHOUT_LIMIT, Position, advanced, batches, between, open_logs, place_in
from analytics.source.log_reader import End, Stretch, WorkerLog, node_of, worker_folders
from analytics.source.options import Options, parse_options, plain
from analytics.source.schema import DELIVERIES, EVENTS, MESSAGES, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableMapping, Sequence

    import pyarrow

PARTITION_BYTES_MAX = 67_108_864
OPTIONS = "shoal"  # in the metadata of a column

Offset = Position


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """What one task reads: stretches of one worker's log.

    Args:
        stretches: in their order.
        node: name of the node, or None.
    """

    stretches: tuple[Stretch, ...]
    node: str | None


class ShoalSource(DataSource):
    """`spark.read.format("shoal")` and `spark.readStream.format("shoal")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return what it is called in format()."""
        return "shoal"

    def schema(self) -> StructType:
        """Return the columns that a reader has unless some of them are asked for, with schema()."""
        table = _table(self._options())
        if "provider" not in self.given:
            return table
        # Of a table in a catalog, Spark tells its options here and never again: they go with the first column.
        first, *others = table.fields
        with_options = StructField(first.name, first.dataType, first.nullable, {OPTIONS: plain(self.given)})
        return StructType([with_options, *others])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table. Raises ValueError, LogError."""
        if not self.given:
            self.given = next((field.metadata[OPTIONS] for field in schema if OPTIONS in field.metadata), {})
            if not self.given:
                raise ValueError(
                    "name one of the two: a data folder, with load(FOLDER), or a broker, with the option url. (Of a"
                    " table in a catalog whose columns were named, Spark tells no options: do not name them, as in"
                    " CREATE TABLE NAME USING shoal OPTIONS (path 'FOLDER'))"
                )
        options = self._options()
        if options.url:
            from analytics.source.network_reader import NETWORK, NetworkReader

            return NetworkReader(options, checked(schema, NETWORK))
        return LogReader(options, checked(schema, _table(options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return what reads a stream. Raises ValueError."""
        options = self._options()
        if options.url:
            from analytics.source.network_reader import NETWORK, NetworkStreamReader

            return NetworkStreamReader(options, checked(schema, NETWORK))
        if options.table != "messages":
            raise ValueError(f"the table {options.table} is no stream")
        return LogStreamReader(options, checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what publishes a table. Raises ValueError."""
        from analytics.source.sink import Sink, parse_target

        return Sink(parse_target(self.given, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  (Spark's name)
        """Return what publishes a stream. Raises ValueError."""
        from analytics.source.sink import StreamSink, parse_target

        return StreamSink(parse_target(self.given, schema))

    def _options(self) -> Options:
        return parse_options(self.given)


def _table(options: Options) -> StructType:
    if options.url:
        from analytics.source.network_reader import NETWORK

        return NETWORK
    return {"messages": MESSAGES, "events": EVENTS, "deliveries": DELIVERIES}[options.table]


class _Rows:
    """What readers of both kinds do in a task."""

    def __init__(self, options: Options, columns: StructType) -> None:
        self.options = options
        self.columns = columns
        worker_folders(options.path)  # so that a wrong folder is told at once

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages of a part as Arrow batches. Raises LogError, which names the segment and the byte."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(partition, Part) or not partition.stretches:
            return
        options = self.options
        schema = to_arrow_schema(self.columns, timezone="UTC")
        if options.table != "messages":
            yield from self._read_other(partition, schema)
            return
        yield from batches(partition.stretches, options, schema, partition.stretches[0].header.worker, partition.node)

    def _read_other(self, part: Part, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        from analytics.source.events import deliveries, events

        first = part.stretches[0]
        if self.options.table == "deliveries":
            yield from deliveries(WorkerLog(first.folder, first.header.worker), schema)
            return
        for stretch in part.stretches:
            yield from events(stretch, schema)


class LogReader(_Rows, DataSourceReader):
    """A table of what is in the logs when its first query is planned.

    It takes no conditions of queries (pushFilters): Spark 4.2 and 4.3 keep what a source in Python was told for one
    query for all later ones on the same DataFrame, view or table, which then miss rows. Options are the frame's own.

    Args:
        options: of the source.
        columns: which are wanted.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Return parts of one worker each, of the segments that may have what is wanted."""
        options = self.options
        node = node_of(options.path)
        parts: list[InputPartition] = []
        for worker, log in open_logs(options).items():
            end = log.end()
            behind = place_in(options.behind, worker)
            if options.upto is not None:
                parts += _parts(log.stretches(behind, place_in(options.upto, worker)), node)
            elif end is not None:
                stretches = log.all_of(end, options.since_us, options.until_us, behind)
                if options.table == "deliveries":
                    stretches = stretches[:1]  # one task reads a log to its end
                parts += _parts(stretches, node)
        return parts or [Part((), node)]


class LogStreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of what is in the logs and comes to them.

    An offset is {worker: {incarnation, number, segment, position}}: how far each log has been read.

    Args:
        options: of the source.
        columns: which are wanted.
    """

    def __init__(self, options: Options, columns: StructType) -> None:
        super().__init__(options, columns)
        self._ends: dict[int, End | None] | None = None  # where a stream of what is there now ends

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Return where a stream that is new begins."""
        if self.options.behind or not self.options.latest:
            return self.options.behind
        return self._advance({}, WITHOUT_LIMIT)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return how many messages a micro-batch may have."""
        return ReadMaxRows(self.options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Remember where the logs end now: the stream ends there."""
        self._ends = {worker: log.end() for worker, log in open_logs(self.options).items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  (Spark's name)
        """Return where the next micro-batch ends."""
        if isinstance(limit, ReadAllAvailable):
            return self._advance(start, WITHOUT_LIMIT)
        return self._advance(start, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.messages_max)

    def _advance(self, start: Offset, most: int) -> Offset:
        return advanced(open_logs(self.options), start, most, self._ends)[0]

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return parts of one worker each."""
        node = node_of(self.options.path)
        parts: list[InputPartition] = []
        for _, stretches in between(open_logs(self.options), start, end, self.options.path):
            parts += _parts(stretches, node)
        return parts


def _parts(stretches: Iterable[Stretch], node: str | None) -> Iterator[Part]:
    """Yield parts of a worker's stretches: as many as have some 64 MiB, or one."""
    gathered: list[Stretch] = []
    for stretch in stretches:
        # A task costs Spark some 50 ms, as much as 2 MiB of the log.
        if gathered and sum(each.size for each in gathered) + stretch.size > PARTITION_BYTES_MAX:
            yield Part(tuple(gathered), node)
            gathered = []
        gathered.append(stretch)
    if gathered:
        yield Part(tuple(gathered), node)
