"""Publish through brokers that are killed, into a lake whose driver is killed, and count what is in it.

python -m tests.analytics.killing --messages 1000000 --workers 3 --broker-kills 3 --driver-kills 2
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analytics.source.mqtt_client import Client, NetworkError, Unfinished
from tests.support.process import ROOT, BrokerProcess

TIMEOUT_S = 1800.0
SEGMENT_BYTES = 1_048_576
PUBLISHERS = 2
SUBSCRIBERS = 3


@dataclass
class Verdict:
    """What was published, and what is in the lake: rows, and different payloads among them."""

    published: int
    rows: int
    distinct: int
    days: int
    broker_kills: int
    driver_kills: int

    @property
    def exactly_once(self) -> bool:
        return self.published == self.rows == self.distinct


@dataclass
class Publisher:
    """One client that publishes so many messages at QoS 2, over as many connections as it takes."""

    number: int
    messages: int
    begun: int = 0
    unfinished: Unfinished = field(default_factory=Unfinished)

    def done(self) -> int:
        """Return how many messages are over, about."""
        return self.begun - len(self.unfinished.packets)

    def run(self, broker: BrokerProcess) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            try:
                with Client(
                    f"tcp://127.0.0.1:{broker.port}", client_identifier=f"publisher-{self.number}",
                    session_expiry_s=3600, unfinished=self.unfinished, timeout_s=10,
                ) as client:  # fmt: skip
                    while self.begun < self.messages:
                        topic = f"fleet/{self.begun % 100}/data"
                        payload = b"%d/%d" % (self.number, self.begun)
                        try:
                            client.publish(topic, payload, 2)
                        finally:
                            # What publish() has a packet identifier for comes again; what it has none for does not.
                            self.begun += any(payload in sent for sent in _last(self.unfinished))
                    client.flush()
                return
            except NetworkError:
                time.sleep(0.1)
        raise AssertionError(f"publisher {self.number} is at {self.begun} of {self.messages}")


def _last(unfinished: Unfinished) -> list[bytes]:
    sent = unfinished.packets.get(unfinished.last)
    return [sent] if sent is not None else []


SPARK = ("--master", "local[1]", "--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=1")


class Driver:
    """`shoal lake` in a process of its own."""

    def __init__(self, data: Path, lake: Path, *options: str) -> None:
        self.lake = lake
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker.cli.main", "lake", str(lake), "--data-dir", str(data), *options],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """End it and its Java process without any chance to tidy up."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def finish(self) -> str:
        """Wait for its end, which must be a good one; return what it wrote."""
        output = self.process.communicate(timeout=TIMEOUT_S)[0].decode()
        assert self.process.returncode == 0, output
        return output


def version_of(lake: Path) -> int:
    """Return the version of a lake's state, 0 if there is none."""
    states = sorted((lake / "_shoal" / "state").glob("*.json"))
    return int(states[-1].stem) if states else 0


def wait_until(condition: Any, what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


def run(
    folder: Path, *, messages: int, workers: int, broker_kills: int, driver_kills: int, batch: int,
    every_s: float = 0.5, finish: Callable[[Path, Path], None] | None = None, writer: tuple[str, ...] = SPARK,
) -> Verdict:  # fmt: skip
    """Do it all in a folder; raises AssertionError for what does not come to an end.

    Args:
        writer: options of who writes the lake.
        finish: puts the rest of the data folder into the lake; None: another driver does.
    """
    data, lake = folder / "data", folder / "lake"
    broker = BrokerProcess(
        folder, "--workers", str(workers),
        environment={"SHOAL_ARCHIVE__TOPIC_FILTERS": "#", "SHOAL_STORAGE__SEGMENT_BYTES_MAX": str(SEGMENT_BYTES),
                     "SHOAL_PROCESSES__RESTARTS_MAX": "100"},
    )  # fmt: skip
    broker.start()
    for number in range(SUBSCRIBERS):
        with Client(
            f"tcp://127.0.0.1:{broker.port}", client_identifier=f"subscriber-{number}", session_expiry_s=3600
        ) as c:
            c.subscribe("fleet/#", 1)
    publishers = [Publisher(number, messages // PUBLISHERS) for number in range(PUBLISHERS)]
    threads = [threading.Thread(target=each.run, args=(broker,), daemon=True) for each in publishers]
    options = ["--every", str(every_s), "--messages-max", str(batch), *writer]
    driver = Driver(data, lake, *options) if driver_kills else None
    for thread in threads:
        thread.start()
    events = [(kill / (broker_kills + 1), "broker") for kill in range(1, broker_kills + 1)]
    events += [(kill / (driver_kills + 1), "driver") for kill in range(1, driver_kills + 1)]
    for share, what in sorted(events):
        wait_until(
            lambda share=share: sum(p.done() for p in publishers) >= share * messages, f"no {share} of the messages"
        )
        if what == "broker":
            broker.kill()
            broker.start()
        else:
            assert driver is not None
            # Within a batch, once some are in the lake.
            seen = version_of(lake)
            wait_until(
                lambda seen=seen: version_of(lake) > seen or not any(each.is_alive() for each in threads),
                "the lake does not grow",
            )
            time.sleep(every_s / 2)
            driver.kill()
            driver = (
                Driver(data, lake, *options) if (share, what) != max(e for e in events if e[1] == "driver") else None
            )
    for thread in threads:
        thread.join()
    broker.stop()
    if finish is None:
        Driver(data, lake, "--once", "--messages-max", str(batch), *writer).finish()
    else:
        finish(data, lake)
    return verdict(lake, sum(each.messages for each in publishers), broker_kills, driver_kills)


def verdict(lake: Path, published: int, broker_kills: int, driver_kills: int) -> Verdict:
    """Count with libraries that know nothing of Shoal: whatever files lie in the table's folder, or what Delta says."""
    import pyarrow.compute
    import pyarrow.dataset

    folder = lake / "messages"
    if (folder / "_delta_log").exists():
        import deltalake

        table = deltalake.DeltaTable(str(folder)).to_pyarrow_dataset().to_table(columns=["payload", "date"])
    else:
        table = pyarrow.dataset.dataset(folder, partitioning="hive").to_table(columns=["payload", "date"])
    distinct = pyarrow.compute.count_distinct(table["payload"]).as_py()
    days = pyarrow.compute.count_distinct(table["date"]).as_py()
    return Verdict(published, table.num_rows, distinct, days, broker_kills, driver_kills)


def main() -> None:
    """Run it as the command line says, and end with 1 if anything is there twice or missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--broker-kills", type=int, default=3)
    parser.add_argument("--driver-kills", type=int, default=2)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--spark", action="store_true", help="Spark writes the lake.")
    parser.add_argument("--format", default="parquet", help="of the lake.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(
            Path(folder), messages=given.messages, workers=given.workers, broker_kills=given.broker_kills,
            driver_kills=given.driver_kills, batch=given.batch, every_s=2,
            writer=(*(SPARK if given.spark else ()), "--format", given.format),
        )  # fmt: skip
    print(json.dumps({**found.__dict__, "workers": given.workers, "exactly_once": found.exactly_once}))
    sys.exit(not found.exactly_once)


if __name__ == "__main__":
    main()
