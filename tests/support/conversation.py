"""Conversations (tests.support.script), run against a broker in memory, over sockets, or over several workers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import tempfile
from dataclasses import replace
from functools import partial
from typing import Any

import trio
import trio.testing

from broker.config.listener import Listener
from broker.config.loader import Config
from broker.config.loader import load as load_config
from broker.control.controller import Controller
from broker.reactor.pump import Durability, Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Ack, Pingreq, decode, encode, next_frame
from broker.wire.reasons import Reason
from broker.worker.terms import ledger, terms
from broker.worker.worker import open_broker
from router.core.varint import encode_varint
from router.retained.lmdb_index import RetainedIndex
from router.router import Router
from tests.support.certificates import certificates
from tests.support.chained import LOGIN, chain_of, rule_chain
from tests.support.doubles import FakeFollower, FakeLog, Gatekeeper, QuickAuthenticator, SlowAuthenticator, XorFilter
from tests.support.mounted import acl_for, with_mounted
from tests.support.script import ANSWER_TIMEOUT_S, COUNTS, VERSIONS, Script, build, check
from tests.support.seamed_workers import SeamedWorkers
from tests.support.websockets import ClientEnd, request


class MemoryBroker:
    """Hub, controller and router without sockets; time is what the script says."""

    def __init__(
        self,
        config: Config,
        nursery: trio.Nursery,
        log: FakeLog | None,
        follower: FakeFollower | None,
        authenticator: Any,
        acl: Any = None,
        index: RetainedIndex | None = None,
    ) -> None:
        self.log, self.follower, self.index = log, follower, index
        self.router = Router(ledger(config), seed=1, index=index)
        self.controller = Controller(config, self.router, authenticator, acl or acl_for(""), Gatekeeper())
        self.controller.handshake.run_tasks_by(nursery.start_soon)
        self.controller.judge_all(1)  # from here on what is narrowed is asked about, as in a worker
        durability = Durability(log, [follower], 1) if follower is not None else None
        self.now_ms = 1_000_000
        self.hub = Hub(
            self.router, self.controller, Pump(self.router, log, durability), now_ms=self.now_ms, **terms(config)
        )

    async def connect(self) -> MemoryClient:
        """Open a connection."""
        return MemoryClient(self, self.hub.connect())

    async def settle(self) -> None:
        """Let everything happen that needs no time: turns, tasks, syncs."""
        for _ in range(6):
            self.hub.run_turn(self.now_ms)
            await trio.testing.wait_all_tasks_blocked()
            if self.log is not None:
                self.log.sync()
                if self.index is not None:
                    self.index.commit(self.log.durable)
            if self.follower is not None:
                self.follower.acknowledge()

    async def wait(self, ms: int) -> None:
        """Move time in steps of a tick."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 250, end_ms)
            await self.settle()


class MemoryClient:
    """One end of a connection without a socket."""

    def __init__(self, broker: MemoryBroker, connection: Any) -> None:
        self.broker, self.connection = broker, connection
        self.buffer = bytearray()

    async def send(self, data: bytes, piecewise: bool) -> None:
        """Hand bytes to the broker, whole or one by one."""
        for piece in [data[i : i + 1] for i in range(len(data))] if piecewise else [data]:
            self.connection.feed_bytes(piece)
            if piecewise:
                self.broker.hub.run_turn(self.broker.now_ms)
        await self.broker.settle()

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame, None if the connection is closed."""
        await self.broker.settle()
        self.buffer += self.connection.take_output()
        frame = next_frame(self.buffer)
        assert frame is not None or self.connection.is_closing, "nothing came and the connection is open"
        return frame

    async def cut(self) -> None:
        """Break the connection."""
        from broker.wire.reasons import CloseReason

        self.connection.close(CloseReason.CONNECTION_LOST)
        await self.broker.settle()


class SocketClient:
    """One end of a TCP connection to a broker in this process."""

    def __init__(self, stream: trio.abc.Stream, transform: XorFilter | ClientEnd | None = None) -> None:
        self.stream, self.transform = stream, transform
        self.buffer = bytearray()

    async def send(self, data: bytes, piecewise: bool) -> None:
        """Send bytes; one by one they leave as packets of their own."""
        if self.transform is not None:
            data = self.transform.send(data)
        try:
            for piece in [data[i : i + 1] for i in range(len(data))] if piecewise else [data]:
                await self.stream.send_all(piece)
        except trio.BrokenResourceError:
            pass  # the script says next that it was closed

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame, None at the end of the stream."""
        with trio.fail_after(ANSWER_TIMEOUT_S):
            while (frame := next_frame(self.buffer)) is None:
                try:
                    data = await self.stream.receive_some()
                except trio.BrokenResourceError:
                    return None
                if not data:
                    return None
                self.buffer += data if self.transform is None else b"".join(self.transform.received(data))
        return frame

    async def cut(self) -> None:
        """Break the connection."""
        await trio.aclose_forcefully(self.stream)


async def talk(
    script: Script,
    version: int,
    broker: Any,
    connect: Any,
    wait: Any,
    piecewise: bool,
    login: tuple[str, bytes] | None = None,
) -> None:
    """Run a script's lines against a broker to which `connect()` connects.

    Args:
        login: user name and password of clients of which the script says neither.
    """
    clients: dict[str, Any] = {}
    try:
        await _talk(script, version, broker, connect, wait, piecewise, login, clients)
    finally:
        for client in clients.values():
            await client.cut()


def counts(broker: Any, kind: str) -> dict[str, int]:
    """Return what a line `ended`, `dropped` or `refused` is compared with."""
    if isinstance(broker, SeamedWorkers):
        return broker.counts(kind)
    if kind == "ended":
        return dict(broker.controller.ends)
    return broker.router.ledger.dropped() if kind == "dropped" else dict(broker.controller.refused_subscriptions)


async def _talk(
    script: Script,
    version: int,
    broker: Any,
    connect: Any,
    wait: Any,
    piecewise: bool,
    login: tuple[str, bytes] | None,
    clients: dict[str, Any],
) -> None:
    name_of_version = next(name for name, level in VERSIONS.items() if level == version)
    for only, line in script.lines:
        if only not in (None, name_of_version) or line.direction == "setting":
            continue
        if line.direction in COUNTS:
            found = counts(broker, line.direction)
            # An acknowledged message may still be on its way to the worker that drops it.
            with trio.move_on_after(ANSWER_TIMEOUT_S if isinstance(broker, SeamedWorkers) else 0):
                while any(found.get(reason, 0) < int(count) for reason, count in line.options.items()):
                    await trio.sleep(0.01)
                    found = counts(broker, line.direction)
            for reason, count in line.options.items():
                assert found.get(reason, 0) == int(count), f"{script.path.name}:{line.number}: {line.text}; is {found}"
            continue
        if line.direction == "wait":
            await wait(line.number_of("ms"))
            continue
        if line.name not in clients or (
            line.words[0] == "CONNECT" and line.direction == ">" and ("again" not in line.arguments)
        ):
            if line.name in clients:
                await clients[line.name].cut()
            clients[line.name] = await connect()
        client = clients[line.name]
        where = f"{script.path.name}:{line.number}: {line.text.strip()}"
        if line.direction == ">":
            if line.words[0] == "cut":
                await client.cut()
            else:
                await client.send(build(line, version, login), piecewise)
            continue
        if line.words[0] == "nothing":
            await client.send(encode(Pingreq(), version), False)
            assert await client.receive() == (0xD0, b""), where
            continue
        try:
            frame = await client.receive()
        except trio.TooSlowError as error:
            raise AssertionError(f"{where}; nothing came") from error
        if line.words[0] == "closed":
            assert frame is None, f"{where}; received {frame}"
            continue
        assert frame is not None, f"{where}; the connection was closed"
        if line.words[0] == "hex":
            first, body = frame
            received = bytes((first,)) + encode_varint(len(body)) + body
            assert received == bytes.fromhex("".join(line.words[1:])), f"{where}; received {received.hex(' ')}"
            continue
        packet = decode(*frame, version)
        if (
            isinstance(broker, SeamedWorkers)
            and isinstance(packet, Ack)
            and line.arguments[1:] == ["0x10"]
            and packet.reason == Reason.SUCCESS
        ):
            packet = replace(packet, reason=Reason.NO_MATCHING_SUBSCRIBERS)  # other workers' filters linger
        check(line, packet, version)


def config_for(script: Script, **more: str) -> Config:
    """Return the settings that a script runs with."""
    flags = {"limits.connect_timeout_s": "5.0", **script.settings, **more}
    settings = {f"SHOAL_{key.upper().replace('.', '__')}": value for key, value in flags.items()}
    return load_config(None, {**settings, "SHOAL_LISTEN": "tcp://127.0.0.1:0", "SHOAL_SHUTDOWN__DRAIN_S": "0.5"}, {})


async def run_in_memory(
    script: Script,
    version: int,
    *,
    piecewise: bool = False,
    slow: bool = False,
    logged: bool = False,
    followed: bool = False,
    indexed: bool = False,
    chained: bool = False,
    over: str = "tcp",
) -> MemoryBroker:
    """Run a conversation without sockets, in virtual time. Returns the broker, with what is left in it.

    Args:
        chained: clients log in by a password file, and an ACL file says what they may do.
    """
    log = FakeLog() if logged or followed or indexed else None
    follower = FakeFollower(log) if followed and log is not None else None
    with contextlib.ExitStack() as stack:
        index = None
        if indexed:
            index = RetainedIndex(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.callback(index.close)
        async with trio.open_nursery() as nursery:
            config = with_listener(config_for(script), over)
            authenticator: Any = SlowAuthenticator() if slow else QuickAuthenticator()
            if chained:
                authenticator = chain_of(config, authenticator)
            acl = rule_chain() if chained else acl_for(over)
            broker = MemoryBroker(config, nursery, log, follower, authenticator, acl, index)
            login = LOGIN if chained else None
            await talk(script, version, broker, broker.connect, broker.wait, piecewise, login)
            nursery.cancel_scope.cancel()
    assert "internal_error" not in broker.controller.ends, broker.controller.ends
    return broker


class Cut(trio.abc.HalfCloseableStream):
    """A connection whose client sends each byte as a packet of its own."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, one by one."""
        for index in range(len(data)):
            await self.stream.send_all(data[index : index + 1])

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return what has come."""
        return await self.stream.receive_some(max_bytes)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until there is room to send."""
        await self.stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        await self.stream.send_eof()

    async def aclose(self) -> None:
        """Close the connection."""
        await self.stream.aclose()


async def open_tls(port: int, *, cut: bool = False, context: ssl.SSLContext | None = None) -> trio.SSLStream[Any]:
    """Connect to a port of this machine with TLS; the handshake's bytes may come one by one."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return trio.SSLStream(
        Cut(stream) if cut else stream, context or certificates().client_context(), server_hostname="localhost"
    )


async def open_over(over: str, port: int, seed: object) -> SocketClient:
    """Connect by a transport, as run_over_sockets() names them; the seed says how frames of a WebSocket are cut."""
    stream: trio.abc.Stream
    over = over.partition("@")[0]
    if over.startswith(("tls", "wss")):
        stream = await open_tls(port, cut=over.endswith("_cut"))
    else:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not over.startswith("ws"):
        return SocketClient(stream)
    await stream.send_all(request())
    return SocketClient(stream, ClientEnd(seed))


def with_listener(config: Config, over: str) -> Config:
    """Return settings with one listener, of a transport as run_over_sockets() names them."""
    address = over.partition("@")[0].removesuffix("_cut") + "://127.0.0.1:0"
    listener = certificates().listener(address) if over.startswith(("tls", "wss")) else Listener(address=address)
    return with_mounted(config, listener, over)


async def run_over_sockets(
    script: Script,
    version: int,
    *,
    piecewise: bool = False,
    slow: bool = False,
    logged: bool = False,
    filtered: bool = False,
    over: str = "tcp",
) -> None:
    """Run a conversation over real sockets against open_broker.

    Args:
        over: what it goes through: "tcp", "tls", "ws", "wss", or "tls_cut" and "wss_cut", whose records come byte by
            byte. Frames of a WebSocket are cut anywhere. Behind an @ follows a mount point.
    """
    log = FakeLog() if logged else None
    number = itertools.count()

    async def connect() -> SocketClient:
        client = await open_over(over, port, (script.path.stem, next(number)))
        if filtered:
            client.transform = XorFilter()
        return client

    async def wait(ms: int) -> None:
        raise AssertionError("time moves in memory only")

    async with (
        trio.open_nursery() as nursery,
        open_broker(
            with_listener(config_for(script), over),
            authenticator=SlowAuthenticator() if slow else QuickAuthenticator(),
            admission=Gatekeeper(),
            acl=acl_for(over),
            log_store=log,
            transform=XorFilter if filtered else None,
        ) as worker,
    ):
        if log is not None:

            async def sync() -> None:
                await trio.lowlevel.checkpoint()
                log.sync()

            log.on_append = lambda: nursery.start_soon(sync)
        assert worker.acceptor is not None
        port = worker.acceptor.addresses[0].port
        await talk(script, version, worker, connect, wait, piecewise)
    assert "internal_error" not in worker.controller.ends, worker.controller.ends


async def run_over_workers(script: Script, version: int, count: int, over: str = "tcp") -> None:
    """Run a conversation over real sockets against several workers, each client by another one than the last."""
    config = with_listener(config_for(script, **{"storage.durability": "none"}), over)
    number = itertools.count()
    with SeamedWorkers(config, count, partial(seams, over)) as workers:
        next_port = workers.in_turn()

        async def connect() -> SocketClient:
            return await open_over(over, next_port(), (script.path.stem, next(number)))

        async def wait(ms: int) -> None:
            raise AssertionError("time moves in memory only")

        await talk(script, version, workers, connect, wait, False)


def seams(over: str = "tcp") -> dict[str, Any]:
    """Return what conversations expect of a worker."""
    return {"authenticator": QuickAuthenticator(), "admission": Gatekeeper(), "acl": acl_for(over)}
