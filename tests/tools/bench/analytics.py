"""`python -m tests.tools.bench.analytics` measures Spark on the log, and writes docs/benchmarks-analytics.md and .json;
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

from broker.version import VERSION
from router.core.message import message
from router.log.disk import Disk
from router.log.record_buffer import RecordBuffer
from tests.support.commit_logs import open_log
from tests.support.log_folders import worker_folder
from tests.tools.bench.analytics_live import PAYLOAD_BYTES, RATE, TRIGGER_S, measure
from tests.tools.bench.machine import machine

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "benchmarks-analytics.md"
BUILD = ROOT / "build" / "bench" / "analytics"
MESSAGES = 1_000_000
BROKER_CORE, SPARK_CORE = 0, 1
WARM_UP_ROUNDS = 2
WARM_UP_ROWS = 100_000  # of what is written: Java compiles while it writes the first ones
EXPLAINED = """
Count: `count()` of all rows, for which Parquet reads no column, and a source in Python makes all that it has. One
column: the same, with `schema("n bigint")`. Two columns: `count(distinct topic), sum(length(payload))`, with `schema()`
asking the source for these two. All columns: every value of every row, into Spark's `noop` sink.

Ready-made is the floor of a source in Python, whatever it does: one that yields the same Arrow batch, made beforehand,
again and again (`tests/tools/bench/analytics_floor.py`). Spark 4.3 tells a source in Python conditions and no columns
(its `PythonScanBuilder` is a `SupportsPushDownFilters` and no `SupportsPushDownRequiredColumns`), and makes rows of its
own of all columns before the query sees one. So whoever counts asks for one column.
"""
RATE_MET = 0.95  # of the rate that is wanted, so that a lag counts
ONE_COLUMN = "count, one column"
OF_FILES = ("lake", "parquet")
PARQUET_TURNS = 5  # in a round, of what is read from Parquet files: a single second says little
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
    from analytics.source.spark_session import session as open_session

    return open_session(master="local[1]", name="bench", settings=SETTINGS)


def reading(rounds: int, count: int) -> dict[str, Any]:
    """Measure rows/s of the same queries over log, lake and native Parquet, in turns."""
    from analytics.lake.lake import Lake, Plan, read_lake
    from analytics.source.log_reader import size_of
    from analytics.source.options import ROWS_PER_BATCH
    from tests.tools.bench.analytics_floor import floor

    folder = BUILD / "data"
    if not (folder / "worker-0").exists():
        write_log(folder, count)
    spark = session()
    for name in ("lake", "parquet"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
    log = spark.read.format("shoal").load(str(folder))
    log.limit(WARM_UP_ROWS).write.mode("overwrite").parquet(str(BUILD / "parquet"))
    shutil.rmtree(BUILD / "parquet")
    started_s = time.monotonic()
    log.write.parquet(str(BUILD / "parquet"))
    parquet_s = time.monotonic() - started_s
    started_s = time.monotonic()
    query = Lake(spark, Plan(str(folder), str(BUILD / "lake"))).start()
    query.awaitTermination()
    lake_s = time.monotonic() - started_s

    def source(columns: Any) -> Any:
        return spark.read.format("shoal").schema(columns).load(str(folder))

    def ready(name: str, like: Any) -> Any:
        return floor(spark, BUILD / f"{name}.arrow", like, count, ROWS_PER_BATCH, -(-size_of(str(folder)) // 2**26))

    lake, parquet = read_lake(spark, str(BUILD / "lake")), spark.read.parquet(str(BUILD / "parquet"))
    one, two = source(log.select("n").schema), source(log.select("topic", "payload").schema)

    def total(frame: Any) -> None:
        frame.selectExpr("count(distinct topic)", "sum(length(payload))").collect()

    def everything(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def ways(run: Callable[[Any], Any], ready_made: Any, read: Any) -> dict[str, Callable[[], Any]]:
        frames = {"ready": ready_made, "log": read, "lake": lake, "parquet": parquet}
        return {name: lambda frame=frame: run(frame) for name, frame in frames.items()}

    all_ready = ready("all", log)
    queries = {
        "count": ways(lambda frame: frame.count(), all_ready, log),
        ONE_COLUMN: ways(lambda frame: frame.count(), ready("one", one), one),
        "two columns": ways(total, ready("two", two), two),
        "all columns": ways(everything, all_ready, log),
    }
    rates: dict[str, dict[str, list[float]]] = {query: {way: [] for way in each} for query, each in queries.items()}
    for round_number in range(-WARM_UP_ROUNDS, rounds):
        for query_name, each in queries.items():
            for way, seconds in timed(each, round_number % 2 == 1).items():
                if round_number >= 0:
                    rates[query_name][way].append(count / statistics.median(seconds))
    spark.stop()
    return {"rates": rates, "lake_s": lake_s, "parquet_s": parquet_s}


def timed(ways: dict[str, Callable[[], Any]], backwards: bool) -> dict[str, list[float]]:
    """Run a query in all ways, those that take a second or so PARQUET_TURNS times; returns the seconds of each."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(PARQUET_TURNS):
        # To and fro, because what runs behind another one pays for its garbage.
        for way in list(ways)[:: -1 if backwards ^ (turn % 2 == 1) else 1]:
            if turn == 0 or way in OF_FILES:
                started_s = time.monotonic()
                ways[way]()
                taken[way].append(time.monotonic() - started_s)
    return taken


def page(found: dict[str, Any]) -> str:
    """Return the document."""
    rates = found["read"]["rates"]

    def ratio(query: str, way: str, to: str = "parquet") -> float:
        return statistics.median(one / other for one, other in zip(rates[query][way], rates[query][to], strict=True))

    lines = [
        "# Benchmarks of the Spark source and the lake", "",
        f"- Machine: {found['machine']}; shared with other work, so read ratios, not times.",
        f"- Versions: Shoal {VERSION}, {found['versions']}",
        f"- Command: `make bench-analytics` ({found['rounds']} rounds in turns, lake and Parquet {PARQUET_TURNS} times"
        f" in each; medians, and those of ratios within a round), {found['date']}",
        f"- {MESSAGES:,} messages of {PAYLOAD_BYTES} bytes, `local[1]`, everything of Spark on one core.", "",
        "| rows/s | ready-made | log | lake | native Parquet | log to ready-made | ready-made to Parquet |"
        " log to Parquet | lake to Parquet |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, ways in rates.items():
        medians = " | ".join(f"{statistics.median(ways[way]):,.0f}" for way in ("ready", "log", "lake", "parquet"))
        ratios = [ratio(name, "log", "ready"), *(ratio(name, way) for way in ("ready", "log", "lake"))]
        lines.append(f"| {name} | {medians} | {' | '.join(f'{each:.2f}' for each in ratios)} |")
    counted = statistics.median(rates["count"]["log"])
    lines += [
        EXPLAINED,
        "| what | found | wanted | |",
        "|---|---:|---:|---|",
        f"| log through Spark to a count | {counted:,.0f} rows/s | 200,000 rows/s | {verdict(counted >= 2e5)} |",
        f"| log to a count, one column asked for, to native Parquet's | {ratio(ONE_COLUMN, 'log'):.2f} | 0.33 |"
        f" {verdict(ratio(ONE_COLUMN, 'log') >= 1 / 3)} |",
        f"| the same with all columns | {ratio('count', 'log'):.2f}; Spark's floor is {ratio('count', 'ready'):.2f} |"
        f" 0.33 | {verdict(ratio('count', 'log') >= 1 / 3)} |",
        f"| log, two columns, to native Parquet | {ratio('two columns', 'log'):.2f} | 0.33 |"
        f" {verdict(ratio('two columns', 'log') >= 1 / 3)} |",
        f"| lake, two columns, to native Parquet | {ratio('two columns', 'lake'):.2f} | 1, within the noise of 0.9 |"
        f" {verdict(ratio('two columns', 'lake') >= 0.9)} |",
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
    read, alone = seen["cpu_us"]["read"], seen["cpu_us"]["alone"]
    met = seen["lag_s"] < 2 * TRIGGER_S and seen["rate"] >= RATE_MET * RATE
    return [
        f"| lag of a stream at {seen['rate']:,.0f} msg/s, trigger every {TRIGGER_S:g} s, at worst |"
        f" {seen['lag_s']:.1f} s | {2 * TRIGGER_S:g} s at {RATE:,} msg/s | {verdict(met)} |",
        f"| broker's CPU per message while it is read, to alone | {read:.2f} µs, {alone:.2f} µs: {read / alone:.2f} |"
        f" 1.05 | {verdict(read / alone <= 1.05)} |",
        "",
        "Lag: from the acceptance of a batch's oldest message to the end of the batch. Live: the broker has one core,",
        "Spark and the publisher (QoS 1, archived, fsync) share the other one, where the publisher goes first.",
        "Beside Spark it sends larger pieces, which the broker takes for less: below 1 is the publisher's doing.", "",
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
        # In a process of its own: one that has had a session keeps its Java, with the core and niceness that it has.
        arguments = ["--only", "live", "--seconds", str(given.seconds), "--rounds", str(max(1, given.rounds // 2))]
        told = subprocess.run(
            [sys.executable, "-m", "tests.tools.bench.analytics", *arguments],
            check=True,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        found["live"] = json.loads(told.stdout)["live"]
    print(json.dumps(found, indent=1))
    if given.only != "live":
        DOCUMENT.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        DOCUMENT.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
