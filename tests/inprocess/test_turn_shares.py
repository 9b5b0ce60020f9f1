"""What one client sends never takes all of a turn: it has a share, and goes on when others have had theirs."""

from __future__ import annotations

import socket
from itertools import pairwise
from typing import Any

import trio

from broker.config.loader import Config, Limits
from broker.wire.packets import Connack, Connect, Pingreq, Pingresp, Publish, Suback, Subscribe, encode, subscription
from broker.wire.reasons import CloseReason
from broker.worker.worker import Worker, open_broker
from tests.support.doubles import FakeLog
from tests.support.turned_hub import TurnedClient, TurnedHub

SHARE = 1000
PINGRESP = b"\xd0\0"


def readers(broker: TurnedHub, count: int, topic: bytes, qos: int = 0) -> list[Any]:
    """Return so many subscribers."""
    clients = [broker.connect(b"reader%d" % number) for number in range(count)]
    for client in clients:
        client.send(Subscribe(1, (subscription(topic, qos),)))
    broker.turn(2)
    assert all(isinstance(client.packets()[0], Suback) for client in clients)
    return clients


def delivered(broker: TurnedHub) -> int:
    """Return how many messages were sent since the start."""
    return int(broker.hub.counters()["messages_out"])


def test_a_publisher_to_many_readers_has_its_share_of_deliveries_and_a_witness_is_heard_in_between() -> None:
    broker = TurnedHub()
    broker.hub.bound_turns(share=SHARE)
    clients = readers(broker, 100, b"t")
    publisher, witness = broker.connect(b"publisher"), broker.connect(b"witness")
    publisher.send(*[Publish(b"t", b"%04d" % number) for number in range(500)])
    publisher.send(Pingreq())
    seen = [delivered(broker)]
    while seen[-1] < 500 * 100:
        witness.send(Pingreq())
        broker.turn()
        assert witness.packets() == [Pingresp()]
        seen.append(delivered(broker))
        assert 100 <= seen[-1] - seen[-2] <= 2 * SHARE
    broker.turn()
    assert publisher.packets() == [Pingresp()]
    for client in clients:
        assert [packet.payload for packet in client.packets()] == [b"%04d" % number for number in range(500)]


def test_a_recorded_message_to_many_counts_for_its_publisher_when_it_is_accepted() -> None:
    log = FakeLog()
    broker = TurnedHub(log)
    broker.hub.bound_turns(share=SHARE)
    names = [b"reader%d" % number for number in range(50)]
    for name in names:
        client = broker.connect(name, properties={"session_expiry_interval": 60})
        client.send(Subscribe(1, (subscription(b"t", 1),)))
    broker.turn(4)
    publisher = broker.connect(b"publisher")
    publisher.send(*[Publish(b"t", b"%04d" % number, 1, packet_identifier=1 + number) for number in range(100)])
    counts = []
    while not counts or counts[-1] < 100:
        counts.append(len([record for record in log.records if record.kind == "accepted"]))
        broker.turn()
    assert max(counts[0], *(later - earlier for earlier, later in pairwise(counts))) <= 20


def test_messages_to_three_readers_count_as_deliveries_and_those_to_one_as_bytes() -> None:
    for count in (3, 1):
        broker = TurnedHub()
        broker.hub.bound_turns(share=30, share_bytes=300)
        clients = readers(broker, count, b"t")
        publisher = broker.connect(b"publisher", 4)
        before = delivered(broker)
        publisher.send(*[Publish(b"t", b"") for _ in range(200)])
        at_once = delivered(broker) - before  # the look for the receivers is work, too
        assert 20 < at_once <= 30 if count == 3 else at_once == 300 // 5
        broker.turn(30)
        assert delivered(broker) - before == 200 * count
        for client in clients:
            assert len(client.packets()) == 200


def test_a_large_payload_counts_as_it_is_copied() -> None:
    broker = TurnedHub()
    broker.hub.bound_turns(share=SHARE, share_bytes=1_000_000)
    readers(broker, 10, b"t")
    publisher = broker.connect(b"publisher")
    before = delivered(broker)
    publisher.send(*[Publish(b"t", b"x" * 20_000) for _ in range(20)])
    assert delivered(broker) - before <= 10 * (1 + SHARE // 200)
    broker.turn(20)
    assert delivered(broker) - before == 200


def test_topics_whose_receivers_take_long_to_find_count_as_they_are_looked_for() -> None:
    broker = TurnedHub()
    broker.hub.bound_turns(share=SHARE)
    client = broker.connect(b"filters")
    filters = [b"/".join((b"a", b"+")[number >> bit & 1] for bit in range(10)) for number in range(1024)]
    client.send(Subscribe(1, tuple(subscription(each) for each in filters)))
    broker.turn(100)
    publisher = broker.connect(b"publisher")
    publisher.send(*[Publish(b"a/a/a/a/a/a/a/a/a/x%d" % number, b"") for number in range(100)])
    broker.turn()
    assert broker.hub.counters()["messages_in"] <= 4
    broker.turn(100)
    assert broker.hub.counters()["messages_in"] == 100


def test_many_who_come_back_to_full_queues_at_once_get_them_some_at_a_time() -> None:
    log = FakeLog()
    broker = TurnedHub(log)
    names = [b"reader%d" % number for number in range(30)]
    for name in names:
        client = broker.connect(name, properties={"session_expiry_interval": 60})
        client.send(Subscribe(1, (subscription(b"t", 1),)))
        broker.turn(2)
        client.connection.close("gone")
    broker.turn(2)
    publisher = broker.connect(b"publisher")
    publisher.send(*[Publish(b"t", b"%d" % number, 1, packet_identifier=1 + number) for number in range(3)])
    broker.turn(3)
    broker.hub.bound_turns(resumes=10)
    clients = [TurnedClient(broker, 5) for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.send(Connect(5, name, False, properties={"session_expiry_interval": 60}))
    counts = []
    while not counts or sum(counts) < 30:
        broker.turn()
        packets = [client.packets() for client in clients]
        counts.append(len([each for each in packets if any(isinstance(packet, Publish) for packet in each)]))
        assert len(counts) < 20
    assert max(counts) == 10


def test_the_ends_of_many_at_once_are_dealt_with_some_at_a_time() -> None:
    broker = TurnedHub()
    clients = [broker.connect(b"c%d" % number) for number in range(30)]
    stays = broker.connect(b"stays")
    broker.hub.bound_turns(ends=10)
    for client in clients:
        client.connection.close(CloseReason.CONNECTION_LOST)
    gone = []
    for _ in range(3):
        stays.send(Pingreq())
        broker.turn()
        assert len(stays.packets()) == 1
        gone.append(broker.controller.ends[CloseReason.CONNECTION_LOST])
    assert gone == [10, 20, 30]
    assert broker.hub.connection_count == 1


async def test_each_turn_deals_with_ends_anew() -> None:
    with trio.fail_after(30):
        async with open_broker(Config(listen=("tcp://127.0.0.1:0",))) as broker:
            broker.reactor.bound_turns(ends=1)
            for count in range(1, 4):
                async with await trio.open_tcp_stream("127.0.0.1", broker.addresses[0].port) as stream:
                    await stream.send_all(b"no packet of MQTT")
                    assert [piece async for piece in stream] == []
                assert sum(broker.controller.ends.values()) == count


def test_a_client_that_is_back_before_its_end_was_dealt_with_has_its_session() -> None:
    broker = TurnedHub(FakeLog())
    clients = [broker.connect(b"c%d" % number, properties={"session_expiry_interval": 60}) for number in range(3)]
    broker.turn(2)
    broker.hub.bound_turns(ends=1)
    for client in clients:
        client.connection.close(CloseReason.CONNECTION_LOST)
    back = TurnedClient(broker, 5)
    back.send(Connect(5, b"c2", False, properties={"session_expiry_interval": 60}))
    broker.turn(4)
    (answer,) = back.packets()
    assert isinstance(answer, Connack)
    assert answer.session_present
    assert broker.controller.ends[CloseReason.CONNECTION_LOST] == 3
    assert broker.hub.connection_count == 1


def test_who_leaves_after_its_share_is_forgotten_and_nothing_of_another_is_lost() -> None:
    broker = TurnedHub()
    broker.hub.bound_turns(share_bytes=SHARE)
    publisher, other = broker.connect(b"publisher"), broker.connect(b"other")
    for client in (publisher, other):
        client.send(*[Pingreq()] * 5000)
    publisher.connection.close("gone")
    broker.turn(20)
    assert len(other.packets()) == 5000


def test_more_control_packets_than_a_turn_deals_with_wait_in_order() -> None:
    broker = TurnedHub()
    clients = [broker.connect(b"c%d" % number) for number in range(30)]
    broker.hub.bound_turns(control=10)
    for client in clients:
        client.send(Subscribe(1, (subscription(b"t"),)), Pingreq())
    answered = []
    for _ in range(3):
        broker.turn()
        answered.append([number for number, client in enumerate(clients) if client.packets()])
    assert answered == [list(range(10)), list(range(10, 20)), list(range(20, 30))]


class Turned:
    """A worker that turns when the test says so."""

    def __init__(self) -> None:
        self.worker = Worker(Config(listen=("tcp://127.0.0.1:0",), limits=Limits(bytes_per_read_max=8192)))
        self.worker.listen()
        self.reactor: Any = self.worker.reactor
        assert self.worker.acceptor is not None
        self.port = self.worker.acceptor.addresses[0].port
        self.clients: list[socket.socket] = []

    def __enter__(self) -> Turned:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        if self.reactor.fileno() >= 0:
            self.worker.close()

    def connect(self, name: bytes, version: int = 4) -> socket.socket:
        """Return a client that has its CONNACK."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.settimeout(10)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients.append(client)
        client.sendall(encode(Connect(version, name), version))
        self.turn(3)
        assert client.recv(100)[0] == 0x20
        return client

    def turn(self, times: int = 1) -> None:
        """Turn without waiting."""
        for _ in range(times):
            self.reactor.turn_once(False)


def test_who_is_ready_when_a_turn_has_done_enough_is_first_in_the_next() -> None:
    with Turned() as broker:
        clients = [broker.connect(b"c%d" % number) for number in range(12)]
        broker.reactor.bound_turns(share_bytes=200, work=200)  # three of them, and a fourth
        rounds: list[list[int]] = []
        for client in clients:
            client.sendall(encode(Pingreq(), 4) * 400)
        answers = [0] * len(clients)
        while min(answers) < 400:
            broker.turn()
            assert broker.reactor.turn_work <= 200 + 200 + 2 * 65
            came = []
            for number, client in enumerate(clients):
                client.setblocking(False)
                try:
                    count = len(client.recv(65_536)) // 2
                except BlockingIOError:
                    count = 0
                if count and not answers[number]:
                    came.append(number)
                answers[number] += count
            rounds.append(came)
            assert len(rounds) < 100
        first = [number for came in rounds for number in came]
        assert sorted(first) == list(range(12))
        assert max(len(came) for came in rounds) <= 6
        assert answers == [400] * 12


def test_a_reactor_goes_on_with_what_a_turn_has_left_although_nothing_more_comes() -> None:
    with Turned() as broker:
        client = broker.connect(b"c")
        broker.reactor.bound_turns(share_bytes=100, work=200)
        client.sendall(encode(Pingreq(), 4) * 3000)
        got = b""
        while len(got) < 6000:
            broker.reactor.turn_once(True)  # blocks only if nothing is left
            client.setblocking(False)
            try:
                got += client.recv(65_536)
            except BlockingIOError:
                pass
        assert got == PINGRESP * 3000


def test_messages_to_many_are_sent_some_at_a_time_and_a_witness_is_answered_before() -> None:
    with Turned() as broker:
        readers_ = [broker.connect(b"reader%d" % number) for number in range(300)]
        for reader in readers_:
            reader.sendall(encode(Subscribe(1, (subscription(b"t"),)), 4))
        broker.turn(10)
        for reader in readers_:
            assert reader.recv(100) == b"\x90\3\0\1\0"
        publisher, witness = broker.connect(b"publisher"), broker.connect(b"witness")
        broker.reactor.bound_turns(sends=50)
        publisher.sendall(encode(Publish(b"t", b"x"), 4))
        witness.sendall(encode(Pingreq(), 4))
        broker.turn()
        assert witness.recv(100) == PINGRESP
        got = []
        while sum(got) < 300:
            count = 0
            for reader in readers_:
                reader.setblocking(False)
                try:
                    count += len(reader.recv(100)) > 0
                except BlockingIOError:
                    pass
            got.append(count)
            broker.turn()
            assert len(got) < 1000
        assert max(got) <= 50


def answered(clients: list[socket.socket]) -> list[int]:
    """Return which of these clients have got something by now, and take it."""
    came = []
    for number, client in enumerate(clients):
        client.setblocking(False)
        try:
            if client.recv(1 << 20):
                came.append(number)
        except BlockingIOError:
            pass
    return came


def test_who_has_only_an_answer_to_get_does_not_wait_for_messages_to_many_that_were_left_over() -> None:
    with Turned() as broker:
        readers_ = [broker.connect(b"reader%d" % number) for number in range(300)]
        for reader in readers_:
            reader.sendall(encode(Subscribe(1, (subscription(b"t"),)), 4))
        broker.turn(10)
        assert len(answered(readers_)) == 300
        publisher = broker.connect(b"publisher")
        askers = [broker.connect(b"asker%d" % number) for number in range(30)]
        broker.reactor.bound_turns(sends=10)
        publisher.sendall(encode(Publish(b"t", b"x"), 4))
        broker.turn()
        for asker in askers:
            asker.sendall(encode(Pingreq(), 4))
        order: list[int] = []
        for _ in range(3):
            broker.turn()
            order += answered(askers)
        assert order == list(range(30))  # first in, first out: ten a turn


def test_messages_to_many_are_sent_although_every_turn_has_more_answers_than_it_may_send() -> None:
    with Turned() as broker:
        readers_ = [broker.connect(b"reader%d" % number) for number in range(300)]
        for reader in readers_:
            reader.sendall(encode(Subscribe(1, (subscription(b"t"),)), 4))
        broker.turn(10)
        assert len(answered(readers_)) == 300
        publisher = broker.connect(b"publisher")
        askers = [broker.connect(b"asker%d" % number) for number in range(20)]
        broker.reactor.bound_turns(sends=10)
        publisher.sendall(encode(Publish(b"t", b"x"), 4))
        came = 0
        for _ in range(60):
            for asker in askers:
                asker.sendall(encode(Pingreq(), 4))
            broker.turn()
            came += len(answered(readers_))
        assert came == 300


def test_a_turn_that_has_sent_for_long_enough_leaves_the_others_and_bulk_goes_behind_answers() -> None:
    with Turned() as broker:
        bulky = [broker.connect(b"bulky%d" % number) for number in range(80)]
        for number, client in enumerate(bulky):
            client.sendall(encode(Subscribe(1, (subscription(b"bulk/%d" % number),)), 4))
        broker.turn(4)
        assert len(answered(bulky)) == 80
        publisher = broker.connect(b"publisher")
        askers = [broker.connect(b"asker%d" % number) for number in range(100)]
        bulk = b"".join(encode(Publish(b"bulk/%d" % number, b"x" * 6000), 4) for number in range(80))
        publisher.sendall(bulk[: len(bulk) // 2])
        publisher.sendall(bulk[len(bulk) // 2 :])
        while broker.reactor.counters()["messages_in"] < 80:
            broker.reactor.bound_turns(sends=0)  # what is read meanwhile stays where it is
            broker.turn()
        broker.reactor.bound_turns(sends=1000, sends_ns=1)  # the second look at the clock ends it
        for asker in askers:
            asker.sendall(encode(Pingreq(), 4))
        turns: list[tuple[list[int], list[int]]] = []
        while sum(len(small) + len(large) for small, large in turns) < 180:
            broker.turn()
            turns.append((answered(askers), answered(bulky)))
            assert len(turns) < 100
        assert all(0 < len(small) + len(large) <= 128 for small, large in turns)
        assert [number for small, _ in turns for number in small] == list(range(100))
        assert [number for _, large in turns for number in large] == list(range(80))


def test_who_subscribes_to_much_while_it_waits_for_a_message_to_many_gets_both() -> None:
    with Turned() as broker:
        readers_ = [broker.connect(b"reader%d" % number) for number in range(300)]
        for reader in readers_:
            reader.sendall(encode(Subscribe(1, (subscription(b"t"),)), 4))
        broker.turn(10)
        assert len(answered(readers_)) == 300
        publisher = broker.connect(b"publisher")
        broker.reactor.bound_turns(sends=10)
        last = readers_[-1]
        publisher.sendall(encode(Publish(b"t", b"x"), 4))
        last.sendall(encode(Subscribe(2, tuple(subscription(b"f/%d" % number) for number in range(2000))), 4))
        got = b""
        last.setblocking(False)
        while len(got) < 2005 + 6:
            broker.turn()
            try:
                got += last.recv(1 << 20)
            except BlockingIOError:
                pass
        assert encode(Publish(b"t", b"x"), 4) in got


def test_at_the_end_of_a_worker_everybody_is_told_however_many_they_are() -> None:
    with Turned() as broker:
        clients = [broker.connect(b"c%d" % number, 5) for number in range(20)]
        broker.reactor.bound_turns(sends=5)
        broker.worker.close()
        for client in clients:
            assert client.recv(100) == b"\xe0\1\x8b"
