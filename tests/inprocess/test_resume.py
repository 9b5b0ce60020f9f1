"""The resume matrix: {3.1.1, 5.0} x QoS {1, 2} x the connection cut after every packet of the exchange, both ways.

After coming back everything is delivered, QoS 2 once, in the first order, under the same identifiers, with DUP; and on
a live connection nothing is ever sent again [MQTT-4.4.0-1], [MQTT-4.6.0-1].
"""

from typing import Any

import pytest
import trio

from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from broker.worker.worker import Worker, open_broker
from tests.support.conversation import MemoryBroker, SocketClient, config_for, open_over, with_listener
from tests.support.doubles import FakeLog, QuickAuthenticator
from tests.support.script import Script

CONFIG = config_for(Script(path=None, versions=(), lines=[]))  # type: ignore[arg-type]
PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
# What the broker and the subscriber say after the PUBLISH, by QoS.
EXCHANGE = {1: [PUBACK], 2: [PUBREC, PUBREL, PUBCOMP]}


class Peer:
    """A client that says only what a test tells it to."""

    def __init__(self, broker: MemoryBroker, identifier: bytes, version: int) -> None:
        self.broker, self.identifier, self.version = broker, identifier, version
        self.connection: Any = None

    async def connect(self) -> bool:
        """Connect with the durable session; returns Session Present."""
        self.connection, self.buffer = self.broker.hub.connect(), bytearray()
        properties = {"session_expiry_interval": 3600} if self.version == 5 else {}
        await self.say(Connect(self.version, self.identifier, False, 0, properties=properties))
        connack = await self.hear()
        assert isinstance(connack, Connack)
        return connack.session_present

    async def say(self, packet: Any) -> None:
        self.connection.feed_bytes(encode(packet, self.version))
        await self.broker.settle()

    async def hear(self) -> Any:
        """Return the next packet, None if there is none."""
        await self.broker.settle()
        self.buffer += self.connection.take_output()
        frame = next_frame(self.buffer)
        return decode(*frame, self.version) if frame is not None else None

    async def cut(self) -> None:
        self.connection.close("connection_lost")
        await self.broker.settle()

    async def hears_nothing_more(self) -> None:
        await self.say(Pingreq())
        assert type(await self.hear()).__name__ == "Pingresp"


class SocketBroker:
    """A broker whose clients come by a transport; its log is synced in the next turn."""

    def __init__(self, worker: Worker, over: str, log: FakeLog) -> None:
        self.worker = worker
        self.log = log
        self.over = over
        self.clients: list[SocketClient] = []

    async def connect(self) -> SocketClient:
        client = await open_over(self.over, self.worker.addresses[0].port, len(self.clients))
        self.clients.append(client)
        return client

    async def until_durable(self) -> None:
        """Wait until all records are."""
        while self.log.durable < self.log.appended:
            await trio.lowlevel.checkpoint()

    async def until_alone(self, count: int) -> None:
        """Wait until no more connections are there."""
        while self.worker.reactor.connection_count > count:  # noqa: ASYNC110  (the reactor knows no trio)
            await trio.sleep(0.001)


class SocketPeer(Peer):
    """The same, at the other end of a transport. That nothing more comes is said by the answer to a PINGREQ."""

    broker: SocketBroker  # type: ignore[assignment]
    client: SocketClient
    waiting: list[Any]

    async def connect(self) -> bool:
        self.client = await self.broker.connect()
        self.waiting = []
        properties = {"session_expiry_interval": 3600} if self.version == 5 else {}
        await self.say(Connect(self.version, self.identifier, False, 0, properties=properties))
        connack = await self.packet()
        assert isinstance(connack, Connack)
        return connack.session_present

    async def say(self, packet: Any) -> None:
        await self.client.send(encode(packet, self.version), False)
        if not isinstance(packet, Connect):
            await self.settle()

    async def settle(self) -> None:
        """Let everything happen that follows from what was said; what comes meanwhile waits to be heard."""
        for _ in range(2):  # the second is answered behind what the first found durable
            await self.client.send(encode(Pingreq(), self.version), False)
            while not isinstance(packet := await self.packet(), Pingresp):
                self.waiting.append(packet)
            await self.broker.until_durable()

    async def packet(self) -> Any:
        frame = await self.client.receive()
        assert frame is not None, "disconnected"
        return decode(*frame, self.version)

    async def hear(self) -> Any:
        if self.waiting:
            return self.waiting.pop(0)
        await self.settle()
        return self.waiting.pop(0) if self.waiting else None

    async def hears_nothing_more(self) -> None:
        assert await self.hear() is None

    async def cut(self) -> None:
        count = self.broker.worker.reactor.connection_count
        await self.client.cut()
        await self.broker.until_alone(count - 1)


def peer_of(broker: Any, identifier: bytes, version: int) -> Peer:
    """Return a client of a broker in memory, or behind sockets."""
    return (Peer if isinstance(broker, MemoryBroker) else SocketPeer)(broker, identifier, version)


async def over_sockets(function: Any, over: str) -> None:
    log = FakeLog()
    with trio.fail_after(60):
        async with (
            trio.open_nursery() as nursery,
            open_broker(with_listener(CONFIG, over), authenticator=QuickAuthenticator(), log_store=log) as worker,
        ):

            async def sync() -> None:
                await trio.lowlevel.checkpoint()
                log.sync()

            log.on_append = lambda: nursery.start_soon(sync)
            broker = SocketBroker(worker, over, log)
            await function(broker)
            for client in broker.clients:
                await client.cut()
            nursery.cancel_scope.cancel()


def with_broker(function: Any, how: str) -> None:
    if how not in ("memory", "log"):
        return trio.run(over_sockets, function, how)
    logged = how == "log"

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await function(MemoryBroker(CONFIG, nursery, FakeLog() if logged else None, None, QuickAuthenticator()))
            nursery.cancel_scope.cancel()

    return trio.run(run)


@pytest.mark.parametrize("how", ["memory", "log", "tls_cut", "ws", "wss"])
@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize(("qos", "cut_after"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_a_delivery_goes_on_where_it_was_cut(version: int, qos: int, cut_after: int, how: str) -> None:
    """The connection of the subscriber breaks after the PUBLISH (0) or after a later packet of the first exchange."""
    # Proves: [MQTT-3.3.1-1] [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.4.0-1]
    # Proves: [MQTT3-4.3.2-1] [MQTT3-4.3.3-1] [MQTT3-4.4.0-1]

    async def run(broker: Any) -> None:
        subscriber, publisher = peer_of(broker, b"s", version), peer_of(broker, b"p", version)
        assert not await subscriber.connect()
        await subscriber.say(Subscribe(1, (subscription(b"t", qos),)))
        await subscriber.hear()
        await publisher.connect()
        for number in (1, 2, 3):
            await publisher.say(Publish(b"t", b"%d" % number, qos, False, False, number))
        first = [await subscriber.hear() for _ in range(3)]
        assert [(p.payload, p.packet_identifier, p.dup) for p in first] == [
            (b"1", 1, False),
            (b"2", 2, False),
            (b"3", 3, False),
        ]
        for step, packet_type in enumerate(EXCHANGE[qos], 1):
            if step > cut_after:
                break
            if packet_type is PUBREL:
                assert await subscriber.hear() == Ack(PUBREL, 1)
            else:
                await subscriber.say(Ack(packet_type, 1))
        if cut_after != 1 or qos == 1:  # else the PUBREL is still to be heard
            await subscriber.hears_nothing_more()
        await subscriber.cut()
        assert await subscriber.connect()
        resent = []
        while (packet := await subscriber.hear()) is not None:
            resent.append(packet)
        done = cut_after == len(EXCHANGE[qos])
        if qos == 2 and 1 <= cut_after <= 2:
            assert resent.pop(0) == Ack(PUBREL, 1)  # its payload is never sent again [MQTT-4.3.3-4]
        expected = [1, 2, 3] if cut_after == 0 else [2, 3]
        assert [(p.payload, p.packet_identifier, p.dup, p.qos) for p in resent] == [
            (b"%d" % number, number, True, qos) for number in expected
        ]
        for number in range(1, 4):
            if number in expected or (qos == 2 and not done):
                if qos == 1:
                    await subscriber.say(Ack(PUBACK, number))
                    continue
                if number in expected:
                    await subscriber.say(Ack(PUBREC, number))
                    assert await subscriber.hear() == Ack(PUBREL, number)
                await subscriber.say(Ack(PUBCOMP, number))
        await subscriber.hears_nothing_more()
        # Nothing is left to be sent another time.
        await subscriber.cut()
        assert await subscriber.connect()
        await subscriber.hears_nothing_more()

    with_broker(run, how)


@pytest.mark.parametrize("how", ["memory", "log", "tls_cut", "ws", "wss"])
@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize(("qos", "cut_after"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_a_publish_goes_on_where_it_was_cut(version: int, qos: int, cut_after: int, how: str) -> None:
    """The connection of the publisher breaks after its PUBLISH (0) or after a later packet of the exchange."""
    # Proves: [MQTT-4.3.2-4] [MQTT-4.3.3-10] [MQTT3-4.3.3-2]

    async def run(broker: Any) -> None:
        subscriber, publisher = peer_of(broker, b"s", version), peer_of(broker, b"p", version)
        await subscriber.connect()
        await subscriber.say(Subscribe(1, (subscription(b"t", 0),)))
        await subscriber.hear()
        await publisher.connect()
        await publisher.say(Publish(b"t", b"x", qos, False, False, 7))
        for step, packet_type in enumerate(EXCHANGE[qos], 1):
            if step > cut_after:
                break
            if packet_type is PUBREL:
                await publisher.say(Ack(PUBREL, 7))
            else:
                assert await publisher.hear() == Ack(packet_type, 7)
        await publisher.cut()
        assert await publisher.connect()
        if (qos == 1 and cut_after == 0) or (qos == 2 and cut_after <= 1):
            await publisher.say(Publish(b"t", b"x", qos, False, True, 7))
            assert await publisher.hear() == Ack(EXCHANGE[qos][0], 7)
        if qos == 2 and cut_after < 3:
            await publisher.say(Ack(PUBREL, 7))
            answer = await publisher.hear()
            assert (answer.type, answer.packet_identifier) == (PUBCOMP, 7)
            assert answer.reason == (0x92 if cut_after == 2 and version == 5 else 0)
        await publisher.hears_nothing_more()
        times = 0
        while (packet := await subscriber.hear()) is not None:
            assert packet.payload == b"x"
            times += 1
        assert times == (2 if qos == 1 and cut_after == 0 else 1)  # QoS 1: at least once; QoS 2: once

    with_broker(run, how)
