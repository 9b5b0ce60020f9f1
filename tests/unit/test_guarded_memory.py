"""A worker at its limit of memory: who needs more ends, and nobody else notices."""

import trio

from broker.config.loader import Config, Mqtt, Shutdown, load
from broker.wire.packets import Connect, Publish, Subscribe, decode, encode, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import open_broker
from tests.support.conversation import MemoryBroker
from tests.support.doubles import QuickAuthenticator
from tests.support.embedded import device


def test_the_client_that_needs_more_memory_ends_and_no_other() -> None:
    # Proves: [MQTT3-4.8.0-2]
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(load(None, {}, {}), nursery, None, None, QuickAuthenticator())
            first = await broker.connect()
            await first.send(encode(Connect(4, b"first"), 4) + encode(Subscribe(1, (subscription(b"t"),)), 4), False)
            assert first.connection.is_open
            broker.router.ledger.memory_full = True
            refused = []
            for version in (4, 5):
                client = await broker.connect()
                await client.send(encode(Connect(version, b"late"), version), False)
                frame = await client.receive()
                assert frame is not None
                refused.append(getattr(decode(*frame, version), "reason", None))
                assert await client.receive() is None
            assert refused == [3, Reason.SERVER_BUSY]
            assert broker.controller.ends == {"memory_limit": 2}
            first.connection.take_output()
            await first.send(encode(Publish(b"t", b"still here"), 4), False)
            frame = await first.receive()
            assert frame is not None
            assert decode(*frame, 4) == Publish(b"t", b"still here")

    trio.run(run)


async def test_a_packet_that_would_be_gathered_ends_its_client_and_no_other() -> None:
    # Proves: [MQTT3-4.8.0-2]
    config = Config(
        listen=("tcp://127.0.0.1:0",), mqtt=Mqtt(max_packet_size_bytes=1 << 20), shutdown=Shutdown(drain_s=0.1)
    )
    large = encode(Publish(b"t", bytes(500_000)), 5)
    with trio.fail_after(30):
        async with open_broker(config) as broker, device(broker, b"large") as client, device(broker, b"other") as other:
            guard = broker.reactor.memory
            guard.limit_bytes = 1
            guard.check()
            await client.client.send(large[:-1], False)
            last = await client.receive()
            assert (last.reason, last.properties["reason_string"]) == (
                Reason.QUOTA_EXCEEDED,
                "no memory for a packet of this size",
            )
            assert await client.receive() is None
            await other.publish(b"t", bytes(10_000), 1)
            assert broker.metrics().ends == {"memory_limit": 1}
