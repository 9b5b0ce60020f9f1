"""What a query wants only, as far as it can be told before rows are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from router.scan import TIME_MAX, TIME_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from analytics.options import Options

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
TOPICS_MAX = 64  # with more of them, Spark looks itself


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages of the logs.

    Args:
        since_us, until_us: accepted at this time or later, and before that time; µs since 1970.
        workers: of these logs; None: of all.
        topic_filter: that it matches; None: any.
        prefix: whose topic name begins so.
        topics: whose topic name is one of these; None: any.
    """

    since_us: int = TIME_MIN
    until_us: int = TIME_MAX
    workers: frozenset[int] | None = None
    topic_filter: bytes | None = None
    prefix: bytes = b""
    topics: frozenset[bytes] | None = None

    @classmethod
    def of(cls, options: Options) -> Wanted:
        """Return what options say."""
        return cls(options.since_us, options.until_us, options.workers, options.topic_filter)


def push(wanted: Wanted, filters: Iterable[Filter]) -> tuple[Wanted, list[Filter]]:
    """Return what is wanted with filters of a query on top, and those filters that Spark has to look at itself."""
    left = []
    for condition in filters:
        narrowed = _narrowed(wanted, condition)
        if narrowed is None:
            left.append(condition)
        else:
            wanted = narrowed
    return wanted, left


def _narrowed(wanted: Wanted, condition: Filter) -> Wanted | None:
    attribute = getattr(condition, "attribute", None)
    if attribute == ("time",):
        return _by_time(wanted, condition)
    if attribute == ("worker",):
        return _by_worker(wanted, condition)
    if attribute == ("topic",):
        return _by_topic(wanted, condition)
    return None


def _by_time(wanted: Wanted, condition: Filter) -> Wanted | None:
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime):
        return None
    # Spark gives an aware time, or a naive one in the time zone of this process.
    at_us = (value.astimezone(UTC) - _EPOCH) // _MICROSECOND
    since_us, until_us = wanted.since_us, wanted.until_us
    match condition:
        case EqualTo():
            since_us, until_us = max(since_us, at_us), min(until_us, at_us + 1)
        case GreaterThan():
            since_us = max(since_us, at_us + 1)
        case GreaterThanOrEqual():
            since_us = max(since_us, at_us)
        case LessThan():
            until_us = min(until_us, at_us)
        case LessThanOrEqual():
            until_us = min(until_us, at_us + 1)
        case _:
            return None
    return replace(wanted, since_us=since_us, until_us=until_us)


def _by_worker(wanted: Wanted, condition: Filter) -> Wanted | None:
    values = _values(condition)
    if values is None or not all(isinstance(value, int) for value in values):
        return None
    asked = frozenset(values)
    return replace(wanted, workers=asked if wanted.workers is None else wanted.workers & asked)


def _by_topic(wanted: Wanted, condition: Filter) -> Wanted | None:
    if isinstance(condition, StringStartsWith):
        prefix = condition.value.encode()
        if prefix.startswith(wanted.prefix):
            return replace(wanted, prefix=prefix)
        return wanted if wanted.prefix.startswith(prefix) else None
    values = _values(condition)
    if values is None or len(values) > TOPICS_MAX or not all(isinstance(value, str) for value in values):
        return None
    asked = frozenset(value.encode() for value in values)
    return replace(wanted, topics=asked if wanted.topics is None else wanted.topics & asked)


def _values(condition: Filter) -> tuple[Any, ...] | None:
    if isinstance(condition, EqualTo):
        return (condition.value,)
    return tuple(condition.value) if isinstance(condition, In) else None
