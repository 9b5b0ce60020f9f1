"""A broker behind HAProxy and nginx: whose address and certificate it sees, health checks, WebSocket through them."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.sync.client import ClientConnection, connect, unix_connect

from broker import logs
from broker.config.listener import Listener
from broker.config.loader import Config, Log, Shutdown
from broker.transport.facts import Certificate
from broker.wire.packets import Connack, Connect, Publish, Subscribe, decode, encode, next_frame, subscription
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import Device, until
from tests.support.front_ends import haproxy, listening, nginx

TIMEOUT_S = 60
FROM_HERE = ("127.0.0.0/8",)
OPTIONS: dict[str, Any] = {"subprotocols": ["mqtt"], "max_size": None, "open_timeout": TIMEOUT_S}


@asynccontextmanager
async def broker_behind(*listeners: Listener) -> AsyncIterator[Worker]:
    config = Config(listen=(), listener=listeners, shutdown=Shutdown(drain_s=0.1))
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            yield broker


def proxied(scheme: str = "tcp") -> Listener:
    return Listener(address=f"{scheme}://127.0.0.1:0", proxy_protocol=True, proxy_from=FROM_HERE)


def only_one(broker: Worker) -> Any:
    (connection,) = (one for one in broker.reactor.connections_snapshot() if one.is_open)
    return connection


def address_of(stream: trio.SocketStream) -> str:
    return "{}:{}".format(*stream.socket.getsockname()[:2])


async def talk(stream: trio.abc.Stream) -> None:
    client = Device(stream, 5)  # type: ignore[arg-type]
    await client.send(Connect(5, b"c"))
    assert isinstance(await client.receive(), Connack)
    await client.subscribe(b"t")
    await client.send(Publish(b"t", b"x" * 200_000))
    assert (await client.receive()).payload == b"x" * 200_000


@pytest.mark.parametrize(
    "how", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id,authority"]
)
async def test_haproxy_says_whose_connection_it_is(tmp_path: Path, how: str) -> None:
    async with broker_behind(proxied()) as broker:
        (front,) = listening(1)
        with haproxy(
            tmp_path,
            f"""
frontend front
    mode tcp
    bind fd@{front.fileno()}
    unique-id-format "request-%rt"
    default_backend back
backend back
    mode tcp
    server broker 127.0.0.1:{broker.addresses[0].port} {how}
""",
            [front],
        ):
            async with await trio.open_tcp_stream(*front.getsockname()) as stream:
                await talk(stream)
                connection = only_one(broker)
                assert connection.peer == address_of(stream)
                assert connection.facts.proxy != connection.peer
                assert (connection.facts.unique_id is not None) == ("unique-id" in how)
                assert connection.layers is None


def make_certificate(folder: Path, name: str) -> Path:
    """Return a file with a key and a certificate that signs itself."""
    key, certificate, both = (folder / f"{name}.{ending}" for ending in ("key", "crt", "pem"))
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/O=Test/CN={name}",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    return both


@pytest.mark.parametrize("client", ["sensor-7", None])
async def test_haproxy_says_which_certificate_the_client_has(tmp_path: Path, client: str | None) -> None:
    server = make_certificate(tmp_path, "broker.example.org")
    trusted = make_certificate(tmp_path, "sensor-7")
    context = ssl.create_default_context(cafile=str(server))
    if client is not None:
        context.load_cert_chain(trusted)
    async with broker_behind(proxied()) as broker:
        (front,) = listening(1)
        address = f"127.0.0.1:{broker.addresses[0].port}"
        with haproxy(
            tmp_path,
            f"""
frontend front
    mode tcp
    bind fd@{front.fileno()} ssl crt {server} ca-file {trusted} verify optional
    default_backend back
backend back
    mode tcp
    server broker {address} send-proxy-v2-ssl-cn proxy-v2-options authority,ssl-cipher
""",
            [front],
        ):
            plain = await trio.open_tcp_stream(*front.getsockname())
            async with trio.SSLStream(plain, context, server_hostname="broker.example.org") as stream:
                await talk(stream)
                facts = only_one(broker).facts
                assert facts.address == address_of(plain)
                assert facts.certificate == (None if client is None else Certificate(cn=client))
                assert facts.tls_version == stream.version()
                assert facts.tls_cipher == stream.cipher()[0]
                assert facts.server_name == "broker.example.org"


@pytest.mark.parametrize("how", ["check check-send-proxy send-proxy-v2", "check check-send-proxy send-proxy"])
async def test_health_checks_of_haproxy_are_no_lines_at_info(tmp_path: Path, how: str) -> None:
    logs.configure(Log(file=str(tmp_path / "log")))
    async with broker_behind(proxied()) as broker:
        (front,) = listening(1)
        with haproxy(
            tmp_path,
            f"""
frontend front
    mode tcp
    bind fd@{front.fileno()}
    default_backend back
backend back
    mode tcp
    server broker 127.0.0.1:{broker.addresses[0].port} {how} inter 50ms
""",
            [front],
        ):
            await until(lambda: sum(broker.controller.ends.values()) >= 3)
            async with await trio.open_tcp_stream(*front.getsockname()) as stream:
                await talk(stream)  # it is taken for healthy
            await until(lambda: sum(broker.controller.ends.values()) >= 5)
            assert set(broker.controller.ends) <= {"connection_lost", "socket_error"}
    logs.flush(10)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    assert [line["client"] for line in lines if line["event"] == "connection_ended"] == ["c"]


def over_websocket(client: ClientConnection) -> None:
    """Send and receive a large message through a proxy."""
    buffer = bytearray()

    def receive() -> Any:
        while (found := next_frame(buffer)) is None:
            data = client.recv(TIMEOUT_S)
            assert isinstance(data, bytes)
            buffer.extend(data)
        return decode(*found, 5)

    client.send(encode(Connect(5, b"web"), 5))
    assert isinstance(receive(), Connack)
    client.send(encode(Subscribe(1, (subscription(b"t", 0),)), 5))
    receive()
    client.send(encode(Publish(b"t", b"x" * 500_000), 5))
    assert receive().payload == b"x" * 500_000


@pytest.mark.parametrize("send_proxy", ["", "send-proxy-v2"])
async def test_websocket_through_haproxy(tmp_path: Path, send_proxy: str) -> None:
    listener = proxied("ws") if send_proxy else Listener(address="ws://127.0.0.1:0", proxy_from=FROM_HERE)
    async with broker_behind(listener) as broker:
        (front,) = listening(1)
        with haproxy(
            tmp_path,
            f"""
frontend front
    mode http
    bind fd@{front.fileno()}
    default_backend back
backend back
    mode http
    {"" if send_proxy else "option forwardfor"}
    timeout tunnel 1h
    server broker 127.0.0.1:{broker.addresses[0].port} {send_proxy}
""",
            [front],
        ):

            def talk_over_websocket() -> None:
                with connect(f"ws://127.0.0.1:{front.getsockname()[1]}/mqtt", **OPTIONS) as client:
                    over_websocket(client)
                    connection = only_one(broker)
                    own = "{}:{}".format(*client.socket.getsockname())
                    assert connection.peer == (own if send_proxy else "127.0.0.1:0")
                    assert connection.facts.proxy.startswith("127.0.0.1:")

            await trio.to_thread.run_sync(talk_over_websocket)


async def test_websocket_through_nginx(tmp_path: Path) -> None:
    async with broker_behind(Listener(address="ws://127.0.0.1:0", proxy_from=FROM_HERE)) as broker:
        with nginx(
            tmp_path,
            f"""
        location / {{
            proxy_pass http://127.0.0.1:{broker.addresses[0].port};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
            proxy_set_header X-Forwarded-For "198.51.100.7, 203.0.113.4:4711";
        }}""",
        ) as front:

            def talk_over_websocket() -> None:
                with unix_connect(str(front), "ws://broker.example.org/mqtt", **OPTIONS) as client:
                    over_websocket(client)
                    assert only_one(broker).peer == "203.0.113.4:4711"

            await trio.to_thread.run_sync(talk_over_websocket)
