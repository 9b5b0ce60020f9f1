"""A real `shoal serve`: after clients came, did everything and left, it holds what it held after the first of them."""

from __future__ import annotations

import os
from pathlib import Path

import trio

from tests.inprocess.test_churn import churn
from tests.support.gauges import gauges
from tests.support.process import BrokerProcess
from tests.tools.bench import probes

ROUNDS = 6
CLIENTS = 1500                      # a round
AT_ONCE = 40
GROWTH_MAX = 1.1                    # of resident memory, over that after the second round


async def until_gone(port: int) -> dict[str, int]:
    """Return the gauges once the last client but this one is gone; connections linger until their peers have read."""
    with trio.fail_after(30):
        while (found := gauges(port))["shoal/connections/open"] > 1:    # noqa: ASYNC110  (another process)
            await trio.sleep(0.2)
    return found


async def test_a_process_holds_after_many_rounds_what_it_held_after_two(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "--log-level", "error")
    broker.start()
    assert broker.process is not None
    pid = broker.process.pid
    resident, descriptors, standing = [], [], []
    try:
        for number in range(ROUNDS):
            await churn(broker.port, range(number * CLIENTS, (number + 1) * CLIENTS), AT_ONCE)
            standing.append(await until_gone(broker.port))
            await trio.sleep(11)        # the broker's housekeeping, and its garbage collection
            resident.append(probes.resident_kib(pid))
            descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
    finally:
        if broker.process.poll() is None:
            broker.stop()
        assert broker.process.stdout is not None
        broker.process.stdout.close()
    print("resident KiB:", resident, "descriptors:", descriptors, "gauges:", standing[-1])
    assert max(resident[2:]) <= GROWTH_MAX * resident[1], resident
    assert len(set(descriptors)) == 1, descriptors
    assert standing == [standing[0]] * ROUNDS
    # All but the client that asks, and the buffer of its answer.
    assert standing[0].pop("shoal/output/bytes") <= 4096
    assert {name: value for name, value in standing[0].items() if value} == {
        "clients/total": 1, "clients/connected": 1, "shoal/connections/open": 1}


def test_ten_times_ten_thousand_clients_leave_what_the_first_ten_thousand_left() -> None:
    from tests.tools.bench.__main__ import BUILD, SHOAL, SHOAL_PORT

    BUILD.mkdir(parents=True, exist_ok=True)
    after = probes.memory_after_clients(SHOAL, SHOAL_PORT)
    assert max(after) <= GROWTH_MAX * after[0], after


