"""The files that count of a table, and the days that they belong to."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from analytics.lake.manifest import DELTA, WRITTEN, LakeError
from analytics.lake.payload_decoders import MESSAGES
from analytics.source.options import parse_options
from router.log.record_scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from analytics.lake.file_store import Files
    from analytics.lake.manifest import State

_DAY: Final = re.compile(r"/date=(\d{4}-\d\d-\d\d)/")


def times(since: str | None, until: str | None) -> tuple[int, int]:
    """Return two times as µs since 1970. Raises ValueError."""
    given = {name: text for name, text in (("since", since), ("until", until)) if text is not None}
    wanted = parse_options({"path": ".", **given})
    return wanted.since_us, wanted.until_us


def day_between(since_us: int, until_us: int) -> Callable[[str], bool]:
    """Return whether a day, as `2026-11-21`, may have messages of a stretch of time."""
    first = _day(since_us) if since_us != TIME_MIN else ""
    last = _day(until_us - 1) if until_us != TIME_MAX else "9999-99-99"
    return lambda day: first <= day <= last


def _day(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d")


def day_of(uri: str) -> str:
    """Return the day that a file of a table belongs to."""
    found = _DAY.search(uri)
    assert found is not None, uri
    return found[1]


def file_uris(files: Files, state: State, table: str) -> list[str]:
    """Return the files that count of a table, as Spark's readers take them. Raises LakeError."""
    known = state.tables.get(table)
    if known is None:
        there = f"there are {', '.join(sorted(state.tables))}" if state.tables else "there is none"
        raise LakeError(f"the lake {files.root} has no table {table!r}; {there}")
    if state.layout != DELTA:
        return [files.uri(name) for name in sorted(known.files)]
    found = delta_table(files, table)
    uris = found.file_uris() if found is not None else []
    return sorted(f"file:{uri}" if uri.startswith("/") else uri for uri in uris)


def delta_table(files: Files, table: str) -> Any:
    """Return a table of a lake of Delta tables; None if it is not there yet."""
    import deltalake

    uri = files.uri(table).removeprefix("file:")
    return deltalake.DeltaTable(uri) if deltalake.DeltaTable.is_deltatable(uri) else None


def has_pending(files: Files, state: State) -> bool:
    """Return whether the messages of a batch that is being written are in their table."""
    found = delta_table(files, MESSAGES)
    version = found.transaction_version(f"{WRITTEN}-0") if found is not None else None
    return version is not None and version > state.batch
