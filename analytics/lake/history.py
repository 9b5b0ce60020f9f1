"""Decoding what a lake has already: for decoders that are new, and messages that a mended one can decode now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from analytics.lake.engines import open_lake
from analytics.lake.files_by_day import day_between, day_of, file_uris, times
from analytics.lake.manifest import LakeError
from analytics.lake.payload_decoders import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.lake.writer import Plan


def decode_history(
    spark: SparkSession | None, plan: Plan, table: str, *, since: str | None = None, until: str | None = None,
    told: Callable[[str, int, int], None] = lambda day, decoded, quarantined: None,
) -> tuple[int, int]:  # fmt: skip
    """Decode messages of a lake for one decoder, those that are not in its table; return how many are now, and not.

    It may be ended at any moment and begun again.

    Args:
        spark: None: without Spark.
        table: of the decoder, which is one of the plan's.
        since, until: only messages accepted then or later, and before then.
        told: called with each day, when it is done.

    Raises LakeError, ValueError.
    """
    payload = next((each for each in plan.payloads if each.table == table), None)
    if payload is None:
        known = ", ".join(each.table for each in plan.payloads)
        raise LakeError(f"there is no decoder with the table {table!r}; there are {known or 'none'}")
    since_us, until_us = times(since, until)
    wanted = day_between(since_us, until_us)
    lake = open_lake(plan, spark)
    decoded = quarantined = 0
    try:
        lake.finish()
        for day in sorted({day_of(uri) for uri in file_uris(lake.files, lake.state, MESSAGES)}):
            if wanted(day):
                good, bad = lake.decode(payload, day, since_us, until_us)
                told(day, good, bad)
                decoded, quarantined = decoded + good, quarantined + bad
    finally:
        lake.close()
    return decoded, quarantined
