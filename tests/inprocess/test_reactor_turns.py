"""What one turn of the reactor does and leaves, turned by hand: descriptors, fairness, slices, bounds.

A turn without blocking takes what is ready, so a test that makes everything ready first knows what is in the batch.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from broker.auth.outcome import Accepted, Outcome
from broker.config.loader import Config, Limits, Shutdown
from broker.control.connect import Exchange
from broker.reactor.trio_guest import Guest
from broker.wire.packets import Connect, Pingreq, Publish, Subscribe, encode, subscription
from broker.wire.reasons import CloseReason
from broker.worker.worker import Worker, open_broker
from tests.support.process import MEASURED, BrokerProcess

CONNACK, PINGRESP = b"\x20\2\0\0", b"\xd0\0"
FLOOD = encode(Publish(b"flood", b"x" * 1000), 4) * 1000
READ_MAX = 4096


class Turned:
    """A worker that turns when the test says so."""

    def __init__(self, **limits: Any) -> None:
        self.worker = Worker(Config(listen=("tcp://127.0.0.1:0",), limits=Limits(**limits)))
        self.worker.listen()
        self.reactor = self.worker.reactor
        assert self.worker.acceptor is not None
        self.port = self.worker.acceptor.addresses[0].port
        self.clients: list[socket.socket] = []

    def dial(self) -> socket.socket:
        """Open a connection; it waits in the backlog until the next turn."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.settimeout(10)
        self.clients.append(client)
        return client

    def turn(self, times: int = 1) -> None:
        """Turn without waiting."""
        for _ in range(times):
            self.reactor.turn_once(False)

    def connect(self, client_identifier: bytes, client: socket.socket | None = None) -> tuple[socket.socket, Any]:
        """Return a client that has its CONNACK, and the broker's end of it."""
        known = self.reactor.connections_snapshot()
        if client is None:
            client = self.dial()
        else:
            client.connect(("127.0.0.1", self.port))
        client.sendall(encode(Connect(4, client_identifier), 4))
        self.turn(2)
        assert client.recv(100) == CONNACK
        (connection,) = (made for made in self.reactor.connections_snapshot() if made not in known)
        return client, connection

    def close(self) -> None:
        """End it and its clients."""
        for client in self.clients:
            client.close()
        self.worker.close()


@contextmanager
def turned(**limits: Any) -> Iterator[Turned]:
    """A worker turned by hand, closed at the end."""
    broker = Turned(**limits)
    try:
        yield broker
    finally:
        broker.close()


def stuff(client: socket.socket, data: bytes) -> int:
    """Send as much as the sockets take without being read; returns how many bytes that was."""
    sent = 0
    client.setblocking(False)
    try:
        while sent < len(data):
            sent += client.send(data[sent:])
    except BlockingIOError:
        pass
    return sent


@pytest.mark.parametrize("newcomer_first", [False, True])
def test_a_descriptor_that_ends_in_a_turn_goes_to_no_newcomer_of_that_turn(newcomer_first: bool) -> None:
    with turned() as broker:
        leaving, its_end = broker.connect(b"leaves")
        taken_over, _ = broker.connect(b"twice")
        other, _ = broker.connect(b"other")
        descriptor = its_end.fd
        later = socket.socket()  # now: a client's descriptors are of this process as well
        later.settimeout(10)
        broker.clients.append(later)
        # One batch: a client leaves and two more connections end, newcomers come, and those that end have sent more.
        newcomers = [broker.dial()] if newcomer_first else []
        leaving.sendall(b"\xe0\0" + encode(Publish(b"t", b"stale"), 4))
        other.sendall(b"\xf0\0")
        taken_over.sendall(encode(Pingreq(), 4))
        newcomers += [broker.dial() for _ in range(3)]
        newcomers[0].sendall(encode(Connect(4, b"twice"), 4))
        before = broker.reactor.connections_snapshot()
        broker.turn()
        new = [made for made in broker.reactor.connections_snapshot() if made not in before]
        assert len(new) == len(newcomers)
        assert descriptor not in [made.fd for made in new]
        assert its_end.fd == -1
        assert all(not made.is_closing and made.counters()["bytes_in"] == 0 for made in new)
        # The next one gets the number that is free again, and nothing of what its owner before had said or is sent.
        _, after = broker.connect(b"after", later)
        assert after.fd == descriptor
        assert after.counters()["bytes_in"] == len(encode(Connect(4, b"after"), 4))
        assert newcomers[0].recv(100) == CONNACK
        assert taken_over.recv(100) in (PINGRESP, b"")
        for number, newcomer in enumerate(newcomers[1:]):
            newcomer.sendall(encode(Connect(4, b"new%d" % number), 4))
        broker.turn(2)
        assert [newcomer.recv(100) for newcomer in newcomers[1:]] == [CONNACK] * (len(newcomers) - 1)
        assert broker.worker.controller.ends == {
            CloseReason.CLIENT_DISCONNECT: 1,
            CloseReason.PROTOCOL_ERROR: 1,
            CloseReason.TAKEN_OVER: 1,
        }


def test_a_flooding_publisher_gets_one_read_a_turn_and_others_are_served_in_it() -> None:
    with turned(bytes_per_read_max=READ_MAX) as broker:
        flooder, flooding = broker.connect(b"flooder")
        quiet, _ = broker.connect(b"quiet")
        assert stuff(flooder, FLOOD) > 20 * READ_MAX
        for _ in range(20):
            bytes_before = flooding.counters()["bytes_in"]
            quiet.sendall(encode(Pingreq(), 4))
            newcomer = broker.dial()
            broker.turn()
            assert quiet.recv(100) == PINGRESP
            assert 0 < flooding.counters()["bytes_in"] - bytes_before <= READ_MAX
            assert broker.reactor.connection_count == 3  # the listening socket had its turn as well
            newcomer.close()
            broker.turn()


def test_with_more_ready_sockets_than_a_turn_serves_everybody_has_a_turn() -> None:
    flooders, sockets_per_turn = 12, 3
    with turned(bytes_per_read_max=READ_MAX, sockets_per_turn_max=sockets_per_turn) as broker:
        flooding = [broker.connect(b"flooder%d" % number) for number in range(flooders)]
        quiet, _ = broker.connect(b"quiet")
        for client, _ in flooding:
            assert stuff(client, FLOOD) > 40 * READ_MAX
        ends = [end for _, end in flooding]
        round_of_all = -(-(flooders + 1) // sockets_per_turn)
        for _ in range(5):
            before = [end.counters()["bytes_in"] for end in ends]
            quiet.sendall(encode(Pingreq(), 4))
            broker.turn(round_of_all)
            assert quiet.recv(100) == PINGRESP
            reads = [end.counters()["bytes_in"] - older for end, older in zip(ends, before, strict=True)]
            assert min(reads) > 0
            assert max(reads) <= 2 * READ_MAX


def test_the_guest_has_one_tick_in_every_turn_of_a_flood() -> None:
    with turned(bytes_per_read_max=READ_MAX) as broker:
        guest = Guest(broker.reactor)
        broker.reactor.guest = guest
        flooder, flooding = broker.connect(b"flooder")
        assert stuff(flooder, FLOOD) > 20 * READ_MAX
        ended, steps = False, 0

        async def always_ready() -> None:
            nonlocal steps
            while not ended:
                steps += 1
                await trio.lowlevel.checkpoint()

        guest.start(always_ready)
        broker.turn(5)  # trio has begun
        steps_before, ticks, bytes_in = steps, broker.reactor.guest_ticks, flooding.counters()["bytes_in"]
        broker.turn(10)
        assert broker.reactor.guest_ticks - ticks == steps - steps_before == 10
        assert 5 * READ_MAX < flooding.counters()["bytes_in"] - bytes_in <= 10 * READ_MAX
        ended = True
        while guest.outcome is None:
            broker.turn()
        guest.outcome.unwrap()


def test_between_turns_an_idle_worker_sleeps_until_a_tick_or_for_good() -> None:
    with turned() as broker:
        assert broker.reactor.idle_s == float("inf")
        client = broker.dial()
        broker.turn(2)
        assert broker.reactor.idle_s == 0.25  # its time to CONNECT is running
        client.close()
        broker.turn(2)
        assert broker.reactor.idle_s == float("inf")


def test_a_slow_turn_is_counted() -> None:
    with turned() as broker:
        guest = Guest(broker.reactor)
        broker.reactor.guest = guest

        async def hold_up() -> None:
            end_s = time.monotonic() + 0.02
            while time.monotonic() < end_s:
                pass

        guest.start(hold_up)
        while guest.outcome is None:
            broker.turn()
        guest.outcome.unwrap()
        assert broker.worker.controller.slow_turns.count >= 1


class PatientAuthenticator:
    """Lets everybody in when the test says so."""

    def __init__(self) -> None:
        self.decide = trio.Event()
        self.asked: list[bytes] = []

    async def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Wait for the test."""
        self.asked.append(connect.client_identifier)
        await self.decide.wait()
        return Accepted()


async def test_connects_that_wait_are_bounded_and_then_accepting_pauses() -> None:
    authenticator = PatientAuthenticator()
    config = Config(
        listen=("tcp://127.0.0.1:0",), limits=Limits(pending_connects_max=3), shutdown=Shutdown(drain_s=0.1)
    )
    async with open_broker(config, authenticator=authenticator) as worker:
        assert worker.acceptor is not None
        port = worker.acceptor.addresses[0].port

        async def dial(number: int) -> trio.SocketStream:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(encode(Connect(4, b"c%d" % number), 4))
            return stream

        streams = [await dial(number) for number in range(3)]
        with trio.fail_after(10):
            while len(authenticator.asked) < 3:
                await trio.testing.wait_all_tasks_blocked(0.001)
            streams += [await dial(number) for number in range(3, 10)]
            turns = worker.reactor.turns
            while worker.reactor.turns < turns + 3:  # the listening socket would have been readable
                await trio.testing.wait_all_tasks_blocked(0.001)
            assert worker.reactor.connection_count == 3
            assert sorted(authenticator.asked) == [b"c0", b"c1", b"c2"]
            authenticator.decide.set()
            for stream in streams:
                assert await stream.receive_some(100) == CONNACK
                await stream.aclose()
        assert len(authenticator.asked) == 10


async def test_an_answer_that_comes_too_late_opens_nobody_else_s_connection() -> None:
    authenticator = PatientAuthenticator()
    config = Config(listen=("tcp://127.0.0.1:0",), shutdown=Shutdown(drain_s=0.1))
    async with open_broker(config, authenticator=authenticator) as worker:
        assert worker.acceptor is not None
        port = worker.acceptor.addresses[0].port
        with trio.fail_after(10):
            gone = await trio.open_tcp_stream("127.0.0.1", port)
            await gone.send_all(encode(Connect(4, b"gone"), 4))
            while not authenticator.asked:
                await trio.testing.wait_all_tasks_blocked(0.001)
            await trio.aclose_forcefully(gone)
            while worker.reactor.connection_count:
                await trio.testing.wait_all_tasks_blocked(0.001)
            heir = await trio.open_tcp_stream("127.0.0.1", port)
            while not worker.reactor.connection_count:
                await trio.testing.wait_all_tasks_blocked(0.001)
            (connection,) = worker.reactor.connections_snapshot()
            authenticator.decide.set()
            await heir.send_all(encode(Connect(4, b"heir"), 4))
            assert await heir.receive_some(100) == CONNACK
            assert connection.session.client_identifier == b"heir"
            assert list(worker.router.sessions) == [b"heir"]
            await heir.aclose()


def resident_kib(process_identifier: int) -> int:
    """Return the resident memory of a process."""
    with open(f"/proc/{process_identifier}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def test_a_thousand_half_sent_packets_cost_the_others_nothing(tmp_path: Path) -> None:
    count, messages, half = 1000, 5000, 1000
    broker = BrokerProcess(tmp_path, environment=MEASURED)
    broker.start()
    assert broker.process is not None
    clients: list[socket.socket] = []
    try:
        whole = encode(Publish(b"half", b"h" * 2 * half), 4)
        before_kib = resident_kib(broker.process.pid)
        for number in range(count):
            client = socket.create_connection(("127.0.0.1", broker.port))
            client.settimeout(20)
            clients.append(client)
            client.sendall(encode(Connect(4, b"half%d" % number), 4) + whole[:half])
        for client in clients:
            assert client.recv(4) == CONNACK
        with socket.create_connection(("127.0.0.1", broker.port)) as subscriber:
            subscriber.settimeout(20)
            subscriber.sendall(
                encode(Connect(4, b"s"), 4) + encode(Subscribe(1, (subscription(b"t", 0), subscription(b"half", 0))), 4)
            )
            stream = subscriber.makefile("rb")
            assert stream.read(4 + 6) == CONNACK + b"\x90\4\0\1\0\0"
            with socket.create_connection(("127.0.0.1", broker.port)) as publisher:
                publisher.settimeout(20)
                publisher.sendall(encode(Connect(4, b"p"), 4))
                assert publisher.recv(4) == CONNACK
                for start in range(0, messages, 500):
                    batch = b"".join(encode(Publish(b"t", b"%05d" % number), 4) for number in range(start, start + 500))
                    publisher.sendall(batch)
                    assert stream.read(len(batch)) == batch
            # What each of the thousand had kept there, and what a connection costs; not what a buffer of its own would.
            assert resident_kib(broker.process.pid) - before_kib < count * 8
            sender = threading.Thread(target=lambda: [client.sendall(whole[half:]) for client in clients])
            sender.start()
            assert stream.read(count * len(whole)) == whole * count
            sender.join()
            stream.close()
    finally:
        for client in clients:
            client.close()
        broker.stop()


def test_a_thread_that_wakes_a_reactor_while_it_closes_writes_to_no_descriptor_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log goes on while a worker closes, and wakes the reactor; the number may be another file's by then."""
    worker = Worker(Config(listen=("tcp://127.0.0.1:0",)))
    woken: list[BaseException | None] = []
    wakers: list[threading.Thread] = []
    close = os.close

    def wake() -> None:
        try:
            worker.reactor.wake()
        except OSError as error:
            woken.append(error)
        else:
            woken.append(None)

    def close_and_wake(descriptor: int) -> None:
        close(descriptor)
        wakers.append(threading.Thread(target=wake))
        wakers[-1].start()
        wakers[-1].join(0.1)  # until it has done it, or waits for us

    monkeypatch.setattr(os, "close", close_and_wake)
    worker.reactor.close()
    monkeypatch.undo()
    for waker in wakers:
        waker.join()
    assert len(woken) >= 2
    assert woken == [None] * len(woken)
    worker.close()


def test_a_turn_deals_with_one_large_message_to_many_and_sends_to_some_of_those_whose_outputs_it_fills() -> None:
    readers, message_bytes, count = 120, 20_000, 8
    with turned() as broker:
        clients = []
        for number in range(readers):
            client, _ = broker.connect(b"reader%d" % number)
            client.sendall(encode(Subscribe(1, (subscription(b"t"),)), 4))
            select.select([broker.reactor], [], [])
            broker.turn()
            assert len(client.recv(100)) == 5
            clients.append(client)
        publisher, _ = broker.connect(b"publisher")
        broker.reactor.bound_turns(share=3000, sends=5)
        packet = encode(Publish(b"t", b"x" * message_bytes), 4)
        publisher.sendall(packet * count)
        taken, sent, delivered = 0, [broker.reactor.counters()["bytes_out"]], [0]
        while taken < readers * count * len(packet):
            broker.turn()
            sent.append(broker.reactor.counters()["bytes_out"])
            delivered.append(broker.reactor.counters()["messages_out"])
            for client in select.select(clients, [], [], 0)[0]:
                taken += len(client.recv(1 << 20))
        assert max(later - earlier for earlier, later in pairwise(delivered)) == readers  # it is more than a share
        # With each fourth message the outputs of all would be sent to while it is routed.
        assert max(later - earlier for earlier, later in pairwise(sent)) < readers // 2 * 65536
