"""How much of the retained messages on disk a turn reads: little while messages are published, which wait for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

import pytest

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.control.retained_backlog import SLICE_MESSAGES, SLICE_MESSAGES_BUSY
from broker.reactor.epoll import Reactor
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Connack, Connect, Publish, Suback, Subscribe, decode, encode, next_frame, subscription
from broker.worker.terms import ledger, terms
from router.core.message import message
from router.retained.lmdb_index import RetainedIndex
from router.router import Router
from tests.support.doubles import FakeLog

KEPT = 1000
NOW_MS = 1_000_000
TOGETHER_BYTES = 8192  # of short slices are sent together
QUIET_MS = 1000  # with nothing published for so long, a worker has time


class Retaining:
    """A hub whose retained messages, `kept/0000` and so on, are on disk."""

    def __init__(self, folder: Path, with_sockets: bool, payload: bytes) -> None:
        config = Config()
        self.log = log = FakeLog()
        self.index = RetainedIndex(str(folder / "retained"))
        self.router = Router(ledger(config), seed=1, index=self.index)
        controller = Controller(config, self.router, Anonymous(), AllowAll())
        pump = Pump(self.router, log)
        self.hub: Any = (
            Reactor(self.router, controller, pump, bytes_per_read=65_536, sockets_per_turn=64, **terms(config))
            if with_sockets
            else Hub(self.router, controller, pump, now_ms=NOW_MS, **terms(config))
        )
        # One with sockets reads the clock itself in later turns, and that must not go back.
        self.now_ms = time.monotonic_ns() // 1_000_000 if with_sockets else NOW_MS
        self.hub.run_turn(self.now_ms)
        # The last one is behind all that match, so who reads those comes to their end with nothing in his hands.
        for topic in (*(b"kept/%04d" % number for number in range(KEPT)), b"later"):
            self.router.publish_message(message(topic, payload, 1, True))
        self.turn(1)
        log.sync()
        while self.index.commit(log.durable):
            pass
        self.publisher = self.hub.connect()
        self.publisher.feed_bytes(encode(Connect(4, b"publisher"), 4))
        self.turn(QUIET_MS)

    def turn(self, passed_ms: int = 0) -> None:
        """A turn, so long after the one before."""
        self.now_ms += passed_ms
        self.hub.run_turn(self.now_ms)

    def publish(self) -> None:
        """Have the publisher say something, in the turn that is next."""
        self.publisher.feed_bytes(encode(Publish(b"live", b"x"), 4))


class Reader:
    """A client that asks for all that is kept, at QoS 0.

    Attributes:
        got: topic names of retained messages, in the order in which they came.
        live: how many others came.
    """

    def __init__(self, broker: Retaining, name: bytes) -> None:
        self.got: list[bytes] = []
        self.live = 0
        self.connection = broker.hub.connect()
        self.connection.feed_bytes(
            encode(Connect(4, name), 4)
            + encode(Subscribe(1, (subscription(b"kept/#", 0), subscription(b"live", 0))), 4)
        )

    def take(self) -> int:
        """Return how many retained messages have come since the last look."""
        output, before = bytearray(self.connection.take_output()), len(self.got)
        while (frame := next_frame(output)) is not None:
            packet: Any = decode(*frame, 4)
            if isinstance(packet, Publish):
                if packet.retain:
                    self.got.append(packet.topic)
                else:
                    self.live += 1
        return len(self.got) - before


@contextmanager
def retaining(folder: Path, with_sockets: bool = False, payload: bytes = b"x") -> Iterator[Retaining]:
    broker = Retaining(folder, with_sockets, payload)
    try:
        yield broker
    finally:
        if with_sockets:
            broker.hub.close()
        broker.index.close()


def turn_until_answered(broker: Retaining, client: socket.socket) -> None:
    """Turn, waiting for what the client has sent, until something comes to it."""
    while not select([client], [], [], 0)[0]:
        broker.hub.turn_once(True)


@contextmanager
def dial(broker: Retaining, name: bytes) -> Iterator[socket.socket]:
    """Give one end of a socket whose other end is a connected client's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setblocking(False)
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    broker.hub.adopt(ours.detach())
    client.settimeout(10)
    client.sendall(encode(Connect(4, name, True, 60), 4))
    turn_until_answered(broker, client)
    assert client.recv(100) == b"\x20\2\0\0"
    with client:
        yield client


def turns_until_all(broker: Retaining, readers: list[Reader], in_turn: Callable[[], None]) -> list[list[int]]:
    """Turn until every reader has all; return what each got in each turn."""
    came = []
    while any(len(reader.got) < KEPT for reader in readers):
        in_turn()
        broker.turn()
        came.append([reader.take() for reader in readers])
        assert len(came) <= 2 * len(readers) * KEPT, came[-1]
    return came


def test_a_turn_in_which_somebody_published_reads_few_retained_messages_and_an_idle_one_reads_more(
    tmp_path: Path,
) -> None:
    with retaining(tmp_path) as broker:
        reader = Reader(broker, b"reader")
        idle = turns_until_all(broker, [reader], lambda: None)
        assert max(idle) == [SLICE_MESSAGES]
        beside = Reader(broker, b"beside")
        busy = turns_until_all(broker, [beside], broker.publish)
        assert busy == [[SLICE_MESSAGES_BUSY]] * (KEPT // SLICE_MESSAGES_BUSY)
        assert SLICE_MESSAGES_BUSY * 4 <= SLICE_MESSAGES
        assert beside.live == len(busy) - 1  # the first one was published ahead of the SUBSCRIBE
        # Nothing is lost or comes twice.
        assert reader.got == beside.got == [b"kept/%04d" % number for number in range(KEPT)]


def test_turns_between_two_publishes_read_few_retained_messages_until_it_has_been_quiet(tmp_path: Path) -> None:
    with retaining(tmp_path) as broker:
        reader = Reader(broker, b"reader")
        broker.turn()
        reader.take()
        broker.publish()
        for passed_ms in (0, 1, 1, 10):
            broker.turn(passed_ms)
            assert reader.take() == SLICE_MESSAGES_BUSY
        broker.turn(QUIET_MS)
        assert reader.take() == SLICE_MESSAGES


def test_readers_share_what_a_turn_reads_beside_publishers(tmp_path: Path) -> None:
    with retaining(tmp_path) as broker:
        readers = [Reader(broker, b"reader-%d" % number) for number in range(6)]
        came = turns_until_all(broker, readers, broker.publish)
        assert max(sum(turn) for turn in came) == SLICE_MESSAGES_BUSY
        for reader in readers:
            assert reader.got == [b"kept/%04d" % number for number in range(KEPT)]
        # In turns: none is ahead of another by more than a slice.
        sums = [0] * len(readers)
        for turn in came:
            sums = [total + more for total, more in zip(sums, turn, strict=True)]
            assert max(sums) - min(sums) <= SLICE_MESSAGES_BUSY


def test_what_is_published_in_a_turn_is_sent_before_that_turn_reads_retained_messages(tmp_path: Path) -> None:
    with (
        retaining(tmp_path, with_sockets=True) as broker,
        dial(broker, b"live") as live,
        dial(broker, b"reader") as reader,
    ):
        live.sendall(encode(Subscribe(1, (subscription(b"live", 0),)), 4))
        turn_until_answered(broker, live)
        assert live.recv(100) == b"\x90\3\0\1\0"
        reader.sendall(encode(Subscribe(1, (subscription(b"kept/#", 0),)), 4))
        turn_until_answered(broker, reader)  # from here on it has more to read
        came: list[bytes] = []
        read = broker.index.read

        def look_and_read(reading: Any) -> Any:
            came.append(live.recv(100))  # waits; what was not sent yet never comes
            return read(reading)

        broker.index.read = look_and_read  # type: ignore[method-assign]
        broker.publish()
        broker.hub.turn_once(False)
        assert came == [encode(Publish(b"live", b"x"), 4)]


@pytest.mark.parametrize("payload_bytes", [1, 1000])
def test_short_slices_are_sent_together(tmp_path: Path, payload_bytes: int) -> None:
    packet_bytes = len(encode(Publish(b"kept/0000", bytes(payload_bytes), retain=True), 4))
    with (
        retaining(tmp_path, with_sockets=True, payload=bytes(payload_bytes)) as broker,
        dial(broker, b"reader") as reader,
    ):
        came_s = time.monotonic()
        reader.sendall(encode(Subscribe(1, (subscription(b"kept/#", 0),)), 4))
        broker.publish()
        turn_until_answered(broker, reader)
        reader.setblocking(False)
        got = len(reader.recv(1 << 20)) - len(b"\x90\3\0\1\0")
        turns = 0
        while got < KEPT * packet_bytes:
            turns += 1
            assert turns < 100 * KEPT, "what was kept back is not sent"
            broker.publish()
            broker.hub.turn_once(True)  # does not block: there is more to read
            try:
                size = len(reader.recv(1 << 20))
            except BlockingIOError:
                continue
            got += size
            waited_s, came_s = time.monotonic() - came_s, time.monotonic()
            # A slice that was sent alone had waited for the next ones: two ticks of a clock of milliseconds.
            assert size >= TOGETHER_BYTES or waited_s > 0.001 or got == KEPT * packet_bytes
            assert size <= TOGETHER_BYTES + SLICE_MESSAGES_BUSY * packet_bytes
        assert got == KEPT * packet_bytes


def test_what_else_a_reader_is_sent_takes_slices_along(tmp_path: Path) -> None:
    with retaining(tmp_path, with_sockets=True) as broker, dial(broker, b"reader") as reader:
        reader.sendall(encode(Subscribe(1, (subscription(b"live", 0), subscription(b"kept/#", 0))), 4))
        broker.publish()
        turn_until_answered(broker, reader)
        output, got = bytearray(), []
        while len(got) < KEPT:
            broker.publish()
            broker.hub.turn_once(True)
            output += reader.recv(1 << 20)  # at least what is live
            while (frame := next_frame(output)) is not None:
                packet: Any = decode(*frame, 4)
                if isinstance(packet, Publish) and packet.retain:
                    got.append(packet.topic)
        assert got == [b"kept/%04d" % number for number in range(KEPT)]


def test_slices_that_are_kept_back_are_sent_although_nothing_more_is_found(tmp_path: Path) -> None:
    packet_bytes = len(encode(Publish(b"kept/0000", b"x", retain=True), 4))
    with retaining(tmp_path, with_sockets=True) as broker, dial(broker, b"reader") as reader:
        read, slices = broker.index.read, 0

        def count_and_read(reading: Any) -> Any:
            nonlocal slices
            slices += 1
            return read(reading)

        broker.index.read = count_and_read  # type: ignore[method-assign]
        reader.sendall(encode(Subscribe(1, (subscription(b"kept/#", 0),)), 4))
        broker.publish()
        turn_until_answered(broker, reader)
        broker.now_ms = time.monotonic_ns() // 1_000_000
        while slices < KEPT // SLICE_MESSAGES_BUSY:
            broker.publish()
            broker.turn()
        got = len(reader.recv(1 << 20)) - len(b"\x90\3\0\1\0")
        assert got < KEPT * packet_bytes, "some are kept back"
        broker.turn(QUIET_MS)  # which reads on and finds none
        assert slices == KEPT // SLICE_MESSAGES_BUSY + 1
        while got < KEPT * packet_bytes:
            got += len(reader.recv(1 << 20))


def test_what_a_new_subscriber_is_sent_as_retained_is_durable(tmp_path: Path) -> None:
    broker = Retaining(tmp_path, False, b"old")
    try:
        broker.router.publish_message(message(b"kept/0000", b"new", 1, True))
        readers = [broker.hub.connect() for _ in range(2)]
        for number, reader in enumerate(readers):
            reader.feed_bytes(
                encode(Connect(4, b"%d" % number), 4)
                + encode(Subscribe(1, (subscription((b"kept/0000", b"kept/+")[number], 0),)), 4)
            )
        broker.turn(1)
        for reader in readers:
            output, kinds = bytearray(reader.take_output()), []
            while (frame := next_frame(output)) is not None:
                kinds.append(type(decode(*frame, 4)))
            assert kinds == [Connack, Suback], "nobody knows yet whether a crash would leave it"
        broker.log.sync()
        for _ in range(100):
            broker.turn(QUIET_MS)
        for reader in readers:
            output, found = bytearray(reader.take_output()), {}
            while (frame := next_frame(output)) is not None:
                packet: Any = decode(*frame, 4)
                found[packet.topic] = packet.payload
            assert found[b"kept/0000"] == b"new"
    finally:
        broker.index.close()
