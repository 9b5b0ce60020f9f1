"""`python -m tests.bench.analytics` measures Spark on the log, and writes docs/benchmarks-analytics.md and .json;
`--only read` leaves out what grows meanwhile, `--only live` measures nothing else and writes nothing."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from router.message import message
from router.records import RecordBuffer

from broker.version import VERSION
from router.disk import Disk
from tests.bench.analytics_live import PAYLOAD_BYTES, TRIGGER_S, measure
from tests.bench.machine import machine
from tests.support.commit_logs import open_log
from tests.support.log_folders import worker_folder

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks-analytics.md"
BUILD = ROOT / "build" / "bench" / "analytics"
MESSAGES = 1_000_000
BROKER_CORE, SPARK_CORE = 0, 1
SETTINGS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}


def write_log(folder: Path, count: int) -> None:
    """Write a log as a broker does: accepted messages of 100 bytes, by 1,000 devices, a batch of 1,000 at a time."""
    log, _ = open_log(Disk(str(worker_folder(folder))), durability="os")
    start_us = 1_763_700_000_000_000
    for first in range(0, count, 1_000):
        buffer = RecordBuffer(log.appended)
        for number in range(first, first + 1_000):
            body = (b"%d " % number).ljust(PAYLOAD_BYTES, b".")
            buffer.add_accepted(
                start_us + number * 50, log.appended + buffer.count + 1,
                message(b"fleet/%d/telemetry" % (number % 1_000), body, 1), b"device-%d" % (number % 1_000), 0,
            )  # fmt: skip
        log.append(buffer)
        log.commit()
    log.close()


def session() -> Any:
    """Return a session on one core; the JVM and its Python processes inherit that."""
    os.sched_setaffinity(0, {SPARK_CORE})
    from analytics.session import session as open_session

    return open_session(master="local[1]", name="bench", settings=SETTINGS)


def reading(rounds: int, count: int) -> dict[str, Any]:
    """Measure rows/s of the same queries over log, lake and native Parquet, in turns."""
    from analytics.lake import Lake, Plan, read_lake

    folder = BUILD / "data"
    if not (folder / "worker-0").exists():
        write_log(folder, count)
    spark = session()
    for name in ("lake", "parquet"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
    log = spark.read.format("shoal").load(str(folder))
    started_s = time.monotonic()
    log.write.parquet(str(BUILD / "parquet"))
    parquet_s = time.monotonic() - started_s
    started_s = time.monotonic()
    query = Lake(spark, Plan(str(folder), str(BUILD / "lake"))).start()
    query.awaitTermination()
    lake_s = time.monotonic() - started_s
    frames = {
        "log": log,
        "lake": read_lake(spark, str(BUILD / "lake")),
        "parquet": spark.read.parquet(str(BUILD / "parquet")),
    }
    narrow = spark.read.format("shoal").schema(log.select("topic", "payload").schema).load(str(folder))

    def total(frame: Any) -> None:
        frame.selectExpr("count(distinct topic)", "sum(length(payload))").collect()

    def everything(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    queries: dict[str, dict[str, Callable[[], Any]]] = {
        "count": {name: frame.count for name, frame in frames.items()},
        "two columns": {name: lambda frame=frame: total(frame) for name, frame in frames.items()},
        "all columns": {name: lambda frame=frame: everything(frame) for name, frame in frames.items()},
    }
    queries["two columns"]["log"] = lambda: total(narrow)
    found: dict[str, dict[str, list[float]]] = {}
    for round_number in range(-1, rounds):  # the first one warms up
        for query_name, ways in queries.items():
            for way, run in ways.items():
                started_s = time.monotonic()
                run()
                rate = count / (time.monotonic() - started_s)
                if round_number >= 0:
                    found.setdefault(query_name, {}).setdefault(way, []).append(rate)
    spark.stop()
    medians = {name: {way: statistics.median(rates) for way, rates in ways.items()} for name, ways in found.items()}
    return {"rates": medians, "lake_s": lake_s, "parquet_s": parquet_s}


def page(found: dict[str, Any]) -> str:
    """Return the document."""
    rates = found["read"]["rates"]
    lines = [
        "# Benchmarks of the Spark source and the lake", "",
        f"- Machine: {found['machine']}; shared with other work, so read ratios, not times.",
        f"- Versions: Shoal {VERSION}, {found['versions']}",
        f"- Command: `make bench-analytics` ({found['rounds']} rounds in turns, medians), {found['date']}",
        f"- {MESSAGES:,} messages of {PAYLOAD_BYTES} bytes, `local[1]`, everything of Spark on one core.", "",
        "| rows/s | log | lake | native Parquet | log to Parquet | lake to Parquet |", "|---|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, ways in rates.items():
        log, lake, parquet = ways["log"], ways["lake"], ways["parquet"]
        ratios = f"{log / parquet:.2f} | {lake / parquet:.2f}"
        lines.append(f"| {name} | {log:,.0f} | {lake:,.0f} | {parquet:,.0f} | {ratios} |")
    count, two = rates["count"], rates["two columns"]
    lines += [
        "",
        "Count: `count()` of all rows; Parquet reads no column for it, the source makes all. Two columns: "
        "`count(distinct topic), sum(length(payload))`, with `schema()` asking the source for these two. All columns:",
        "every value of every row, into Spark's `noop` sink.", "",
        "| what | found | wanted | |",
        "|---|---:|---:|---|",
        f"| log through Spark to a count | {count['log']:,.0f} rows/s | 200,000 rows/s |"
        f" {verdict(count['log'] >= 2e5)} |",
        f"| the same, to native Parquet's count | {count['log'] / count['parquet']:.2f} | 0.33 |"
        f" {verdict(count['log'] / count['parquet'] >= 1 / 3)} |",
        f"| log, two columns, to native Parquet | {two['log'] / two['parquet']:.2f} | 0.33 |"
        f" {verdict(two['log'] / two['parquet'] >= 1 / 3)} |",
        f"| lake, two columns, to native Parquet | {two['lake'] / two['parquet']:.2f} | 1, within the noise of 0.9 |"
        f" {verdict(two['lake'] / two['parquet'] >= 0.9)} |",
        f"| writing the lake; a plain `write.parquet` of the same rows | {MESSAGES / found['read']['lake_s']:,.0f};"
        f" {MESSAGES / found['read']['parquet_s']:,.0f} rows/s | | |",
    ]  # fmt: skip
    return "\n".join([*lines, *live_lines(found.get("live")), ""])


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def live_lines(seen: dict[str, Any] | None) -> list[str]:
    """Return what the document says of a log that grows while it is read."""
    if seen is None:
        return ["", "The stream's lag and the broker's CPU beside it were not measured in this run."]
    more = seen["cpu_us"]["read"] / seen["cpu_us"]["alone"]
    return [
        f"| lag of a stream at {seen['rate']:,.0f} msg/s, trigger every {TRIGGER_S:g} s, at worst |"
        f" {seen['lag_s']:.1f} s | {2 * TRIGGER_S:g} s | {verdict(seen['lag_s'] < 2 * TRIGGER_S)} |",
        f"| broker's CPU per message while it is read, to alone | {seen['cpu_us']['read']:.2f} µs,"
        f" {seen['cpu_us']['alone']:.2f} µs: {more:.2f} | 1.05 | {verdict(more <= 1.05)} |",
        "",
        "Lag: from the acceptance of a batch's oldest message to the end of the batch. Live: the broker has one core,",
        "Spark and the publisher (QoS 1, archived, fsync) share the other one.", "",
    ]  # fmt: skip


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", choices=["read", "live"])
    given = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    import pyarrow
    import pyspark

    found: dict[str, Any] = {
        "machine": machine(), "rounds": given.rounds, "date": str(datetime.date.today()),
        "versions": f"Python {sys.version.split()[0]}, PySpark {pyspark.__version__}, PyArrow {pyarrow.__version__}",
    }  # fmt: skip
    if given.only != "live":
        found["read"] = reading(given.rounds, MESSAGES)
    if given.only == "live":
        found["live"] = measure(BUILD / "live", BROKER_CORE, SPARK_CORE, session, given.seconds, given.rounds)
    elif given.only is None:
        # In a process of its own: one that has had a session keeps its Java, with the core and the niceness that it has.
        arguments = ["--only", "live", "--seconds", str(given.seconds), "--rounds", str(max(1, given.rounds // 2))]
        told = subprocess.run(
            [sys.executable, "-m", "tests.bench.analytics", *arguments], check=True, stdout=subprocess.PIPE, cwd=ROOT
        )
        found["live"] = json.loads(told.stdout)["live"]
    print(json.dumps(found, indent=1))
    if given.only != "live":
        DOCUMENT.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        DOCUMENT.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
