"""Who writes a lake: this process with Arrow, or Spark, which reaches file systems that are not of this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from analytics.lake import manifest as states
from analytics.lake.arrow_delta import ArrowDeltaLake
from analytics.lake.arrow_lake import ArrowLake
from analytics.lake.arrow_reading import local_files
from analytics.lake.manifest import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.lake.file_store import Files
    from analytics.lake.writer import Plan

_ELSEWHERE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")


def needs_spark(path: str) -> bool:
    """Return whether a lake is where only Spark gets to: hdfs://..., s3a://..."""
    return _ELSEWHERE.match(path) is not None


def open_lake(plan: Plan, spark: SparkSession | None, layout: str = "", *, damaged: bool = False) -> Any:
    """Return the writer of a lake: an ArrowLake, or where Spark is given a Lake.

    Args:
        layout: PARQUET or DELTA; empty: as the lake is.

    Raises LakeError.
    """
    files = files_of(plan.path, spark)
    delta = (layout or states.load(files).layout) == DELTA
    if spark is None:
        return (ArrowDeltaLake if delta else ArrowLake)(plan, damaged=damaged)
    from analytics.lake.delta import DeltaLake
    from analytics.lake.lake import Lake

    return (DeltaLake if delta else Lake)(spark, plan, damaged=damaged)


def files_of(path: str, spark: SparkSession | None) -> Files:
    """Return the files of a lake. Raises LakeError."""
    if spark is None:
        return local_files(path)
    from analytics.lake.file_stores import open_files

    return open_files(spark, path)
