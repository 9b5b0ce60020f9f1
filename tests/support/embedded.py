"""A broker embedded in a test, under both drivers of the reactor, and a network client beside it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker.config.loader import Config, Shutdown
from broker.reactor.trio_guest import Guest
from broker.wire.packets import Ack, Connect, Publish, Suback, Subscribe, decode, encode, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from shoal import InProcessClient, ReceivedMessage
from tests.support.conversation import SocketClient

CONFIG = Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.5))
TIMEOUT_S = 30

Run = Callable[[Worker], Awaitable[None]]


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks go on until something is true; the caller bounds it."""
    while not condition():
        await trio.lowlevel.checkpoint()


def as_task(run: Run, **seams: Any) -> None:
    """Embedded: the broker is a task of somebody's trio program."""

    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with open_broker(CONFIG, **seams) as broker:
                await run(broker)

    trio.run(main)


def as_guest(run: Run, **seams: Any) -> None:
    """As `shoal serve` has it: trio is the reactor's guest."""
    worker = Worker(CONFIG, **seams)
    worker.publish_due_wills()
    worker.listen()
    guest = worker.reactor.guest = Guest(worker.reactor)

    async def main() -> None:
        started = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, started.set)
            await started.wait()
            try:
                with trio.fail_after(TIMEOUT_S):
                    await run(worker)
            finally:
                worker.stop()

    guest.start(main)
    worker.reactor.run()
    worker.close()
    assert guest.outcome is not None
    guest.outcome.unwrap()


def both_drivers(run: Run) -> Callable[..., None]:
    """Make a test of `async def test(broker)`, once per driver."""

    @pytest.mark.parametrize("driver", [as_task, as_guest])
    def test(driver: Callable[[Run], None]) -> None:
        driver(run)

    return test


class Device:
    """A network client, packet by packet."""

    def __init__(self, stream: trio.SocketStream, version: int, transform: Any = None) -> None:
        self.client, self.version = SocketClient(stream, transform), version

    async def send(self, packet: Any) -> None:
        await self.client.send(encode(packet, self.version), False)

    async def receive(self) -> Any:
        frame = await self.client.receive()
        return None if frame is None else decode(*frame, self.version)

    async def publish(
        self, topic: bytes, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None:
        """Publish, and wait for PUBACK or PUBCOMP."""
        await self.send(Publish(topic, payload, qos, retain, False, 7 if qos else 0, properties or {}))
        if qos == 1:
            assert (await self.receive()).type == PacketType.PUBACK
        elif qos == 2:
            assert (await self.receive()).type == PacketType.PUBREC
            await self.send(Ack(PacketType.PUBREL, 7))
            assert (await self.receive()).type == PacketType.PUBCOMP

    async def subscribe(self, topic_filter: bytes, qos: int = 0) -> None:
        await self.send(Subscribe(1, (subscription(topic_filter, qos),)))
        assert isinstance(await self.receive(), Suback)


@asynccontextmanager
async def device(broker: Worker, name: bytes = b"device", version: int = 5, **connect: Any) -> AsyncIterator[Device]:
    stream = await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port)
    client = Device(stream, version)
    async with stream:
        await client.send(Connect(version, name, **connect))
        assert (await client.receive()).reason == Reason.SUCCESS
        yield client


async def take(client: InProcessClient, count: int = 1) -> list[ReceivedMessage]:
    """The next messages that a client receives."""
    return [await anext(client) for _ in range(count)]


async def nothing_waits(client: InProcessClient, sentinel: str = "nothing/more") -> None:
    """Nothing came but what was taken: a message published now is the next one."""
    await client.subscribe(sentinel)
    await client.publish(sentinel)
    assert (await anext(client)).topic_name == sentinel
