"""What goes to other routers and comes from them: custody, repeats, recovery."""

from __future__ import annotations

from typing import Any

import pytest

from broker.reactor.pump import Pump
from router.core.message import message
from router.forwarding import Forwarding, group_identifier
from router.log.segments import RECORDS_AT
from router.recovery.open_log import begin, open_log
from router.recovery.snapshot import compact
from router.router import Router
from router.sessions.ledger import Ledger
from router.sessions.local_receiver import LocalClient
from tests.support.disk import SimulatedDisk

NOW_MS = 1_000_000
NEVER = 0xFFFFFFFF
PEER = b"\0peer/n/1"


class Host:
    """A router with its log on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.router = Router(Ledger())
        opened = open_log(
            disk, self.router, worker=0, make_will=lambda *fields: None, make_mark=lambda: 7, now_us=NOW_MS * 1000,
            now_ms=NOW_MS, segment_bytes_max=2000,
        )  # fmt: skip
        self.problems = opened.problems
        self.log = opened.log
        self.pump = Pump(self.router, self.log)
        begin(self.router, opened)
        self.forwarding = Forwarding(self.router)
        self.peer = self.forwarding.peer(b"n/1")

    def write(self) -> None:
        """A turn, and all that it has recorded becomes durable."""
        for _ in range(3):
            self.log.append(self.router.ledger.records)
            while self.log.commit():
                pass
            self.router.settle(self.log.durable)

    def publish(self, payload: bytes, qos: int = 1, topic: bytes = b"t") -> int:
        return int(self.router.publish_message(message(topic, payload, qos, False, b"", -1, NOW_MS, 0))[0])

    def owed(self) -> list[bytes]:
        """Return the payloads that the peer is owed, in order."""
        owed = self.peer.session.owed
        deliveries: list[Any] = [] if owed is None else owed.deliveries()
        return [self.log.fetch(delivery[1], NOW_MS * 1000, NOW_MS).body for delivery in deliveries]


def incoming(payload: bytes, qos: int = 1) -> Any:
    return message(b"t", payload, qos, False, b"", -1, NOW_MS, 0)


def identifier_of(group: bytes) -> bytes:
    """Return the property that names a group between routers."""
    value, encoded = group_identifier(group), b"\x0b"
    while value > 0x7F:
        encoded += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return encoded + bytes((value,))


def restarted(host: Host, power_loss: bool = False) -> Host:
    if power_loss:
        host.disk.power_loss()
    else:
        host.disk.process_killed()
    again = Host(host.disk)
    assert again.problems == []
    return again


def test_what_a_group_is_called_between_routers_stays_the_same_from_version_to_version() -> None:
    name = b"fleet/north/+/temperature/#" * 2
    # As the first version had them; nothing else says what they are.
    assert {length: group_identifier(name[:length]) for length in (0, 1, 3, 7, 8, 9, 12, 15, 16, 17, 23, 24, 40)} == {
        0: 77920350,
        1: 102669736,
        3: 260036665,
        7: 73549199,
        8: 75258689,
        9: 247760501,
        12: 197808235,
        15: 167393972,
        16: 179418423,
        17: 132298087,
        23: 66020453,
        24: 232459593,
        40: 177599693,
    }


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 24, 63, 64, 65, 100])
def test_the_topic_that_came_last_is_not_taken_for_another_one_of_its_length(length: int) -> None:
    host = Host(SimulatedDisk())
    topic = b"a" * length
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, topic, 1)
    sequence = 0
    for at in range(length):
        for name in (topic, topic[:at] + b"b" + topic[at + 1 :]):
            sequence += 1
            host.forwarding.receive_message(
                host.peer, message(name, b"x", 1, False, b"", -1, NOW_MS, 0), sequence, 5, sequence
            )
    host.write()
    assert session.state()["outgoing"]["queued"] == length


def test_what_a_peer_wants_durably_is_owed_to_it_over_a_crash_until_it_has_it() -> None:
    host = Host(SimulatedDisk())
    host.forwarding.want(host.peer, b"t", 1, True)
    assert host.publish(b"one") == 1
    assert host.publish(b"two", qos=2) == 1
    assert host.publish(b"none", qos=0) == 1
    host.write()
    assert host.owed() == [b"one", b"two"]
    host = restarted(host)
    assert host.owed() == [b"one", b"two"]
    assert host.publish(b"three") == 1
    host.write()
    assert host.owed() == [b"one", b"two", b"three"]


def test_what_a_peer_has_acknowledged_is_owed_no_more_after_a_crash() -> None:
    host = Host(SimulatedDisk())
    host.forwarding.want(host.peer, b"t", 1, True)
    for payload in (b"one", b"two", b"three"):
        host.publish(payload)
    host.write()
    # It is known by its record: the numbers of deliveries are others in the next life.
    second = host.peer.session.owed.deliveries()[1][1]
    host.router.ledger.records.add("peer_acknowledged", NOW_MS * 1000, host.peer.number, second)
    host.write()
    assert restarted(host).owed() == [b"three"]


def test_what_only_ephemeral_sessions_of_an_absent_peer_want_is_owed_to_it_too() -> None:
    host = Host(SimulatedDisk())
    host.forwarding.want(host.peer, b"t", 1, False)
    host.publish(b"one")
    host.write()
    assert host.owed() == [b"one"]
    host = restarted(host)
    assert host.owed() == [b"one"]
    assert host.router.tree.subscriptions_of(host.peer.session) == []  # the wish was the process's


def test_a_repeat_is_known_before_and_after_a_crash_of_the_receiver() -> None:
    host = Host(SimulatedDisk())
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 2)
    host.write()
    assert host.forwarding.receive_message(host.peer, incoming(b"one", 2), 1, 5, 17)
    assert not host.forwarding.receive_message(host.peer, incoming(b"one", 2), 1, 5, 17)  # the link sent it again
    assert not host.forwarding.receive_message(host.peer, incoming(b"one", 2), 1, 6, 17)  # its process died
    host.write()
    host = restarted(host, power_loss=True)
    assert not host.forwarding.receive_message(host.peer, incoming(b"one", 2), 1, 7, 17)
    assert host.forwarding.receive_message(host.peer, incoming(b"two", 2), 2, 7, 18)
    host.write()
    owed = host.router.sessions[b"c"].owed.deliveries()
    assert [host.log.fetch(delivery[1], 0, 0).body for delivery in owed] == [b"one", b"two"]


def test_what_came_from_a_peer_and_was_not_durable_is_new_after_a_loss_of_power() -> None:
    host = Host(SimulatedDisk())
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 1)
    host.write()
    acknowledged = []
    assert host.forwarding.receive_message(host.peer, incoming(b"one"), 1, 5, 17)
    host.forwarding.when_durable(host.peer, lambda: acknowledged.append(1))
    assert acknowledged == []
    again = restarted(host, power_loss=True)
    assert again.forwarding.receive_message(again.peer, incoming(b"one"), 1, 5, 17)
    again.forwarding.when_durable(again.peer, lambda: acknowledged.append(1))
    again.write()
    assert acknowledged == [1]


def test_a_forwarded_message_is_never_forwarded_again() -> None:
    host = Host(SimulatedDisk())
    host.forwarding.want(host.forwarding.peer(b"n/2"), b"t", 1, True)
    host.forwarding.want(host.peer, b"t", 1, True)
    assert host.forwarding.receive_message(host.peer, incoming(b"one"), 1, 5, 17)
    host.write()
    assert host.owed() == []
    assert host.forwarding.peer(b"n/2").session.owed is None


def test_a_peer_is_owed_one_copy_whatever_it_wants_and_a_pick_by_itself() -> None:
    host = Host(SimulatedDisk())
    host.forwarding.want(host.peer, b"t", 1, True)
    host.forwarding.want(host.peer, b"#", 2, False)
    host.forwarding.want(host.peer, b"$share/g/t", 1, True, 3)
    assert host.publish(b"one") == 2
    host.write()
    assert host.owed() == [b"one", b"one"]
    assert [bool(delivery[6]) for delivery in host.peer.session.owed.deliveries()] == [True, False]
    host = restarted(host)
    assert [bool(delivery[6]) for delivery in host.peer.session.owed.deliveries()] == [True, False]


def test_what_a_peer_picked_for_a_group_goes_to_one_member_and_to_nobody_else() -> None:
    host = Host(SimulatedDisk())
    for name in (b"a", b"b"):
        session, _ = host.router.open_session(name, False, NEVER)
        host.router.subscribe(session, b"$share/g/t", 1)
    plain, _ = host.router.open_session(b"plain", False, NEVER)
    host.router.subscribe(plain, b"t", 1)
    other = Host(SimulatedDisk())
    other.forwarding.want(other.peer, b"$share/g/t", 1, True, 1)
    other.publish(b"one")
    other.write()
    ids = other.peer.session.owed.deliveries()[0][6]
    for number in (1, 2):
        assert host.forwarding.receive_message(host.peer, incoming(b"one"), number, 5, 16 + number, ids)
    host.write()
    for again in (host, restarted(host)):
        owed = {name: session.owed for name, session in again.router.sessions.items()}
        assert owed[b"plain"] is None
        assert len(owed[b"a"].deliveries()) == len(owed[b"b"].deliveries()) == 1


def test_a_snapshot_keeps_what_peers_are_owed_and_what_was_heard_of_them() -> None:
    host = Host(SimulatedDisk())
    host.forwarding.want(host.peer, b"t", 1, True)
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 2)
    payloads = [b"%d" % number * 50 for number in range(40)]
    for payload in payloads:
        host.publish(payload)
        host.write()
    assert host.forwarding.receive_message(host.peer, incoming(b"heard", 2), 1, 5, 17)
    for _ in range(10):
        host.publish(b"x" * 200)
        host.write()
    made = compact(host.disk, 0, lambda: 9)
    assert made is not None
    host = restarted(host)
    assert host.owed() == payloads + [b"x" * 200] * 10
    assert not host.forwarding.receive_message(host.peer, incoming(b"heard", 2), 1, 6, 17)


def test_what_a_peer_is_owed_beyond_its_bound_is_dropped_and_counted() -> None:
    host = Host(SimulatedDisk())
    host.router.ledger.peer_messages_max = 2
    host.forwarding.want(host.peer, b"t", 1, True)
    for payload in (b"one", b"two", b"three"):
        host.publish(payload)
        host.write()
    assert host.owed() == [b"one", b"two"]
    assert host.router.ledger.dropped() == {"peer_gone": 1}
    assert restarted(host).owed() == [b"one", b"two"]


def test_what_a_peer_is_owed_for_itself_and_for_a_group_is_no_repeat_of_each_other() -> None:
    sender, receiver = Host(SimulatedDisk()), Host(SimulatedDisk())
    for name, topic_filter in ((b"plain", b"t"), (b"member", b"$share/g/t"), (b"other", b"$share/h/#")):
        session, _ = receiver.router.open_session(name, False, NEVER)
        receiver.router.subscribe(session, topic_filter, 2)
        sender.forwarding.want(sender.peer, topic_filter, 2, True, 1)
    sender.publish(b"one", 2)
    sender.write()
    for incarnation, host in enumerate((sender, restarted(sender)), 5):
        for sequence, (_, record, *_, identifiers, _) in enumerate(host.peer.session.owed.deliveries()):
            receiver.forwarding.receive_message(
                receiver.peer, incoming(b"one", 2), 1 + sequence, incarnation, record, identifiers
            )
    receiver.write()
    assert receiver.peer.repeats == 3
    for name in (b"plain", b"member", b"other"):
        assert len(receiver.router.sessions[name].owed.deliveries()) == 1


def test_what_overtakes_at_qos_0_does_not_make_repeats_of_what_comes_behind() -> None:
    host = Host(SimulatedDisk())
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 2)
    glance = LocalClient(b"glance")
    host.router.subscribe(glance, b"t", 0)
    host.write()
    # Published at QoS 2 and wanted here at QoS 0 only: it left at once, and these wait for their records there.
    for number in (20, 21):
        assert host.forwarding.receive_message(host.peer, incoming(b"hasty", 2), 0, 5, number)
    assert host.forwarding.receive_message(host.peer, incoming(b"one", 2), 1, 5, 18)
    assert host.forwarding.receive_message(host.peer, incoming(b"hasty", 2), 0, 5, 22)
    host.write()
    assert [(taken.body, qos) for taken, qos, _, _ in glance.take()] == [
        (b"hasty", 0),
        (b"hasty", 0),
        (b"one", 0),
        (b"hasty", 0),
    ]
    # Nor after a crash here: what has no number in the queue there is in no record here.
    host = restarted(host)
    assert host.forwarding.receive_message(host.peer, incoming(b"two", 2), 1, 6, 19)
    host.write()
    owed = host.router.sessions[b"c"].owed.deliveries()
    assert [host.log.fetch(delivery[1], 0, 0).body for delivery in owed] == [b"one", b"two"]


def test_what_waits_for_its_record_goes_to_another_member_before_the_end_of_its_session_is_recorded() -> None:
    host = Host(SimulatedDisk())
    for name in (b"a", b"b"):
        session, _ = host.router.open_session(name, False, NEVER)
        host.router.subscribe(session, b"$share/g/t", 2)
    host.write()
    host.publish(b"one", 2)
    host.publish(b"two", 2)
    for number in (1, 2):
        assert host.forwarding.receive_message(
            host.peer, incoming(b"far %d" % number, 2), number, 5, number, identifier_of(b"g/t")
        )
    host.router.end_session(host.router.sessions[b"a"])
    # All of it is in the log, and nothing has settled when the process dies.
    host.log.append(host.router.ledger.records)
    while host.log.commit():
        pass
    host = restarted(host)
    owed = [host.log.fetch(delivery[1], 0, 0).body for delivery in host.router.sessions[b"b"].owed.deliveries()]
    assert sorted(owed) == [b"far 1", b"far 2", b"one", b"two"]


def host_with_groups() -> Host:
    """A peer wants a topic for two groups."""
    host = Host(SimulatedDisk())
    host.forwarding.want(host.peer, b"$share/g/t", 1, True, 1)
    host.forwarding.want(host.peer, b"$share/h/t", 1, True, 1)
    host.write()
    return host


def test_a_message_that_a_peer_was_picked_for_is_accepted_and_owed_or_neither() -> None:
    host = host_with_groups()
    host.publish(b"one", 2)
    host.write()
    name = host.disk.names()[-1]  # the turn's own segment
    content = host.disk.content(name)
    ends = [RECORDS_AT]
    while ends[-1] < len(content):
        ends.append(ends[-1] + int.from_bytes(content[ends[-1] : ends[-1] + 4], "little"))
    assert len(ends) == 1 + 5
    # Wherever the log is torn, the record that says that it was accepted goes first.
    for end in ends[:-1]:
        disk = host.disk.copy()
        disk.put(name, content[: end + 5])
        assert Host(disk).owed() == []


def test_what_a_peer_was_picked_for_is_owed_to_it_though_its_wish_is_forgotten() -> None:
    host = host_with_groups()
    host.publish(b"one", 2)
    host.forwarding.want(host.peer, b"$share/g/t", 1, False, 1)  # from now on as long as its process lives
    host.write()
    before = [delivery[1:4] + delivery[5:7] for delivery in host.peer.session.owed.deliveries()]
    host = restarted(host)
    assert [delivery[1:4] + delivery[5:7] for delivery in host.peer.session.owed.deliveries()] == before
    assert host.owed() == [b"one", b"one"]


def hear(host: Host, payload: bytes, sequence: int, incarnation: int, n: int) -> bool:
    """Take a message of the peer's; whether it was new."""
    return bool(host.forwarding.receive_message(host.peer, incoming(payload), sequence, incarnation, n))


def test_what_a_peer_sends_under_numbers_that_its_log_has_lost_is_new() -> None:
    host = Host(SimulatedDisk())
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 1)
    host.forwarding.began(host.peer, 5, 0)
    assert [hear(host, b"%d" % n, n, 5, n) for n in (1, 2, 3, 4)] == [True] * 4
    # Its next process has 1 and 2 in its log, and gives 3 and 4 anew.
    host.forwarding.began(host.peer, 6, 2)
    assert [hear(host, b"again", n, 6, n) for n in (1, 2)] == [False, False]
    assert [hear(host, b"other %d" % n, n, 6, n) for n in (3, 4)] == [True, True]
    host.forwarding.began(host.peer, 6, 2)  # with each epoch
    assert not hear(host, b"other 4", 4, 6, 4)
    host.write()
    assert session.state()["outgoing"]["queued"] == 6


@pytest.mark.parametrize("compacted", [False, True])
def test_which_process_of_a_peer_sent_what_came_is_known_after_a_crash(compacted: bool) -> None:
    host = Host(SimulatedDisk())
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 1)
    for incarnation, after, numbers in ((5, 0, (1, 2, 3, 4)), (6, 2, (3,))):
        host.forwarding.began(host.peer, incarnation, after)
        for n in numbers:
            assert hear(host, b"." * 900, n, incarnation, n)
            host.write()
    if compacted:
        assert compact(host.disk, 0, lambda: 9) is not None
    host = restarted(host)
    assert (host.peer.heard, host.peer.heard_incarnation) == (3, 6)
    host.forwarding.began(host.peer, 6, 2)
    assert [hear(host, b"x", sequence, 6, n) for sequence, n in ((1, 3), (2, 4))] == [False, True]
    # What the process before had under way may come late.
    assert not hear(host, b"late", 9, 5, 5)


def test_what_came_before_a_peer_said_where_it_began_is_a_repeat_if_its_log_still_has_it() -> None:
    host = Host(SimulatedDisk())
    session, _ = host.router.open_session(b"c", False, NEVER)
    host.router.subscribe(session, b"t", 1)
    host.forwarding.began(host.peer, 5, 0)
    assert all(hear(host, b"%d" % n, n, 5, n) for n in (1, 2, 3))
    host.write()
    host = restarted(host)
    host.forwarding.began(host.peer, 6, 10)
    assert [hear(host, b"x", sequence, 6, n) for sequence, n in ((1, 3), (2, 4))] == [False, True]


def test_what_a_peer_was_picked_for_goes_to_another_if_it_restarts_where_nothing_is_logged() -> None:
    router: Any = Router(Ledger())
    forwarding = Forwarding(router)
    peers = [forwarding.peer(name) for name in (b"n/1", b"n/2")]
    for peer in peers:
        forwarding.want(peer, b"$share/g/t", 1, True, 1)
    for number in range(4):
        router.publish_message(incoming(b"%d" % number))
    assert [len(peer.session.owed.deliveries()) for peer in peers] == [2, 2]
    forwarding.restarted(peers[0], 1)
    assert [len(peer.session.owed.deliveries()) for peer in peers] == [0, 4]
    assert router.ledger.dropped() == {}
    forwarding.want_no_more(peers[0], b"$share/g/t")
    forwarding.restarted(peers[1], 1)
    assert [len(peer.session.owed.deliveries()) for peer in peers] == [0, 0]
    assert router.ledger.dropped() == {"no_member": 4}
