"""What all writers of a lake do: one of them writes at a time, and a batch is there as a whole.

What a batch writes counts when the state of the lake (analytics.lake.manifest) names it, which happens at once for all
its files.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from analytics.lake import manifest as states
from analytics.lake.inference import extended
from analytics.lake.lock import WriterLock
from analytics.lake.manifest import DELTA, PARQUET, STAGING, LakeError, Table
from analytics.lake.payload_decoders import MESSAGES, Payload, check_decoder, data_type
from analytics.source.column_types import fields_of, from_json, json_of, nullable, struct_of

if TYPE_CHECKING:
    from analytics.lake.file_store import Files

Position = dict[str, dict[str, int]]

_HELD = {PARQUET: "Parquet files", DELTA: "Delta tables"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a lake is made of, and how.

    Args:
        data_dir: the broker's data folder.
        path: of the lake, anything that its writer can write to.
        payloads: decoders.
        messages_max: in a batch.
        compact: merge small files.
        file_bytes: how large a merged file may get, about.
        options: of the source, beside the folder.
    """

    data_dir: str
    path: str
    payloads: tuple[Payload, ...] = ()
    messages_max: int = 1_000_000
    compact: bool = True
    file_bytes: int = 134_217_728
    options: dict[str, str] = field(default_factory=dict)


class LakeWriter:
    """A lake that is written to. One at a time may write, until close(), or its process ends.

    Args:
        files: of the lake.
        damaged: files may be missing.

    Raises LakeError, here and when a batch is written.
    """

    layout = PARQUET
    not_in_names = ""  # characters that the name of a column cannot have

    def __init__(self, files: Files, plan: Plan, *, damaged: bool = False) -> None:
        self.plan = plan
        self.files = files
        self._lock = WriterLock(self.files)
        try:
            self._open(damaged)
        except BaseException:
            self.close()
            raise

    def _open(self, damaged: bool) -> None:
        self.state = states.load(self.files)
        if self.state.layout and self.state.layout != self.layout:
            has, no = _HELD[self.state.layout], _HELD[self.layout].removeprefix("Parquet ")
            raise LakeError(f"the lake {self.files.root} has {has}, and is no lake of {no}: see --format")
        self.state.layout = self.layout
        if not self.files.has_locks:
            # Whoever was writing fails at the next commit, and until then what it wrote may be removed.
            states.commit(self.files, self.state)
        self.missing = states.tidy(self.files, self.state)
        if self.missing and not damaged:
            raise LakeError(
                f"of the lake {self.files.root} {len(self.missing)} file{'s' * (len(self.missing) > 1)}, as"
                f" {self.missing[0]}, is missing: `shoal lake repair` brings back what the log still has of it"
            )
        for payload in self.plan.payloads:
            # What does not fit the table is told now.
            check_decoder(payload, self._data_type(payload, pa.struct([])))

    def close(self) -> None:
        """Let another job write. Its work must be over."""
        self._lock.close()

    def new_tables(self) -> list[str]:
        """Return the decoders that know nothing of the messages that the lake has."""
        if MESSAGES not in self.state.tables:
            return []
        return [payload.table for payload in self.plan.payloads if payload.table not in self.state.tables]

    def finish(self) -> None:
        """Finish what was begun before anything else is written."""

    def _known(self, table: str) -> pa.StructType | None:
        """Return the columns of a table, `date` left out; None if there is no such table."""
        known = self.state.tables.get(table)
        return from_json(known.schema) if known is not None else None

    def _extend(self, table: str, columns: pa.StructType) -> pa.StructType:
        """Have a table know columns, as the next state will say; return all that it has."""
        before = self.state.tables.get(table)
        schema = struct_of(each for each in fields_of(columns) if each.name != "date")
        if before is not None:
            schema = extended(from_json(before.schema), schema, keep=True)
        schema = nullable(schema)
        self.state.tables[table] = Table(json_of(schema), before.files if before is not None else {})
        return schema

    def _data_type(self, payload: Payload, found: pa.StructType) -> pa.DataType:
        """Return the type of a decoder's `data`: what the table has, and what is new. Raises LakeError.

        Args:
            found: the fields that were found out, where no schema is given.
        """
        known = self._known(payload.table)
        return data_type(payload, known.field("data").type if known is not None else None, found)

    def _publish(self, end: Position) -> None:
        """Give the files of a batch their names, and have the state name them."""
        self.state.batch += 1
        for table in self.files.entries(STAGING):
            for part in self.files.entries(f"{STAGING}/{table.name}"):
                self._take(table.name, f"{STAGING}/{table.name}/{part.name}")
        self.state.position = end
        states.commit(self.files, self.state)
        self.files.remove(STAGING)

    def _take(self, table: str, folder: str) -> None:
        for day in self.files.entries(folder):
            for count, entry in enumerate(self.files.entries(f"{folder}/{day.name}") if day.is_folder else []):
                if entry.name.endswith(".parquet"):
                    name = f"{table}/{day.name}/b{self.state.batch:012d}-{count:05d}-{uuid.uuid4().hex[:8]}.parquet"
                    self.files.rename(f"{folder}/{day.name}/{entry.name}", name)
                    self.state.tables[table].files[name] = entry.size
