"""What a lake consists of at a moment: which files, and how far the log is in them.

A state is one small file, and the newest one counts. Whatever else lies around was never finished and is removed at the
next start; so a kill at any moment neither loses nor repeats a message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from analytics.lake.file_store import Files

FORMAT: Final = 3
FORMATS: Final = (1, 2, 3)  # that are read
FOLDER: Final = "_shoal/state"
CHECKPOINT: Final = "_shoal/checkpoint"  # Spark's
STAGING: Final = "_shoal/staging"
MERGING: Final = "_shoal/merging"  # a day that is changing places with what it is merged to
STATES_KEPT: Final = 10
PARQUET: Final = "parquet"
DELTA: Final = "delta"
WRITTEN: Final = "shoal-lake"  # by whom, in the log of a Delta table
_STATE = re.compile(r"(\d{12})\.json")
# Names of files that a lake writes: those of others in its folders are nobody's business here.
_DATA = re.compile(r"[bc]\d{12}-\d{5}-[0-9a-f]{8}\.parquet")
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,62}")


class LakeError(Exception):
    """A lake that cannot be used as it is: one sentence."""


@dataclass(slots=True)
class Table:
    """A table of a lake.

    Args:
        schema: Spark's, as JSON; what was added later is at the end.
        files: name, relative to the lake -> bytes.
    """

    schema: dict[str, Any]
    files: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """A lake at a moment.

    Args:
        version: of the state, rising.
        batch: the number of the batch that is in it last, counted by the lake; -1 before the first one.
        position: how far each log is in it: {worker: {incarnation, number, segment, position}}.
        pending: how far the logs are in it once the batch that is being written is there; None: no table has a part of
            one. Of a lake whose tables have commits of their own.
        layout: PARQUET or DELTA; empty before the first batch.
        since: the first day that is kept, as `2026-11-21`: days before it were forgotten on purpose; empty: all are.
        tables: by name.
    """

    version: int = 0
    batch: int = -1
    position: dict[str, dict[str, int]] = field(default_factory=dict)
    pending: dict[str, dict[str, int]] | None = None
    layout: str = ""
    since: str = ""
    tables: dict[str, Table] = field(default_factory=dict)


def check_table_name(name: str) -> None:
    """Raise LakeError if a table cannot be called so."""
    if not _TABLE.fullmatch(name):
        raise LakeError(f"{name!r} is no name of a table: small letters, digits and _, a letter first")


def versions(files: Files) -> list[int]:
    """Return the versions of all states that there are, ascending."""
    found = [_STATE.fullmatch(entry.name) for entry in files.entries(FOLDER)]
    return sorted(int(match[1]) for match in found if match)


def load(files: Files) -> State:
    """Return the newest state; an empty one where there is no lake yet. Raises LakeError."""
    known = versions(files)
    if not known:
        return State()
    name = f"{FOLDER}/{known[-1]:012d}.json"
    try:
        content = json.loads(files.read(name))
    except ValueError as error:
        raise LakeError(f"{files.uri(name)} is damaged: {error}") from error
    if content["format"] not in FORMATS:
        raise LakeError(f"{files.uri(name)} has format {content['format']}; this version of Shoal reads {FORMAT}")
    tables = {key: Table(value["schema"], value["files"]) for key, value in content["tables"].items()}
    layout = content.get("layout")
    if layout is None:  # format 1: a Delta table keeps its files to itself
        layout = (PARQUET if any(table.files for table in tables.values()) else DELTA) if tables else ""
    since = content.get("since", "")
    return State(known[-1], content["batch"], content["position"], content.get("pending"), layout, since, tables)


def commit(files: Files, state: State) -> None:
    """Make a state the newest one. Raises LakeError if another job has written one meanwhile."""
    content = {
        "format": FORMAT,
        "batch": state.batch,
        "position": state.position,
        "pending": state.pending,
        "since": state.since,
        "layout": state.layout,
        "tables": {name: {"schema": table.schema, "files": table.files} for name, table in state.tables.items()},
    }
    if not files.write(f"{FOLDER}/{state.version + 1:012d}.json", json.dumps(content)):
        raise LakeError(
            f"somebody else has written to the lake {files.root} since: this writer ends, and its batch does not count"
        )
    state.version += 1
    for version in versions(files)[:-STATES_KEPT]:
        files.remove(f"{FOLDER}/{version:012d}.json")


def tidy(files: Files, state: State) -> list[str]:
    """Remove what was never finished, or is not needed any more; return the names of files that should be there and are
    not.

    Only for who may write to the lake: the files of somebody else's batch would be among them.
    """
    files.remove(STAGING)
    _take_back(files, state)
    for entry in files.entries(FOLDER):
        if entry.name.endswith(".new"):
            files.remove(f"{FOLDER}/{entry.name}")
    missing = {name for table in state.tables.values() for name in table.files}
    for folder in files.entries(""):
        if not folder.is_folder or not _TABLE.fullmatch(folder.name):
            continue
        table = state.tables.get(folder.name)
        known = table.files if table is not None else {}
        for day in files.entries(folder.name):
            if not day.is_folder or not day.name.startswith("date="):
                continue
            for entry in files.entries(f"{folder.name}/{day.name}"):
                name = f"{folder.name}/{day.name}/{entry.name}"
                missing.discard(name)
                if _DATA.fullmatch(entry.name) and name not in known:
                    files.remove(name)
    return sorted(missing)


def _take_back(files: Files, state: State) -> None:
    """Have files where a state knows them that a merge, which was not finished, has put aside."""
    for table in files.entries(MERGING):
        known = state.tables[table.name].files if table.name in state.tables else {}
        for day in files.entries(f"{MERGING}/{table.name}"):
            folder = f"{table.name}/{day.name}"
            aside = {entry.name for entry in files.entries(f"{MERGING}/{folder}")}
            there = {entry.name for entry in files.entries(folder)}
            lost = [name for name in sorted(aside - there) if f"{folder}/{name}" in known]
            if not lost:
                continue
            for name in sorted(there - aside):
                if not _DATA.fullmatch(name):  # somebody else's, that came meanwhile
                    files.rename(f"{folder}/{name}", f"{MERGING}/{folder}/{name}")
            if not files.exchange(folder, f"{MERGING}/{folder}"):
                for name in lost:
                    files.rename(f"{MERGING}/{folder}/{name}", f"{folder}/{name}")
    files.remove(MERGING)


def numbers(position: dict[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    """Return the records up to which a position goes: {worker: (incarnation, number)}."""
    return {worker: (place["incarnation"], place["number"]) for worker, place in position.items()}
