"""A lake of Delta tables that is written without Spark.

Each table has a log of its own. So the state says first which stretch of the logs is going to be written, and a stretch
that was begun is finished, exactly as it was, before anything else is written.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from analytics.lake import delta_tables
from analytics.lake import manifest as states
from analytics.lake.arrow_lake import ArrowLake
from analytics.lake.manifest import DELTA, STAGING
from analytics.lake.parquet_files import read
from analytics.source.column_types import fields_of
from analytics.source.log_batches import open_logs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from analytics.lake.file_store import Files
    from analytics.lake.payload_decoders import Payload
    from analytics.lake.writer import Plan, Position


class ArrowDeltaLake(ArrowLake):
    """A lake of Delta tables in a folder of this machine, written by this process.

    Raises LakeError, LogError, here and when a batch is written.
    """

    layout = DELTA
    not_in_names = delta_tables.NOT_IN_NAMES

    def __init__(self, plan: Plan, *, damaged: bool = False, files: Files | None = None) -> None:
        delta_tables.need_deltalake()
        self._written = states.WRITTEN
        super().__init__(plan, damaged=damaged, files=files)

    def finish(self) -> None:
        """Finish what was begun before anything else is written."""
        pending = self.state.pending
        if pending is not None:
            self.put(self._messages(open_logs(self.options), pending), pending)

    def put(self, messages: Iterable[pa.RecordBatch], end: Position) -> None:
        """Put all messages between the position of the lake and another one into the tables."""
        if self.state.pending != end:
            self.state.pending = end
            states.commit(self.files, self.state)
        super().put(messages, end)

    def decode(self, payload: Payload, day: str, since_us: int, until_us: int) -> tuple[int, int]:
        """Decode messages of a day, as ArrowLake.decode() does; another time does what this leaves undone."""
        # No batch of the logs: nothing of it may pass for one that was written.
        self._written = f"shoal-decode-{uuid.uuid4().hex}"
        try:
            return super().decode(payload, day, since_us, until_us)
        finally:
            self._written = states.WRITTEN

    def _leave_quarantine(self, table: str, day: str, since_us: int, until_us: int) -> list[str]:
        delta_tables.leave_quarantine(self.files, table, day, since_us, until_us)
        return []

    def _publish(self, end: Position) -> None:
        for table in self.files.entries(STAGING):
            uri, known = delta_tables.uri_of(self.files, table.name), self._known(table.name)
            assert known is not None, table
            for part in self.files.entries(f"{STAGING}/{table.name}"):
                rows = delta_tables.with_day(
                    self._staged(f"{STAGING}/{table.name}/{part.name}", schema := pa.schema(fields_of(known))), schema
                )
                # The lake counts its batches, so a table tells which one it has.
                delta_tables.append(
                    uri, rows, f"{self._written}-{part.name}", self.state.batch + 1, merge=self.plan.compact
                )
        self.state.batch += 1
        self.state.position = end
        self.state.pending = None
        states.commit(self.files, self.state)
        self.files.remove(STAGING)

    def _staged(self, folder: str, schema: pa.Schema) -> Iterator[tuple[str, pa.RecordBatch]]:
        for day in self.files.entries(folder):
            for entry in self.files.entries(f"{folder}/{day.name}"):
                for rows in read(self.files.path(f"{folder}/{day.name}/{entry.name}"), schema):
                    yield day.name.removeprefix("date="), rows

    def _merge_small_files(self) -> None:
        """Leave that to the tables."""
