"""What Spark takes for the rows of a source in Python, whatever the source does: `floor` yields one Arrow batch, which
was made beforehand, again and again. No source in Python gets below that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Rows(InputPartition):
    """So many rows."""

    count: int


class FloorSource(DataSource):
    """Options: `file`, an Arrow stream of one batch; `rows`, how many; `parts`, in how many tasks."""

    @classmethod
    def name(cls) -> str:
        """Return what it is called in format()."""
        return "floor"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what yields the batch, with its columns called as the schema says."""
        return FloorReader(schema, self.options["file"], int(self.options["rows"]), int(self.options["parts"]))


class FloorReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, columns: StructType, file: str, rows: int, parts: int) -> None:
        self.columns = columns
        self.file = file
        self.rows = rows
        self.parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        """Return parts of the same size, about."""
        return [Rows(self.rows * (at + 1) // self.parts - self.rows * at // self.parts) for at in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the batch until there were enough rows."""
        assert isinstance(partition, Rows)
        schema = to_arrow_schema(self.columns, timezone="UTC")
        with pyarrow.memory_map(self.file) as file:
            batch = pyarrow.ipc.open_stream(file).read_next_batch()
            batch = pyarrow.RecordBatch.from_arrays(batch.columns, schema=schema)
            left = partition.count
            while left > 0:
                yield batch if left >= batch.num_rows else batch.slice(0, left)
                left -= batch.num_rows


def floor(spark: SparkSession, file: Path, like: DataFrame, rows: int, batch_rows: int, parts: int = 1) -> DataFrame:
    """Return a table of so many rows, which are the first ones of another table again and again.

    Args:
        file: what the batch is put into.
        like: the table; as many of its rows as a batch has are collected.
        rows: how many.
        batch_rows: in a batch.
        parts: how many tasks read it.
    """
    spark.dataSource.register(FloorSource)
    schema = to_arrow_schema(like.schema, timezone="UTC")
    batch = like.limit(batch_rows).toArrow().combine_chunks().to_batches()[0]
    batch = pyarrow.RecordBatch.from_arrays(batch.columns, schema=schema)
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
    options = {"file": str(file), "rows": str(rows), "parts": str(parts)}
    return spark.read.format("floor").schema(like.schema).options(**options).load()
