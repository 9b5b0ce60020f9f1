"""A client that keeps its half of the standard, for loads: it acknowledges, and waits for acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Will,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType

ANSWER_S = 30.0


class GoneError(Exception):
    """The connection ended."""


@dataclass
class Person:
    """Who a client is, and what it remembers from one connection to the next.

    Attributes:
        on_message: called with every message, at QoS 2 once.
        unreleased: packet identifiers of QoS 2 messages that it has, whose PUBREL has not come.
    """

    identifier: str
    version: int = 4
    clean: bool = True
    on_message: Callable[[Publish], None] = lambda message: None
    unreleased: set[int] = field(default_factory=set)


class Client:
    """One connection of a person. Made by `connected`."""

    def __init__(self, person: Person, stream: trio.SocketStream) -> None:
        self.person = person
        self.stream = stream
        self.session_present = False
        self._answers: dict[int, trio.Event] = {}
        self._welcome = trio.Event()
        self._sending = trio.Lock()
        self._identifier = 0
        self._gone = False

    async def send(self, packet: Any) -> None:
        """Send a packet, or bytes as they are. Raises GoneError."""
        data = packet if isinstance(packet, bytes) else encode(packet, self.person.version)
        async with self._sending:
            try:
                await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise GoneError from None

    async def read(self) -> None:
        """Read until the end, and answer what is to be answered."""
        buffer = bytearray()
        try:
            while data := await self.stream.receive_some(65_536):
                buffer += data
                while (frame := next_frame(buffer)) is not None:
                    await self._take(decode(*frame, self.person.version))
        except (trio.BrokenResourceError, trio.ClosedResourceError, GoneError):
            pass
        finally:
            self._gone = True
            self._welcome.set()
            for event in self._answers.values():
                event.set()

    async def _take(self, packet: Any) -> None:
        person = self.person
        if isinstance(packet, Publish):
            if packet.qos < 2 or packet.packet_identifier not in person.unreleased:
                person.on_message(packet)
            if packet.qos == 2:
                person.unreleased.add(packet.packet_identifier)
            if packet.qos:
                kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
                await self.send(Ack(kind, packet.packet_identifier))
        elif isinstance(packet, Ack):
            if packet.type == PacketType.PUBREL:
                person.unreleased.discard(packet.packet_identifier)
                await self.send(Ack(PacketType.PUBCOMP, packet.packet_identifier))
            elif packet.type == PacketType.PUBREC:
                await self.send(Ack(PacketType.PUBREL, packet.packet_identifier))
            else:
                self._answered(packet.packet_identifier)
        elif isinstance(packet, Suback):
            self._answered(packet.packet_identifier)
        elif isinstance(packet, Connack):
            if packet.reason:
                raise AssertionError(f"{person.identifier} was refused: {packet}")
            self.session_present = packet.session_present
            self._welcome.set()
        elif isinstance(packet, Disconnect):
            raise GoneError

    def _answered(self, identifier: int) -> None:
        event = self._answers.pop(identifier, None)
        if event is not None:
            event.set()

    async def _ask(self, make: Callable[[int], Any]) -> None:
        """Send what has a packet identifier, and wait for its answer. Raises GoneError; TooSlowError: there is none."""
        self._identifier = identifier = self._identifier % 65_535 + 1
        self._answers[identifier] = event = trio.Event()
        await self.send(make(identifier))
        with trio.fail_after(ANSWER_S):
            await event.wait()
        if self._gone:
            raise GoneError

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; returns after SUBACK."""
        await self._ask(lambda identifier: Subscribe(identifier, (subscription(topic_filter.encode(), qos),)))

    async def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        """Publish; at QoS 1 and 2 returns after PUBACK or PUBCOMP."""
        if qos == 0:
            await self.send(Publish(topic.encode(), payload, 0, retain))
        else:
            await self._ask(lambda identifier: Publish(topic.encode(), payload, qos, retain, False, identifier))

    async def welcome(self) -> None:
        """Wait for CONNACK. Raises GoneError."""
        with trio.fail_after(ANSWER_S):
            await self._welcome.wait()
        if self._gone:
            raise GoneError


@asynccontextmanager
async def connected(
    port: int, person: Person, will: Will | None = None, goodbye: bool = True, session_expiry_s: int = 3600
) -> AsyncIterator[Client]:
    """Connect a person for the length of the block.

    Args:
        goodbye: say DISCONNECT at the end; else the connection breaks.
        session_expiry_s: asked for by a 5.0 client that is not clean.

    Raises:
        GoneError: the broker ended the connection, or another one of the same person did.
    """
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    client = Client(person, stream)
    properties = {"session_expiry_interval": session_expiry_s} if person.version == 5 and not person.clean else {}
    hello = Connect(person.version, person.identifier.encode(), person.clean, 60, will, None, None, properties)
    gone = False
    async with trio.open_nursery() as nursery:
        try:
            nursery.start_soon(client.read)
            await client.send(hello)
            await client.welcome()
            yield client
            if goodbye:
                await client.send(b"\xe0\0")
        except GoneError:
            gone = True
        finally:
            nursery.cancel_scope.cancel()
            await trio.aclose_forcefully(stream)
    if gone:
        raise GoneError
