"""Delta tables: what a batch adds to one, in one commit that its own log knows by the batch's number."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from analytics.lake.manifest import LakeError
from analytics.lake.payload_decoders import QUARANTINE
from router.log.record_scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from analytics.lake.file_store import Files

MERGE_EVERY: Final = 32  # batches
NOT_IN_NAMES: Final = " ,;{}()\n\t="


def need_deltalake() -> None:
    """Raise LakeError if the package is not there."""
    if importlib.util.find_spec("deltalake") is None:
        raise LakeError("Delta tables need deltalake, which is not installed: pip install deltalake")


def uri_of(files: Files, table: str) -> str:
    """Return where a table is, as deltalake takes it."""
    return files.uri(table).removeprefix("file:")


def has(uri: str, written: str, number: int) -> bool:
    """Return whether a table has a batch."""
    import deltalake

    if not deltalake.DeltaTable.is_deltatable(uri):
        return False
    version = deltalake.DeltaTable(uri).transaction_version(written)
    return version is not None and version >= number


def append(uri: str, rows: pa.RecordBatchReader, written: str, number: int, *, merge: bool) -> None:
    """Append the rows of a batch to a table, `date` among their columns, unless it has them.

    Args:
        written: by whom.
        number: of the batch.
        merge: small files of the table are merged now and then.

    Memory: some batches of the rows, and not all of them.
    """
    import deltalake

    if has(uri, written, number):
        return
    deltalake.write_deltalake(
        uri, rows, mode="append", partition_by=["date"], schema_mode="merge",
        commit_properties=deltalake.CommitProperties(app_transactions=[deltalake.Transaction(written, number)]),
    )  # fmt: skip
    if merge and number % MERGE_EVERY == MERGE_EVERY - 1:
        deltalake.DeltaTable(uri).optimize.compact()


def leave_quarantine(files: Files, table: str, day: str, since_us: int, until_us: int) -> None:
    """Remove the messages of a decoder and a stretch of time from the quarantine."""
    import deltalake

    def at(time_us: int) -> str:
        moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
        return f"timestamp '{moment.isoformat()}'"

    condition = f"`table` = '{table}' and date = '{day}'"
    condition += f" and time >= {at(since_us)}" if since_us != TIME_MIN else ""
    condition += f" and time < {at(until_us)}" if until_us != TIME_MAX else ""
    deltalake.DeltaTable(uri_of(files, QUARANTINE)).delete(condition)


def with_day(batches: Iterable[tuple[str, pa.RecordBatch]], schema: pa.Schema) -> pa.RecordBatchReader:
    """Return rows with their day as the column `date`.

    Args:
        batches: (day, rows of that day).
        schema: of the rows.
    """
    whole = schema.append(pa.field("date", pa.date32()))

    def found() -> Iterator[pa.RecordBatch]:
        for day, rows in batches:
            date = pa.repeat(pa.scalar(day).cast(pa.date32()), len(rows))
            yield pa.RecordBatch.from_arrays([*rows.columns, date], schema=whole)

    return pa.RecordBatchReader.from_batches(whole, found())


def forget(files: Files, table: str, before: str) -> int:
    """Remove the days before one from a table; return how many files it has no more. Files go a week later."""
    import deltalake

    uri = uri_of(files, table)
    if not deltalake.DeltaTable.is_deltatable(uri):
        return 0
    found = deltalake.DeltaTable(uri)
    removed = int(found.delete(f"date < '{before}'")["num_removed_files"])
    found.vacuum(dry_run=False)
    return removed
