"""A disk that takes no more: what must be kept is refused and nothing else, and it heals by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from broker.config.loader import Config
from broker.wire.packets import Connect, Publish, Subscribe, Will, decode, encode, subscription
from broker.wire.reasons import Reason
from tests.support.conversation import MemoryBroker, MemoryClient
from tests.support.doubles import FakeLog, QuickAuthenticator


def in_memory(function: Callable[[MemoryBroker, FakeLog], Awaitable[None]]) -> None:
    async def main() -> None:
        log = FakeLog()
        async with trio.open_nursery() as nursery:
            await function(MemoryBroker(Config(), nursery, log, None, QuickAuthenticator()), log)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def ask(client: MemoryClient, packet: Any, version: int = 5) -> Any:
    await client.send(encode(packet, version), False)
    frame = await client.receive()
    return None if frame is None else decode(*frame, version)


def durable(name: bytes, version: int = 5, **more: Any) -> Connect:
    return Connect(
        version, name, clean_start=False, properties={"session_expiry_interval": 100} if version == 5 else {}, **more
    )


@pytest.mark.parametrize("version", [4, 5])
def test_what_must_be_kept_is_refused_while_the_disk_takes_no_more(version: int) -> None:
    async def run(broker: MemoryBroker, log: FakeLog) -> None:
        keeper, publisher, watcher = [await broker.connect() for _ in range(3)]
        assert (await ask(keeper, durable(b"keeper"))).reason == Reason.SUCCESS
        await ask(keeper, Subscribe(1, (subscription(b"kept/#", 1),)))
        await ask(watcher, Connect(5, b"watcher"))
        await ask(watcher, Subscribe(1, (subscription(b"seen", 1),)))
        await ask(publisher, Connect(version, b"publisher"), version)

        log.accepting = False
        await ask(keeper, Subscribe(9, (subscription(b"last", 1),)))  # the record that finds the disk full
        # What nobody keeps goes on.
        assert (await ask(publisher, Publish(b"seen", b"x", 1, False, False, 1), version)).packet_identifier == 1
        assert decode(*await watcher.receive(), 5).payload == b"x"
        assert (await ask(keeper, Subscribe(2, (subscription(b"more", 1),)))).reasons == (Reason.QUOTA_EXCEEDED,)
        latecomer = await broker.connect()
        assert (await ask(latecomer, durable(b"late"))).reason == Reason.QUOTA_EXCEEDED
        willing = await broker.connect()
        will = Will(b"gone", b"", 0, False, {})
        assert (await ask(willing, Connect(5, b"willing", will=will))).reason == Reason.QUOTA_EXCEEDED
        answer = await ask(publisher, Publish(b"kept/1", b"lost", 1, False, False, 2), version)
        if version == 5:
            assert (answer.packet_identifier, answer.reason) == (2, Reason.QUOTA_EXCEEDED)
        else:
            assert answer is None  # no PUBACK, but the end: it comes again with what it keeps
            assert publisher.connection.is_closing
        assert broker.router.ledger.dropped() == {"log_unavailable": 1}

        log.accepting = True
        await broker.settle()
        again = await broker.connect()
        await ask(again, Connect(version, b"again"), version)
        answer = await ask(again, Publish(b"kept/1", b"kept", 1, False, False, 3), version)
        assert (answer.packet_identifier, answer.reason) == (3, Reason.SUCCESS)
        assert decode(*await keeper.receive(), 5).payload == b"kept"

    in_memory(run)
