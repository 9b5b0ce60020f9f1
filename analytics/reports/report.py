"""One HTML file about a stretch of time: plots and tables that need nothing else, to be forwarded."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from analytics.reports.html import AXIS_STEPS_S, Page, amount, area_chart, bar_chart, number, seconds, table, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

ROWS: Final = 12
WHOLE_STEPS_MIN: Final = 3  # without which a plot over time has the broken ones at its ends, too
POINTS: Final = 120  # of a plot over time, at most

Row = dict[str, Any]


# The sections behind the plots: title, what it is about, the rows' name in Found, fields and headings, and what is said
# where there is none.
TABLES: Final = (
    ("Publishers", "those with the most messages", "publishers",
     [("publisher", "client"), ("messages", "messages"), ("bytes", "bytes"), ("last", "last message")],
     "There is nothing."),
    ("Silent devices", "that have stopped, against their usual rhythm", "silent",
     [("publisher", "client"), ("last", "last message"), ("silent_s", "silent for"), ("usual_s", "usual interval"),
      ("longest_s", "longest before")], "Nobody has fallen silent."),
    ("Gaps", "the longest interruptions of a device's time series", "gaps",
     [("publisher", "client"), ("from", "from"), ("to", "to"), ("gap_s", "length"), ("usual_s", "usual interval")],
     "There are none."),
    ("Delivery latency", "from acceptance to the receiver's acknowledgement, ms", "latency",
     [("client", "client"), ("deliveries", "deliveries"), ("p50_ms", "median"), ("p90_ms", "90 %"), ("p99_ms", "99 %"),
      ("worst_ms", "worst")], "No session that outlives its connection has acknowledged anything."),
    ("Sessions that come and go", "of clients whose sessions outlive their connection", "churn",
     [("client", "client"), ("connects", "connects"), ("disconnects", "disconnects"), ("ends", "ends"),
      ("returns_within", "back within a minute"), ("median_connected_s", "connected, median")],
     "The log tells of no such session."),
    ("Unusual payload sizes", "far from the median of their publisher", "outliers",
     [("time", "time"), ("publisher", "client"), ("topic", "topic"), ("bytes", "bytes"),
      ("usual_bytes", "usual bytes"), ("deviations", "deviations")], "There are none."),
)  # fmt: skip


@dataclass(slots=True)
class Found:
    """What a report tells.

    Args:
        since, until: of the first and the last message.
        step_s: of `over_time`.
        over_time: (start of a step, messages, bytes), without the steps in which there was nothing.
        topics: by their first level; publishers: those with most messages.
    """

    title: str
    made: datetime
    since: datetime | None = None
    until: datetime | None = None
    messages: int = 0
    bytes: int = 0
    topic_count: int = 0
    publisher_count: int = 0
    step_s: int = 60
    over_time: list[tuple[datetime, int, int]] = field(default_factory=list)
    topics: list[Row] = field(default_factory=list)
    publishers: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    churn: list[Row] = field(default_factory=list)
    silent: list[Row] = field(default_factory=list)
    outliers: list[Row] = field(default_factory=list)
    gaps: list[Row] = field(default_factory=list)


def collect(
    messages: DataFrame, events: DataFrame | None, deliveries: DataFrame | None, title: str,
    progress: Callable[[str], None] = lambda what: None,
) -> Found:  # fmt: skip
    """Ask Spark for what a report tells.

    Args:
        messages: rows of the source or a lake.
        events, deliveries: the source's other tables; None where there is no log.
        progress: called with what comes next.
    """
    from pyspark.sql import functions as f

    from analytics.reports import jobs

    found = Found(title, datetime.now(UTC))
    slim = messages.select("time", "topic", "publisher", "payload").persist()
    try:
        progress("messages")
        total = slim.agg(
            f.count("*").alias("messages"), f.coalesce(f.sum(f.length("payload")), f.lit(0)).alias("bytes"),
            f.min("time").cast("double").alias("since"), f.max("time").cast("double").alias("until"),
            f.count_distinct("topic").alias("topics"), f.count_distinct("publisher").alias("publishers"),
        ).collect()[0]  # fmt: skip
        found.messages, found.bytes = total.messages, total.bytes
        if not found.messages:
            return found
        found.topic_count, found.publisher_count = total.topics, total.publishers
        found.since, found.until = _moment(total.since), _moment(total.until)
        found.step_s = _step_s(total.until - total.since)
        steps = slim.groupBy(f.floor(f.col("time").cast("double") / found.step_s).alias("step")).agg(
            f.count("*").alias("messages"), f.sum(f.length("payload")).alias("bytes")
        )
        found.over_time = [
            (_moment(row.step * found.step_s), row.messages, row.bytes) for row in steps.orderBy("step").collect()
        ]
        by_topic = slim.groupBy(f.substring_index("topic", "/", 1).alias("topic"))
        by_publisher = slim.groupBy(f.coalesce("publisher", f.lit(jobs.NOBODY)).alias("publisher"))
        for name, group in (("topics", by_topic), ("publishers", by_publisher)):
            counted = group.agg(
                f.count("*").alias("messages"), f.sum(f.length("payload")).alias("bytes"),
                f.max("time").cast("double").alias("last"),
            )  # fmt: skip
            setattr(found, name, _rows(counted.orderBy(f.desc("messages"))))
        for name, frame in (
            ("silent", jobs.silent(slim)), ("outliers", jobs.outliers(slim)),
            ("gaps", jobs.gaps(slim).orderBy(f.desc("gap_s"))),
        ):  # fmt: skip
            progress(name)
            setattr(found, name, _rows(frame))
        if deliveries is not None:
            progress("latency")
            found.latency = _rows(jobs.latency(deliveries))
        if events is not None:
            progress("churn")
            found.churn = _rows(jobs.churn(events))
    finally:
        slim.unpersist()
    return found


def _rows(frame: DataFrame) -> list[Row]:
    """Return the first rows, with each time in UTC."""
    from pyspark.sql import functions as f

    times = [each.name for each in frame.schema.fields if each.dataType.typeName() == "timestamp"]
    for name in times:
        frame = frame.withColumn(name, f.col(name).cast("double"))
    rows = [row.asDict() for row in frame.limit(ROWS).collect()]
    for row in rows:
        for name in times:
            row[name] = _moment(row[name]) if row[name] is not None else None
        if isinstance(row.get("last"), float):
            row["last"] = _moment(row["last"])
    return rows


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def _step_s(span_s: float) -> int:
    return next((step for step in AXIS_STEPS_S if span_s / step <= POINTS), AXIS_STEPS_S[-1])


def render(found: Found) -> str:
    """Return the report as HTML; whatever clients chose is escaped."""
    page = Page(found.title)
    if found.since is None or found.until is None:
        page.text("There is no message in this stretch of time.")
        return page.html(f"Made {timestamp(found.made)}.")
    span_s = max(1.0, (found.until - found.since).total_seconds())
    page.text(f"{timestamp(found.since)} to {timestamp(found.until)} ({seconds(span_s)})")
    page.tiles(
        [
            ("messages", number(found.messages)),
            ("a second, on average", number(found.messages / span_s)),
            ("payload", amount(found.bytes, "B")),
            ("topics", number(found.topic_count)),
            ("publishers", number(found.publisher_count)),
            ("silent devices", number(len(found.silent)) + ("+" if len(found.silent) == ROWS else "")),
        ]
    )
    filled = _filled(found)
    page.section(
        "Messages over time",
        f"per second, in steps of {seconds(found.step_s)}",
        area_chart([(at, messages / found.step_s) for at, messages, _ in filled]),
    )
    page.section(
        "Payload over time",
        "bytes per second",
        area_chart([(at, size / found.step_s) for at, _, size in filled], unit="B/s"),
    )
    page.section("Topics", "by their first level", bar_chart([(row["topic"], row["messages"]) for row in found.topics]))
    for title, what, rows, columns, nothing in TABLES:
        page.section(title, what, table(getattr(found, rows), columns, nothing))
    return page.html(f"Made {timestamp(found.made)} from Shoal's commit log. All times are UTC.")


def _filled(found: Found) -> list[tuple[datetime, int, int]]:
    """Return the steps over time with those in which there was nothing.

    The first and the last one were not looked at from their beginning to their end, so less seems to have come in them:
    they are left out, unless there is hardly another one.
    """
    known = {at: (messages, size) for at, messages, size in found.over_time}
    at, last = found.over_time[0][0], found.over_time[-1][0]
    filled = []
    while at <= last:
        filled.append((at, *known.get(at, (0, 0))))
        at += timedelta(seconds=found.step_s)
    return filled[1:-1] if len(filled) > WHOLE_STEPS_MIN + 1 else filled
