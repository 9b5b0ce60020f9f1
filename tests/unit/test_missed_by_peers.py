"""What is dropped on its way to a peer: after a crash it is not owed again, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.wire.packets import Ack, Connect, Publish, decode, encode, next_frame
from broker.wire.properties import PacketType
from tests.support.disk import SimulatedDisk
from tests.support.held_link import Linked
from tests.unit.test_forwarding import Host, restarted


class Publisher:
    """A client of 5.0."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.connection = linked.hub.connect()
        self.say(Connect(5, b"p", True))
        self.read()

    def say(self, packet: Any) -> None:
        self.connection.feed_bytes(encode(packet, 5))
        for _ in range(40):  # of which each takes its share of it
            self.linked.hub.run_turn(self.linked.now_ms)

    def publish(self, payload: bytes, packet_identifier: int) -> None:
        self.say(Publish(b"t", payload, 1, False, False, packet_identifier, {"message_expiry_interval": 1}))

    def read(self) -> list[int]:
        """Return the packet identifiers that were acknowledged since the last time."""
        self.linked.hub.run_turn(self.linked.now_ms)
        data = bytearray(self.connection.take_output())
        found = []
        while (frame := next_frame(data)) is not None:
            packet = decode(*frame, 5)
            if isinstance(packet, Ack) and packet.type == PacketType.PUBACK:
                found.append(packet.packet_identifier)
        return found


def test_what_expired_behind_what_a_peer_is_still_owed_is_owed_to_it_with_that_after_a_crash() -> None:
    host = Host(SimulatedDisk())
    linked = Linked(host)
    host.forwarding.want(linked.peer, b"t", 1, True)
    linked.publish(b"one")
    linked.publish(b"two", expires=True)
    host.write()
    linked.pass_ms(2000)
    linked.come_up()
    assert linked.router.ledger.dropped()["expired"] == 1
    host.write()
    assert restarted(host).owed() == [b"one", b"two"], "a record says up to where, and nothing else"


@pytest.mark.parametrize("expired_first", [False, True])
def test_what_expired_and_what_was_acknowledged_is_owed_to_a_peer_no_more(expired_first: bool) -> None:
    host = Host(SimulatedDisk())
    linked = Linked(host)
    host.forwarding.want(linked.peer, b"t", 1, True)
    linked.publish(b"one", expires=expired_first)
    linked.publish(b"two", expires=not expired_first)
    host.write()
    linked.pass_ms(2000)
    linked.come_up()
    linked.say("ack", linked.epoch, 0, 2 if expired_first else 1, 0, 5)
    host.write()
    assert host.owed() == []
    assert restarted(host).owed() == []


@pytest.mark.parametrize("waits_behind", [False, True])
def test_what_expired_before_it_had_its_record_is_owed_to_a_peer_no_more(waits_behind: bool) -> None:
    host = Host(SimulatedDisk())
    linked = Linked(host)
    host.forwarding.want(linked.peer, b"t", 1, True)
    linked.come_up()
    if waits_behind:
        linked.publish(b"one")
        host.write()
    linked.publish(b"two", expires=True)
    linked.pass_ms(2000)
    host.write()
    assert linked.router.ledger.dropped()["expired"] == 1
    if waits_behind:
        linked.say("ack", linked.epoch, 0, 1, 0, 5)
    host.write()
    assert host.owed() == []
    assert restarted(host).owed() == []


def test_what_cannot_be_read_is_owed_to_a_peer_no_more() -> None:
    host = Host(SimulatedDisk())
    linked = Linked(host)
    host.forwarding.want(linked.peer, b"t", 1, True)
    linked.publish(b"one")
    host.write()

    class Lost:
        def fetch(self, number: int, now_us: int, now_ms: int) -> None:
            raise LookupError(number)

    linked.router.ledger.bodies = Lost()
    linked.come_up()
    assert linked.router.ledger.dropped()["unreadable"] == 1
    host.write()
    assert restarted(host).owed() == []


@pytest.mark.parametrize("logged", [False, True])
def test_who_published_what_expires_when_a_link_sends_it_again_is_answered(logged: bool) -> None:
    linked = Linked(Host(SimulatedDisk()) if logged else None)
    linked.come_up()
    linked.mesh.forwarding.want(linked.peer, b"t", 1, False)
    publisher = Publisher(linked)
    publisher.publish(b"one", 1)
    assert publisher.read() == [], "the peer has not got it yet"
    linked.pass_ms(2000)
    linked.say("gap", linked.epoch, 0, 5)
    assert linked.router.ledger.dropped()["expired"] == 1
    assert publisher.read() == [1]


@pytest.mark.parametrize("is_behind", [False, True])
def test_who_published_what_expires_behind_a_full_window_is_answered(is_behind: bool) -> None:
    linked = Linked(None)
    linked.come_up()
    linked.mesh.forwarding.want(linked.peer, b"t", 1, False)
    publisher = Publisher(linked)
    for packet_identifier in (1, 2, 3):
        publisher.publish(b"-" * 400_000, packet_identifier)
    assert not linked.link.has_credit
    publisher.publish(b"last", 4)
    if is_behind:
        linked.publish(b"another's")
    linked.pass_ms(2000)
    linked.say("ack", linked.epoch, 3, 3, 0, 5)
    assert linked.router.ledger.dropped()["expired"] == 1
    assert publisher.read() == [1, 2, 3, 4]


def test_who_waits_for_a_peer_that_is_forgotten_is_answered() -> None:
    linked = Linked(None)
    linked.come_up()
    linked.mesh.forwarding.want(linked.peer, b"t", 1, False)
    publisher = Publisher(linked)
    publisher.publish(b"one", 1)
    linked.link.give_up()
    assert publisher.read() == []
    assert linked.mesh.forget(b"n/1") == 1
    assert publisher.read() == [1]
