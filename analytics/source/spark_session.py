"""A Spark session as the commands of Shoal use it: quiet, and with what the source needs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from analytics.source.source import ShoalSource

if TYPE_CHECKING:
    from collections.abc import Mapping

# Set unless the session, or who calls, says something else.
_SETTINGS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}


def register(spark: SparkSession) -> None:
    """Make the source `shoal` known to a session."""
    spark.dataSource.register(ShoalSource)


def session(
    *, master: str | None = None, name: str = "shoal", settings: Mapping[str, str] | None = None, verbose: bool = False
) -> SparkSession:
    """Return a session that knows the source; the one there is, or a new one.

    Args:
        master: `local[2]`, `spark://host:7077`; None is what spark-submit says, else all cores of this machine.
        name: of the application.
        settings: of Spark, on top of ours.
        verbose: show Spark's own log, warnings and all.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    with nullcontext() if verbose else _quiet():
        spark = builder.getOrCreate()
    if not verbose:
        spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


@contextmanager
def _quiet() -> Iterator[None]:
    """Have what the JVM and its processes write to standard error go to a file; if it does not start, show that."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as noise:
        os.dup2(noise.fileno(), 2)
        try:
            yield
        except BaseException:
            noise.seek(0)
            os.write(kept, noise.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
