"""What people ask of a fleet's data: each a function from DataFrames to a DataFrame, and `shoal analyze NAME`.

`messages` are rows of the source, of a lake, or of both together. `events` and `deliveries` are the source's other
tables. Times are Spark's timestamps; intervals are seconds unless a name says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOBODY = "(nobody)"


def _gap_s(column: str, window: Any) -> Column:
    before = f.lag(column).over(window)
    return (f.col(column).cast("double") - before.cast("double")).alias("gap_s")


def _usual_s() -> Column:
    """Return the median gap; of messages of the same instant, as in a burst, none tells of a rhythm."""
    return f.median(f.when(f.col("gap_s") > 0, f.col("gap_s"))).alias("usual_s")


def traffic(messages: DataFrame, *, level: int = 1, every: str = "1 minute") -> DataFrame:
    """Messages and bytes by the first levels of the topic, publisher and time.

    Args:
        level: how many levels of the topic make a group.
        every: the length of a step in time.

    Columns: time, topic, publisher, messages, bytes.
    """
    group = f.array_join(f.slice(f.split("topic", "/"), 1, level), "/")
    return (
        messages.groupBy(
            f.window("time", every)["start"].alias("time"), group.alias("topic"),
            f.coalesce("publisher", f.lit(NOBODY)).alias("publisher"),
        )
        .agg(f.count("*").alias("messages"), f.sum(f.length("payload")).alias("bytes"))
        .orderBy("time", f.desc("messages"))
    )  # fmt: skip


def latency(deliveries: DataFrame) -> DataFrame:
    """Time from acceptance to the receiver's acknowledgement, by client; offline time counts.

    Columns: client, deliveries, p50_ms, p90_ms, p99_ms, worst_ms.
    """

    def percentile(share: float, name: str) -> Column:
        return (f.percentile_approx("latency_us", share, 10_000) / 1000).alias(name)

    return (
        deliveries.groupBy("client")
        .agg(f.count("*").alias("deliveries"), percentile(0.5, "p50_ms"), percentile(0.9, "p90_ms"),
             percentile(0.99, "p99_ms"), (f.max("latency_us") / 1000).alias("worst_ms"))
        .orderBy(f.desc("p99_ms"))
    )  # fmt: skip


def churn(events: DataFrame, *, flapping_s: float = 60.0) -> DataFrame:
    """How often clients came and went; who comes back within `flapping_s` again and again flaps.

    Columns: client, connects, disconnects, ends, returns_within, median_connected_s, last.
    """
    window = Window.partitionBy("client").orderBy("time", "number")
    steps = events.where(f.col("kind").isin("session", "detached", "ended")).select(
        "client", "time", "kind", f.lag("kind").over(window).alias("before"), _gap_s("time", window)
    )
    returned = (f.col("kind") == "session") & f.col("before").isin("detached", "ended") & (f.col("gap_s") <= flapping_s)
    stayed = f.when((f.col("kind") == "detached") & (f.col("before") == "session"), f.col("gap_s"))

    def count(kind: str) -> Column:
        return f.count_if(f.col("kind") == kind)

    return (
        steps.groupBy("client")
        .agg(count("session").alias("connects"), count("detached").alias("disconnects"), count("ended").alias("ends"),
             f.count_if(returned).alias("returns_within"), f.median(stayed).alias("median_connected_s"),
             f.max("time").alias("last"))
        .orderBy(f.desc("returns_within"), f.desc("connects"))
    )  # fmt: skip


def silent(messages: DataFrame, *, factor: float = 5.0, least: int = 5, until: Column | None = None) -> DataFrame:
    """Devices that have stopped: silent for longer than `factor` times their usual interval, and their longest one.

    Args:
        least: messages that a device must have sent for its rhythm to be known.
        until: the moment to judge by; None is the newest message of all.

    Columns: publisher, messages, usual_s, longest_s, last, silent_s, times_usual.
    """
    window = Window.partitionBy("publisher").orderBy("time")
    gaps = messages.where("publisher is not null").select("publisher", "time", _gap_s("time", window))
    rhythm = gaps.groupBy("publisher").agg(
        f.count("*").alias("messages"), _usual_s(), f.max("gap_s").alias("longest_s"), f.max("time").alias("last")
    )
    now = rhythm.agg(f.max("last").alias("now")) if until is None else rhythm.limit(1).select(until.alias("now"))
    silent_s = f.col("now").cast("double") - f.col("last").cast("double")
    return (
        rhythm.where(f.col("messages") >= least).crossJoin(now)
        .withColumn("silent_s", silent_s).drop("now")
        .where((f.col("silent_s") > factor * f.col("usual_s")) & (f.col("silent_s") > f.col("longest_s")))
        .withColumn("times_usual", f.round(f.col("silent_s") / f.col("usual_s"), 1))
        .orderBy(f.desc("silent_s"))
    )  # fmt: skip


def outliers(messages: DataFrame, *, deviations: float = 6.0, least: int = 20) -> DataFrame:
    """Payloads of a size that is out of the ordinary for their topic's first levels and publisher.

    The measure is the distance from the median in median absolute deviations (one byte at least).

    Columns: time, topic, publisher, bytes, usual_bytes, deviations.
    """
    sized = messages.withColumn("bytes", f.length("payload")).withColumn("group", f.coalesce("publisher", "topic"))
    usual = sized.groupBy("group").agg(f.median("bytes").alias("usual_bytes"), f.count("*").alias("known"))
    apart = f.abs(f.col("bytes") - f.col("usual_bytes"))
    joined = sized.join(usual.where(f.col("known") >= least), "group")
    spread = joined.groupBy("group").agg(f.greatest(f.median(apart), f.lit(1.0)).alias("spread"))
    return (
        joined.join(spread, "group").withColumn("deviations", f.round(apart / f.col("spread"), 1))
        .where(f.col("deviations") > deviations)
        .select("time", "topic", "publisher", "bytes", "usual_bytes", "deviations").orderBy(f.desc("deviations"))
    )  # fmt: skip


def affected(messages: DataFrame, events: DataFrame, *, topic_filter: str) -> DataFrame:
    """Who would miss something if topics went away: who publishes there, and whose subscriptions match.

    Columns: role (publisher, subscriber), client, topic_filter, messages, last.
    """
    from analytics.lake.payload_decoders import filter_pattern

    gone = messages.where(f.col("topic").rlike(filter_pattern(topic_filter)))
    publishers = (
        gone.where("publisher is not null")
        .groupBy(f.col("publisher").alias("client"))
        .agg(f.count("*").alias("messages"), f.max("time").alias("last"))
        .select(
            f.lit("publisher").alias("role"),
            "client",
            f.lit(None).cast("string").alias("topic_filter"),
            "messages",
            "last",
        )
    )

    newest = Window.partitionBy("client", "topic_filter").orderBy(f.desc("time"), f.desc("number"))
    ended = events.where("kind = 'ended'").groupBy("client").agg(f.max("time").alias("ended"))
    subscribed = (
        events.where(f.col("kind").isin("subscribe", "unsubscribe")).withColumn("rank", f.row_number().over(newest))
        .where("rank = 1 and kind = 'subscribe'").join(ended, "client", "left").where("ended is null or ended < time")
        .select("client", "topic_filter")
    )  # fmt: skip
    pattern = f.udf(lambda text: filter_pattern(_inner(text)), "string", useArrow=False)
    topics = gone.groupBy("topic").agg(f.count("*").alias("count"), f.max("time").alias("newest"))
    matched = subscribed.withColumn("pattern", pattern("topic_filter")).join(topics, f.expr("topic rlike pattern"))
    subscribers = (
        matched.groupBy("client", "topic_filter")
        .agg(f.sum("count").alias("messages"), f.max("newest").alias("last"))
        .select(f.lit("subscriber").alias("role"), "client", "topic_filter", "messages", "last")
    )
    return publishers.unionByName(subscribers).orderBy("role", f.desc("messages"))


def _inner(topic_filter: str) -> str:
    """Return the topic filter of a shared subscription, or the filter as it is."""
    return topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else topic_filter


def gaps(messages: DataFrame, *, publisher: str | None = None, factor: float = 3.0) -> DataFrame:
    """Per device, where its time series has gaps: steps longer than `factor` times its usual one.

    Args:
        publisher: only this device; None: all.

    Columns: publisher, from, to, gap_s, usual_s.
    """
    chosen = messages.where("publisher is not null" if publisher is None else f.col("publisher") == publisher)
    window = Window.partitionBy("publisher").orderBy("time")
    steps = chosen.select("publisher", f.lag("time").over(window).alias("from"), f.col("time").alias("to"),
                          _gap_s("time", window)).where("gap_s is not null")  # fmt: skip
    usual = steps.groupBy("publisher").agg(_usual_s())
    return (
        steps.join(usual, "publisher").where(f.col("gap_s") > factor * f.col("usual_s"))
        .select("publisher", "from", "to", "gap_s", "usual_s").orderBy("publisher", "from")
    )  # fmt: skip


def series(messages: DataFrame, *, publisher: str, every: str = "1 minute") -> DataFrame:
    """One device's messages and bytes over time, with a row of zeros for each step in which there was none.

    Columns: time, messages, bytes.
    """
    counted = (
        messages.where(f.col("publisher") == publisher)
        .groupBy(f.window("time", every)["start"].alias("time"))
        .agg(f.count("*").alias("messages"), f.sum(f.length("payload")).alias("bytes"))
    )
    span = counted.agg(f.sequence(f.min("time"), f.max("time"), f.expr(f"interval {every}")).alias("times"))
    steps = span.select(f.explode("times").alias("time"))
    return steps.join(counted, "time", "left").fillna(0, ["messages", "bytes"]).orderBy("time")
