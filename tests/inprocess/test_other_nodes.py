"""A worker with peers of its own node and of another: what the workers of a node share, they share with nobody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from broker.replay.log_sources import ReplayLogs
from broker.worker.placement import Links, Place, router_name
from broker.worker.worker import Worker, open_broker
from mesh.node_identity import node_of
from router.core.message import message
from tests.support.embedded import CONFIG, TIMEOUT_S

ELSEWHERE = b"elsewhere/1"  # as one of ours is
FURTHER = b"elsewhere/5"


def linked(folder: Path, run: Callable[[Worker, bytes], Awaitable[None]]) -> None:
    """Run the first of two workers, with links to the second and to two of another node; nobody is there."""
    place = Place(0, 2, node_of(folder), folder)
    near = router_name(place.node, 1)
    links = Links(
        router_name(place.node, 0),
        f"ipc://{folder}/0",
        {
            near: (f"ipc://{folder}/1", None),
            ELSEWHERE: (f"ipc://{folder}/2", None),
            FURTHER: (f"ipc://{folder}/3", None),
        },
    )

    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(CONFIG, folder=folder, place=place, links=links) as broker:
                await run(broker, near)

    trio.run(main)


def test_a_retained_message_of_another_node_is_not_taken_for_one_of_a_worker_of_the_same_number(tmp_path: Path) -> None:
    async def run(broker: Worker, near: bytes) -> None:
        forwarding = broker.mesh.forwarding
        for number, name in enumerate((ELSEWHERE, near), 1):
            topic = b"of/%d" % number
            assert forwarding.receive_message(forwarding.peer(name), message(topic, b"x", 1, True), 1, 1, 7)
        assert broker.router.retained_message(b"of/1") is None
        assert broker.router.retained_message(b"of/2").body == b"x"

    linked(tmp_path, run)


def test_a_replay_reads_the_logs_of_its_own_node_and_asks_nobody_else(tmp_path: Path) -> None:
    async def run(broker: Worker, near: bytes) -> None:
        assert broker.store is not None
        logs = ReplayLogs(broker.store.log, 0, tmp_path, broker.mesh)
        assert list(logs.windows) == [0, 1]
        logs.ask()
        broker.mesh.on_reach(broker.mesh.neighbours[FURTHER])
        assert logs.is_ready()  # the other one is away, and nobody waits for it
        logs.leave()
        logs.close()

    linked(tmp_path, run)
