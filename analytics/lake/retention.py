"""Forgetting the old days of a lake, on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analytics.lake import delta_tables
from analytics.lake import manifest as states
from analytics.lake.files_by_day import day_of
from analytics.lake.manifest import DELTA

if TYPE_CHECKING:
    from analytics.lake.writer import LakeWriter


def forget(lake: LakeWriter, before: str) -> dict[str, int]:
    """Forget the days before one, `2026-11-21`, in all tables; return how many files of each table are gone.

    What was forgotten does not come back from the log. Files of Delta tables are removed a week later, by the next time
    that this is done, because queries may be reading them.
    """
    lake.finish()
    lake.state.since = max(lake.state.since, before)
    gone: dict[str, list[str]] = {}
    for name, table in lake.state.tables.items():
        old = [file for file in table.files if day_of(f"/{file}") < before]
        for file in old:
            del table.files[file]
        gone[name] = old
    states.commit(lake.files, lake.state)
    counts = {name: len(old) for name, old in gone.items()}
    for name, old in gone.items():
        if lake.state.layout == DELTA:
            counts[name] = delta_tables.forget(lake.files, name, before)
        for file in old:
            lake.files.remove(file)
        for day in {file.rsplit("/", 1)[0] for file in old}:
            if not lake.files.entries(day):
                lake.files.remove(day)
    return {name: count for name, count in counts.items() if count}
