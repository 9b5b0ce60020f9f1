"""Which of the file stores a lake is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.lake.file_store import LocalFiles
from analytics.lake.hadoop import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.lake.file_store import Files


def open_files(spark: SparkSession, root: str) -> Files:
    """Return the files below a folder of any kind that Spark can write to, by the settings of a session."""
    files = HadoopFiles(spark, root)
    return LocalFiles(files.local_path) if files.local_path is not None else files
