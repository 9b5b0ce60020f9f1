"""The worked example of docs/analytics.md, from an empty folder: broker, fleet, lake, three questions, report.

python -m analytics.cli.demo FOLDER --minutes 2 --devices 1000
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from analytics.cli.lake import need_extra
from analytics.source.mqtt_client import Client, Unfinished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S: Final = 5.0
SITES: Final = ("north", "south", "harbour", "depot")
_ADDRESS: Final = re.compile(r"tcp://127\.0\.0\.1:(\d+)")

DECODERS: Final = """\
[[decode]]
table = "climate"
topic_filter = "sites/+/+/climate"
as = "json"
schema = "celsius double, humidity double, at timestamp"
"""

QUESTIONS: Final = (
    (
        "How warm is it, site by site?",
        """\
select split(topic, '/')[1] as site, count(*) as readings, round(avg(data.celsius), 2) as celsius,
       round(min(data.celsius), 1) as coldest, round(max(data.celsius), 1) as warmest
from climate group by 1 order by celsius desc""",
    ),
    (
        "Which devices send what cannot be decoded?",
        """\
select publisher, count(*) as messages, first(cast(payload as string)) as example, first(reason) as reason
from quarantine group by publisher order by messages desc limit 5""",
    ),
    (
        "How old are readings when the broker has them?",
        """\
select round(percentile(cast(time as double) - cast(data.at as double), 0.5) * 1000, 1) as median_ms,
       round(percentile(cast(time as double) - cast(data.at as double), 0.99) * 1000, 1) as p99_ms
from climate""",
    ),
)


class Broker:
    """`shoal serve` on a free port, as long as the block lasts."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self._errors = (folder / "broker.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker.cli.main", "serve", "--listen", "tcp://127.0.0.1:0",
             "--data-dir", str(self.data_dir)],
            env={**os.environ, "SHOAL_ARCHIVE__TOPIC_FILTERS": "sites/#"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        assert self.process.stdout is not None
        text = ""
        while (found := _ADDRESS.search(text)) is None or "ready" not in text:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"the broker did not start: see {folder / 'broker.log'}")
            text += line.decode()
        self.url = found[0]

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()
        self._errors.close()


class Fleet(threading.Thread):
    """Devices, each with a connection of its own, that publish JSON every five seconds or so.

    One in fifty stops half-way, one in fifty is away for a while, one in a hundred sends what is no JSON.
    """

    def __init__(self, url: str, devices: int, minutes: float) -> None:
        super().__init__(name="fleet", daemon=True)
        self.url = url
        self.devices = devices
        self.seconds = minutes * 60
        self.published = 0
        self._random = random.Random(1)

    def run(self) -> None:
        """Publish until the time is over."""
        with ExitStack() as connections:
            clients = [
                connections.enter_context(
                    Client(
                        self.url, client_identifier=f"device-{number:04}", session_expiry_s=300, unfinished=Unfinished()
                    )
                )
                for number in range(self.devices)
            ]
            started_s = time.monotonic()
            due = [(started_s + self._random.uniform(0, INTERVAL_S), number) for number in range(self.devices)]
            heapq.heapify(due)
            while due[0][0] < started_s + self.seconds:
                due_s, number = due[0]
                time.sleep(max(0.0, due_s - time.monotonic()))
                share = (due_s - started_s) / self.seconds
                if self._sends(number, share):
                    client = clients[number]
                    client.publish(f"sites/{SITES[number % 4]}/{number:04}/climate", self._payload(number, share), 1)
                    client.look_after(0)
                    self.published += 1
                heapq.heapreplace(due, (due_s + INTERVAL_S * self._random.uniform(0.9, 1.1), number))
            for client in clients:
                client.flush()

    @staticmethod
    def _sends(number: int, share: float) -> bool:
        if number % 50 == 13:
            return share < 0.5
        return number % 50 != 27 or not 0.3 < share < 0.7

    def _payload(self, number: int, share: float) -> bytes:
        if number % 100 == 42:
            return b"ERR 17 sensor"
        celsius = 14 + 3 * (number % 4) + 4 * share + self._random.gauss(0, 0.5)
        humidity = 60 - 2 * (number % 4) + self._random.gauss(0, 2)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now := time.time())) + f".{int(now % 1 * 1e6):06}Z"
        return json.dumps({"celsius": round(celsius, 2), "humidity": round(humidity, 1), "at": at}).encode()


class Dashboard(threading.Thread):
    """A client that subscribes to all of it, and whose session outlives its connection."""

    def __init__(self, url: str) -> None:
        super().__init__(name="dashboard", daemon=True)
        self.client = Client(url, client_identifier="dashboard", session_expiry_s=300, unfinished=Unfinished())
        self.client.subscribe("sites/#")
        self.over = threading.Event()

    def run(self) -> None:
        """Take what comes until it is over."""
        while not self.over.is_set():
            for message in self.client.messages(0.2):
                self.client.acknowledge([message])
        self.client.close()


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def run(
    folder: Path, *, devices: int, minutes: float, every_s: float = 10.0, master: str = "local[2]"
) -> dict[str, Any]:
    """Run the example in a folder; return what was published, what the lake has, and the answers."""
    from analytics.cli.analyze import show
    from analytics.lake.lake import Lake, Plan, read_lake
    from analytics.lake.payload_decoders import load_payloads
    from analytics.reports.report import collect, render
    from analytics.source.spark_session import session

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "decoders.toml").write_text(DECODERS, encoding="utf-8")
    lake_path = str(folder / "lake")
    with Broker(folder) as broker:
        say(f"1. The broker listens on {broker.url}; its data folder is {broker.data_dir}.")
        dashboard = Dashboard(broker.url)
        dashboard.start()
        fleet = Fleet(broker.url, devices, minutes)
        fleet.start()
        say(f"2. {devices:,} devices publish JSON for {minutes:g} minutes.")
        spark: SparkSession = session(master=master, name="shoal demo")
        plan = Plan(str(broker.data_dir), lake_path, tuple(load_payloads(str(folder / "decoders.toml"))))
        say(f"3. The lake is {lake_path}; a batch every {every_s:g} s.")
        query = Lake(spark, plan).start(every_s=every_s)
        told = -1
        while fleet.is_alive():
            fleet.join(1)
            for progress in query.recentProgress:
                if progress["batchId"] > told and progress["numInputRows"]:
                    told = progress["batchId"]
                    say(f"   batch {told}: {progress['numInputRows']:,} messages")
        query.stop()
        dashboard.over.set()
        dashboard.join()
        last = Lake(spark, plan).start()
        last.awaitTermination()
        count = read_lake(spark, lake_path).count()
        say(f"   {fleet.published:,} messages were published, {count:,} are in the lake.")
        say("4. Three questions.")
        for table in ("messages", "climate", "quarantine"):
            read_lake(spark, lake_path, table).createOrReplaceTempView(table)
        answers = []
        for question, sql in QUESTIONS:
            say(f"\n{question}\n")
            say("\n".join(f"   {line}" for line in sql.splitlines()) + "\n")
            answers.append([row.asDict() for row in spark.sql(sql).collect()])
            show(spark.sql(sql), 10, False)
        other = {
            name: spark.read.format("shoal").option("table", name).load(str(broker.data_dir))
            for name in ("events", "deliveries")
        }
        found = collect(read_lake(spark, lake_path), other["events"], other["deliveries"], "The fleet of the demo")
        report = folder / "report.html"
        report.write_text(render(found), encoding="utf-8")
        say(f"\n5. The report is {report}: open it in a browser.")
        return {"published": fleet.published, "lake": count, "answers": answers, "silent": len(found.silent)}


def main() -> None:
    """Run the example as the command line says."""
    parser = argparse.ArgumentParser(description="From an empty folder to a report.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    given = parser.parse_args()
    need_extra()
    if given.folder.exists() and any(given.folder.iterdir()):
        raise SystemExit(f"{given.folder} is not empty: the example begins with an empty folder.")
    found = run(given.folder, devices=given.devices, minutes=given.minutes)
    sys.exit(found["published"] != found["lake"])


if __name__ == "__main__":
    main()
