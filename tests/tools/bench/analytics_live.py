"""Spark on a log that grows meanwhile: how far a stream is behind, and what the broker pays for being read."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from analytics.source.mqtt_client import Client
from broker.cli.admin_client import AdminClient
from tests.support.process import ROOT, BrokerProcess

RATE = 20_000
PAYLOAD_BYTES = 100
TRIGGER_S = 5.0
CATCH_UP_S = 90.0
SETTLE_S = 2.0
BURST_S = 0.05
SPARK_NICENESS = 10
TICKS = os.sysconf("SC_CLK_TCK")


class Publisher(threading.Thread):
    """Publishes so many messages a second at QoS 1, until it is told to stop."""

    def __init__(self, port: int, rate: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.rate = rate
        self.over = threading.Event()
        self.published = 0

    def run(self) -> None:
        body = b"x" * PAYLOAD_BYTES
        with Client(f"tcp://127.0.0.1:{self.port}", client_identifier="publisher") as client:
            last_s = time.monotonic()
            due = 0.0
            while not self.over.is_set():
                now_s = time.monotonic()
                # What could not be sent in time is not made up for: a burst would be another load.
                due = min(due + (now_s - last_s) * self.rate, self.rate * BURST_S)
                last_s = now_s
                while due >= 1:
                    client.publish(f"fleet/{self.published % 1_000}/telemetry", body)
                    self.published += 1
                    due -= 1
                client.look_after(0.005)


class Spent:
    """What a broker with one worker has taken in, and the CPU time that it took for that, since this was made."""

    def __init__(self, broker: BrokerProcess) -> None:
        assert broker.process is not None
        self.pid = broker.process.pid
        self.admin = AdminClient.of(broker.folder / "data")
        self.started_s = time.monotonic()
        self.messages, self.cpu_s = self._now()

    def _now(self) -> tuple[int, float]:
        messages = int(self.admin.ask("GET", "/status")["messages_in"])
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return messages, (int(fields[11]) + int(fields[12])) / TICKS

    def rates(self) -> tuple[float, float]:
        """Return messages per second, and CPU seconds per message."""
        messages, cpu_s = self._now()
        got = messages - self.messages
        return got / (time.monotonic() - self.started_s), (cpu_s - self.cpu_s) / got


def live(spark: Any, broker: BrokerProcess, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure a stream's lag, and the broker's CPU time with and without it, in turns."""
    data, checkpoint = str(broker.folder / "data"), str(broker.folder / "checkpoint")
    stream = spark.readStream.format("shoal").load(data)
    lags: list[float] = []

    def batch(frame: Any, number: int) -> None:
        row = frame.selectExpr("min(cast(time as double)) as first", "count(*) as count").collect()[0]
        if row["first"] is not None:
            lags.append(time.time() - row["first"])

    found: dict[str, list[float]] = {"alone": [], "read": [], "rate": [], "lag": []}
    for round_number in range(2 * rounds):
        query = None
        if round_number % 2:
            query = (
                stream.writeStream.foreachBatch(batch).trigger(processingTime=f"{TRIGGER_S} seconds")
                .option("checkpointLocation", checkpoint).start()
            )  # fmt: skip
            until_s = time.monotonic() + CATCH_UP_S  # what waited meanwhile
            while time.monotonic() < until_s and not (len(lags) > 2 and max(lags[-2:]) < 2 * TRIGGER_S):
                time.sleep(0.1)
            lags.clear()
        time.sleep(SETTLE_S)
        spent = Spent(broker)
        time.sleep(seconds)
        rate, cpu_s = spent.rates()
        found["rate"].append(rate)
        found["alone" if query is None else "read"].append(cpu_s * 1e6)
        if query is not None:
            query.stop()
            assert lags, "no batch ended while it was measured"
            found["lag"] += lags
            lags.clear()
    return {
        "lag_s": max(found["lag"]), "rate": min(found["rate"]),
        "cpu_us": {name: statistics.median(found[name]) for name in ("alone", "read")}, "rounds": found,
    }  # fmt: skip


def measure(folder: Path, broker_core: int, spark_core: int, open_session: Any, seconds: float, rounds: int) -> Any:
    """Run a broker on one core, a publisher and Spark on another one; return what live() finds.

    Args:
        open_session: makes the Spark session; what it starts inherits this process's core and niceness.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with BrokerProcess(folder, environment={"SHOAL_ARCHIVE__TOPIC_FILTERS": "#"}) as broker:
        assert broker.process is not None
        for thread in os.listdir(f"/proc/{broker.process.pid}/task"):
            os.sched_setaffinity(int(thread), {broker_core})
        publisher = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.bench.analytics_live", str(broker.port)],
            stdin=subprocess.PIPE,
            cwd=ROOT,
        )
        os.sched_setaffinity(publisher.pid, {spark_core})
        # The publisher, which stands for devices elsewhere, goes before Spark; so the load is the same in all rounds.
        os.nice(SPARK_NICENESS)
        spark = open_session()
        try:
            return live(spark, broker, seconds, rounds)
        finally:
            publisher.communicate(b"")
            spark.stop()


def main() -> None:
    """Publish to a broker on this port, until standard input ends."""
    publisher = Publisher(int(sys.argv[1]), RATE)
    publisher.start()
    sys.stdin.read()
    publisher.over.set()
    publisher.join()


if __name__ == "__main__":
    main()
