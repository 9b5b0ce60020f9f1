"""The lake: the messages of the logs as Parquet files by day, each of them once, whatever is killed meanwhile.

A Structured Streaming job gives micro-batches, the same ones again after a crash. What a batch writes counts when the
state of the lake (analytics.lake.manifest) names it, which happens at once for all its files; a batch that is in the
state already is passed over.
"""

from __future__ import annotations

import json
import threading
import uuid
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from analytics.lake import manifest as states
from analytics.lake.compaction import compact
from analytics.lake.file_stores import open_files
from analytics.lake.inference import extended, grown
from analytics.lake.lock import WriterLock
from analytics.lake.manifest import PARQUET, STAGING, LakeError, Table
from analytics.lake.payload_decoders import KEPT, MESSAGES, QUARANTINE, Payload, decoded, decoder, found_out
from analytics.lake.reading import frame_of, read_all, read_lake, within
from analytics.source.schema import ID, nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType

CHECKPOINT: Final = "_shoal/checkpoint"
ARROW_BYTES: Final = 16_777_216  # that Spark gives a Python process at once, so that large payloads do not add up
ROWS_PER_FILE_MAX: Final = 2_000_000

__all__ = ["Lake", "Plan", "read_all", "read_lake"]

Position = dict[str, dict[str, int]]
# The lakes that this process writes to, by their folder.
_WRITING: Final[weakref.WeakValueDictionary[str, Lake]] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a lake is made of, and how.

    Args:
        data_dir: the broker's data folder.
        path: of the lake, anything that Spark can write to.
        payloads: decoders.
        messages_max: in a micro-batch.
        compact: merge small files.
        file_bytes: how large a merged file may get, about.
        options: of the source, beside the folder.
    """

    data_dir: str
    path: str
    payloads: tuple[Payload, ...] = ()
    messages_max: int = 1_000_000
    compact: bool = True
    file_bytes: int = 134_217_728
    options: dict[str, str] = field(default_factory=dict)


class Lake:
    """A lake that is written to. One at a time may write, until its query ends, close(), or its process ends.

    Args:
        damaged: files may be missing.

    Raises LakeError, here and when a batch is written.
    """

    layout = PARQUET
    not_in_names = ""  # characters that the name of a column cannot have

    def __init__(self, spark: SparkSession, plan: Plan, *, damaged: bool = False) -> None:
        self.spark = spark
        self.plan = plan
        self.files = open_files(spark, plan.path)
        self.query: StreamingQuery | None = None
        before = _WRITING.get(self.files.root)
        if before is not None and before.query is not None and not before.query.isActive:
            before.close()
        self._lock = WriterLock(self.files)
        try:
            self._open(damaged)
        except BaseException:
            self.close()
            raise
        _WRITING[self.files.root] = self

    def _open(self, damaged: bool) -> None:
        self.state = states.load(self.files)
        if self.state.layout and self.state.layout != self.layout:
            has, no = ("Parquet files", "Delta tables") if self.state.layout == PARQUET else ("Delta tables", "files")
            raise LakeError(f"the lake {self.files.root} has {has}, and is no lake of {no}: see --format")
        self.state.layout = self.layout
        if not self.files.has_locks:
            # Whoever was writing fails at the next commit, and until then what it wrote may be removed.
            states.commit(self.files, self.state)
        self.missing = states.tidy(self.files, self.state)
        if self.missing and not damaged:
            raise LakeError(
                f"of the lake {self.files.root} {len(self.missing)} file{'s' * (len(self.missing) > 1)}, as"
                f" {self.missing[0]}, is missing: `shoal lake repair` brings back what the log still has of it"
            )
        for payload in self.plan.payloads:
            schema = self._schema_of(payload, StructType([]))  # what does not fit the table is told now
            if isinstance(schema, StructType):
                decoder(payload, schema, schema)

    def close(self) -> None:
        """Let another job write. Its query must be over."""
        self._lock.close()

    def start(self, *, every_s: float | None = None) -> StreamingQuery:
        """Begin to write; with every_s None it ends when all that is there now is in the lake.

        Args:
            every_s: the trigger interval.
        """
        reader = self.spark.readStream.format("shoal").option("maxMessagesPerTrigger", str(self.plan.messages_max))
        # For a checkpoint that is new: the lake itself knows how far it goes.
        reader = reader.option("behind", json.dumps(self.state.position))
        writer = (
            reader.options(**self.plan.options).load(self.plan.data_dir).writeStream.queryName("shoal lake")
            .option("checkpointLocation", self.files.uri(CHECKPOINT)).foreachBatch(self.write)
        )  # fmt: skip
        writer = writer.trigger(availableNow=True) if every_s is None else writer.trigger(
            processingTime=f"{every_s} seconds")  # fmt: skip
        self.query = writer.start()
        threading.Thread(target=self._close_behind, args=(self.query,), daemon=True).start()
        return self.query

    def _close_behind(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception:
            pass  # that is for whoever waits for it, too
        self.close()

    def write(self, batch: DataFrame, number: int) -> None:
        """Put a micro-batch into the lake, unless it is there."""
        end = self._end_of(number)
        ends, here = states.numbers(end), states.numbers(self.state.position)
        if all(place <= here.get(worker, (0, 0)) for worker, place in ends.items()):
            return
        if number and states.numbers(self._end_of(number - 1)) != here:
            raise LakeError(
                f"the checkpoint {self.files.uri(CHECKPOINT)} is not of this lake as it is, but of another time: remove"
                " it, and a new one begins where the lake ends"
            )
        self.put(batch, end)

    def put(self, batch: DataFrame, end: Position) -> None:
        """Put all messages between the position of the lake and another one into the lake."""
        self.files.remove(STAGING)
        batch.sparkSession.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BYTES))
        messages = batch.withColumn("date", f.to_date("time"))
        if self.plan.payloads:
            messages = messages.persist()
        try:
            self._stage(messages, MESSAGES)
            for payload in self.plan.payloads:
                self._stage_decoded(messages, payload).unpersist()
            self._publish(end)
        finally:
            if self.plan.payloads:
                messages.unpersist()
        if self.plan.compact:
            self._merge_small_files()

    def add(self, frame: DataFrame, table: str) -> None:
        """Put rows into a table; how far the logs are in the lake stays as it is."""
        self.files.remove(STAGING)
        self._stage(frame, table)
        self._publish(self.state.position)

    def new_tables(self) -> list[str]:
        """Return the decoders that know nothing of the messages that the lake has."""
        if MESSAGES not in self.state.tables:
            return []
        return [payload.table for payload in self.plan.payloads if payload.table not in self.state.tables]

    def finish(self) -> None:
        """Finish what was begun before anything else is written."""

    def decode(self, payload: Payload, day: str, since_us: int, until_us: int) -> tuple[int, int]:
        """Decode messages of a day of the lake that are not in the decoder's table; returns how many are now, and not.

        Those of them that are in the quarantine leave it, or are in it with the reason of today.
        """
        self.files.remove(STAGING)
        self.spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BYTES))

        def of_day(table: str) -> DataFrame:
            frame = frame_of(self.spark, self.files, self.state, table, lambda each: each == day)
            return within(frame, since_us, until_us)

        messages = of_day(MESSAGES)
        if payload.table in self.state.tables:
            messages = messages.join(of_day(payload.table).select(*ID), list(ID), "left_anti").select(messages.columns)
        before = False
        if QUARANTINE in self.state.tables:
            before = not of_day(QUARANTINE).where(f.col("table") == payload.table).isEmpty()
        old = self._leave_quarantine(payload.table, day, since_us, until_us) if before else []
        rows = self._stage_decoded(messages, payload)
        try:
            counted = rows.groupBy(f.isnull("reason").alias("good")).count().collect()
            counts = {row.good: row["count"] for row in counted}
        finally:
            rows.unpersist()
        if counts or before:
            self._publish(self.state.position)
            for name in old:
                self.files.remove(name)
        self.files.remove(STAGING)
        return counts.get(True, 0), counts.get(False, 0)

    def _leave_quarantine(self, table: str, day: str, since_us: int, until_us: int) -> list[str]:
        """Take the messages of a decoder's that are being decoded again out; return the files that go with them."""
        whole = frame_of(self.spark, self.files, self.state, QUARANTINE, lambda each: each == day)
        leaving = within(whole.where(f.col("table") == table), since_us, until_us).select(*ID, "table")
        self._stage(whole.join(leaving, [*ID, "table"], "left_anti").select(whole.columns), QUARANTINE, "_kept")
        files = self.state.tables[QUARANTINE].files
        old = [name for name in files if name.split("/")[1] == f"date={day}"]
        for name in old:
            del files[name]
        return old

    def _merge_small_files(self) -> None:
        compact(self.spark, self.files, self.state, self.plan.file_bytes)

    # One batch ------------------------------------------------------------------------------------------------------

    def _stage(self, frame: DataFrame, table: str, part: str = "0") -> None:
        known = self.state.tables.get(table)
        schema = StructType([each for each in frame.schema.fields if each.name != "date"])
        if known is not None:
            schema = extended(StructType.fromJson(known.schema), schema, keep=True)
        self.state.tables[table] = Table(nullable(schema).jsonValue(), known.files if known is not None else {})
        (
            frame.write.mode("overwrite").option("compression", "zstd").option("maxRecordsPerFile", ROWS_PER_FILE_MAX)
            .partitionBy("date").parquet(self.files.uri(f"{STAGING}/{table}/{part}"))
        )  # fmt: skip

    def _stage_decoded(self, messages: DataFrame, payload: Payload) -> DataFrame:
        """Write what a decoder makes of messages; return the rows, with `reason`, which are held until unpersist()."""
        found = StructType([])
        if payload.kind == "json" and payload.schema is None:
            found = found_out(messages, payload, self.not_in_names)
        schema = self._schema_of(payload, found)
        rows = decoded(messages, payload, schema).persist()
        rest = ["rest"] if "rest" in rows.columns else []
        if not isinstance(schema, StructType) or schema.fields:
            self._stage(rows.where("reason is null").select(*KEPT, "data", *rest), payload.table)
        named = f.when(f.col("reason").isNotNull(), f.lit(payload.table))  # a plain literal could not be null
        bad = rows.where("reason is not null").drop("data", *rest).withColumn("table", named)
        self._stage(bad, QUARANTINE, payload.table)
        return rows

    def _schema_of(self, payload: Payload, found: StructType) -> DataType:
        """Return the schema of a decoder's `data`: what the table has, and what is new. Raises LakeError.

        Args:
            found: the fields that were found out, where no schema is given.
        """
        from pyspark.sql.types import BinaryType, DoubleType, StringType

        if payload.kind in ("raw", "text", "number"):
            wanted: DataType = {"raw": BinaryType(), "text": StringType(), "number": DoubleType()}[payload.kind]
        elif payload.schema is not None:
            try:
                wanted = StructType.fromDDL(payload.schema)
            except Exception as error:
                raise LakeError(f"table {payload.table}: {payload.schema!r} is no schema") from error
        else:
            wanted = grown(StructType([]), found)
        known = self.state.tables.get(payload.table)
        if known is None:
            return wanted
        had = StructType.fromJson(known.schema)["data"].dataType
        if isinstance(had, StructType) and isinstance(wanted, StructType):
            if payload.schema is not None:
                _check_additive(payload.table, had, wanted)
                return extended(had, wanted, keep=True)
            return grown(had, found)
        if had != wanted:
            raise LakeError(
                f"table {payload.table} has data of type {had.simpleString()}, and its decoder now makes"
                f" {wanted.simpleString()}: use another table"
            )
        return wanted

    def _publish(self, end: Position) -> None:
        """Give the files of a batch their names, and have the state name them."""
        self.state.batch += 1
        for table in self.files.entries(STAGING):
            for part in self.files.entries(f"{STAGING}/{table.name}"):
                self._take(table.name, f"{STAGING}/{table.name}/{part.name}")
        self.state.position = end
        states.commit(self.files, self.state)
        self.files.remove(STAGING)

    def _take(self, table: str, folder: str) -> None:
        for day in self.files.entries(folder):
            for count, entry in enumerate(self.files.entries(f"{folder}/{day.name}") if day.is_folder else []):
                if entry.name.endswith(".parquet"):
                    name = f"{table}/{day.name}/b{self.state.batch:012d}-{count:05d}-{uuid.uuid4().hex[:8]}.parquet"
                    self.files.rename(f"{folder}/{day.name}/{entry.name}", name)
                    self.state.tables[table].files[name] = entry.size

    def _end_of(self, number: int) -> Position:
        """Return how far a batch goes, as Spark wrote it down before it began."""
        lines = self.files.read(f"{CHECKPOINT}/offsets/{number}").splitlines()
        position: Position = json.loads(lines[2])
        return position


def _check_additive(table: str, had: StructType, wanted: StructType) -> None:
    known = {each.name.lower(): each for each in had.fields}
    for each in wanted.fields:
        before = known.get(each.name.lower())
        if before is None or before.dataType == each.dataType:
            continue
        if isinstance(before.dataType, StructType) and isinstance(each.dataType, StructType):
            _check_additive(table, before.dataType, each.dataType)
            continue
        raise LakeError(
            f"table {table}: {each.name} is {before.dataType.simpleString()} there, and cannot become"
            f" {each.dataType.simpleString()}: a schema can only be added to"
        )
