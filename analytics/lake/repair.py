"""What becomes of a lake that files are missing of."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analytics.lake import manifest as states
from analytics.lake.engines import files_of, open_lake
from analytics.lake.lock import WriterLock
from analytics.lake.manifest import CHECKPOINT, FOLDER, LakeError
from analytics.lake.payload_decoders import MESSAGES
from analytics.lake.writer import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.lake.file_store import Files


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


def repair(spark: SparkSession | None, path: str, data_dir: str | None) -> Repaired:
    """Make a lake whole: forget files that are gone, and bring back from the log the messages that were in them.

    Args:
        spark: None: without Spark.
        path: of the lake.
        data_dir: the broker's data folder; None: bring nothing back.

    Raises LakeError.
    """
    done = Repaired(_set_aside(files_of(path, spark)))
    lake = open_lake(Plan(data_dir or "", path), spark, damaged=True)
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
            done.restored = lake.restore()
    finally:
        lake.close()
    return done


def _set_aside(files: Files) -> list[str]:
    """Rename states that cannot be read, newest first, until one can; return their names."""
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
