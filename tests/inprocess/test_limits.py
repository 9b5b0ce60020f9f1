"""Limits that need real sockets or a real process to be seen; the others have a conversation each."""

from __future__ import annotations

import errno
import gc
import http.client
import os
import re
import resource
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.config.host_resources import cores_available
from broker.config.loader import Config, Limits, Mqtt, Shutdown
from broker.wire.packets import (
    Ack,
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
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.conversation import MemoryBroker
from tests.support.doubles import QuickAuthenticator
from tests.support.embedded import device, until
from tests.support.process import MEASURED, ROOT, BrokerProcess

TIMEOUT_S = 60
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"


@asynccontextmanager
async def broker_with(limits: Limits | None = None, mqtt: Mqtt | None = None) -> AsyncIterator[Worker]:
    config = Config(
        listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.1), limits=limits or Limits(), mqtt=mqtt or Mqtt()
    )
    with trio.fail_after(TIMEOUT_S):
        async with open_broker(config) as broker:
            yield broker


def of_broker(broker: Worker, name: bytes) -> Any:
    """Return the broker's end of a client's connection."""
    return next(
        connection
        for connection in broker.reactor.connections_snapshot()
        if connection.session is not None and connection.session.client_identifier == name
    )


# What is not MQTT ---------------------------------------------------------------------------------------------------


async def test_a_tls_client_on_the_plain_port_gets_an_alert() -> None:
    """Section 4.13."""
    async with broker_with() as broker:

        def shake_hands() -> str:
            with (
                socket.create_connection(("127.0.0.1", broker.addresses[0].port), TIMEOUT_S) as plain,
                pytest.raises(ssl.SSLError) as caught,
            ):
                ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
            return str(caught.value)

        assert "HANDSHAKE_FAILURE" in (await trio.to_thread.run_sync(shake_hands)).upper().replace(" ", "_")
        await until(lambda: broker.controller.ends)
        assert dict(broker.controller.ends) == {"tls_on_plain_port": 1}


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
async def test_an_http_client_on_the_plain_port_is_told_in_http(method: str) -> None:
    """Section 4.13."""
    async with broker_with() as broker:

        def ask() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", broker.addresses[0].port, timeout=TIMEOUT_S)
            connection.request(method, "/mqtt")
            answer = connection.getresponse()
            found = answer.status, answer.read()
            connection.close()
            return found

        status, body = await trio.to_thread.run_sync(ask)
        assert status == 400
        assert body == (b"" if method == "HEAD" else b"This port speaks MQTT over plain TCP, not HTTP or WebSocket")
        await until(lambda: broker.controller.ends)
        assert dict(broker.controller.ends) == {"http_on_plain_port": 1}


def test_the_log_names_tls_and_http_on_the_plain_port(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for first in (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as client:
                client.sendall(first)
                while client.recv(4096):
                    pass
    written = broker.errors.read_text(encoding="utf-8")
    assert '"reason":"tls_on_plain_port"' in written
    assert '"reason":"http_on_plain_port"' in written


# Rates --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [Limits(messages_per_second_max=100), Limits(bytes_per_second_max=3000)], ids=["messages", "bytes"]
)
async def test_a_client_over_its_rate_is_read_later_and_loses_nothing(limits: Limits) -> None:
    async with broker_with(limits) as broker, device(broker, b"fast") as fast, device(broker, b"other") as other:
        for number in range(1, 151):
            await fast.send(Publish(b"t/%d" % number, b"x" * 16, 1, False, False, number))
        await until(lambda: broker.metrics().throttled)
        connection, found = of_broker(broker, b"fast"), broker.metrics()
        assert "throttled" in connection.paused_by
        served = 0
        while "throttled" in connection.paused_by and served < 20:
            await other.publish(b"t", b"y", 1)  # is answered while the other one waits
            served += 1
            now = broker.metrics()
            # On a slow machine its rate has come down by now.
            assert (
                now.messages_in == found.messages_in + served
                or "throttled" not in connection.paused_by
                or (now.throttled > found.throttled)
            )
        assert served
        assert of_broker(broker, b"other").paused_by == []
        for number in range(1, 151):
            answer = await fast.receive()
            assert (answer.type, answer.packet_identifier) == (PacketType.PUBACK, number)
        assert not broker.controller.ends


async def test_the_time_in_which_a_client_is_not_read_does_not_count_against_it() -> None:
    """Its keep alive of one second and the deadline of a started packet pass while the broker makes it wait."""
    limits = Limits(messages_per_second_max=10, packet_timeout_s=1)
    async with broker_with(limits) as broker, device(broker, b"c", keep_alive_s=1) as client:
        burst = b"".join(encode(Publish(b"t", b"", 1, False, False, number), 5) for number in range(1, 51))
        await client.client.send(burst + PINGREQ[:1], False)
        for number in range(1, 51):
            assert (await client.receive()).packet_identifier == number
        connection = of_broker(broker, b"c")
        await client.client.send(PINGREQ[1:], False)
        due_ms = broker.metrics().uptime_ms + 2000
        while broker.metrics().uptime_ms < due_ms:
            await trio.sleep(0.1)
            assert "throttled" in connection.paused_by
        assert (await client.receive()) == Pingresp()
        assert not broker.controller.ends


# Sockets ------------------------------------------------------------------------------------------------------------


async def test_tcp_watches_over_a_client_without_keep_alive() -> None:
    """Section 3.1.2.10."""
    async with (
        broker_with(Limits(tcp_keepalive_s=30)) as broker,
        device(broker, b"none", keep_alive_s=0),
        device(broker, b"some", keep_alive_s=60),
    ):
        found = {}
        for name in (b"none", b"some"):
            with socket.socket(fileno=os.dup(of_broker(broker, name).fd)) as duplicate:
                found[name] = [
                    duplicate.getsockopt(*option)
                    for option in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
                ]
        assert found[b"none"] == [1, 30]
        assert found[b"some"][0] == 0


async def test_who_takes_no_answers_is_not_given_more_to_answer() -> None:
    """A flood of PINGREQ whose sender does not read; it gets all of its answers when it does."""
    limits = Limits(output_buffer_bytes_max=65_536)
    async with broker_with(limits) as broker, device(broker, b"flood") as flood:
        connection = of_broker(broker, b"flood")
        stream = flood.client.stream
        sent = received = 0
        gc.collect()  # what other tests left in this process
        before = broker.metrics().output_buffer_bytes
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                nonlocal sent
                while True:
                    sent += await stream.socket.send((PINGREQ * 32_768)[sent % 2 :])

            nursery.start_soon(send)
            await until(lambda: "output_full" in connection.paused_by)
            assert broker.metrics().output_buffer_bytes - before < 2 * 65_536 + limits.bytes_per_read_max
            in_before = broker.metrics().bytes_in
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert broker.metrics().bytes_in == in_before
            nursery.cancel_scope.cancel()
        while received < sent - sent % 2:
            received += len(await stream.receive_some(1 << 20))
        assert not broker.controller.ends


def preloaded(folder: Path, **failures: str) -> dict[str, str]:
    """Return the environment of a broker whose system calls fail as tests/support/accept_fails.c says."""
    library = folder / "accept_fails.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, ROOT / "tests/support/accept_fails.c", "-ldl"], check=True
    )
    return {"LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {library}".strip(), **failures}


@pytest.mark.parametrize("name", ["ENOSPC", "ENOMEM"])
def test_a_client_that_cannot_be_watched_is_closed_and_the_next_is_served(tmp_path: Path, name: str) -> None:
    """ENOSPC: the system's limit on watched descriptors. The broker goes on, and holds no socket that it forgot."""
    failures = {"WATCH_FAILURES": "1", "WATCH_ERRNO": str(getattr(errno, name))}
    with BrokerProcess(tmp_path, environment=preloaded(tmp_path, **failures)) as broker:
        with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as unlucky:
            assert unlucky.recv(4) == b""
        with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as client:
            client.sendall(encode(Connect(4, b"lucky"), 4))
            assert client.recv(4) == b"\x20\2\0\0"
    written = broker.errors.read_text(encoding="utf-8")
    assert written.count('"event":"accept_paused"') == written.count(f'"reason":"{name}"') == 1


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ECONNABORTED", "ENOBUFS", "ENOMEM"])
def test_an_error_of_accept_pauses_it_and_it_recovers(tmp_path: Path, name: str) -> None:
    """The pause is logged under the error's name; the client that waited is served afterwards."""
    failures = {"ACCEPT_FAILURES": "2", "ACCEPT_ERRNO": str(getattr(errno, name))}
    with (
        BrokerProcess(tmp_path, environment=preloaded(tmp_path, **failures)) as broker,
        socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as client,
    ):
        client.sendall(encode(Connect(4, b"patient"), 4))
        assert client.recv(4) == b"\x20\2\0\0"
    written = broker.errors.read_text(encoding="utf-8")
    assert written.count('"event":"accept_paused"') == 2
    assert written.count(f'"reason":"{name}"') == 2


def test_the_limit_on_open_files_is_raised_and_what_it_leaves_is_logged(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft_before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        with broker:
            assert broker.process is not None
            assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_before, hard))
    line = broker.events("connections_limit")[0]
    assert line["open_files_max"] == hard
    assert 0 < line["connections_max"] < hard


# Sizes --------------------------------------------------------------------------------------------------------------


def test_pingreq_is_answered_while_all_packet_identifiers_are_in_use() -> None:
    """All 65,535 wait for the client's PUBACK; the oldest, once freed, is the next message's [MQTT-2.2.1-3]."""
    config = Config(mqtt=Mqtt(inflight_max=65_535, queue_messages_max=100))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(config, nursery, None, None, QuickAuthenticator())
            client, publisher = broker.hub.connect(), broker.hub.connect()
            client.feed_bytes(
                encode(Connect(5, b"s", properties={"receive_maximum": 65_535}), 5)
                + encode(Subscribe(1, (subscription(b"t", 1),)), 5)
            )
            publisher.feed_bytes(encode(Connect(4, b"p"), 4))
            await broker.settle()
            client.take_output()
            received: list[Any] = []
            buffer = bytearray()

            def take() -> None:
                buffer.extend(client.take_output())
                while (frame := next_frame(buffer)) is not None:
                    received.append(decode(*frame, 5))

            for number in range(65_535 + 10):
                publisher.feed_bytes(encode(Publish(b"t", b"%d" % number, 1, False, False, 1 + number % 60_000), 4))
                if number % 1000 == 0:
                    broker.hub.run_turn(broker.now_ms)
                    publisher.take_output()
                    take()
            broker.hub.run_turn(broker.now_ms)
            take()
            assert sorted(message.packet_identifier for message in received) == list(range(1, 65_536))
            first = received[0].packet_identifier
            received.clear()
            client.feed_bytes(encode(Pingreq(), 5))
            broker.hub.run_turn(broker.now_ms)
            assert client.take_output() == PINGRESP
            client.feed_bytes(encode(Ack(PacketType.PUBACK, first), 5))
            broker.hub.run_turn(broker.now_ms)
            take()
            assert [(message.packet_identifier, message.payload) for message in received] == [(first, b"65535")]
            nursery.cancel_scope.cancel()

    trio.run(main)


async def test_a_topic_of_65535_bytes_is_routed() -> None:
    """The longest that a topic name can be [MQTT-4.7.3-3]."""
    topic = b"/".join([b"x" * 600] * 110)[:65_535]
    assert len(topic) == 65_535
    async with broker_with() as broker, device(broker, b"s") as subscriber, device(broker, b"p") as publisher:
        await subscriber.subscribe(topic, 1)
        await publisher.publish(topic, b"here", 1)
        message = await subscriber.receive()
        assert (message.topic, message.payload) == (topic, b"here")


class Peer:
    """A 5.0 client that blocks until an answer comes; `connack` is its first."""

    def __init__(self, port: int, connect: Connect) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.buffer = bytearray()
        self.send(connect)
        self.connack = self.receive()

    def send(self, packet: Any) -> None:
        self.socket.sendall(encode(packet, 5))

    def receive(self) -> Any:
        while (frame := next_frame(self.buffer)) is None:
            data = self.socket.recv(1 << 20)
            assert data, "the broker closed the connection"
            self.buffer += data
        return decode(*frame, 5)

    def ask(self, packet: Any) -> Any:
        self.send(packet)
        return self.receive()

    def close(self) -> None:
        self.socket.close()


def resident_bytes(process: int, name: str) -> int:
    """Return VmRSS or VmHWM of a process."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024


def test_the_largest_packet_goes_through_in_bounded_memory(tmp_path: Path) -> None:
    """Remaining Length 268,435,455, the largest that can be written: one copy in and one out, at most."""
    settings = tmp_path / "shoal.toml"
    settings.write_text("[mqtt]\nmax_packet_size_bytes = 268_435_460\n", encoding="utf-8")
    with BrokerProcess(tmp_path, "--config", str(settings), environment=MEASURED) as broker:
        assert broker.process is not None
        payload_bytes = 268_435_455 - 3
        received = {"bytes": 0}
        ready = threading.Event()

        def subscribe() -> None:
            with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as client:
                client.sendall(encode(Connect(4, b"s"), 4) + encode(Subscribe(1, (subscription(b"t", 0),)), 4))
                have = 0
                while have < 9:
                    have += len(client.recv(9 - have))
                ready.set()
                while received["bytes"] < 5 + 268_435_455 and (data := client.recv(1 << 20)):
                    received["bytes"] += len(data)

        thread = threading.Thread(target=subscribe)
        thread.start()
        ready.wait(TIMEOUT_S)
        with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as client:
            client.sendall(encode(Connect(4, b"p"), 4) + b"\x30\xff\xff\xff\x7f\0\1t")
            piece = bytes(1 << 20)
            for start in range(0, payload_bytes, len(piece)):
                client.sendall(piece[: payload_bytes - start])
            thread.join(TIMEOUT_S)
        assert received["bytes"] == 5 + 268_435_455
        assert resident_bytes(broker.process.pid, "VmHWM") < 4 * 268_435_455


def test_a_thousand_packets_that_only_declare_their_size_cost_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "shoal.toml"
    settings.write_text("[mqtt]\nmax_packet_size_bytes = 268_435_460\n", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with (
        BrokerProcess(tmp_path, "--config", str(settings), environment=MEASURED) as broker,
        ExitStack() as open_clients,
    ):
        assert broker.process is not None
        clients = []
        for number in range(1000):
            client = open_clients.enter_context(socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S))
            clients.append(client)
            client.sendall(encode(Connect(4, b"d%d" % number), 4))
        for client in clients:
            assert client.recv(4) == b"\x20\2\0\0"
        before = resident_bytes(broker.process.pid, "VmRSS")
        for client in clients:
            client.sendall(b"\x30\xff\xff\xff\x7f\0\1t" + bytes(1000))
        with socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S) as last:
            last.sendall(encode(Connect(4, b"last"), 4) + PINGREQ)  # behind all of them
            assert last.recv(4) == b"\x20\2\0\0"
            assert last.recv(2) == PINGRESP
        assert resident_bytes(broker.process.pid, "VmRSS") - before < 1000 * 4096


# The worker's memory ------------------------------------------------------------------------------------------------


def test_at_its_limit_of_memory_a_worker_refuses_and_recovers(tmp_path: Path) -> None:
    """What is over the limit is dropped under its name, CONNECT is refused with 0x89, and all goes on afterwards."""
    settings = tmp_path / "shoal.toml"
    settings.write_text(
        "[mqtt]\nqueue_bytes_max = 1_073_741_824\nqueue_messages_max = 1_000_000\nsys_interval_s = 1\n"
        "[limits]\nmemory_bytes_max = 150_000_000\n",
        encoding="utf-8",
    )
    with BrokerProcess(tmp_path, "--config", str(settings), environment=MEASURED) as broker, ExitStack() as peers:
        _fill_and_empty(broker, peers)
    assert '"reason":"memory_limit"' in broker.errors.read_text(encoding="utf-8")


def _fill_and_empty(broker: BrokerProcess, peers: ExitStack) -> None:
    assert broker.process is not None

    def connect(name: bytes, clean: bool = True, **properties: Any) -> Peer:
        peer = Peer(broker.port, Connect(5, name, clean_start=clean, properties=properties))
        peers.callback(peer.close)
        return peer

    def written() -> str:
        return broker.errors.read_text(encoding="utf-8")

    # What waits for a durable session lies in the log, what waits for this one in memory.
    stuck = connect(b"stuck", receive_maximum=1)
    stuck.ask(Subscribe(1, (subscription(b"q", 1),)))
    connect(b"away", session_expiry_interval=3600).close()
    publisher = connect(b"p")
    for number in range(1, 3001):
        assert publisher.ask(Publish(b"q", bytes(100_000), 1, False, False, number)).packet_identifier == number
        if number % 50 == 0 and "memory_full" in written():
            break
    assert "memory_full" in written()
    for number in range(1, 201):  # nothing of these is kept
        publisher.ask(Publish(b"q", bytes(100_000), 1, False, False, number))
    assert resident_bytes(broker.process.pid, "VmHWM") < 150_000_000 + 40_000_000
    late = connect(b"late")
    assert late.connack.reason == Reason.SERVER_BUSY
    late.close()
    away = connect(b"away", False, session_expiry_interval=3600)  # who has a session may come
    assert away.connack.reason == Reason.SUCCESS
    away.close()
    packet = stuck.receive()
    while '"memory_available"' not in written():  # PINGREQ, so that it always has something to wait for
        if isinstance(packet, Publish):
            stuck.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        packet = stuck.ask(Pingreq())
    stuck.close()
    late = connect(b"late")
    assert late.connack.reason == Reason.SUCCESS
    late.ask(Subscribe(1, (subscription(b"$SYS/broker/shoal/memory/full", 0),)))
    assert int(late.receive().payload) >= 1
    late.close()
    publisher.close()
    dropped = re.search(r"(\d+) dropped memory", broker.stop())
    assert dropped is not None
    assert int(dropped[1]) >= 200


def test_a_process_has_as_many_cores_as_its_control_group_has_time_for(tmp_path: Path) -> None:
    machine = cores_available(tmp_path)
    assert machine == len(os.sched_getaffinity(0))
    for text, cores in (
        ("max 100000", machine),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("0 100000", 1),
        ("100001 100000", min(2, machine)),
        ("100000000 100000", machine),
        ("nonsense", machine),
    ):
        (tmp_path / "cpu.max").write_text(text + "\n")
        assert cores_available(tmp_path) == cores, text
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for text, cores in (("-1", machine), ("20000", 1), ("100000000", machine)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(text + "\n")
        assert cores_available(tmp_path) == cores, text
