"""What becomes of a lake that files are missing of."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from analytics.lake import manifest as states
from analytics.lake.file_stores import open_files
from analytics.lake.lake import CHECKPOINT, Lake, Plan, read_lake
from analytics.lake.lock import WriterLock
from analytics.lake.manifest import FOLDER, STAGING, LakeError
from analytics.lake.payload_decoders import MESSAGES
from analytics.source.schema import ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Repaired:
    """What was found, and done.

    Args:
        damaged: states that could not be read, and are out of the way now.
        missing: how many files of each table are gone, and not named any more.
        restored: messages that came back from the log.
    """

    damaged: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    restored: int = 0


def repair(spark: SparkSession, path: str, data_dir: str | None) -> Repaired:
    """Make a lake whole: forget files that are gone, and bring back from the log the messages that were in them.

    Args:
        path: of the lake.
        data_dir: the broker's data folder; None: bring nothing back.

    Raises LakeError.
    """
    done = Repaired(_set_aside(spark, path))
    lake = Lake(spark, Plan(data_dir or "", path), damaged=True)
    try:
        if not lake.state.tables:
            raise LakeError(f"{lake.files.root} is no lake: there is no state in {FOLDER}")
        done.missing = dict(Counter(name.split("/")[0] for name in lake.missing))
        if lake.missing:
            for name in lake.missing:
                del lake.state.tables[name.split("/")[0]].files[name]
            states.commit(lake.files, lake.state)
        # It may be of another time than the lake now is; a new one begins where the lake ends.
        lake.files.remove(CHECKPOINT)
        if data_dir is not None and (done.damaged or MESSAGES in done.missing):
            done.restored = _restore(lake)
    finally:
        lake.close()
    return done


def _set_aside(spark: SparkSession, path: str) -> list[str]:
    """Rename states that cannot be read, newest first, until one can; return their names."""
    files = open_files(spark, path)
    lock = WriterLock(files)
    damaged = []
    try:
        for version in reversed(states.versions(files)):
            name = f"{FOLDER}/{version:012d}.json"
            try:
                json.loads(files.read(name))
                break
            except ValueError:
                files.rename(name, f"{name}.damaged")
                damaged.append(name)
    finally:
        lock.close()
    return damaged


def _restore(lake: Lake) -> int:
    """Write messages of the log that the lake should have and has not; return how many."""
    spark = lake.spark
    reader = spark.read.format("shoal").option("failOnDataLoss", "false")
    log = reader.option("upto", json.dumps(lake.state.position)).load(lake.plan.data_dir)
    known = read_lake(spark, lake.plan.path).select(*ID)
    lost = log.join(known, list(ID), "left_anti").select(*log.columns).withColumn("date", f.to_date("time"))
    lost.persist()
    try:
        count = lost.count()
        if count:
            lake.add(lost, MESSAGES)
    finally:
        lost.unpersist()
    lake.files.remove(STAGING)
    return count
