"""Cycles in this process, each kind by itself: after many of them there is as much as before."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable

import pytest
import trio

from broker.config.loader import Config, Shutdown
from broker.wire.packets import Connect, encode
from broker.worker.worker import open_broker
from tests.support.conversation import MemoryBroker
from tests.support.doubles import FakeLog, QuickAuthenticator
from tests.tools.fuzz import connection as fuzzed
from tests.tools.leaks.cycles import CYCLES, Talk
from tests.tools.leaks.footprint import Account

ROUND = 150  # cycles between two looks
ROUNDS = 4  # until then, one round must have left nothing; a leak grows in each
CONFIG = Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.2))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("logged", [False, True], ids=["unlogged", "logged"])
@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
async def test_a_cycle_leaves_nothing(cycle: Callable[[Talk], Awaitable[None]], logged: bool, version: int) -> None:
    async with trio.open_nursery() as nursery:
        broker = MemoryBroker(CONFIG, nursery, FakeLog() if logged else None, None, QuickAuthenticator())
        talk = Talk(broker, version)

        async def some() -> None:
            for _ in range(ROUND):
                await cycle(talk)
                talk.over()

        await some()
        account = Account(ROUND)
        for _ in range(ROUNDS):
            await some()
            found = account.growth()
            if not found:
                break
        assert not found, found
        assert broker.router.sessions == {}
        assert broker.router.ledger.queued_messages == broker.router.ledger.inflight_messages == 0
        assert broker.hub.connection_count == 0
        ends = broker.controller.ends
        assert "internal_error" not in ends
        assert sum(ends.values()) >= 2 * ROUND, "the cycles did not connect"
        nursery.cancel_scope.cancel()


def repeat(some: Callable[[], None], cycles: int) -> list[str]:
    """Run some cycles until a round leaves nothing; returns what the last one left."""
    some()
    account = Account(cycles)
    for _ in range(ROUNDS):
        some()
        found = account.growth()
        if not found:
            break
    return found


def test_whatever_several_clients_send_leaves_nothing() -> None:
    draw = random.Random(2)
    scripts = [fuzzed.make(draw) for _ in range(300)]

    def some() -> None:
        for script in scripts:
            fuzzed.check(script)

    assert not repeat(some, len(scripts))


def test_brokers_that_are_opened_and_closed_leave_nothing() -> None:
    async def one() -> None:
        with trio.fail_after(30):
            await come_and_go()

    async def come_and_go() -> None:
        async with open_broker(CONFIG) as worker:
            assert worker.acceptor is not None
            async with await trio.open_tcp_stream("127.0.0.1", worker.acceptor.addresses[0].port) as stream:
                await stream.send_all(encode(Connect(4, b"c"), 4))
                assert await stream.receive_some() == b"\x20\x02\0\0"
                await stream.send_all(b"\xe0\0")
                assert await stream.receive_some() == b""

    def some() -> None:
        for _ in range(40):
            trio.run(one)  # one run each: trio itself keeps deadlines that are over for a while

    # A run of trio whose nursery is cancelled leaves up to one small block by itself, without any broker (100 runs: 31
    # to 76 blocks). A broker has thousands; four a run, of 64 bytes, are not its own.
    left = repeat(some, 40)
    assert not [line for line in left if int(line.split()[0]) > 40 * (4 if "blocks" in line else 4 * 64)], left


@pytest.mark.parametrize("leak", ["objects", "malloc", "descriptors"])
def test_one_thing_left_by_each_cycle_is_found(leak: str) -> None:
    left: list[object] = []

    def some() -> None:
        left.extend(
            object() if leak == "objects" else bytes(600) if leak == "malloc" else os.open("/dev/null", 0)
            for _ in range(100)
        )

    found = repeat(some, 100)
    assert found
    if leak == "descriptors":
        for descriptor in left:
            assert isinstance(descriptor, int)
            os.close(descriptor)
