"""Clients with TLS whose home is another worker than the one that they came to."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.processes.test_listener_reload import CERTIFICATES, connected, serving

TIMEOUT_S = 60
CLIENTS = 20


async def test_who_comes_while_its_home_is_away_is_served_when_that_is_back(tmp_path: Path) -> None:
    context = CERTIFICATES.client_context()
    with serving(tmp_path) as (broker, _), trio.fail_after(TIMEOUT_S):
        others = [broker.pid_of(0), broker.pid_of(2)]
        broker.kill_worker(1)

        async def come(name: str) -> None:
            client = await connected(broker, name, context)
            await client.cut()

        async with trio.open_nursery() as nursery:  # some of them wait together for the same home
            for name in broker.names(1, CLIENTS):
                nursery.start_soon(come, name)
        broker.wait_for("worker_listening", worker=1, restarts=1)
        assert [broker.pid_of(0), broker.pid_of(2)] == others
        assert len(broker.events("worker_ended")) == 1
