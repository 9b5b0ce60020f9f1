"""Parquet files of a table, by day, written by Arrow as they come: memory is that of a batch or two."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.source.column_types import conformed, fields_of

if TYPE_CHECKING:
    from collections.abc import Sequence

DAY_US: Final = 86_400_000_000
OPEN_MAX: Final = 8  # files of different days that are written at once
ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 33_554_432
READ_ROWS: Final = 16_384  # at once, of files that are merged
# Of these no two are alike: a dictionary would cost and give nothing.
_DIFFERENT: Final = ("time", "n", "payload", "correlation_data", "rest", "expires")
_RISING: Final = ("time", "n")


def open_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a new file as all files of a lake are."""
    leaves = [leaf for each in schema for leaf in _leaves(each.type, each.name)]
    return pq.ParquetWriter(
        path, schema, compression="zstd", store_schema=False,
        use_dictionary=[leaf for leaf in leaves if leaf.split(".")[0] not in _DIFFERENT],
        write_statistics=[leaf for leaf in leaves if leaf not in ("payload", "correlation_data", "rest")],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in _RISING if name in schema.names},
    )  # fmt: skip


def _leaves(of_type: pa.DataType, name: str) -> Iterator[str]:
    """Yield the columns of Parquet that a column of Arrow is made of."""
    if pa.types.is_struct(of_type):
        for each in fields_of(of_type):
            yield from _leaves(each.type, f"{name}.{each.name}")
    elif pa.types.is_list(of_type):
        yield from _leaves(of_type.value_type, f"{name}.list.element")
    elif pa.types.is_map(of_type):
        yield f"{name}.key_value.key"
        yield from _leaves(of_type.item_type, f"{name}.key_value.value")
    else:
        yield name


def as_rows_of(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the columns of a table; what it has not is null."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        column = pa.nulls(len(batch), field.type) if index < 0 else conformed(batch.column(index), field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (`2026-11-21`, the rows of that day) by the column `time`, in UTC."""
    if not len(batch):
        return
    times = batch.column("time").cast(pa.int64())
    ends = pc.min_max(times)
    first, last = (ends[name].as_py() // DAY_US for name in ("min", "max"))
    if first == last:
        yield _name(first), batch
        return
    # Integer division of Arrow goes towards zero, that of days towards the past.
    days = pc.floor(pc.divide(times.cast(pa.float64(), safe=False), float(DAY_US))).cast(pa.int64())
    for day in sorted(pc.unique(days).to_pylist()):
        yield _name(day), batch.filter(pc.equal(days, day))


def _name(day: int) -> str:
    return str(pa.scalar(day, pa.int32()).cast(pa.date32()).as_py())


class DayFiles:
    """Files of one table in a folder, `date=2026-11-21/00000.parquet` and so on. Errors are OSError.

    Args:
        folder: of the files; days are made in it.
        schema: of the table.
        file_bytes: a file that has become so large is followed by another one.
    """

    def __init__(self, folder: str, schema: pa.Schema, file_bytes: int) -> None:
        self.folder = folder
        self.schema = schema
        self.file_bytes = file_bytes
        self.rows = 0
        self._count = 0
        self._open: dict[str, tuple[str, pq.ParquetWriter]] = {}  # by day, the one that was used last at the end

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows, each into its day."""
        if not len(batch):
            return
        self.rows += len(batch)
        for day, rows in by_day(as_rows_of(self.schema, batch)):
            path, writer = self._open.pop(day) if day in self._open else self._begin(day)
            writer.write_batch(rows)
            if os.path.getsize(path) >= self.file_bytes:
                writer.close()
            else:
                self._open[day] = path, writer

    def _begin(self, day: str) -> tuple[str, pq.ParquetWriter]:
        if len(self._open) == OPEN_MAX:
            self._open.pop(next(iter(self._open)))[1].close()
        folder = os.path.join(self.folder, f"date={day}")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{self._count:05d}.parquet")
        self._count += 1
        return path, open_writer(path, self.schema)

    def close(self) -> None:
        """Finish all files."""
        while self._open:
            self._open.popitem()[1][1].close()


def merge(paths: Sequence[str], path: str, schema: pa.Schema) -> None:
    """Write the rows of some files into one, in their order. Memory: a row group of each kind of file."""
    with open_writer(path, schema) as writer:
        for table in _grouped(batch for each in paths for batch in read(each, schema)):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def read(path: str, schema: pa.Schema, *, rows: int = READ_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file as those of a table."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(rows, use_threads=False):
            yield as_rows_of(schema, batch)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[Any] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)
