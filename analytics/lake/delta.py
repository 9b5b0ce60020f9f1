"""The lake as Delta tables, for those who have tools for them. A table's own log makes a batch be there once."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from analytics.lake import delta_tables
from analytics.lake import manifest as states
from analytics.lake.lake import Lake
from analytics.lake.manifest import DELTA, STAGING
from analytics.lake.payload_decoders import Payload
from analytics.lake.writer import Plan, Position
from analytics.source.schema import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_STEP: Final = 65_536  # that are in this process at once


class DeltaLake(Lake):
    """A lake whose tables are Delta tables, written by this process, from files that Spark has made of the batch.

    Each table has a log of its own. So the state says first which stretch of the logs is going to be written, and a
    stretch that was begun is finished, exactly as it was, before anything else is written.

    Raises LakeError, here and when a batch is written.
    """

    layout = DELTA
    not_in_names = delta_tables.NOT_IN_NAMES

    def __init__(self, spark: SparkSession, plan: Plan, *, damaged: bool = False) -> None:
        delta_tables.need_deltalake()
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
        delta_tables.leave_quarantine(self.files, table, day, since_us, until_us)
        return []

    def put(self, batch: DataFrame, end: Position) -> None:
        """Put all messages between the position of the lake and another one into the tables."""
        if self.state.pending != end:
            self.state.pending = end
            states.commit(self.files, self.state)
        super().put(batch, end)

    def _stage(self, frame: DataFrame, table: str, part: str = "0") -> None:
        self._extend(table, to_arrow(frame.schema))
        uri = delta_tables.uri_of(self.files, table)
        # The lake counts its batches, and not Spark, which begins anew when its checkpoint is lost.
        written, number = f"{self._written}-{part}", self.state.batch + 1
        if not delta_tables.has(uri, written, number):
            delta_tables.append(uri, self._staged(frame, table), written, number, merge=self.plan.compact)

    def _staged(self, frame: DataFrame, table: str) -> Any:
        """Return rows from files that Spark makes of them. Memory: some steps of the rows, and not the batch."""
        import pyarrow.dataset
        import pyarrow.fs

        folder = self.files.uri(f"{STAGING}/{table}")
        frame.write.mode("overwrite").option("compression", "zstd").parquet(folder)
        system, path = pyarrow.fs.FileSystem.from_uri(folder.replace("file:", "file://", 1))
        staged = pyarrow.dataset.dataset(path, filesystem=system, format="parquet")
        rows = staged.scanner(batch_size=ROWS_PER_STEP, batch_readahead=1, fragment_readahead=1, use_threads=False)
        return rows.to_reader()

    def _publish(self, end: Position) -> None:
        self.state.batch += 1
        self.state.position = end
        self.state.pending = None
        states.commit(self.files, self.state)
        self.files.remove(STAGING)

    def _merge_small_files(self) -> None:
        """Leave that to the tables."""
