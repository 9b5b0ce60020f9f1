"""The lake: the messages of the logs as Parquet files by day, each of them once, whatever is killed meanwhile.

A Structured Streaming job gives micro-batches, the same ones again after a crash. What a batch writes counts when the
state of the lake (analytics.lake.manifest) names it, which happens at once for all its files; a batch that is in the
state already is passed over.
"""

from __future__ import annotations

import json
import threading
import weakref
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as f

from analytics.lake import manifest as states
from analytics.lake.compaction import compact
from analytics.lake.file_stores import open_files
from analytics.lake.manifest import CHECKPOINT, STAGING, LakeError
from analytics.lake.payload_decoders import KEPT, MESSAGES, QUARANTINE, Payload
from analytics.lake.reading import frame_of, read_all, read_lake, within
from analytics.lake.spark_decoding import decoded, found_out
from analytics.lake.writer import LakeWriter, Plan, Position
from analytics.source.columns import ID
from analytics.source.schema import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ARROW_BYTES: Final = 16_777_216  # that Spark gives a Python process at once, so that large payloads do not add up
ROWS_PER_FILE_MAX: Final = 2_000_000

__all__ = ["Lake", "Plan", "read_all", "read_lake"]

# The lakes that this process writes to, by their folder.
_WRITING: Final[weakref.WeakValueDictionary[str, Lake]] = weakref.WeakValueDictionary()


class Lake(LakeWriter):
    """A lake that Spark writes to, until its query ends, close(), or its process ends.

    Args:
        damaged: files may be missing.

    Raises LakeError, here and when a batch is written.
    """

    def __init__(self, spark: SparkSession, plan: Plan, *, damaged: bool = False) -> None:
        self.spark = spark
        self.query: StreamingQuery | None = None
        files = open_files(spark, plan.path)
        before = _WRITING.get(files.root)
        if before is not None and before.query is not None and not before.query.isActive:
            before.close()
        super().__init__(files, plan, damaged=damaged)
        _WRITING[files.root] = self

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

    def restore(self) -> int:
        """Write messages of the log that the lake should have and has not; return how many."""
        reader = self.spark.read.format("shoal").option("failOnDataLoss", "false")
        log = reader.option("upto", json.dumps(self.state.position)).load(self.plan.data_dir)
        known = read_lake(self.spark, self.plan.path).select(*ID)
        lost = log.join(known, list(ID), "left_anti").select(*log.columns).withColumn("date", f.to_date("time"))
        if self.state.since:
            lost = lost.where(f.col("date") >= self.state.since)
        lost.persist()
        try:
            count = lost.count()
            if count:
                self.add(lost, MESSAGES)
        finally:
            lost.unpersist()
        self.files.remove(STAGING)
        return count

    def _merge_small_files(self) -> None:
        compact(self.files, self.state, self.plan.file_bytes, self.spark)

    # One batch ------------------------------------------------------------------------------------------------------

    def _stage(self, frame: DataFrame, table: str, part: str = "0") -> None:
        self._extend(table, to_arrow(frame.schema))
        (
            frame.write.mode("overwrite").option("compression", "zstd").option("maxRecordsPerFile", ROWS_PER_FILE_MAX)
            .partitionBy("date").parquet(self.files.uri(f"{STAGING}/{table}/{part}"))
        )  # fmt: skip

    def _stage_decoded(self, messages: DataFrame, payload: Payload) -> DataFrame:
        """Write what a decoder makes of messages; return the rows, with `reason`, which are held until unpersist()."""
        found = pa.struct([])
        if payload.finds_out:
            found = found_out(messages, payload, self.not_in_names)
        data = self._data_type(payload, found)
        rows = decoded(messages, payload, data).persist()
        rest = ["rest"] if "rest" in rows.columns else []
        if not pa.types.is_struct(data) or data.num_fields:
            self._stage(rows.where("reason is null").select(*KEPT, "data", *rest), payload.table)
        named = f.when(f.col("reason").isNotNull(), f.lit(payload.table))  # a plain literal could not be null
        bad = rows.where("reason is not null").drop("data", *rest).withColumn("table", named)
        self._stage(bad, QUARANTINE, payload.table)
        return rows

    def _end_of(self, number: int) -> Position:
        """Return how far a batch goes, as Spark wrote it down before it began."""
        lines = self.files.read(f"{CHECKPOINT}/offsets/{number}").splitlines()
        position: Position = json.loads(lines[2])
        return position
