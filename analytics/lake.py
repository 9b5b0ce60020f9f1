"""The lake: the messages of the logs as Parquet files by day, each of them once, whatever is killed meanwhile.

A Structured Streaming job gives micro-batches, the same ones again after a crash. What a batch writes counts when the
state of the lake (analytics.state) names it, which happens at once for all its files; a batch that is in the state
already is passed over.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from analytics import state as states
from analytics.compaction import compact
from analytics.files import Files
from analytics.payloads import KEPT, MESSAGES, QUARANTINE, Payload, decoded, extended, filter_pattern, inferred
from analytics.state import STAGING, LakeError, State, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType

CHECKPOINT: Final = "_shoal/checkpoint"
INFERENCE_ROWS: Final = 10_000  # of a batch are looked at to find out a schema
ROWS_PER_FILE_MAX: Final = 2_000_000


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
    """A lake that is written to. One at a time may write.

    Raises LakeError, here and when a batch is written.
    """

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        self.spark = spark
        self.plan = plan
        self.files = Files(spark, plan.path)
        self.state = states.load(self.files)
        states.tidy(self.files, self.state)
        for payload in plan.payloads:
            self._schema_of(payload, ())  # what does not fit the table is told now

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
        if every_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_s} seconds").start()

    def write(self, batch: DataFrame, number: int) -> None:
        """Put a micro-batch into the lake, unless it is there."""
        query: str = json.loads(self.files.read(f"{CHECKPOINT}/metadata"))["id"]
        if query == self.state.query and number <= self.state.batch:
            return
        self.state.query = query
        self.files.remove(STAGING)
        messages = batch.withColumn("date", f.to_date("time"))
        if self.plan.payloads:
            messages = messages.persist()
        try:
            self._stage(messages, MESSAGES)
            for payload in self.plan.payloads:
                self._stage_decoded(messages, payload)
            self._publish(number)
        finally:
            if self.plan.payloads:
                messages.unpersist()
        if self.plan.compact:
            self._merge_small_files()

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

    def _stage_decoded(self, messages: DataFrame, payload: Payload) -> None:
        samples: tuple[bytes, ...] = ()
        if payload.kind == "json" and payload.schema is None:
            chosen = messages.where(f.col("topic").rlike(filter_pattern(payload.topic_filter))).select("payload")
            samples = tuple(bytes(row.payload) for row in chosen.limit(INFERENCE_ROWS).collect())
        schema = self._schema_of(payload, samples)
        rows = decoded(messages, payload, schema)
        good = rows.where("reason is null").select(*KEPT, "data")
        if good.schema["data"].dataType.simpleString() not in ("void", "struct<>"):
            self._stage(good, payload.table)
        bad = rows.where("reason is not null").drop("data").withColumn("table", f.lit(payload.table))
        self._stage(bad, QUARANTINE, payload.table)

    def _schema_of(self, payload: Payload, samples: tuple[bytes, ...]) -> DataType:
        """Return the schema of a decoder's `data`: what the table has, and what is new. Raises LakeError."""
        from pyspark.sql.types import BinaryType, DoubleType, StringType

        if payload.kind in ("raw", "text", "number"):
            wanted: DataType = {"raw": BinaryType(), "text": StringType(), "number": DoubleType()}[payload.kind]
        elif payload.schema is not None:
            try:
                wanted = StructType.fromDDL(payload.schema)
            except Exception as error:
                raise LakeError(f"table {payload.table}: {payload.schema!r} is no schema") from error
        else:
            wanted = inferred(list(samples))
        known = self.state.tables.get(payload.table)
        if known is None:
            return wanted
        had = StructType.fromJson(known.schema)["data"].dataType
        if isinstance(had, StructType) and isinstance(wanted, StructType):
            if payload.schema is not None:
                _check_additive(payload.table, had, wanted)
            return extended(had, wanted, keep=True)
        if had != wanted:
            raise LakeError(
                f"table {payload.table} has data of type {had.simpleString()}, and its decoder now makes"
                f" {wanted.simpleString()}: use another table"
            )
        return wanted

    def _publish(self, number: int) -> None:
        """Give the files of a batch their names, and have the state name them."""
        for table in self.files.entries(STAGING):
            for part in self.files.entries(f"{STAGING}/{table.name}"):
                self._take(table.name, f"{STAGING}/{table.name}/{part.name}", number)
        self.state.batch = number
        self.state.position = self._position(number)
        states.commit(self.files, self.state)
        self.files.remove(STAGING)

    def _take(self, table: str, folder: str, number: int) -> None:
        for day in self.files.entries(folder):
            for count, entry in enumerate(self.files.entries(f"{folder}/{day.name}") if day.is_folder else []):
                if entry.name.endswith(".parquet"):
                    name = f"{table}/{day.name}/b{number:012d}-{count:05d}-{uuid.uuid4().hex[:8]}.parquet"
                    self.files.rename(f"{folder}/{day.name}/{entry.name}", name)
                    self.state.tables[table].files[name] = entry.size

    def _position(self, number: int) -> dict[str, dict[str, int]]:
        """Return how far a batch goes, as Spark wrote it down before it began."""
        lines = self.files.read(f"{CHECKPOINT}/offsets/{number}").splitlines()
        position: dict[str, dict[str, int]] = json.loads(lines[2])
        return position


def nullable(schema: StructType) -> StructType:
    """Return a schema whose columns may be null: Parquet files of another time may not have them."""
    return StructType([StructField(each.name, each.dataType, True) for each in schema.fields])


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


# Reading ------------------------------------------------------------------------------------------------------------


def read_lake(spark: SparkSession, path: str, table: str = MESSAGES) -> DataFrame:
    """Return a table of a lake as it is now, whether or not somebody is writing to it. Raises LakeError.

    Args:
        path: of the lake.
        table: `messages`, `quarantine`, or a decoder's.
    """
    files = Files(spark, path)
    state = states.load(files)
    return _frame(spark, files, state, table)


def _frame(spark: SparkSession, files: Files, state: State, table: str) -> DataFrame:
    known = state.tables.get(table)
    if known is None:
        there = f"there are {', '.join(sorted(state.tables))}" if state.tables else "there is none"
        raise LakeError(f"the lake {files.root} has no table {table!r}; {there}")
    schema = StructType.fromJson(known.schema).add("date", "date")
    if not known.files:
        return spark.createDataFrame([], schema)
    names = [files.uri(name) for name in sorted(known.files)]
    return spark.read.schema(schema).option("basePath", files.uri(table)).parquet(*names)


def read_all(spark: SparkSession, path: str, data_dir: str, **options: Any) -> DataFrame:
    """Return all messages: those in the lake, and those in the log that are not in it yet. Raises LakeError.

    Args:
        path: of the lake.
        data_dir: the data folder of the broker.
        options: of the source.
    """
    files = Files(spark, path)
    state = states.load(files)
    behind = json.dumps(state.position)
    tail = spark.read.format("shoal").options(**options).option("behind", behind).load(data_dir)
    tail = tail.withColumn("date", f.to_date("time"))
    if MESSAGES not in state.tables:
        return tail
    return _frame(spark, files, state, MESSAGES).unionByName(tail)
