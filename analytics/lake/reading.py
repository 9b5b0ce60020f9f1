"""A lake as it is now, by its state: what counts, whichever job is writing meanwhile."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from analytics.lake import manifest as states
from analytics.lake.file_store import LocalFiles
from analytics.lake.file_stores import open_files
from analytics.lake.files_by_day import day_between, day_of, file_uris, has_pending, times
from analytics.lake.payload_decoders import MESSAGES, filter_pattern
from analytics.source.options import parse_options
from router.log.record_scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from analytics.lake.file_store import Files
    from analytics.lake.manifest import State

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
    # A state that tells of the very first batch knows no table yet, whatever there is of it.
    if MESSAGES in state.tables and state.pending is not None and has_pending(files, state):
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


def within(frame: DataFrame, since_us: int, until_us: int) -> DataFrame:
    """Return the rows of a stretch of time."""
    if since_us != TIME_MIN:
        frame = frame.where(f.col("time") >= f.timestamp_micros(f.lit(since_us)))
    if until_us != TIME_MAX:
        frame = frame.where(f.col("time") < f.timestamp_micros(f.lit(until_us)))
    return frame


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
