"""A lake without Spark: tables as datasets of Arrow, for DuckDB, Polars, pandas and other libraries that take those.

A dataset knows of each of its files of which day it is: a condition on `date` or on `time` opens those of that
time only.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from analytics.lake import manifest as states
from analytics.lake.file_store import LocalFiles
from analytics.lake.files_by_day import day_between, day_of, file_uris, has_pending, times
from analytics.lake.manifest import LakeError
from analytics.lake.payload_decoders import MESSAGES, chosen
from analytics.source.column_types import fields_of, from_json
from analytics.source.columns import TIMESTAMP
from analytics.source.log_batches import read_log
from analytics.source.options import parse_options
from router.log.record_scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from analytics.lake.manifest import State

_DAY_US = 86_400_000_000


def open_dataset(path: str, table: str = MESSAGES, *, since: str | None = None, until: str | None = None) -> ds.Dataset:
    """Return a table of a lake as it is now, whether or not a job is writing to it.

    Args:
        path: of the lake, a folder of this machine.
        table: `messages`, `quarantine`, or a decoder's.
        since, until: only messages accepted then or later, and before then: `2026-11-21T09:30:00Z`, `-2h`.

    Raises LakeError; ValueError for what is no time.
    """
    files = local_files(path)
    return _dataset(files, states.load(files), table, *times(since, until))


def local_files(path: str) -> LocalFiles:
    """Return the files of a lake that is a folder of this machine. Raises LakeError for another one."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise LakeError(f"{path} is no folder of this machine, which needs Spark here")
    return LocalFiles(path)


def _dataset(files: LocalFiles, state: State, table: str, since_us: int, until_us: int) -> ds.Dataset:
    wanted = day_between(since_us, until_us)
    uris = [uri for uri in file_uris(files, state, table) if wanted(day_of(uri))]
    schema = pa.schema([*fields_of(from_json(state.tables[table].schema)), ("date", pa.date32())])
    found = ds.FileSystemDataset.from_paths(
        [uri.removeprefix("file:") for uri in uris], schema=schema, format=ds.ParquetFileFormat(),
        filesystem=pyarrow.fs.LocalFileSystem(), partitions=[_of_day(day_of(uri)) for uri in uris],
    )  # fmt: skip
    condition = within(since_us, until_us)
    return found if condition is None else found.filter(condition)


def _of_day(day: str) -> ds.Expression:
    """Return what is true of all rows of a day: by it files are passed over that cannot have what is asked for."""
    first = (date.fromisoformat(day) - date(1970, 1, 1)).days * _DAY_US
    return (ds.field("date") == date.fromisoformat(day)) & _between(first, first + _DAY_US)


def _between(since_us: int, until_us: int) -> ds.Expression:
    return (ds.field("time") >= pa.scalar(since_us, TIMESTAMP)) & (ds.field("time") < pa.scalar(until_us, TIMESTAMP))


def within(since_us: int, until_us: int) -> ds.Expression | None:
    """Return the condition that a row is of a stretch of time; None if every one is."""
    if since_us == TIME_MIN and until_us == TIME_MAX:
        return None
    # What Arrow can hold as a timestamp, and so can Python: years 1 to 9999.
    return _between(max(since_us, -62_135_596_800_000_000), min(until_us, 253_402_300_799_999_999))


def read_all(path: str, data_dir: str, *, columns: Iterable[str] | None = None, **options: str) -> pa.RecordBatchReader:
    """Return all messages: those in the lake, and those in the log that are not in it yet.

    Args:
        path: of the lake, a folder of this machine.
        data_dir: the data folder of the broker.
        columns: names; None: all.
        options: of the source; `since`, `until` and `topicFilter` are for both.

    Raises LakeError, LogError, ValueError.
    """
    wanted = parse_options({"path": data_dir, **options})
    files = local_files(path)
    state = states.load(files)
    behind = state.position
    # A state that tells of the very first batch knows no table yet, whatever there is of it.
    if MESSAGES in state.tables and state.pending is not None and has_pending(files, state):
        behind = state.pending
    log = read_log(data_dir, columns=columns, behind=behind, **options)
    if MESSAGES not in state.tables:
        return log
    lake = _dataset(files, state, MESSAGES, wanted.since_us, wanted.until_us)
    if wanted.workers is not None:
        lake = lake.filter(ds.field("worker").isin(sorted(wanted.workers)))
    names = log.schema.names

    def found() -> Iterator[pa.RecordBatch]:
        topic_filter = wanted.topic_filter.decode() if wanted.topic_filter is not None else None
        asked = names if topic_filter is None or "topic" in names else [*names, "topic"]
        for batch in lake.scanner(columns=asked).to_batches():
            rows = batch if topic_filter is None else batch.filter(chosen(batch.column("topic"), topic_filter))
            if len(rows):
                yield pa.RecordBatch.from_arrays([rows.column(name) for name in names], schema=log.schema)
        yield from log

    return pa.RecordBatchReader.from_batches(log.schema, found())
