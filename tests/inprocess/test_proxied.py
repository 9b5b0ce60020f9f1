"""Listeners behind a proxy that speaks the PROXY protocol, over real sockets: TCP, WebSocket and Unix."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from broker import logs
from broker.config.listener import Listener
from broker.config.loader import Config, Limits, Log, Shutdown
from broker.transport.facts import Certificate
from broker.wire.packets import Connack, Connect, Disconnect, Publish, Subscribe, encode, subscription
from broker.wire.reasons import CloseReason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import Device, until
from tests.support.proxy_headers import FOUR, LOCAL, SIX, TCP6, UNIQUE_ID, UNSPEC, ssl, tlv, v2
from tests.support.websockets import ClientEnd, request

TIMEOUT_S = 60
V1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 1883\r\n"
ANYWHERE = ("127.0.0.0/8",)


@asynccontextmanager
async def broker_with(limits: Limits | None = None, **listener: Any) -> AsyncIterator[Worker]:
    listener.setdefault("address", "tcp://127.0.0.1:0")
    listener.setdefault("proxy_from", ANYWHERE)
    config = Config(
        listen=(),
        listener=(Listener(**listener, proxy_protocol=True),),
        shutdown=Shutdown(drain_s=0.1),
        limits=limits or Limits(),
    )
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            yield broker


async def stream_to(broker: Worker) -> trio.SocketStream:
    address = broker.addresses[0]
    if address.scheme == "unix":
        return await trio.open_unix_socket(address.path)
    stream = await trio.open_tcp_stream("127.0.0.1", address.port)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


@asynccontextmanager
async def device(broker: Worker, header: bytes, *, piecewise: bool = False) -> AsyncIterator[tuple[Device, Any]]:
    """A client behind a header, and the broker's end of its connection."""
    async with await stream_to(broker) as stream:
        over_websocket = broker.addresses[0].scheme == "ws"
        opening = header + (request() if over_websocket else b"")
        for piece in [opening[at : at + 1] for at in range(len(opening))] if piecewise else [opening]:
            await stream.send_all(piece)
        client = Device(stream, 5, ClientEnd(1) if over_websocket else None)
        await client.send(Connect(5, b"c"))
        assert isinstance(await client.receive(), Connack)
        (connection,) = (one for one in broker.reactor.connections_snapshot() if one.is_open)
        yield client, connection


@pytest.mark.parametrize("piecewise", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("scheme", ["tcp", "ws"])
@pytest.mark.parametrize(
    ("header", "address"),
    [
        (V1, "192.0.2.7:51234"),
        (v2(FOUR, checked=True), "192.0.2.7:51234"),
        (v2(SIX, family=TCP6), "2001:db8::7:51234"),
        (b"PROXY UNKNOWN\r\n", None),
        (v2(family=UNSPEC), None),
        (v2(FOUR, command=LOCAL), None),
    ],
    ids=["v1", "v2", "v2 IPv6", "UNKNOWN", "UNSPEC", "LOCAL"],
)
async def test_a_client_behind_a_proxy_has_its_own_address(
    header: bytes, address: str | None, scheme: str, piecewise: bool
) -> None:
    async with (
        broker_with(address=f"{scheme}://127.0.0.1:0") as broker,
        device(broker, header, piecewise=piecewise) as (client, connection),
    ):
        if address is None:
            assert connection.peer.startswith("127.0.0.1:")
            assert connection.facts.proxy is None
        else:
            assert connection.peer == address
            assert connection.facts.proxy.startswith("127.0.0.1:")
        # Of a plain connection no layer is left, so that it costs what every other one does.
        assert (connection.layers is None) == (scheme == "tcp")
        await client.send(Subscribe(1, (subscription(b"t", 0),)))
        await client.receive()
        await client.send(Publish(b"t", b"x" * 300_000))
        assert (await client.receive()).payload == b"x" * 300_000


async def test_a_connect_behind_the_header_in_one_piece() -> None:
    async with broker_with() as broker, await stream_to(broker) as stream:
        await stream.send_all(V1 + encode(Connect(5, b"c"), 5) + encode(Disconnect(), 5))
        client = Device(stream, 5)
        assert isinstance(await client.receive(), Connack)
        assert await client.receive() is None
        assert dict(broker.controller.ends) == {CloseReason.CLIENT_DISCONNECT: 1}


async def test_what_a_proxy_says_of_tls_is_known_of_the_client() -> None:
    header = v2(FOUR, ssl(7, 0, cn=b"sensor-7"), tlv(UNIQUE_ID, b"req-1"))
    async with broker_with() as broker, device(broker, header) as (_, connection):
        facts = connection.facts
        assert facts.certificate == Certificate(cn="sensor-7")
        assert (facts.tls_version, facts.tls_cipher) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384")
        assert facts.unique_id == "req-1"


async def test_a_unix_socket_is_trusted(tmp_path: Path) -> None:
    async with (
        broker_with(address=f"unix://{tmp_path}/s", proxy_from=()) as broker,
        device(broker, V1) as (_, connection),
    ):
        assert connection.peer == "192.0.2.7:51234"
        assert connection.facts.proxy is None
    async with (
        broker_with(address=f"unix://{tmp_path}/s", proxy_from=()) as broker,
        device(broker, v2(command=LOCAL)) as (_, connection),
    ):
        assert connection.peer is None


async def test_the_forwarded_address_of_a_proxy_behind_a_proxy() -> None:
    """A TCP balancer in front of an HTTP proxy: who comes first is the first of them that is not trusted."""
    http_proxy = b"PROXY TCP4 127.9.9.9 127.0.0.1 7 80\r\n"
    async with broker_with(address="ws://127.0.0.1:0") as broker, await stream_to(broker) as stream:
        await stream.send_all(http_proxy + request(x_forwarded_for="6.6.6.6, 198.51.100.3"))
        client = Device(stream, 5, ClientEnd(1))
        await client.send(Connect(5, b"c"))
        assert isinstance(await client.receive(), Connack)
        (connection,) = broker.reactor.connections_snapshot()
        assert (connection.peer, connection.facts.proxy) == ("198.51.100.3:0", "127.9.9.9:7")


# Refused -------------------------------------------------------------------------------------------------------------


def ended(file: Path) -> list[dict[str, Any]]:
    logs.flush(10)
    return [
        line
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines())
        if line["event"] == "connection_ended"
    ]


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
@pytest.mark.parametrize(
    ("data", "proxy_from", "reason", "detail"),
    [
        (V1, ("192.0.2.0/24", "::1"), CloseReason.PROXY_NOT_TRUSTED, "the peer is none of proxy_from"),
        (encode(Connect(5, b"c"), 5), ANYWHERE, CloseReason.PROXY_HEADER_INVALID, "a CONNECT without a PROXY header"),
        (request(), ANYWHERE, CloseReason.PROXY_HEADER_INVALID, "no PROXY header: it begins with 0x47"),
        (v2(FOUR, version=3), ANYWHERE, CloseReason.PROXY_HEADER_INVALID, "version and command 0x31"),
        (V1.replace(b"TCP4", b"TCP5"), ANYWHERE, CloseReason.PROXY_HEADER_INVALID, "neither TCP4 nor TCP6 nor UNKNOWN"),
    ],
)
async def test_who_is_refused_is_one_line_in_the_log(
    tmp_path: Path, scheme: str, data: bytes, proxy_from: tuple[str, ...], reason: CloseReason, detail: str
) -> None:
    logs.configure(Log(file=str(tmp_path / "log")))
    async with (
        broker_with(address=f"{scheme}://127.0.0.1:0", proxy_from=proxy_from) as broker,
        await stream_to(broker) as stream,
    ):
        await stream.send_all(data)
        assert b"".join([piece async for piece in stream]) == b""
        assert dict(broker.controller.ends) == dict(broker.controller.refused) == {reason: 1}
    (line,) = ended(tmp_path / "log")
    assert (line["reason"], line["detail"]) == (reason, detail)
    assert line["client"].startswith("127.0.0.1:")


async def test_a_header_has_the_time_of_a_connect() -> None:
    async with broker_with(Limits(connect_timeout_s=0.3)) as broker, await stream_to(broker) as stream:
        await stream.send_all(V1[:10])
        assert await stream.receive_some() == b""
        assert dict(broker.controller.ends) == {CloseReason.CONNECT_TIMEOUT: 1}


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
@pytest.mark.parametrize("data", [b"", v2(family=UNSPEC, command=LOCAL), V1], ids=["nothing", "LOCAL", "a header"])
@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_health_check_is_no_line_at_info(tmp_path: Path, scheme: str, data: bytes, how: str) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="debug"))
    async with broker_with(address=f"{scheme}://127.0.0.1:0") as broker:
        client = socket.create_connection(("127.0.0.1", broker.addresses[0].port))
        client.sendall(data)
        if how == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: broker.controller.ends)
    (line,) = ended(tmp_path / "log")
    assert line["level"] == "debug"


async def test_who_said_something_and_is_lost_is_a_line_at_info(tmp_path: Path) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), level="debug"))
    async with broker_with() as broker:
        client = socket.create_connection(("127.0.0.1", broker.addresses[0].port))
        client.sendall(V1 + b"\x10")
        client.close()
        await until(lambda: broker.controller.ends)
    (line,) = ended(tmp_path / "log")
    assert (line["level"], line["reason"]) == ("info", CloseReason.CONNECTION_LOST)
