"""What becomes of a shared subscription's messages when a member's session ends: others get it, or it is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.turn import Hub
from broker.wire.packets import Ack, Connect, Disconnect, Publish, Subscribe, decode, encode, next_frame, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason
from broker.worker.terms import terms
from router.core.message import message
from tests.support.disk import SimulatedDisk, broken
from tests.unit.test_forwarding import NEVER, NOW_MS, Host, identifier_of, restarted

WINDOW = 2  # Receive Maximum of the members
GROUP = b"g/t"
FILTER = b"$share/" + GROUP


class Member:
    """A client of 5.0 that gets what its group is sent, and acknowledges nothing by itself."""

    def __init__(self, hub: Hub, name: bytes, expiry_s: int, clean: bool = True) -> None:
        self.hub = hub
        self.connection = hub.connect()
        self.got: list[tuple[bytes, int]] = []  # payload and packet identifier
        self.say(
            Connect(
                5, name, clean, 0, None, None, None, {"session_expiry_interval": expiry_s, "receive_maximum": WINDOW}
            )
        )

    def say(self, packet: Any) -> None:
        self.connection.feed_bytes(encode(packet, 5))
        self.hub.run_turn(NOW_MS)

    def read(self) -> list[bytes]:
        """Return the payloads that came so far."""
        data = bytearray(self.connection.take_output())
        while (frame := next_frame(data)) is not None:
            packet = decode(*frame, 5)
            if isinstance(packet, Publish):
                self.got.append((packet.payload, packet.packet_identifier))
        return [payload for payload, _ in self.got]


def clients_of(host: Host) -> Hub:
    """Return what lets clients of a host's router in."""
    controller = Controller(Config(), host.router, Anonymous(), AllowAll())
    return Hub(host.router, controller, host.pump, now_ms=NOW_MS, **terms(Config()))


def member_of(host: Host, hub: Hub, name: bytes, expiry_s: int, qos: int = 2) -> Member:
    """Connect a member of the group."""
    member = Member(hub, name, expiry_s)
    host.write()
    member.say(Subscribe(1, (subscription(FILTER, qos),)))
    host.write()
    return member


def end(host: Host, name: bytes) -> None:
    """The session of a client without a connection expires."""
    host.router.end_session(host.router.sessions[name])


def end_by_expiry(host: Host, member: Member, name: bytes) -> None:
    """The connection is lost and the session ends, at once or when its time is up."""
    member.connection.close(CloseReason.CONNECTION_LOST)
    member.hub.run_turn(NOW_MS)
    if name in host.router.sessions:
        end(host, name)


def named(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("expiry_s", [0, 1000])
def test_what_a_member_was_sent_at_qos_2_ends_with_its_session_and_is_counted(expiry_s: int) -> None:
    # Proves: [MQTT-4.8.2-5]
    host = Host(SimulatedDisk())
    hub = clients_of(host)
    leaver = member_of(host, hub, b"leaver", expiry_s)
    for payload in named(6):
        host.publish(payload, 2)
    host.write()
    assert leaver.read() == [b"0", b"1"]  # the others wait
    # One has arrived and is released: nobody has lost it.
    leaver.say(Ack(PacketType.PUBREC, leaver.got[0][1]))
    host.write()
    stayer = member_of(host, hub, b"stayer", 1000)
    end_by_expiry(host, leaver, b"leaver")
    host.write()
    assert host.router.ledger.dropped() == {"session_ended": 1}
    owed = host.router.sessions[b"stayer"].state()["outgoing"]
    assert (len(owed["in_flight"]), owed["queued"]) == (WINDOW, 2)
    assert stayer.read() == [b"2", b"3"]


@pytest.mark.parametrize("expiry_s", [0, 1000])
def test_what_a_member_was_sent_at_qos_1_goes_to_another_and_is_not_counted(expiry_s: int) -> None:
    host = Host(SimulatedDisk())
    hub = clients_of(host)
    leaver = member_of(host, hub, b"leaver", expiry_s)
    for payload in named(3):
        host.publish(payload, 1)
    host.write()
    stayer = member_of(host, hub, b"stayer", 1000)
    end_by_expiry(host, leaver, b"leaver")
    host.write()
    assert (host.router.ledger.dropped(), stayer.read()) == ({}, [b"0", b"1"])


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("stays_at", ["here", "elsewhere"])
def test_what_waits_and_cannot_be_read_yet_goes_to_another_when_it_can(stays_at: str, returns: bool) -> None:
    host = Host(SimulatedDisk())
    hub = clients_of(host)
    leaver = member_of(host, hub, b"leaver", 1000)
    for payload in named(5):
        host.publish(payload, 2)
    host.write()
    assert leaver.read() == [b"0", b"1"]
    if stays_at == "here":
        stayer = member_of(host, hub, b"stayer", 1000)
    else:
        host.forwarding.want(host.peer, FILTER, 2, True, 1)
    host.disk.fail = lambda operation: broken() if operation in ("read", "open") else None
    end_by_expiry(host, leaver, b"leaver")
    assert b"leaver" not in host.router.sessions
    for _ in range(3):
        hub.run_turn(NOW_MS)
    if returns:
        again = Member(hub, b"leaver", 1000, clean=False)  # a session of its own: nothing of the old one is in it
        host.write()
        assert b"leaver" in host.router.sessions
        assert again.read() == []
    assert host.router.ledger.dropped() == {"session_ended": 2}
    assert host.router.ledger.queued_messages == 3
    host.disk.fail = lambda operation: None
    host.write()
    if stays_at == "here":
        assert stayer.read() == [b"2", b"3"]
        assert host.router.ledger.queued_messages == 1
    else:
        assert host.owed() == [b"2", b"3", b"4"]
    assert host.router.ledger.dropped() == {"session_ended": 2}
    # And so it is after a crash.
    host = restarted(host)
    assert sorted(host.router.sessions) == sorted([b"leaver"] * returns + [b"stayer"] * (stays_at == "here"))
    if stays_at == "here":
        assert len(host.router.sessions[b"stayer"].owed.deliveries()) == 3
    else:
        assert host.owed() == [b"2", b"3", b"4"]


def test_what_could_not_be_read_before_a_crash_goes_to_another_behind_it() -> None:
    host = Host(SimulatedDisk())
    hub = clients_of(host)
    leaver = member_of(host, hub, b"leaver", 1000)
    for payload in named(5):
        host.publish(payload, 2)
    host.write()
    member_of(host, hub, b"stayer", 1000)
    host.disk.fail = lambda operation: broken() if operation in ("read", "open") else None
    end_by_expiry(host, leaver, b"leaver")
    host.write()
    host.disk.fail = lambda operation: None
    host = restarted(host)
    end(host, b"leaver")  # its end was not recorded, so it ends again
    host.write()
    stayer = host.router.sessions[b"stayer"]
    assert sorted(host.log.fetch(delivery[1], NOW_MS * 1000, NOW_MS).body for delivery in stayer.owed.deliveries()) == [
        b"2",
        b"3",
        b"4",
    ]


def leave(member: Member, name: bytes) -> None:
    member.say(Disconnect(0, {"session_expiry_interval": 0}))


def be_sent_away(member: Member, name: bytes) -> None:
    member.hub.controller.send_away(member.hub.router.sessions[name], with_session=True)
    member.hub.run_turn(NOW_MS)


def expire(member: Member, name: bytes) -> None:
    member.connection.close(CloseReason.CONNECTION_LOST)
    member.hub.run_turn(NOW_MS)
    member.hub.router.end_session(member.hub.router.sessions[name])
    member.hub.run_turn(NOW_MS)


@pytest.mark.parametrize("ends", [leave, be_sent_away, expire])
@pytest.mark.parametrize("unwritten", [0, 40])
def test_what_another_member_got_before_a_crash_does_not_come_again_with_the_end_that_the_crash_took(
    ends: Callable[[Member, bytes], None], unwritten: int
) -> None:
    """Its end takes several turns: the process dies between two of them, and the client ends its session anew."""
    count = 1500
    host = Host(SimulatedDisk())
    hub = clients_of(host)
    leaver = member_of(host, hub, b"leaver", 1000)
    for payload in named(count - unwritten):
        host.publish(payload, 2)
    host.write()
    for payload in named(count)[count - unwritten :]:
        host.publish(payload, 2)  # and it is not in the log when the member leaves
    stayer, _ = host.router.open_session(b"stayer", False, NEVER)
    host.router.subscribe(stayer, FILTER, 2)
    ends(leaver, b"leaver")
    while host.log.commit():
        pass
    host = restarted(host)
    gone, here = host.router.sessions[b"leaver"], host.router.sessions[b"stayer"]
    passed_on = [host.log.fetch(delivery[1], NOW_MS * 1000, NOW_MS).body for delivery in here.owed.deliveries()]
    left = [host.log.fetch(delivery[1], NOW_MS * 1000, NOW_MS).body for delivery in gone.owed.deliveries()]
    assert sorted(passed_on + left) == sorted(named(count))
    assert len(passed_on) > unwritten


def test_a_message_that_is_not_written_yet_waits_until_it_is() -> None:
    host = Host(SimulatedDisk())
    host.log.durability = "none"  # what is appended may leave
    hub = clients_of(host)
    leaver = member_of(host, hub, b"leaver", 1000)
    for payload in named(5):
        host.publish(payload, 2)
    for _ in range(3):
        hub.run_turn(NOW_MS)
    assert leaver.read() == [b"0", b"1"]
    stayer, _ = host.router.open_session(b"stayer", False, NEVER)
    host.router.subscribe(stayer, FILTER, 2)
    end_by_expiry(host, leaver, b"leaver")
    host.write()
    assert host.router.ledger.dropped() == {"session_ended": 2}
    assert stayer.state()["outgoing"]["queued"] == 3


def test_every_message_of_a_group_of_two_routers_reaches_somebody_or_is_counted() -> None:
    """A publishes, B has the members: what it was sent, what waits there, what is on its way and what comes later."""
    here, there = Host(SimulatedDisk()), Host(SimulatedDisk())
    here.forwarding.want(here.peer, FILTER, 2, True, 2)
    hub = clients_of(there)
    leaver = member_of(there, hub, b"leaver", 1000)
    sent = 0

    def carry() -> None:
        nonlocal sent
        here.write()
        for _, record, *_ in here.peer.session.owed.deliveries():
            body = here.log.fetch(record, NOW_MS * 1000, NOW_MS).body
            sent += 1
            there.forwarding.receive_message(
                there.peer, message(b"t", body, 2, False, b"", -1, NOW_MS, 0), sent, 5, record, identifier_of(GROUP)
            )
        here.forwarding.acknowledge(here.peer, sent)

    for payload in named(5):
        here.publish(payload, 2)
    carry()
    there.write()
    assert leaver.read() == [b"0", b"1"]
    for payload in named(8)[5:]:
        here.publish(payload, 2)
    carry()  # and they are not durable there when the member leaves
    stayer = member_of(there, hub, b"stayer", 1000)
    end_by_expiry(there, leaver, b"leaver")
    carry()
    there.write()
    owed = {
        there.log.fetch(delivery[1], NOW_MS * 1000, NOW_MS).body
        for delivery in there.router.sessions[b"stayer"].owed.deliveries()
    }
    assert owed == set(named(8)[2:])
    assert (here.router.ledger.dropped(), there.router.ledger.dropped()) == ({}, {"session_ended": 2})
    # The last one leaves, too: what it was sent, and what nobody is left for.
    end_by_expiry(there, stayer, b"stayer")
    there.write()
    assert there.router.ledger.dropped() == {"session_ended": 4, "no_member": 4}
