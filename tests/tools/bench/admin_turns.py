"""How long turns are while an administrator goes through all listings.

`python -m tests.tools.bench.admin_turns [CLIENTS]`. The clients have connections without sockets, one session and two
subscriptions each; one topic filter is everybody's.
A turn is measured by the CPU time of its thread, so that other processes of the machine do not count.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
import trio

from broker.admin.api import Admin
from broker.config.loader import Config, Limits, Shutdown
from broker.processes.admin_backend_local import OneWorker
from broker.reactor.trio_guest import Guest
from broker.wire.packets import Connect, Subscribe, encode, subscription
from broker.worker.worker import Worker

CLIENTS = 100_000
BATCH = 1000
CONFIG = Config(
    listen=("tcp://127.0.0.1:0",),
    limits=Limits(connects_per_second_max=0, connections_max=1_000_000),
    shutdown=Shutdown(drain_s=0.0),
)
LISTINGS = (
    "/clients?limit=1000",
    "/clients?limit=1000&prefix=client-0999",
    "/sessions?limit=1000",
    "/sessions?limit=1000&connected=false",
    "/subscriptions?limit=1000",
    "/subscriptions?limit=1000&filter=all/%23",
    "/routes?limit=1000&topic=all/x&qos=1",
    "/slowest",
    "/status",
    "/workers",
)


class Measured(Guest):
    """A guest whose ticks are measured."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.longest_s: list[float] = []

    def tick(self) -> bool:
        started_s = time.thread_time()
        more = super().tick()
        self.longest_s.append(time.thread_time() - started_s)
        return more


def fill(worker: Worker, clients: int) -> Iterator[None]:
    """Connect the clients, a batch at a time."""
    for start in range(0, clients, BATCH):
        for number in range(start, min(start + BATCH, clients)):
            connection = worker.reactor.connect()
            name = b"client-%06d" % number
            connection.feed_bytes(
                encode(
                    Connect(5, name, keep_alive_s=0, clean_start=False, properties={"session_expiry_interval": 1000}), 5
                )
            )
            connection.feed_bytes(encode(Subscribe(1, (subscription(b"all/#", 1), subscription(b"own/" + name, 1))), 5))
        yield


async def go_through(admin: Admin, target: str) -> tuple[int, int]:
    """Fetch all pages; returns how many rows and pages there were."""
    rows = pages = 0
    cursor = ""
    while True:
        answer = await admin.answer("GET", target + cursor, b"")
        assert isinstance(answer, tuple), target
        pages += 1
        rows += len(answer[1].get("rows", ()))
        if answer[1].get("cursor") is None:
            return rows, pages
        cursor = f"&cursor={answer[1]['cursor']}"


def main(clients: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    with TemporaryDirectory() as folder:
        worker = Worker(CONFIG, folder=Path(folder))
        worker.publish_due_wills()
        worker.listen()
        worker.controller.handshake.limit_connections(clients)  # they have no descriptors
        guest = worker.reactor.guest = Measured(worker.reactor)

        async def run() -> None:
            started = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.serve, started.set)
                await started.wait()
                for _ in fill(worker, clients):
                    await trio.sleep(0.01)
                while worker.router.tree.subscription_count < 2 * clients:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                gc.collect()
                gc.freeze()
                admin = Admin(OneWorker(worker, Path(folder)))
                print(f"{clients:,} clients; CPU time of trio's share of a turn, ms")
                print(f"{'':44} {'rows':>9} {'pages':>6} {'turns':>7} {'p50':>7} {'p99':>7} {'longest':>8}")
                for target in LISTINGS:
                    await trio.sleep(0.01)  # the tick under way belongs to what came before
                    guest.longest_s.clear()
                    rows, pages = await go_through(admin, target)
                    await trio.sleep(0.01)
                    taken = sorted(guest.longest_s)
                    figures = [taken[len(taken) // 2], taken[int(len(taken) * 0.99)], taken[-1]]
                    print(
                        f"{target:44} {rows:9,} {pages:6,} {len(taken):7,} "
                        + " ".join(f"{1000 * figure:7.2f}" for figure in figures)
                    )
                worker.stop()

        gc.disable()  # as in a worker's own process
        guest.start(run)
        worker.reactor.run()
        worker.close()
        assert guest.outcome is not None
        guest.outcome.unwrap()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS)
