"""The rules of the reactor, each held by a test where a test can hold it."""

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from broker.config.loader import Config, Limits, Mqtt, Shutdown
from broker.wire.packets import Connect, Publish, Subscribe, Will, encode, subscription
from broker.worker.worker import Worker, open_broker
from tests.support.conversation import MemoryBroker, SocketClient
from tests.support.doubles import FakeLog, QuickAuthenticator, SlowAuthenticator
from tests.support.process import MEASURED, BrokerProcess

CONFIG = Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.5))


def in_memory(function: Any, log: FakeLog | None = None, config: Config = CONFIG) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await function(MemoryBroker(config, nursery, log, None, QuickAuthenticator()))
            nursery.cancel_scope.cancel()

    trio.run(run)


async def pair(broker: MemoryBroker, qos: int) -> tuple[Any, Any]:
    """Return a connected subscriber to `t` and a connected publisher, without sockets."""
    subscriber, publisher = broker.hub.connect(), broker.hub.connect()
    subscriber.feed_bytes(encode(Connect(4, b"s"), 4) + encode(Subscribe(1, (subscription(b"t", qos),)), 4))
    publisher.feed_bytes(encode(Connect(4, b"p"), 4))
    await broker.settle()
    subscriber.take_output()
    publisher.take_output()
    return subscriber, publisher


def exchange(hub: Any, subscriber: Any, publisher: Any, qos: int, now_ms: int, number: int) -> None:
    """One message from publisher to subscriber, with its acknowledgements."""
    inbound, outbound = number % 60000 + 1, number % 65535 + 1
    identifier = inbound.to_bytes(2, "big")
    delivered = outbound.to_bytes(2, "big")
    publisher.feed_bytes(
        bytes((0x30 | qos << 1, 4 + (2 if qos else 0))) + b"\0\1t" + (identifier if qos else b"") + b"x"
    )
    if qos == 1:
        subscriber.feed_bytes(b"\x40\2" + delivered)
    elif qos == 2:
        publisher.feed_bytes(b"\x62\2" + identifier)
        subscriber.feed_bytes(b"\x50\2" + delivered + b"\x70\2" + delivered)
    hub.run_turn(now_ms)
    subscriber.take_output()
    publisher.take_output()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_calls_no_python_function_and_leaves_no_object(qos: int) -> None:
    async def run(broker: MemoryBroker) -> None:
        subscriber, publisher = await pair(broker, qos)
        called: list[str] = []

        def profile(frame: Any, event: str, _: Any) -> None:
            if event == "call" and ("/broker/" in frame.f_code.co_filename or "/router/" in frame.f_code.co_filename):
                called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

        for number in range(1000):
            exchange(broker.hub, subscriber, publisher, qos, broker.now_ms, number)
        gc.collect()
        before = sys.getallocatedblocks()
        sys.setprofile(profile)
        try:
            for number in range(1000, 11_000):
                exchange(broker.hub, subscriber, publisher, qos, broker.now_ms, number)
        finally:
            sys.setprofile(None)
        assert called == []
        assert sys.getallocatedblocks() - before < 100
        assert broker.hub.counters()["messages_out"] == 11_000

    in_memory(run)


async def test_trio_is_not_on_the_message_path() -> None:
    log = FakeLog()
    async with open_broker(CONFIG, log_store=log) as worker:
        log.on_append = log.sync  # durable at once, told by the reactor's own eventfd
        assert worker.acceptor is not None
        port = worker.acceptor.addresses[0].port

        def load() -> None:
            """10,000 durable QoS 1 messages from a thread of its own."""
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(encode(Connect(4, b"d", False), 4) + encode(Subscribe(1, (subscription(b"t", 1),)), 4))
                got = b""
                while len(got) < 9:
                    got += client.recv(100)
                for start in range(0, 10_000, 500):
                    client.sendall(
                        b"".join(
                            encode(Publish(b"t", b"x", 1, False, False, number + 1), 4)
                            for number in range(start, start + 500)
                        )
                    )
                    wanted, got = 500 * (4 + 8), b""
                    identifiers = []
                    while len(got) < wanted:
                        got += client.recv(65536)
                    while got:
                        if got[0] == 0x32:
                            identifiers.append(got[5:7])
                            got = got[8:]
                        else:
                            got = got[4:]
                    client.sendall(b"".join(b"\x40\2" + identifier for identifier in identifiers))

        turns_before = worker.reactor.guest_ticks
        await trio.to_thread.run_sync(load)
        assert len(log.records) >= 20_000  # every publish and every acknowledgement
        assert worker.reactor.guest_ticks == turns_before


async def test_open_broker_leaves_the_process_as_it_was() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    frozen, files, threads = gc.get_freeze_count(), len(os.listdir("/proc/self/fd")), threading.active_count()
    with trio.CancelScope() as scope:
        async with open_broker(CONFIG) as worker:
            assert worker.acceptor is not None
            stream = await trio.open_tcp_stream("127.0.0.1", worker.acceptor.addresses[0].port)
            await stream.send_all(encode(Connect(5, b"c"), 5))
            assert await stream.receive_some()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    await trio.aclose_forcefully(stream)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    assert gc.get_freeze_count() == frozen
    assert len(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() <= threads + 1  # trio keeps an idle worker thread for a while


def test_a_failure_of_the_router_ends_the_worker_and_a_client_s_ends_the_client() -> None:
    async def run(broker: MemoryBroker) -> None:
        _, publisher = await pair(broker, 1)
        publisher.feed_bytes(b"\xf0\0")
        await broker.settle()
        assert publisher.is_closing
        broken = broker.hub.connect()
        broken.feed_bytes(encode(Connect(4, b"x"), 4))
        await broker.settle()

        # A router whose state is broken: nothing can be recorded while somebody looks at the records.
        with memoryview(broker.router.ledger.records), pytest.raises(AssertionError):
            broken.feed_bytes(encode(Publish(b"t", b"x", 1, True, False, 1), 4))

    in_memory(run, FakeLog())


async def test_what_comes_behind_connect_waits_and_reading_stops() -> None:
    class Never:
        async def authenticate(self, connect: Connect, exchange: Any) -> Any:
            await trio.sleep_forever()

    config = Config(
        listen=("tcp://127.0.0.1:0",),
        limits=Limits(pending_bytes_max=4096, bytes_per_read_max=4096),
        shutdown=Shutdown(drain_s=0.1),
    )
    async with open_broker(config, authenticator=Never()) as worker:
        assert worker.acceptor is not None
        with socket.create_connection(("127.0.0.1", worker.acceptor.addresses[0].port)) as client:
            client.setblocking(False)
            data = encode(Connect(4, b"c"), 4) + encode(Publish(b"t", b"x" * 1000), 4) * 20_000
            for _ in range(500):
                try:
                    data = data[client.send(data) :]
                except BlockingIOError:
                    pass
                await trio.lowlevel.checkpoint()
            assert len(data) > 1_000_000
            assert worker.reactor.counters()["bytes_in"] <= 3 * 4096
            assert worker.reactor.counters()["messages_in"] == 0


async def test_the_last_words_arrive_although_input_is_under_way() -> None:
    config = Config(listen=("tcp://127.0.0.1:0",), mqtt=Mqtt(max_packet_size_bytes=1000))
    async with open_broker(config, authenticator=SlowAuthenticator()) as worker:
        assert worker.acceptor is not None
        stream = await trio.open_tcp_stream("127.0.0.1", worker.acceptor.addresses[0].port)
        client = SocketClient(stream, None)
        await client.send(encode(Connect(5, b"c"), 5), False)
        assert (await client.receive() or (0,))[0] == 0x20
        # The first packet is too large; a megabyte more is on its way when the broker ends the connection.
        await client.send(encode(Publish(b"t", b"x" * 1_000_000), 5), False)
        frame = await client.receive()
        assert frame is not None
        assert (frame[0], frame[1][0]) == (0xE0, 0x95)
        assert await client.receive() is None
        await client.cut()


def test_buffers_grow_with_what_came_not_with_what_was_declared(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment=MEASURED) as broker:

        def resident_kib() -> int:
            with open(f"/proc/{broker.process.pid}/status", encoding="ascii") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

        before = resident_kib()
        with ExitStack() as open_clients:
            clients = []
            for number in range(500):
                client = open_clients.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
                # a PUBLISH that declares 2 MB and brings 100 bytes
                client.sendall(encode(Connect(4, b"c%d" % number), 4) + b"\x30\x80\x89\x7a\0\1t" + b"x" * 100)
                clients.append(client)
            for client in clients:
                assert client.recv(4) == b"\x20\2\0\0"
            assert resident_kib() - before < 20_000


def test_a_client_that_spoke_while_we_were_stopped_survives(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(encode(Connect(4, b"c", True, 1), 4))
        assert client.recv(4) == b"\x20\2\0\0"
        broker.process.send_signal(signal.SIGSTOP)
        client.sendall(b"\xc0\0")
        threading.Event().wait(3)  # longer than 1.5 times the keep alive: time itself is what is tested
        broker.process.send_signal(signal.SIGCONT)
        assert client.recv(2) == b"\xd0\0"
        client.sendall(b"\xc0\0")
        assert client.recv(2) == b"\xd0\0"


def test_a_signal_dumps_the_last_turns_and_all_tasks(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for number in range(3):
            with socket.create_connection(("127.0.0.1", broker.port)) as client:
                client.sendall(encode(Connect(4, b"c%d" % number), 4))
                assert client.recv(4) == b"\x20\2\0\0"
        broker.process.send_signal(signal.SIGUSR2)
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.sendall(encode(Connect(4, b"after"), 4))
            assert client.recv(4) == b"\x20\2\0\0"
    dump = broker.events("dump")[0]
    assert 3 <= len(dump["turns_us"]) <= 1000
    assert any("_keep_house" in task for task in dump["tasks"])


def test_a_session_whose_connect_was_cut_before_its_record_was_durable_still_expires() -> None:
    async def run() -> None:
        log = FakeLog()
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(CONFIG, nursery, log, None, QuickAuthenticator())
            broker.log = None  # so that nothing syncs by itself
            client = broker.hub.connect()
            client.feed_bytes(encode(Connect(5, b"c", True, properties={"session_expiry_interval": 10}), 5))
            await broker.settle()
            assert not client.is_open  # its record is not durable yet
            client.close("connection_lost")
            await broker.settle()
            log.sync()
            await broker.settle()
            assert b"c" in broker.router.sessions
            await broker.wait(11_000)
            assert broker.router.sessions == {}
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_running_out_of_descriptors_pauses_accepting_and_it_recovers(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, environment={"SHOAL_MQTT__SYS_INTERVAL_S": "0.05"})
    broker.start()
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    clients = []
    try:
        for number in range(100):
            client = socket.create_connection(("127.0.0.1", broker.port))
            client.settimeout(20)
            client.sendall(encode(Connect(4, b"c%d" % number), 4))
            clients.append(client)
        assert clients[0].recv(4) == b"\x20\2\0\0"
        while '"accept_paused"' not in broker.errors.read_text(encoding="utf-8"):
            threading.Event().wait(0.05)  # until the log says so
        # The broker's own work that recurs needs no descriptor: this is measured, and told, while there is none.
        clients[0].sendall(encode(Subscribe(1, (subscription(b"$SYS/broker/shoal/accept_pauses/EMFILE", 0),)), 4))
        got = b""
        while got.count(b"/EMFILE") < 3:
            got += clients[0].recv(4096) or pytest.fail("the broker ended the connection")
        os.kill(broker.process.pid, signal.SIGUSR2)
        while '"dump"' not in broker.errors.read_text(encoding="utf-8"):
            threading.Event().wait(0.05)
        for client in clients[:60]:
            client.close()
        for client in clients[60:]:  # those that waited in the backlog are served
            assert client.recv(4) == b"\x20\2\0\0"
    finally:
        for client in clients:
            client.close()
        broker.stop()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_who_sees_to_snapshots_lives_on_while_there_is_no_descriptor(tmp_path: Path) -> None:
    worker = Worker(Config(), folder=tmp_path)
    try:
        assert worker.store is not None
        async with trio.open_nursery() as nursery:
            with no_descriptor_left():
                nursery.start_soon(worker.store.compact)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    finally:
        worker.close()


def test_sigterm_ends_it_under_full_load(tmp_path: Path) -> None:
    enough = threading.Event()

    def load(number: int) -> None:
        # The broker may have ended at any time, before this one of the clients came, too.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.sendall(encode(Connect(4, b"l%d" % number), 4))
            client.recv(4)
            data = encode(Publish(b"t", b"x" * 200), 4) * 200
            for step in range(100_000):
                client.sendall(data)
                if step == 50:
                    enough.set()

    with BrokerProcess(tmp_path) as broker:
        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        assert "Shoal has stopped" in broker.stop()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


async def test_what_came_before_the_end_of_the_stream_counts() -> None:
    # Proves: [MQTT-3.14.4-3]
    # A turn that read several sockets looks for more before it deals with control packets; then it sees the end too.
    async with open_broker(CONFIG) as worker:
        assert worker.acceptor is not None
        port = worker.acceptor.addresses[0].port
        clients = []
        for number in range(12):
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(encode(Connect(4, f"c{number}".encode(), True, 60, Will(b"gone", b"x")), 4))
            assert await trio.to_thread.run_sync(client.recv, 4) == b"\x20\x02\0\0"
            clients.append(client)
        watcher = worker.router.open_session(b"watcher", True, 60)[0]
        worker.router.subscribe(watcher, b"gone", 1)
        for client in clients:  # no checkpoint: all of it is there when the next turn begins
            client.sendall(b"\xe0\0")
            client.close()
        with trio.fail_after(10):
            while worker.reactor.connection_count:  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.01)
        assert dict(worker.controller.ends) == {"client_disconnect": 12}
        assert worker.router.ledger.dropped() == {}


@pytest.mark.parametrize("authenticator", [QuickAuthenticator(), SlowAuthenticator()], ids=["at_once", "later"])
async def test_who_does_not_wait_for_an_answer_is_heard_to_the_end(authenticator: Any) -> None:
    async with open_broker(CONFIG, authenticator=authenticator) as worker:
        assert worker.acceptor is not None
        port = worker.acceptor.addresses[0].port
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        with trio.fail_after(10):
            while worker.reactor.connection_count < 12:  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.01)
        for number, client in enumerate(clients):
            client.sendall(
                encode(Connect(4, f"c{number}".encode()), 4)
                + encode(Publish(b"last/%d" % number, b"x", 0, True), 4)
                + b"\xe0\0"
            )
            client.close()
        with trio.fail_after(10):
            while worker.reactor.connection_count:  # noqa: ASYNC110  (the reactor knows no trio)
                await trio.sleep(0.01)
        assert dict(worker.controller.ends) == {"client_disconnect": 12}
        assert worker.router.retained.count == 12
