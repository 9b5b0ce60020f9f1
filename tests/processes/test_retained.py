"""Retained messages of a real broker: on disk, whatever happens to it, and in nobody's way."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from broker.wire.packets import Ack, Connect, Publish, Suback, Subscribe, encode, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from tests.support.embedded import Device
from tests.support.process import BrokerProcess

TIMEOUT_S = 60
TOPICS = 20_000
PAYLOAD = bytes(600)
LIVE = 300


@asynccontextmanager
async def client(broker: BrokerProcess, name: bytes) -> AsyncIterator[Device]:
    stream = await trio.open_tcp_stream("127.0.0.1", broker.port)
    device = Device(stream, 5)
    with trio.fail_after(TIMEOUT_S):
        async with stream:
            await device.send(Connect(5, name))
            assert (await device.receive()).reason == Reason.SUCCESS
            yield device


async def retained(broker: BrokerProcess) -> dict[bytes, bytes]:
    """Return what a new subscriber to # gets, up to a message that is published behind it."""
    found = {}
    async with client(broker, b"reader") as reader:
        await reader.subscribe(b"#")
        await reader.send(Publish(b"end", b"", 0, False, False, 0))
        while (packet := await reader.receive()).topic != b"end" or packet.retain:
            assert packet.retain
            found[packet.topic] = packet.payload
    return found


async def publish(broker: BrokerProcess, messages: dict[bytes, bytes]) -> None:
    """Publish at QoS 1 with RETAIN, and wait for each PUBACK."""
    async with client(broker, b"writer") as writer:
        for topic_name, payload in messages.items():
            await writer.publish(topic_name, payload, 1, True)


async def test_what_was_acknowledged_is_there_after_kill_9_and_what_was_cleared_is_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        await publish(broker, {b"a": b"1", b"b/c": b"2", b"gone": b"3"})
        await publish(broker, {b"a": b"one", b"gone": b""})
        broker.kill()
        broker.start()
        assert await retained(broker) == {b"a": b"one", b"b/c": b"2"}
        broker.stop()
        broker.start()
        await publish(broker, {b"b/c": b""})
        broker.kill()
        broker.start()
        assert await retained(broker) == {b"a": b"one"}


async def test_an_index_that_is_lost_or_damaged_is_made_anew_from_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "retained"
    with BrokerProcess(tmp_path) as broker:
        await publish(broker, {b"a": b"1", b"b": b"2", b"gone": b"3"})
        await publish(broker, {b"gone": b""})
        broker.stop()
        shutil.rmtree(folder)
        broker.start()
        assert await retained(broker) == {b"a": b"1", b"b": b"2"}
        assert not broker.events("retained_damaged")
        broker.stop()
        (folder / "data.mdb").write_bytes(b"no index" * 2000)
        broker.start()
        assert await retained(broker) == {b"a": b"1", b"b": b"2"}
        assert [line["level"] for line in broker.events("retained_damaged")] == ["warning"]
        assert (tmp_path / "data" / "retained.bad-1" / "data.mdb").exists()


async def test_subscribers_to_many_retained_messages_get_all_of_them_while_others_go_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        async with client(broker, b"writer") as writer:
            for first in range(0, TOPICS, 1000):
                await writer.client.send(
                    b"".join(
                        encode(Publish(b"t/%d" % number, PAYLOAD, 0, True, False, 0), 5)
                        for number in range(first, first + 1000)
                    ),
                    False,
                )
            await writer.publish(b"last", b"1", 1)

            async def read(name: bytes, ready: trio.Event, go_on: trio.Event) -> None:
                """Subscribe, read one packet, and the others only when it is time."""
                async with client(broker, name) as reader:
                    await reader.send(Subscribe(1, (subscription(b"t/#", 1),)))
                    assert isinstance(await reader.receive(), Suback)
                    ready.set()
                    await go_on.wait()
                    topics: set[bytes] = set()
                    changed: set[bytes] = set()
                    while len(topics) < TOPICS or len(changed) < LIVE:
                        packet = await reader.receive()
                        if packet.packet_identifier:
                            await reader.send(Ack(PacketType.PUBACK, packet.packet_identifier))
                        if packet.payload == PAYLOAD:
                            assert packet.retain
                            assert packet.topic not in topics, "twice, or the older one behind the newer one"
                        else:
                            assert not packet.retain
                            changed.add(packet.topic)
                        topics.add(packet.topic)

            slow = trio.Event()
            at_once = trio.Event()
            at_once.set()
            waiting = [trio.Event() for _ in range(4)]
            async with trio.open_nursery() as nursery:
                for number, ready in enumerate(waiting):
                    nursery.start_soon(read, b"r%d" % number, ready, slow if number < 2 else at_once)
                for ready in waiting:
                    await ready.wait()
                # Others go on, and what changes meanwhile comes live, once.
                for number in range(LIVE):
                    await writer.publish(b"t/%d" % (TOPICS - 1 - number), b"live", 1, True)
                slow.set()
