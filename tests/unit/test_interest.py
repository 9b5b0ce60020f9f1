"""What is wanted here, summed up for peers, while sessions change and end."""

from __future__ import annotations

from collections.abc import Iterable

import msgpack

from broker.wire.packets import Connect, Subscribe, encode, subscription
from mesh.frames import KINDS, VERSION
from mesh.interest import LINGER_MS, TAKEN_MAX, Interest, Wish
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.held_link import Linked


def test_a_session_that_is_to_end_with_its_connection_after_all_leaves_no_wish_behind() -> None:
    router = Router(Ledger())
    interest = router.interest = Interest()
    session, _ = router.open_session(b"c", False, 60)
    router.subscribe(session, b"t", 1)
    router.subscribe(session, b"$share/g/t", 2)
    assert interest.take(0) == [(b"t", Wish(1, True, 0)), (b"$share/g/t", Wish(2, True, 0))]
    # As its DISCONNECT says it, or an administrator.
    router.set_expiry_interval(session, 0)
    assert interest.take(0) == [(b"t", Wish(1, False, 0)), (b"$share/g/t", Wish(2, False, 0))]
    router.detach_session(session, False)
    assert interest.wish(b"t") is None
    # Who has no member of a group any more is not to be picked, or it would take what the members elsewhere could have.
    assert interest.take(1) == [(b"$share/g/t", None)]
    assert interest.take(1 + LINGER_MS) == [(b"t", None)]


class Heard(Interest):
    """Remembers what it is told of connections."""

    def connection_changes(self, online: bool, subscriptions: Iterable[tuple[bytes, int, int]]) -> None:
        self.heard = list(subscriptions)
        super().connection_changes(online, self.heard)


def test_a_connection_that_comes_or_goes_costs_by_shared_subscriptions_however_many_others_there_are() -> None:
    linked = Linked()
    interest = linked.router.interest = Heard()
    client = linked.hub.connect()
    client.feed_bytes(encode(Connect(5, b"c", True, properties={"session_expiry_interval": 60}), 5))
    client.feed_bytes(encode(Subscribe(1, tuple(subscription(b"t/%d" % number, 1) for number in range(20))), 5))
    client.feed_bytes(encode(Subscribe(2, (subscription(b"$share/g/t", 1),)), 5))
    linked.hub.run_turn(linked.now_ms)
    assert interest.wish(b"$share/g/t") == Wish(1, True, 1)
    client.close("connection_lost")
    linked.hub.run_turn(linked.now_ms)
    assert [topic_filter for topic_filter, _, _ in interest.heard] == [b"$share/g/t"]
    assert interest.wish(b"$share/g/t") == Wish(1, True, 0)
    interest.heard.clear()
    linked.hub.connect().feed_bytes(encode(Connect(5, b"c", False), 5))
    linked.hub.run_turn(linked.now_ms)
    assert [topic_filter for topic_filter, _, _ in interest.heard] == [b"$share/g/t"]
    assert interest.wish(b"$share/g/t") == Wish(1, False, 1)


def test_what_changes_at_once_is_told_some_at_a_time_and_in_the_order_of_the_changes() -> None:
    router = Router(Ledger())
    interest = router.interest = Interest()
    session, _ = router.open_session(b"c", False, 60)
    filters = [b"t/%d" % number for number in range(3 * TAKEN_MAX + 1)]
    for topic_filter in filters:
        router.subscribe(session, topic_filter, 1)
    offset = interest.offset()
    router.subscribe(session, b"later", 1)
    told: list[bytes] = []
    while interest.taken < offset:
        assert interest.due(0)
        part = interest.take(0)
        assert len(part) <= TAKEN_MAX
        told += [topic_filter for topic_filter, _ in part]
    assert told == [*filters, b"later"]
    assert interest.version == 4
    router.detach_session(session, False)
    router.end_session(session)
    while router.ended.count:
        router.forget_some()
    while interest.changed:
        assert interest.take(0) == []
    assert not interest.due(LINGER_MS - 1)
    gone = []
    while interest.due(LINGER_MS):
        gone.append(len(interest.take(LINGER_MS)))
    assert gone == [TAKEN_MAX, TAKEN_MAX, TAKEN_MAX, 2]


def test_what_is_wanted_again_is_not_said_to_be_wanted_no_more_however_much_is_told_before_it() -> None:
    router = Router(Ledger())
    interest = router.interest = Interest()
    session, _ = router.open_session(b"c", False, 60)
    router.subscribe(session, b"again", 1)
    interest.take(0)
    router.unsubscribe(session, b"again")
    interest.take(0)
    for number in range(TAKEN_MAX):
        router.subscribe(session, b"t/%d" % number, 1)
    router.subscribe(session, b"again", 1)
    assert all(wish is not None for _, wish in interest.take(LINGER_MS))
    assert interest.take(LINGER_MS) == []
    assert not interest.due(LINGER_MS)


def test_a_suback_waits_for_the_part_of_what_is_told_that_has_its_filter() -> None:
    linked = Linked()
    linked.come_up()
    session, _ = linked.router.open_session(b"c", False, 60)
    client = linked.hub.connect()
    client.feed_bytes(encode(Connect(5, b"later", True), 5))
    linked.hub.run_turn(linked.now_ms)
    client.take_output()
    for number in range(2 * TAKEN_MAX + 1):
        linked.router.subscribe(session, b"t/%d" % number, 1)
    client.feed_bytes(encode(Subscribe(1, (subscription(b"its/own", 1),)), 5))
    told: dict[int, set[bytes]] = {}
    while not linked.neighbour.installed or b"its/own" not in told[linked.neighbour.installed]:
        assert client.take_output() == b"", "the peer does not know what it wants"
        wakes = linked.wakes
        linked.sent.clear()
        linked.hub.run_turn(linked.now_ms)
        parts = [msgpack.unpackb(frame) for frame in linked.sent if frame[2] == KINDS.index("interest")]
        assert linked.wakes > wakes or not linked.mesh.interest.due(linked.now_ms)
        assert parts
        for _, _, _, _, version, _, _, wishes in parts:
            told.setdefault(version, set()).update(name for name, *_ in wishes)
        for version in {part[4] for part in parts}:
            linked.mesh.on_other(
                linked.neighbour,
                msgpack.packb([VERSION, KINDS.index("interest_installed"), linked.link.incarnation, version]),
            )
    linked.hub.run_turn(linked.now_ms)
    assert client.take_output()[:1] == b"\x90"
    assert sorted(map(len, told.values())) == [2, TAKEN_MAX, TAKEN_MAX]
