"""WebSocket listeners over real sockets: a client library of others, refused requests, every way to end."""

from __future__ import annotations

import gc
import json
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from broker import logs
from broker.config.listener import Listener
from broker.config.loader import Config, Limits, Log, Mqtt, Shutdown
from broker.control.presence import Connected
from broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Publish,
    Subscribe,
    Will,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.reasons import CloseReason, Reason
from broker.worker.worker import Worker, open_broker
from tests.support.embedded import Device, until
from tests.support.process import ROOT
from tests.support.websockets import BINARY, CLOSE, PONG, TEXT, ClientEnd, close_frame, frame, frames_in, request

TIMEOUT_S = 60


@asynccontextmanager
async def broker_with(limits: Limits | None = None, mqtt: Mqtt | None = None, **listener: Any) -> AsyncIterator[Worker]:
    listener.setdefault("address", "ws://127.0.0.1:0")
    config = Config(
        listen=(),
        listener=(Listener(**listener),),
        shutdown=Shutdown(drain_s=0.1),
        limits=limits or Limits(),
        mqtt=mqtt or Mqtt(),
    )
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            yield broker


@asynccontextmanager
async def device(broker: Worker, name: bytes = b"device", version: int = 5, **options: Any) -> AsyncIterator[Device]:
    """A client with our own frames, whose Close frame and end of stream a test can see."""
    async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
        await stream.send_all(request())
        client = Device(stream, version, ClientEnd(name))
        await client.send(Connect(version, name, **options))
        assert (await client.receive()).reason == Reason.SUCCESS
        yield client


async def close_of(client: Device) -> tuple[int, bytes]:
    """Return code and text of the Close frame that came before the end of the stream."""
    while await client.receive() is not None:
        pass
    closed = client.client.transform.closed
    assert closed is not None, "no Close frame"
    return struct.unpack("!H", closed[:2])[0], closed[2:]


async def ask(broker: Worker, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the broker closes."""
    async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
        await stream.send_all(data)
        return b"".join([piece async for piece in stream])


# A client of others --------------------------------------------------------------------------------------------------


class Library:
    """An MQTT client on the websockets library."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.buffer = bytearray()

    @classmethod
    @contextmanager
    def at(cls, port: int, path: str = "/mqtt") -> Iterator[Library]:
        with connect(
            f"ws://127.0.0.1:{port}{path}", subprotocols=["mqtt"], max_size=None, open_timeout=TIMEOUT_S
        ) as websocket:
            yield cls(websocket)

    def send(self, packet: Any) -> None:
        self.socket.send(encode(packet, 5))

    def receive(self) -> Any:
        while (found := next_frame(self.buffer)) is None:
            data = self.socket.recv(TIMEOUT_S)
            assert isinstance(data, bytes)
            self.buffer += data
        return decode(*found, 5)


@pytest.mark.parametrize("path", ["/mqtt", "/ws", "/"])
async def test_a_library_of_others_connects_publishes_and_closes(path: str) -> None:
    # Proves: [MQTT-6.0.0-1] [MQTT-6.0.0-4]
    payload = bytes(range(256)) * 4096

    def talk(port: int) -> tuple[int | None, str]:
        with Library.at(port, path) as client:
            assert client.socket.subprotocol == "mqtt"
            assert client.socket.protocol.extensions == []  # it offers permessage-deflate
            client.send(Connect(5, b"lib"))
            assert isinstance(client.receive(), Connack)
            client.send(Subscribe(1, (subscription(b"t", 0),)))
            client.receive()
            assert client.socket.ping(b"are you there?").wait(TIMEOUT_S)
            client.send(Publish(b"t", payload))
            assert client.receive().payload == payload
            client.send(Publish(b"t", payload * 8))  # 8 MiB
            assert client.receive().payload == payload * 8
            client.send(Disconnect())
            with pytest.raises(ConnectionClosed):
                client.socket.recv(TIMEOUT_S)
        return client.socket.close_code, client.socket.close_reason or ""

    async with broker_with(limits=Limits(), mqtt=Mqtt(max_packet_size_bytes=16_777_216)) as broker:
        assert await trio.to_thread.run_sync(talk, broker.addresses[0].port) == (1000, "client_disconnect")
        assert dict(broker.controller.ends) == {CloseReason.CLIENT_DISCONNECT: 1}
        await until(lambda: broker.reactor.connection_count == 0)


async def test_a_library_that_closes_without_a_disconnect_is_lost_and_its_will_is_published() -> None:
    # Proves: [MQTT-3.1.2-8]
    def talk(port: int) -> int | None:
        with Library.at(port) as client:
            client.send(Connect(5, b"lib", will=Will(b"w", b"gone")))
            client.receive()
            client.socket.close(1001)
            return client.socket.close_code

    async with broker_with() as broker, device(broker) as witness:
        await witness.subscribe(b"w")
        # The broker answers its Close frame with the same code.
        assert await trio.to_thread.run_sync(talk, broker.addresses[0].port) == 1001
        assert (await witness.receive()).payload == b"gone"
        assert broker.controller.ends[CloseReason.CONNECTION_LOST] == 1


# Ends ----------------------------------------------------------------------------------------------------------------


async def test_a_disconnect_and_a_close_in_one_piece() -> None:
    async with broker_with() as broker, device(broker, will=Will(b"w", b"gone")) as client:
        await client.client.stream.send_all(frame(BINARY, encode(Disconnect(), 5)) + close_frame(1000))
        assert (await close_of(client))[0] == 1000
        assert dict(broker.controller.ends) == {CloseReason.CLIENT_DISCONNECT: 1}


@pytest.mark.parametrize(("version", "told"), [(4, []), (5, [Reason.PROTOCOL_ERROR])])
@pytest.mark.parametrize(
    ("data", "reason", "code"),
    [
        (frame(TEXT, b"hello"), CloseReason.WEBSOCKET_TEXT_FRAME, 1003),
        (frame(BINARY, b"", mask=None), CloseReason.WEBSOCKET_PROTOCOL_ERROR, 1002),
        (frame(BINARY, b"", reserved=4), CloseReason.WEBSOCKET_PROTOCOL_ERROR, 1002),
    ],
)
async def test_a_wrong_frame_ends_the_client_in_words_of_mqtt_and_of_websocket(
    version: int, told: list[Reason], data: bytes, reason: CloseReason, code: int
) -> None:
    # Proves: [MQTT-6.0.0-1]
    async with broker_with() as broker, device(broker, version=version) as client:
        await client.client.stream.send_all(frame(BINARY, encode(Pingreq(), version)) + data + frame(BINARY, b"\xc0\0"))
        await client.receive()  # PINGRESP: what came before counts
        heard = []
        while (packet := await client.receive()) is not None:
            heard.append(packet.reason)
        assert heard == told
        assert await close_of(client) == (code, reason.encode())
        assert dict(broker.controller.ends) == {reason: 1}


async def test_ends_that_are_the_brokers_have_a_code_and_a_word() -> None:
    async with broker_with(mqtt=Mqtt(max_packet_size_bytes=1000)) as broker:
        async with device(broker, b"large") as client:
            await client.send(Publish(b"t", bytes(2000)))
            assert await close_of(client) == (1009, b"packet_too_large")
        async with device(broker, b"c") as client, device(broker, b"c"):
            assert await close_of(client) == (1008, b"taken_over")
    # At its end the broker says so.
    async with trio.open_nursery() as nursery:
        stopping = trio.Event()

        async def run(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
            async with broker_with() as broker:
                task_status.started(broker)
                await stopping.wait()

        broker = await nursery.start(run)
        async with device(broker) as client:
            stopping.set()
            assert await close_of(client) == (1001, b"server_shutdown")


async def test_pings_within_messages_are_answered() -> None:
    async with broker_with() as broker, device(broker) as client:
        ping = encode(Pingreq(), 5)
        await client.client.stream.send_all(
            frame(BINARY, ping[:1], fin=False) + frame(0x9, b"still there?") + frame(0x0, ping[1:])
        )
        received = bytearray()
        while len(received) < 2 + len(b"still there?") + 4:
            received += await client.client.stream.receive_some()
        assert frames_in(received) == [(PONG, b"still there?"), (BINARY, b"\xd0\0")]


async def test_who_does_not_finish_the_request_in_time_is_ended() -> None:
    async with broker_with(Limits(connect_timeout_s=0.5)) as broker:
        assert await ask(broker, request()[:50]) == b""
        assert dict(broker.controller.ends) == {CloseReason.CONNECT_TIMEOUT: 1}
        # The upgrade is no CONNECT.
        sent = bytearray(await ask(broker, request()))
        assert sent.startswith(b"HTTP/1.1 101 ")
        assert frames_in(sent.partition(b"\r\n\r\n")[2]) == [(CLOSE, struct.pack("!H", 1008) + b"connect_timeout")]


# Refused -------------------------------------------------------------------------------------------------------------


def ended(file: Path, event: str = "connection_ended") -> list[dict[str, Any]]:
    logs.flush(10)
    return [line for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()) if line["event"] == event]


@pytest.mark.parametrize(
    ("data", "begins", "detail"),
    [
        (request("/other"), b"HTTP/1.1 404 ", "404: a WebSocket is opened at /mqtt, /ws, /"),
        (
            request(upgrade=None),
            b"HTTP/1.1 426 ",
            "426: a WebSocket is opened here, by an HTTP request with Upgrade: websocket",
        ),
        (request(sec_websocket_protocol=None), b"HTTP/1.1 400 ", "400: Sec-WebSocket-Protocol has to offer mqtt"),
        (request(origin="https://evil.example"), b"HTTP/1.1 403 ", "403: web pages of this origin may not connect"),
        (b"\x10\x0c\0\x04MQTT\x05\x02\0\0\0\0\0", b"HTTP/1.1 400 ", "a CONNECT without WebSocket"),
    ],
)
async def test_what_opens_no_websocket_is_told_and_is_one_line_in_the_log(
    tmp_path: Path, data: bytes, begins: bytes, detail: str
) -> None:
    logs.configure(Log(file=str(tmp_path / "log")))
    async with broker_with(websocket_origins=("https://app.example.org",)) as broker:
        answer = await ask(broker, data)
        assert answer.startswith(begins)
        assert len(answer.partition(b"\r\n\r\n")[2].splitlines()) == 1
        assert dict(broker.controller.ends) == {CloseReason.WEBSOCKET_REFUSED: 1}
        assert dict(broker.controller.refused) == {CloseReason.WEBSOCKET_REFUSED: 1}
        await until(lambda: broker.reactor.connection_count == 0)
    (line,) = ended(tmp_path / "log")
    assert line["reason"] == "websocket_refused"
    assert line["detail"] == detail
    assert line["client"].startswith("127.0.0.1:")


async def test_tls_on_a_websocket_port_gets_an_alert() -> None:
    async with broker_with() as broker:
        assert await ask(broker, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03") == b"\x15\x03\x01\0\x02\x02\x28"
        assert dict(broker.controller.ends) == {CloseReason.TLS_ON_PLAIN_PORT: 1}


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_who_only_looks_whether_the_port_is_open_is_no_line_at_info(tmp_path: Path, how: str) -> None:
    """Health checks of Kubernetes, load balancers and monitors come every few seconds."""
    logs.configure(Log(file=str(tmp_path / "log"), level="debug"))
    async with broker_with(address="ws://127.0.0.1:0") as broker:
        for _ in range(3):
            client = socket.create_connection(("127.0.0.1", broker.addresses[0].port))
            if how == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        await until(lambda: sum(broker.controller.ends.values()) == 3)
    assert {line["level"] for line in ended(tmp_path / "log")} == {"debug"}
    assert len(ended(tmp_path / "log")) == 3


async def test_x_forwarded_for_is_where_the_address_is_shown() -> None:
    async with (
        broker_with(proxy_from=("127.0.0.0/8",)) as broker,
        broker.presence() as events,
        await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream,
    ):
        await stream.send_all(request(x_forwarded_for="6.6.6.6, 203.0.113.9, 127.0.0.2"))
        client = Device(stream, 5, ClientEnd(1))
        await client.send(Connect(5, b"c"))
        assert isinstance(await client.receive(), Connack)
        event = await anext(aiter(events))
        assert isinstance(event, Connected)
        assert event.client.address == "203.0.113.9:0"
        (connection,) = broker.reactor.connections_snapshot()
        assert connection.peer == "203.0.113.9:0"
        assert connection.facts.proxy.startswith("127.0.0.1:")


async def test_a_connection_leaves_nothing_behind() -> None:
    from broker.transport.websocket import WebSocket

    async with broker_with() as broker:
        for number in range(3):
            async with device(broker, b"c%d" % number):
                pass
        await ask(broker, request("/other"))
        await until(lambda: broker.reactor.connection_count == 0)
        gc.collect()
        assert not [found for found in gc.get_objects() if isinstance(found, WebSocket)]


def test_a_broker_without_websocket_loads_nothing_of_it() -> None:
    program = (
        "import sys; from broker.config.listener import Listener; from broker.transport.listener import Entrance\n"
        "import broker.worker.worker\n"
        "Entrance(0, Listener(address='tcp://127.0.0.1:0'), 1000)\n"
        "loaded = [name for name in ('h11', 'broker.transport.websocket', 'broker.transport.upgrade',"
        " 'broker.transport.proxy_layer') if name in sys.modules]\n"
        "assert not loaded, loaded\n"
        "Entrance(0, Listener(address='ws://127.0.0.1:0'), 1000)\n"
        "assert 'h11' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
