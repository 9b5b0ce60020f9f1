"""A lake as it is now, by its state: what counts, whichever job is writing meanwhile."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from analytics.lake import manifest as states
from analytics.lake.file_store import LocalFiles
from analytics.lake.file_stores import open_files
from analytics.lake.manifest import DELTA, LakeError
from analytics.lake.payload_decoders import MESSAGES, filter_pattern
from analytics.source.options import parse_options
from router.log.record_scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from analytics.lake.file_store import Files
    from analytics.lake.manifest import State

_DAY: Final = re.compile(r"/date=(\d{4}-\d\d-\d\d)/")
_LISTING_THRESHOLD: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def read_lake(
    spark: SparkSession, path: str, table: str = MESSAGES, *, since: str | None = None, until: str | None = None
) -> DataFrame:
    """Return a table of a lake as it is now, whether or not a job is writing to it.

    Args:
        path: of the lake.
        table: `messages`, `quarantine`, or a decoder's.
        since, until: only messages accepted then or later, and before then: `2026-11-21T09:30:00Z`, `-2h`. Files of
            other days are not looked at.

    Raises LakeError; ValueError for what is no time.
    """
    files = open_files(spark, path)
    since_us, until_us = times(since, until)
    frame = frame_of(spark, files, states.load(files), table, day_between(since_us, until_us))
    return within(frame, since_us, until_us)


def read_all(spark: SparkSession, path: str, data_dir: str, **options: Any) -> DataFrame:
    """Return all messages: those in the lake, and those in the log that are not in it yet.

    Args:
        path: of the lake.
        data_dir: the data folder of the broker.
        options: of the source; `since`, `until` and `topicFilter` are for both.

    Raises LakeError, ValueError.
    """
    wanted = parse_options({"path": data_dir, **options})
    files = open_files(spark, path)
    state = states.load(files)
    behind = state.position
    if state.pending is not None and _has_pending(files, state):
        behind = state.pending
    tail = spark.read.format("shoal").options(**options).option("behind", json.dumps(behind)).load(data_dir)
    tail = tail.withColumn("date", f.to_date("time"))
    if MESSAGES not in state.tables:
        return tail
    lake = frame_of(spark, files, state, MESSAGES, day_between(wanted.since_us, wanted.until_us))
    lake = within(lake, wanted.since_us, wanted.until_us)
    if wanted.topic_filter is not None:
        lake = lake.where(f.col("topic").rlike(filter_pattern(wanted.topic_filter.decode())))
    if wanted.workers is not None:
        lake = lake.where(f.col("worker").isin(*wanted.workers))
    return lake.unionByName(tail)


def times(since: str | None, until: str | None) -> tuple[int, int]:
    """Return two times as µs since 1970. Raises ValueError."""
    given = {name: text for name, text in (("since", since), ("until", until)) if text is not None}
    wanted = parse_options({"path": ".", **given})
    return wanted.since_us, wanted.until_us


def within(frame: DataFrame, since_us: int, until_us: int) -> DataFrame:
    """Return the rows of a stretch of time."""
    if since_us != TIME_MIN:
        frame = frame.where(f.col("time") >= f.timestamp_micros(f.lit(since_us)))
    if until_us != TIME_MAX:
        frame = frame.where(f.col("time") < f.timestamp_micros(f.lit(until_us)))
    return frame


def day_between(since_us: int, until_us: int) -> Callable[[str], bool]:
    """Return whether a day, as `2026-11-21`, may have messages of a stretch of time."""
    first = _day(since_us) if since_us != TIME_MIN else ""
    last = _day(until_us - 1) if until_us != TIME_MAX else "9999-99-99"
    return lambda day: first <= day <= last


def _day(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d")


def file_uris(files: Files, state: State, table: str) -> list[str]:
    """Return the files that count of a table, as Spark's readers take them. Raises LakeError."""
    known = state.tables.get(table)
    if known is None:
        there = f"there are {', '.join(sorted(state.tables))}" if state.tables else "there is none"
        raise LakeError(f"the lake {files.root} has no table {table!r}; {there}")
    if state.layout != DELTA:
        return [files.uri(name) for name in sorted(known.files)]
    found = _delta_table(files, table)
    uris = found.file_uris() if found is not None else []
    return sorted(f"file:{uri}" if uri.startswith("/") else uri for uri in uris)


def day_of(uri: str) -> str:
    """Return the day that a file of a table belongs to."""
    found = _DAY.search(uri)
    assert found is not None, uri
    return found[1]


def frame_of(
    spark: SparkSession, files: Files, state: State, table: str, wanted: Callable[[str], bool] = lambda day: True
) -> DataFrame:
    """Return a table as a state has it. Raises LakeError.

    Args:
        wanted: of which days, as `2026-11-21`.
    """
    names = [uri for uri in file_uris(files, state, table) if wanted(day_of(uri))]
    schema = StructType.fromJson(state.tables[table].schema).add("date", "date")
    if not names:
        return spark.createDataFrame([], schema)
    with _listing(spark, len(names), isinstance(files, LocalFiles)):
        return spark.read.schema(schema).option("basePath", files.uri(table)).parquet(*names)


@contextmanager
def _listing(spark: SparkSession, count: int, local: bool) -> Iterator[None]:
    """Have Spark look at files here, or in some tasks, and not in a task for each: of 7,300 that took half a minute."""
    wanted = {_LISTING_THRESHOLD: str(count + 1)} if local else {_LISTING_TASKS: str(min(count, 64))}
    before = {name: spark.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, given in before.items():
            assert given is not None, name
            spark.conf.set(name, given)


def _delta_table(files: Files, table: str) -> Any:
    import deltalake

    uri = files.uri(table).removeprefix("file:")
    return deltalake.DeltaTable(uri) if deltalake.DeltaTable.is_deltatable(uri) else None


def _has_pending(files: Files, state: State) -> bool:
    """Return whether the messages of a batch that is being written are in their table."""

    found = _delta_table(files, MESSAGES)
    version = found.transaction_version(f"{states.WRITTEN}-0") if found is not None else None
    return version is not None and version > state.batch
