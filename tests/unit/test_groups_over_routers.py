"""A shared subscription whose members are on several routers and may read different topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.admin.route_merge import merged_heads
from broker.reactor.pump import Pump
from router.core.message import message
from router.core.receiver import NARROWED_OPTION
from router.core.rights import Rights
from router.core.varint import encode_varint
from router.forwarding import Forwarding, group_identifier
from router.peers.peer import PEER_PREFIX
from router.recovery.open_log import begin, open_log
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.disk import SimulatedDisk

NOW_MS = 1_000_000
NEVER = 0xFFFFFFFF
GROUP = b"$share/g/#"
STRATEGIES = ("round_robin", "random", "sticky", "hash_client", "hash_topic")


def identifier_of(group: bytes) -> bytes:
    """Return the property that names a group between routers."""
    return b"\x0b" + encode_varint(group_identifier(group))


class Node:
    """Some routers that are one broker, with a kept session on each that is a member of one group.

    Args:
        may_read: by router, the topics that its member may read.
    """

    def __init__(self, may_read: Sequence[bytes], strategy: str = "round_robin") -> None:
        self.may_read = may_read
        self.disks = [SimulatedDisk() for _ in may_read]
        self.strategy = strategy
        self.hops = 0
        self.carried: dict[tuple[int, int], int] = {}  # from one router to another: deliveries below this number
        self.routers: list[Any] = [None] * len(may_read)
        self.logs: list[Any] = [None] * len(may_read)
        self.forwardings: list[Any] = [None] * len(may_read)
        for number in range(len(may_read)):
            self.start(number)
            session, _ = self.routers[number].open_session(b"m%d" % number, False, NEVER)
            self.routers[number].subscribe(session, GROUP, 1 | NARROWED_OPTION)
            self.ask(number)
            self.write(number)

    def start(self, number: int) -> None:
        """Start a router on what its disk has."""
        self.carried = {link: end for link, end in self.carried.items() if link[0] != number}  # nobody has told it
        router = self.routers[number] = Router(Ledger(), seed=number, strategy=self.strategy)
        opened = open_log(
            self.disks[number], router, worker=number, make_will=lambda *fields: None, make_mark=lambda: 7,
            now_us=NOW_MS * 1000, now_ms=NOW_MS,
        )  # fmt: skip
        self.logs[number] = opened.log
        Pump(router, opened.log)
        begin(router, opened)
        forwarding = self.forwardings[number] = Forwarding(router)
        for other in range(len(self.may_read)):
            if other == number:
                router.tree.router_key = group_identifier(PEER_PREFIX + b"n/%d" % number) - 1  # as peers name it
            else:
                forwarding.want(forwarding.peer(b"n/%d" % other), GROUP, 1, True, 1)

    def ask(self, number: int) -> None:
        """Have a router ask what its member may read."""
        router = self.routers[number]
        router.tree.ask(Rights(lambda principal, topic: topic in self.may_read[number].split()))
        router.give_rights(router.sessions[b"m%d" % number], object())

    def write(self, number: int) -> None:
        """A turn, and all that it has recorded becomes durable."""
        for _ in range(3):
            self.logs[number].append(self.routers[number].ledger.records)
            while self.logs[number].commit():
                pass
            self.routers[number].settle(self.logs[number].durable)

    def publish(self, at: int, topic: bytes, payload: bytes) -> None:
        self.routers[at].publish_message(message(topic, payload, 1, False, b"", -1, NOW_MS, 0))
        self.write(at)

    def carry(self) -> None:
        """Bring everything to whom it is owed, until nobody owes anything."""
        while any(self.carry_some(number) for number in range(len(self.routers))):
            assert self.hops < 1000, "it goes round and round"

    def carry_some(self, number: int) -> bool:
        found = False
        for other in range(len(self.routers)):
            if other == number:
                continue
            peer = self.forwardings[number].peer(b"n/%d" % other)
            for place, record, *_, identifiers, _ in peer.session.owed.deliveries() if peer.session.owed else ():
                if place < self.carried.get((number, other), 0):
                    continue
                kept = self.logs[number].fetch(record, NOW_MS * 1000, NOW_MS)
                there = self.forwardings[other]
                there.receive_message(
                    there.peer(b"n/%d" % number), kept, 1 + place, self.logs[number].incarnation, record, identifiers
                )
                self.write(other)
                self.carried[number, other] = place + 1
                self.hops += 1
                found = True
        return found

    def got(self) -> list[list[bytes]]:
        """Return by router what its member is owed."""
        found = []
        for number, router in enumerate(self.routers):
            owed = router.sessions[b"m%d" % number].owed
            deliveries: list[Any] = [] if owed is None else owed.deliveries()
            found.append([self.logs[number].fetch(entry[1], NOW_MS * 1000, NOW_MS).body for entry in deliveries])
        return found

    def lost(self) -> int:
        return sum(router.ledger.dropped().get("no_member", 0) for router in self.routers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_message_comes_to_the_member_that_may_read_it_whatever_router_it_is_on(strategy: str) -> None:
    node = Node((b"a", b"b", b"c both", b"both"), strategy)
    payloads: dict[bytes, list[bytes]] = {topic: [] for topic in (b"a", b"b", b"c", b"both")}
    for count in range(3):
        for at in range(4):
            for topic in payloads:
                payloads[topic].append(b"%b %d %d" % (topic, at, count))
                node.publish(at, topic, payloads[topic][-1])
    node.carry()
    got = [sorted(found) for found in node.got()]
    assert got[0] == sorted(payloads[b"a"])
    assert got[1] == sorted(payloads[b"b"])
    assert sorted(got[2] + got[3]) == sorted(payloads[b"c"] + payloads[b"both"])
    assert {payload.split()[0] for payload in got[3]} == {b"both"}
    assert node.lost() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_no_member_anywhere_may_read_is_dropped_once_when_all_routers_have_had_it(strategy: str) -> None:
    node = Node((b"a", b"a", b"a"), strategy)
    for at in range(3):
        node.publish(at, b"b", b"nobody's")
    node.carry()
    assert node.got() == [[], [], []]
    assert node.lost() == 3
    assert node.hops <= 9, "from the publisher's to the two others, and to the publisher's if that was not asked"


def test_rights_that_change_while_a_message_is_under_way_count_where_it_comes_to() -> None:
    node = Node((b"", b"a", b""))
    node.publish(0, b"a", b"one")
    node.may_read = (b"", b"", b"a")
    for number in range(3):
        node.routers[number].tree.rights_changed()
    node.carry()
    assert node.got() == [[], [], [b"one"]]
    assert node.lost() == 0


def test_where_a_message_was_is_forgotten_by_a_crash_and_it_still_comes_to_who_may_read_it() -> None:
    node = Node((b"", b"", b"a"))
    for at in (0, 1):
        node.publish(at, b"a", b"%d" % at)
    node.carry_some(0)
    node.carry_some(1)
    for number in (0, 1):
        node.disks[number].process_killed()
        node.start(number)
        node.ask(number)
    node.carry()
    assert node.got()[:2] == [[], []]
    assert sorted(node.got()[2]) == [b"0", b"1"]
    assert node.lost() == 0


def test_what_names_more_routers_than_there_is_room_for_is_dropped_and_hurts_nothing() -> None:
    node = Node((b"", b"a"))
    there, peer = node.forwardings[0], node.forwardings[0].peer(b"n/1")
    names = [identifier_of(GROUP[7:]) + b"\0\x01" * count for count in (47, 48, 49, 120)]
    for number, identifiers in enumerate([*names, b"\0", b"\x0b", b"\x0b\xff\xff\xff\xff", b"\0\0\0"]):
        message_there = message(b"a", b"%d" % number, 1, False, b"", -1, NOW_MS, 0)
        assert there.receive_message(peer, message_there, 1 + number, 1, 1 + number, identifiers)
        node.write(0)
    assert len(peer.session.owed.deliveries()) == 1
    (identifiers,) = (delivery[6] for delivery in peer.session.owed.deliveries())
    assert len(identifiers) <= 255


def test_where_a_publish_would_go_is_told_as_it_goes_on() -> None:
    def head(worker: int, picked: str | None, here: str | None) -> dict[str, Any]:
        group = {
            "group": "g", "topic_filter": "#", "strategy": "round_robin", "members": 1, "worker": worker, "shown": [],
            "picked": None if picked is None else {"peer": picked}, "outcome": "sent",
            "here": {"picked": None, "outcome": "no_member"} if here is None else {
                "picked": {"client": here}, "outcome": "sent"},
        }  # fmt: skip
        return {"publisher": None, "filters": [], "groups": [group], "archived": False}

    def told(*heads: dict[str, Any]) -> tuple[Any, Any]:
        (group,) = merged_heads(dict(enumerate(heads)))["groups"]
        return group["picked"], group["outcome"]

    assert told(head(0, "n/1", None), head(1, None, "m1"), head(2, None, "m2")) == ({"client": "m1"}, "sent")
    assert told(head(0, "n/1", None), head(1, None, None), head(2, None, "m2")) == ({"client": "m2"}, "sent")
    assert told(head(0, "n/1", None), head(1, None, None), head(2, None, None)) == (None, "no_member")
    assert told(head(0, "n/9", None), head(1, None, "m1")) == ({"peer": "n/9"}, "sent"), "of which nobody has told"
