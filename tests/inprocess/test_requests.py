"""What is published to a topic name of the broker's own: dealt with once, acknowledged then, and given to nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker.auth.outcome import Accepted
from broker.control.requests import Request
from broker.wire.packets import (
    Ack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    decode,
    encode,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from tests.support.conversation import MemoryBroker, MemoryClient
from tests.support.doubles import FakeLog
from tests.support.embedded import CONFIG

NAME = b"$CONTROL/thing"


class Refusing:
    """An ACL: nobody may publish to names that begin with `$`, but for one."""

    def __init__(self, allowed: bytes) -> None:
        self.allowed = allowed

    def may_publish(self, _principal: Any, topic_name: bytes, _qos: int, _retain: bool) -> bool:
        """Return whether it is that one, or begins otherwise."""
        return topic_name == self.allowed or topic_name[:1] != b"$"

    def may_subscribe(self, _principal: Any, _topic_filter: bytes, _qos: int) -> bool:
        """Return True."""
        return True


class Anybody:
    """Accepts every client."""

    def authenticate(self, _connect: Connect, _exchange: Any) -> Accepted:
        """Accept."""
        return Accepted("ann")


class Asked:
    """A broker that takes requests, which the test ends."""

    def __init__(self, nursery: trio.Nursery, log: FakeLog | None, allowed: bytes, asks_acl: bool) -> None:
        self.requests: list[Request] = []
        self.broker = MemoryBroker(CONFIG, nursery, log, None, Anybody(), Refusing(allowed))
        self.broker.controller.requests.take(NAME, self.requests.append, asks_acl=asks_acl)

    async def connect(self, version: int, name: bytes = b"c", clean_start: bool = True) -> MemoryClient:
        client = await self.broker.connect()
        properties = {"session_expiry_interval": 100} if version == 5 and not clean_start else {}
        await client.send(
            encode(Connect(version, name, clean_start=clean_start, properties=properties), version), False
        )
        assert await client.receive() is not None
        return client


@asynccontextmanager
async def asked(log: FakeLog | None = None, allowed: bytes = NAME, asks_acl: bool = True) -> AsyncIterator[Asked]:
    async with trio.open_nursery() as nursery:
        yield Asked(nursery, log, allowed, asks_acl)


async def send(client: MemoryClient, version: int, *packets: Packet) -> None:
    await client.send(b"".join(encode(packet, version) for packet in packets), False)


async def read(client: MemoryClient, version: int) -> Packet:
    frame = await client.receive()
    assert frame is not None
    return decode(*frame, version)


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_request_is_acknowledged_when_it_has_been_dealt_with_and_goes_to_nobody(
    version: int, logged: bool
) -> None:
    async with asked(FakeLog() if logged else None) as its:
        other = await its.connect(version, b"other")
        await send(other, version, Subscribe(1, (subscription(b"$CONTROL/#", 2), subscription(b"#", 2))))
        await read(other, version)
        client = await its.connect(version, clean_start=False)
        for qos, acknowledged in ((0, None), (1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            identifier = 7 if qos else None
            await send(
                client, version, Publish(NAME, b"%d" % qos, qos, retain=True, packet_identifier=identifier), Pingreq()
            )
            (request,) = its.requests
            assert (request.payload, request.topic_name) == (b"%d" % qos, NAME)
            assert client.connection.take_output() == b"", "nothing is parsed behind it"
            request.end()
            if acknowledged is not None:
                answer = await read(client, version)
                assert isinstance(answer, Ack)
                assert (answer.type, answer.packet_identifier, answer.reason) == (acknowledged, 7, Reason.SUCCESS)
            assert isinstance(await read(client, version), Pingresp)
            its.requests.clear()
        # What was published as a QoS 2 message comes again: it has been dealt with.
        await send(client, version, Publish(NAME, b"2", 2, retain=True, dup=True, packet_identifier=7))
        answer = await read(client, version)
        assert isinstance(answer, Ack)
        assert answer.type == PacketType.PUBREC
        await send(client, version, Ack(PacketType.PUBREL, 7))
        answer = await read(client, version)
        assert isinstance(answer, Ack)
        assert (answer.type, answer.reason) == (PacketType.PUBCOMP, Reason.SUCCESS)
        assert its.requests == []
        await send(other, version, Pingreq())
        assert isinstance(await read(other, version), Pingresp)
        assert its.broker.router.retained_message(NAME) is None


@pytest.mark.parametrize("version", [4, 5])
async def test_a_request_that_fails_says_so_where_its_version_can(version: int) -> None:
    async with asked() as its:
        client = await its.connect(version)
        for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            await send(client, version, Publish(NAME, b"x", qos, packet_identifier=7))
            its.requests.pop().end(Reason.NOT_AUTHORIZED)
            answer = await read(client, version)
            assert isinstance(answer, Ack)
            assert answer.type == kind
            assert answer.reason == (Reason.NOT_AUTHORIZED if version == 5 else Reason.SUCCESS)
        # 5.0: that exchange is over. 3.1.1: its client releases it.
        await send(client, version, Publish(NAME, b"y", 2, packet_identifier=7))
        assert len(its.requests) == (1 if version == 5 else 0)


@pytest.mark.parametrize("version", [4, 5])
async def test_who_may_not_ask_is_refused_and_who_may_ask_publishes_nowhere_else_by_that(version: int) -> None:
    async with asked(allowed=b"$CONTROL/another") as its:
        client = await its.connect(version)
        await send(client, version, Publish(NAME, b"x", 1, packet_identifier=7))
        answer = await read(client, version)
        assert isinstance(answer, Ack)
        assert answer.reason == (Reason.NOT_AUTHORIZED if version == 5 else Reason.SUCCESS)
        assert its.requests == []
    for allowed in (NAME, b"$CONTROL/another"):
        async with asked(allowed=allowed, asks_acl=allowed == NAME) as its:
            client = await its.connect(version)
            for topic_name in (b"$CONTROL/a", b"$shoal/request", b"$SYS/x"):
                await send(client, version, Publish(NAME, b"x", 1, packet_identifier=7))
                its.requests.pop().end()
                await read(client, version)
                await send(client, version, Publish(topic_name, b"x", 1, True, packet_identifier=7))
                answer = await read(client, version)
                assert isinstance(answer, Ack)
                assert answer.reason == (Reason.NOT_AUTHORIZED if version == 5 else Reason.SUCCESS)
                assert its.broker.router.retained_message(topic_name) is None


async def test_a_request_by_a_topic_alias_is_one() -> None:
    async with asked() as its:
        client = await its.connect(5)
        for topic_name in (NAME, b""):
            await send(client, 5, Publish(topic_name, b"x", 0, properties={"topic_alias": 1}))
            request = its.requests.pop()
            assert (request.topic_name, request.payload) == (NAME, b"x")
            request.end()


async def test_who_is_gone_when_its_request_is_done_is_told_nothing() -> None:
    async with asked() as its:
        client = await its.connect(5, clean_start=False)
        await send(client, 5, Publish(NAME, b"x", 2, packet_identifier=7))
        await client.cut()
        again = await its.connect(5, clean_start=False)
        (first,) = its.requests
        assert first.session is None
        first.end()
        assert again.connection.take_output() == b""
        # It was not acknowledged, so its client sends it again, and it is dealt with again.
        await send(again, 5, Publish(NAME, b"x", 2, dup=True, packet_identifier=7))
        its.requests[1].end()
        answer = await read(again, 5)
        assert isinstance(answer, Ack)
        assert answer.reason == Reason.SUCCESS


async def test_a_request_that_is_too_large_ends_its_client() -> None:
    async with asked() as its:
        client = await its.connect(5)
        await send(client, 5, Publish(NAME, b"x" * (CONFIG.limits.control_packet_bytes_max + 1), 0))
        answer = await read(client, 5)
        assert isinstance(answer, Disconnect)
        assert answer.reason == Reason.PACKET_TOO_LARGE
        assert its.requests == []
