"""Merging the small files of a lake, so that their number grows with the days and not with the batches."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from analytics.lake import manifest as states
from analytics.lake.file_store import LocalFiles
from analytics.lake.manifest import MERGING, STAGING
from analytics.lake.parquet_files import merge
from analytics.source.column_types import fields_of, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.lake.file_store import Files
    from analytics.lake.manifest import State

FILES_PER_TIER: Final = 8
TIER_FACTOR: Final = 8


def tiers(sizes: dict[str, int], file_bytes: int) -> list[list[str]]:
    """Return groups of files that should become one file each.

    Files of a day are grouped by size, each group up to eight times as large as the one before it, and merged when
    there are eight of them: so a message is written once more for each group, a handful of times at most.

    Args:
        sizes: name -> bytes, of one day of one table.
        file_bytes: files of this size stay as they are.
    """
    groups: dict[int, list[str]] = defaultdict(list)
    for name, size in sorted(sizes.items()):
        if size < file_bytes // 2:
            tier, bound = 0, 65_536
            while size >= bound:
                tier, bound = tier + 1, bound * TIER_FACTOR
            groups[tier].append(name)
    merged = []
    for _, names in sorted(groups.items()):
        group: list[str] = []
        for name in names:
            if group and sum(sizes[each] for each in group) + sizes[name] > file_bytes:
                merged.append(group)
                group = []
            group.append(name)
        merged.append(group)
    return [group for group in merged if len(group) >= FILES_PER_TIER]


def compact(files: Files, state: State, file_bytes: int, spark: SparkSession | None = None) -> int:
    """Merge what there is to be merged; return how many files became fewer.

    Args:
        spark: reads and writes files that are not of this machine.

    The new files count when the state names them; then the old ones are removed. A query that is reading those at this
    moment ends with an error that says so, and can be asked again.
    """
    fewer = 0
    for table_name, table in sorted(state.tables.items()):
        days: dict[str, dict[str, int]] = defaultdict(dict)
        for name, size in table.files.items():
            days[name.split("/")[1]][name] = size
        for day, sizes in sorted(days.items()):
            for group in tiers(sizes, file_bytes):
                _merge(files, state, table_name, day, group, spark)
                fewer += len(group) - 1
    return fewer


def _merge(files: Files, state: State, table_name: str, day: str, group: list[str], spark: SparkSession | None) -> None:
    table = state.tables[table_name]
    folder = f"{STAGING}/compact"
    files.remove(folder)
    if spark is None or isinstance(files, LocalFiles):
        paths = [files.path(name) for name in group]
        merge(paths, files.new_path(f"{folder}/0.parquet"), pa.schema(fields_of(from_json(table.schema))))
    else:
        from pyspark.sql.types import StructType

        frame = spark.read.schema(StructType.fromJson(table.schema)).parquet(*[files.uri(name) for name in group])
        frame.coalesce(1).write.option("compression", "zstd").parquet(files.uri(folder))
    made = {}
    for count, entry in enumerate(files.entries(folder)):
        if entry.name.endswith(".parquet"):
            name = f"{table_name}/{day}/c{state.batch:012d}-{count:05d}-{uuid.uuid4().hex[:8]}.parquet"
            made[name] = entry.size
            files.rename(f"{folder}/{entry.name}", f"{MERGING}/{name}")
    swapped = _swap(files, f"{table_name}/{day}", set(group))
    if not swapped:
        for name in made:
            files.rename(f"{MERGING}/{name}", name)
    for name in group:
        del table.files[name]
    table.files.update(made)
    states.commit(files, state)
    if not swapped:
        for name in group:
            files.remove(name)
    files.remove(MERGING)
    files.remove(STAGING)


def _swap(files: Files, day: str, group: set[str]) -> bool:
    """Put a folder in the place of a day's that has the merged file and not those of a group; False if that cannot be.

    Whoever reads the folders, and no state, so sees each row once at any moment. Until the state is written, the folder
    that was there is in MERGING, for tidy() to take back from.
    """
    entries = files.entries(day)
    if any(entry.is_folder for entry in entries):
        return False
    kept = {f"{day}/{entry.name}" for entry in entries} - group
    if not all(files.link(name, f"{MERGING}/{name}") for name in sorted(kept)):
        return False
    if not files.exchange(day, f"{MERGING}/{day}"):
        return False
    for entry in files.entries(f"{MERGING}/{day}"):
        name = f"{day}/{entry.name}"
        if name not in kept and name not in group:
            files.rename(f"{MERGING}/{name}", name)  # somebody else's, that came meanwhile
    return True
