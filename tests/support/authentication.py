"""A broker with an authenticator over real sockets, and clients that speak to it in packets."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from broker.auth.scram import METHOD as SCRAM_METHOD
from broker.config.loader import Config, Limits, Shutdown
from broker.wire.packets import Auth, Connack, Connect, Packet, Suback, Subscribe, Will, decode, encode, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.conversation import SocketClient
from tests.support.scram import ScramClient

DEADLINE_S = 20

Driver = Callable[..., None]  # as_task or as_guest: both ways in which a worker is run


class Client(SocketClient):
    """A client that speaks in packets."""

    version = 5

    async def say(self, *packets: Packet) -> None:
        """Send packets in one go."""
        await self.send(b"".join(encode(packet, self.version) for packet in packets), False)

    async def hear(self) -> Packet | None:
        """Return the next packet, None at the end."""
        frame = await self.receive()
        return None if frame is None else decode(*frame, self.version)

    async def connect(
        self,
        method: str | None = SCRAM_METHOD,
        data: bytes | None = None,
        identifier: bytes = b"one",
        will: Will | None = None,
        expiry_s: int | None = None,
    ) -> None:
        """Send CONNECT."""
        properties: dict[str, Any] = {} if method is None else {"authentication_method": method}
        if expiry_s is not None:
            properties["session_expiry_interval"] = expiry_s
        if data is not None:
            properties["authentication_data"] = data
        await self.say(Connect(self.version, identifier, True, 0, will, properties=properties))

    async def auth(self, reason: Reason, data: bytes | None = None, method: str = SCRAM_METHOD) -> None:
        """Send AUTH."""
        extra = {} if data is None else {"authentication_data": data}
        await self.say(Auth(reason, {"authentication_method": method, **extra}))

    async def challenge(self) -> bytes:
        """Return the data of the AUTH 0x18 that comes next."""
        packet = await self.hear()
        assert isinstance(packet, Auth), packet
        assert packet.reason == Reason.CONTINUE_AUTHENTICATION
        data: bytes = packet.properties["authentication_data"]
        return data

    async def log_in(self, scram: ScramClient) -> Packet | None:
        """Go through SCRAM in a CONNECT; returns the CONNACK."""
        await self.connect(data=scram.first)
        await self.auth(Reason.CONTINUE_AUTHENTICATION, scram.final(await self.challenge()))
        return await self.hear()

    async def ends(self, packet: type[Packet], reason: Reason) -> Packet:
        """Check that the broker says why and closes; returns what it said."""
        last = await self.hear()
        assert isinstance(last, packet), last
        assert last.reason == reason
        assert await self.hear() is None
        return last


class House:
    """A broker and its clients."""

    def __init__(self, worker: Worker) -> None:
        assert worker.acceptor is not None
        self.worker = worker
        self.port = worker.acceptor.addresses[0].port
        self.clients: list[Client] = []

    async def client(self, version: int = 5) -> Client:
        """Return a new connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(stream)
        client.version = version
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the broker does by itself."""
        with trio.fail_after(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.002)

    async def is_empty(self) -> None:
        """Wait until nothing is left of any client."""
        handshake = self.worker.controller.handshake
        await self.until(lambda: not self.worker.reactor.connection_count)
        await self.until(lambda: not handshake.pending.connections)
        assert handshake.exchanges == {}
        assert handshake.open_connections == 0

    def close(self) -> None:
        """Close all clients' sockets."""
        for client in self.clients:
            client.stream.socket.close()

    def ended(self, reason: str) -> int:
        """How many connections ended for a reason."""
        return self.worker.controller.ends[reason]


@asynccontextmanager
async def house(authenticator: Any, limits: Limits | None = None, **seams: Any) -> AsyncIterator[House]:
    """Run a broker with an authenticator."""
    config = Config(listen=("tcp://127.0.0.1:0",), limits=limits or Limits(), shutdown=Shutdown(drain_s=0.5))
    async with open_broker(config, authenticator=authenticator, **seams) as worker:
        here = House(worker)
        try:
            yield here
        finally:
            here.close()


async def subscriber(here: House, *topics: bytes) -> Client:
    """Return a connected client that subscribes topics at QoS 0."""
    client = await here.client()
    await client.connect(None, identifier=b"subscriber")
    await client.say(Subscribe(1, tuple(subscription(topic, 0) for topic in topics)))
    assert isinstance(await client.hear(), Connack)
    assert isinstance(await client.hear(), Suback)
    return client
