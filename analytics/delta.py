"""The lake as Delta tables, for those who have tools for them. A table's own log makes a batch be there once."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from analytics import state as states
from analytics.lake import Lake, Plan, nullable
from analytics.payloads import extended
from analytics.state import LakeError, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MERGE_EVERY: Final = 32  # batches


class DeltaLake(Lake):
    """A lake whose tables are Delta tables, written by this process: a batch of a table goes through its memory.

    Raises LakeError, here and when a batch is written.
    """

    def __init__(self, spark: SparkSession, plan: Plan) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise LakeError("Delta tables need deltalake, which is not installed: pip install deltalake")
        super().__init__(spark, plan)
        self._number = -1

    def write(self, batch: DataFrame, number: int) -> None:
        """Put a micro-batch into the tables, unless it is there."""
        self._number = number
        super().write(batch, number)

    def _stage(self, frame: DataFrame, table: str, part: str = "0") -> None:
        import deltalake

        known = self.state.tables.get(table)
        schema = nullable(StructType([each for each in frame.schema.fields if each.name != "date"]))
        if known is not None:
            schema = extended(StructType.fromJson(known.schema), schema, keep=True)
        self.state.tables[table] = Table(schema.jsonValue())
        uri = self.files.uri(table).removeprefix("file:")
        written = f"shoal-{part}"
        if deltalake.DeltaTable.is_deltatable(uri):
            version = deltalake.DeltaTable(uri).transaction_version(written)
            if version is not None and version >= self._number:
                return
        deltalake.write_deltalake(
            uri, frame.toArrow(), mode="append", partition_by=["date"], schema_mode="merge",
            commit_properties=deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(written, self._number)]
            ),
        )  # fmt: skip
        if self.plan.compact and self._number % MERGE_EVERY == MERGE_EVERY - 1:
            deltalake.DeltaTable(uri).optimize.compact()

    def _publish(self, number: int) -> None:
        self.state.batch = number
        self.state.position = self._position(number)
        states.commit(self.files, self.state)

    def _merge_small_files(self) -> None:
        """Leave that to the tables."""
