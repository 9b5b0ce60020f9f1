"""The lake as Delta tables, for those who have tools for them. A table's own log makes a batch be there once."""

from __future__ import annotations

import importlib.util
import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from analytics.lake import manifest as states
from analytics.lake.inference import extended
from analytics.lake.lake import Lake, Plan, Position
from analytics.lake.manifest import DELTA, STAGING, LakeError, Table
from analytics.lake.payload_decoders import QUARANTINE, Payload
from analytics.source.schema import nullable
from router.log.record_scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MERGE_EVERY: Final = 32  # batches
ROWS_PER_STEP: Final = 65_536  # that are in this process at once


class DeltaLake(Lake):
    """A lake whose tables are Delta tables, written by this process, from files that Spark has made of the batch.

    Each table has a log of its own. So the state says first which stretch of the logs is going to be written, and a
    stretch that was begun is finished, exactly as it was, before anything else is written.

    Raises LakeError, here and when a batch is written.
    """

    layout = DELTA
    not_in_names = " ,;{}()\n\t="

    def __init__(self, spark: SparkSession, plan: Plan, *, damaged: bool = False) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise LakeError("Delta tables need deltalake, which is not installed: pip install deltalake")
        self._written = states.WRITTEN
        super().__init__(spark, plan, damaged=damaged)

    def start(self, *, every_s: float | None = None) -> StreamingQuery:
        """Finish what was begun, and begin to write."""
        self.finish()
        return super().start(every_s=every_s)

    def finish(self) -> None:
        """Finish what was begun before anything else is written."""
        pending = self.state.pending
        if pending is not None:
            reader = self.spark.read.format("shoal").option("behind", json.dumps(self.state.position))
            reader = reader.option("upto", json.dumps(pending)).options(**self.plan.options)
            self.put(reader.load(self.plan.data_dir), pending)

    def decode(self, payload: Payload, day: str, since_us: int, until_us: int) -> tuple[int, int]:
        """Decode messages of a day of the lake, as Lake.decode() does; another time does what this leaves undone."""
        # No batch of the logs: nothing of it may pass for one that was written.
        self._written = f"shoal-decode-{uuid.uuid4().hex}"
        try:
            return super().decode(payload, day, since_us, until_us)
        finally:
            self._written = states.WRITTEN

    def _leave_quarantine(self, table: str, day: str, since_us: int, until_us: int) -> list[str]:
        import deltalake

        def at(time_us: int) -> str:
            moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
            return f"timestamp '{moment.isoformat()}'"

        condition = f"`table` = '{table}' and date = '{day}'"
        condition += f" and time >= {at(since_us)}" if since_us != TIME_MIN else ""
        condition += f" and time < {at(until_us)}" if until_us != TIME_MAX else ""
        deltalake.DeltaTable(self.files.uri(QUARANTINE).removeprefix("file:")).delete(condition)
        return []

    def put(self, batch: DataFrame, end: Position) -> None:
        """Put all messages between the position of the lake and another one into the tables."""
        if self.state.pending != end:
            self.state.pending = end
            states.commit(self.files, self.state)
        super().put(batch, end)

    def _stage(self, frame: DataFrame, table: str, part: str = "0") -> None:
        import deltalake

        known = self.state.tables.get(table)
        schema = nullable(StructType([each for each in frame.schema.fields if each.name != "date"]))
        if known is not None:
            schema = extended(StructType.fromJson(known.schema), schema, keep=True)
        self.state.tables[table] = Table(schema.jsonValue())
        uri = self.files.uri(table).removeprefix("file:")
        # The lake counts its batches, and not Spark, which begins anew when its checkpoint is lost.
        written, number = f"{self._written}-{part}", self.state.batch + 1
        if deltalake.DeltaTable.is_deltatable(uri):
            version = deltalake.DeltaTable(uri).transaction_version(written)
            if version is not None and version >= number:
                return
        self._append(frame, table, uri, deltalake.Transaction(written, number))
        if self.plan.compact and number % MERGE_EVERY == MERGE_EVERY - 1:
            deltalake.DeltaTable(uri).optimize.compact()

    def _append(self, frame: DataFrame, table: str, uri: str, transaction: Any) -> None:
        """Append rows to a table in one commit. Memory: some steps of the rows, and not the batch."""
        import deltalake
        import pyarrow.dataset
        import pyarrow.fs

        folder = self.files.uri(f"{STAGING}/{table}")
        frame.write.mode("overwrite").option("compression", "zstd").parquet(folder)
        system, path = pyarrow.fs.FileSystem.from_uri(folder.replace("file:", "file://", 1))
        staged = pyarrow.dataset.dataset(path, filesystem=system, format="parquet")
        rows = staged.scanner(batch_size=ROWS_PER_STEP, batch_readahead=1, fragment_readahead=1, use_threads=False)
        deltalake.write_deltalake(
            uri, rows.to_reader(), mode="append", partition_by=["date"], schema_mode="merge",
            commit_properties=deltalake.CommitProperties(app_transactions=[transaction]),
        )  # fmt: skip

    def _publish(self, end: Position) -> None:
        self.state.batch += 1
        self.state.position = end
        self.state.pending = None
        states.commit(self.files, self.state)
        self.files.remove(STAGING)

    def _merge_small_files(self) -> None:
        """Leave that to the tables."""
