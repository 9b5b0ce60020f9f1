"""Two thousand connections that come, subscribe, publish, are taken over and leave; afterwards nothing is left."""

import gc
import os
import random
from collections.abc import Iterable

import trio

from broker.config.loader import Config, Shutdown
from broker.wire.output_buffer import chunk_counts
from broker.wire.packets import Connect, Publish, Subscribe, Unsubscribe, Will, encode, subscription
from broker.worker.worker import open_broker

CONNECTIONS = 2000
AT_ONCE = 50
IDENTIFIERS = 120  # few enough that clients take each other over


async def one_client(port: int, draw: random.Random) -> None:
    """Connect under one of a few identifiers, do a few things, leave one way or another."""
    version = draw.choice((4, 5))
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        will = Will(b"w/1", b"gone") if draw.random() < 0.3 else None
        identifier = f"c{draw.randrange(IDENTIFIERS)}".encode()
        data = encode(Connect(version, identifier, draw.random() < 0.7, 60, will), version)
        for number in range(1, draw.randint(1, 6)):
            topic = f"t/{draw.randrange(20)}".encode()
            what = draw.random()
            if what < 0.4:
                topic_filter = draw.choice((topic, b"t/+", b"$share/g/t/#", b"#"))
                data += encode(Subscribe(number, (subscription(topic_filter, draw.randrange(3)),)), version)
            elif what < 0.5:
                data += encode(Unsubscribe(number, (topic,)), version)
            else:
                qos = draw.randrange(3)
                data += encode(
                    Publish(topic, b"x" * draw.randrange(300), qos, False, False, number if qos else 0), version
                )
        if draw.random() < 0.5:
            data += b"\xe0\0"
        elif draw.random() < 0.2:
            data += b"\xff\xff"
        try:
            await stream.send_all(data)
            with trio.move_on_after(draw.random() * 0.05):
                while await stream.receive_some():
                    pass
        except trio.BrokenResourceError:
            pass  # taken over, or thrown out for what it sent


async def churn(port: int, seeds: Iterable[int], at_once: int) -> None:
    """Let a client of each seed come and go; then every session is ended.

    Clean sessions end by themselves; those that would last are ended by a clean start.
    """
    limit = trio.CapacityLimiter(at_once)

    async def limited(seed: int) -> None:
        async with limit:
            await one_client(port, random.Random(seed))

    async with trio.open_nursery() as nursery:
        for seed in seeds:
            nursery.start_soon(limited, seed)
    for number in range(IDENTIFIERS):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(encode(Connect(4, f"c{number}".encode()), 4) + b"\xe0\0")
            while await stream.receive_some():
                pass


async def test_nothing_is_left_after_churn() -> None:
    config = Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=2.0))
    gc.collect()  # what other tests in this process left
    files_before = len(os.listdir("/proc/self/fd"))
    chunks_before = chunk_counts()["in_use"]
    async with open_broker(config) as worker:
        assert worker.acceptor is not None
        await churn(worker.acceptor.addresses[0].port, range(CONNECTIONS), AT_ONCE)
        with trio.fail_after(30):
            while worker.reactor.connection_count:  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.01)
        router, tree = worker.router, worker.router.tree
        assert worker.counters()["connections"] == CONNECTIONS + IDENTIFIERS
        assert "internal_error" not in worker.controller.ends, worker.controller.ends
        assert router.sessions == {}
        # What the workers keep for one another is the worker's own subscription.
        assert (tree.subscription_count, tree.group_count) == (1, 0)
        assert tree.receivers(b"t/1") == []
        assert router.ledger.queued_messages == 0
        assert chunk_counts()["in_use"] == chunks_before
        assert worker.controller.handshake.exchanges == {}
        assert worker.reactor.connections_snapshot() == []
    assert len(os.listdir("/proc/self/fd")) == files_before
