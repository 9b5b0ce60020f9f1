"""What falls due at once, and what an ended session leaves, takes many turns, between which others are served."""

from __future__ import annotations

from typing import Any

import pytest

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Ack, Connack, Connect, Publish, Subscribe, decode, encode, next_frame, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.worker.terms import terms
from broker.worker.worker import Worker
from router.core.message import message
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.disk import SimulatedDisk
from tests.unit.test_deadlines import DelayedWill, left
from tests.unit.test_forwarding import NOW_MS, Host

COUNT = 100_000
ENDS_PER_TURN_MAX = 64
FORGOTTEN_PER_TURN_MAX = 20_000
PASSED_PER_TURN_MAX = 2_000
QUEUES = {"queue_messages_max": 1_000_000, "queue_bytes_max": 1 << 40}


def hub_of(router: Router, pump: Pump) -> Hub:
    """Return what lets clients in."""
    return Hub(router, Controller(Config(), router, Anonymous(), AllowAll()), pump, now_ms=NOW_MS, **terms(Config()))


class Talker:
    """A client whose every packet is dealt with in one turn."""

    def __init__(self, hub: Hub, name: bytes = b"talker", *, clean: bool = True, expiry_s: int = 1000) -> None:
        self.hub = hub
        self.connection = hub.connect()
        self.answers = self.say(Connect(5, name, clean, properties={"session_expiry_interval": expiry_s}))

    def say(self, packet: Any, now_ms: int = NOW_MS) -> list[Any]:
        """Send a packet; returns what a turn brings."""
        self.connection.feed_bytes(encode(packet, 5))
        return self.turn(now_ms)

    def turn(self, now_ms: int = NOW_MS) -> list[Any]:
        self.hub.run_turn(now_ms)
        data, packets = bytearray(self.connection.take_output()), []
        while (frame := next_frame(data)) is not None:
            packets.append(decode(*frame, 5))
        return packets


def test_sessions_and_wills_that_are_due_at_once_are_dealt_with_in_turns_between_which_others_are_served() -> None:
    router = Router(Ledger())
    hub = hub_of(router, Pump(router))
    talker = Talker(hub)
    published: list[tuple[int, bytes]] = []
    for number in range(COUNT):
        left(router, b"%d" % number, 10, DelayedWill(b"%d" % number, 5, published) if number % 2 else None)
    for due_ms in (NOW_MS + 6_000, NOW_MS + 11_000):
        turns = 0
        while router.deadline_count and not (due_ms < NOW_MS + 10_000 and len(published) == COUNT // 2):
            turns += 1
            before = len(router.sessions), len(published)
            assert talker.say(Publish(b"t", b"x", 1, packet_identifier=1), due_ms) == [
                Ack(PacketType.PUBACK, 1, Reason.NO_MATCHING_SUBSCRIBERS)
            ]
            assert before[0] - len(router.sessions) <= ENDS_PER_TURN_MAX
            assert len(published) - before[1] <= ENDS_PER_TURN_MAX
        assert turns > COUNT // 2 // ENDS_PER_TURN_MAX
    assert [name for _, name in published] == [b"%d" % number for number in range(1, COUNT, 2)]
    assert router.ledger.sessions_expired == COUNT


@pytest.mark.parametrize("qos", [0, 1])
def test_wills_for_many_receivers_are_published_some_at_a_time(qos: int) -> None:
    router = Router(Ledger())
    hub = hub_of(router, Pump(router))
    readers = [Talker(hub, b"reader%d" % number) for number in range(1000)]
    for reader in readers:
        reader.connection.feed_bytes(encode(Subscribe(1, (subscription(b"will", qos),)), 5))
    for _ in range(10):
        hub.run_turn(NOW_MS)
    published: list[tuple[int, bytes]] = []
    for number in range(64):
        left(router, b"%d" % number, 10, DelayedWill(b"w", 5, published, qos))
    came = [0]
    while came[-1] < 64_000:
        hub.run_turn(NOW_MS + 6_000)
        came.append(sum(int(reader.connection.counters()["messages_out"]) for reader in readers))
        assert came[-1] - came[-2] <= 12_000
        assert len(came) < 100
    assert len(published) == 64


def test_who_comes_back_when_its_time_is_up_finds_no_session_although_its_turn_has_not_come() -> None:
    router = Router(Ledger())
    hub = hub_of(router, Pump(router))
    published: list[tuple[int, bytes]] = []
    left(router, b"c", 10, DelayedWill(b"w", 5, published))
    router.ledger.now_ms = NOW_MS + 10_000
    _, present = router.open_session(b"c", False, 10)
    assert (present, published) == (False, [(NOW_MS + 10_000, b"w")])
    assert router.ledger.sessions_expired == 1
    assert hub.connection_count == 0


@pytest.mark.parametrize("shared", [0, 3])
def test_a_clean_start_over_a_long_queue_is_answered_at_once_and_the_queue_is_forgotten_in_turns(shared: int) -> None:
    host = Host(SimulatedDisk())
    host.router.ledger.session_limits.queue_messages_max = QUEUES["queue_messages_max"]
    host.router.ledger.session_limits.queue_bytes_max = QUEUES["queue_bytes_max"]
    hub = hub_of(host.router, host.pump)
    other = Talker(hub, b"other")
    member = Talker(hub, b"member")
    host.write()
    member.say(Subscribe(1, (subscription(b"$share/g/s", 1), subscription(b"t", 1))))
    host.write()
    member.connection.close(CloseReason.CONNECTION_LOST)
    hub.run_turn(NOW_MS)
    for number in range(shared):
        host.publish(b"shared %d" % number, topic=b"s")
    for _ in range(COUNT):
        host.publish(b"x")
    host.write()
    assert host.router.ledger.queued_messages == COUNT + shared
    other.say(Subscribe(1, (subscription(b"$share/g/s", 1),)))
    host.write()
    other.turn()

    member = Talker(hub, b"member")
    queued, turns = COUNT + shared, 0
    while host.router.ledger.queued_messages:
        now_queued = host.router.ledger.queued_messages
        assert queued - now_queued <= FORGOTTEN_PER_TURN_MAX
        queued = now_queued
        turns += 1
        assert turns < 100
        while host.log.commit():
            pass
        hub.run_turn(NOW_MS)
    assert turns > COUNT // FORGOTTEN_PER_TURN_MAX - 1
    assert [packet.session_present for packet in member.turn() if isinstance(packet, Connack)] == [False]
    got = [packet.payload for packet in other.turn() if isinstance(packet, Publish)]
    assert got == [b"shared %d" % number for number in range(shared)]
    assert host.router.ledger.dropped() == {"session_ended": COUNT}
    assert len(host.router.ending) == 0
    assert host.router.sessions[b"member"].state()["outgoing"] is None


@pytest.mark.parametrize("again", [False, True])
def test_a_clean_start_over_what_a_group_is_owed_waits_while_that_is_passed_on_in_turns(again: bool) -> None:
    host = Host(SimulatedDisk())
    hub = hub_of(host.router, host.pump)
    other = Talker(hub, b"other")
    member = Talker(hub, b"member")
    host.write()
    member.say(Subscribe(1, (subscription(b"$share/g/s", 1),)))
    host.write()
    member.connection.close(CloseReason.CONNECTION_LOST)
    hub.run_turn(NOW_MS)
    for number in range(5000):
        host.publish(b"%d" % number, topic=b"s")
    host.write()
    other.say(Subscribe(1, (subscription(b"$share/g/s", 1),)))
    host.write()
    other.turn()

    member = Talker(hub, b"member")
    second = Talker(hub, b"member", clean=False) if again else None
    got: list[bytes] = []
    turns = 0
    while len(got) < 5000:
        turns += 1
        assert turns < 100
        while host.log.commit():
            pass
        came = [packet for packet in other.turn() if isinstance(packet, Publish)]
        assert len(came) <= PASSED_PER_TURN_MAX
        got += [packet.payload for packet in came]
        other.connection.feed_bytes(
            b"".join(encode(Ack(PacketType.PUBACK, packet.packet_identifier), 5) for packet in came)
        )
    assert got == [b"%d" % number for number in range(5000)]
    host.write()
    present = [packet.session_present for packet in member.turn() if isinstance(packet, Connack)]
    if second is None:
        assert present == [False]
    else:
        assert member.connection.is_closing
        host.write()
        assert [packet.session_present for packet in second.turn() if isinstance(packet, Connack)] == [True]
    host.write()
    assert len(host.router.ending) == 0
    assert sorted(host.router.sessions) == [b"member", b"other"]


def test_without_a_log_a_member_that_ends_passes_on_all_that_it_has() -> None:
    router = Router(Ledger())
    hub = hub_of(router, Pump(router))
    leaver = Talker(hub, b"leaver")
    leaver.say(Subscribe(1, (subscription(b"$share/g/t", 1),)))
    for number in range(900):
        router.publish_message(message(b"t", b"%d" % number, 1), None)
    stayer = Talker(hub, b"stayer")
    stayer.say(Subscribe(1, (subscription(b"$share/g/t", 1),)))
    leaver.connection.close(CloseReason.CONNECTION_LOST)
    leaver.turn()
    router.end_session(router.sessions[b"leaver"])
    got = [packet.payload for _ in range(5) for packet in stayer.turn() if isinstance(packet, Publish)]
    assert sorted(got, key=int) == [b"%d" % number for number in range(900)]
    assert len(router.ending) == 0
    assert router.ledger.queued_messages == 0


def test_the_reactor_does_not_wait_while_something_is_left_that_is_due() -> None:
    worker = Worker(Config(listen=("tcp://127.0.0.1:0",)))
    router, reactor = worker.router, worker.reactor
    reactor.look_at_clock()
    for number in range(ENDS_PER_TURN_MAX * 5):
        left(router, b"%d" % number, 1)
        router.start_deadlines(router.sessions[b"%d" % number], 10_000)
    while len(router.sessions) == ENDS_PER_TURN_MAX * 5:
        reactor.turn_once(True)
    turns = reactor.turns
    while router.sessions:
        assert reactor.turn_once(False) or not router.sessions
    assert reactor.turns - turns <= 5
    worker.close()
