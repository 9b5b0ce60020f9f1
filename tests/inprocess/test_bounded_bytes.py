"""What is remembered of topics is bounded by bytes, and matching by what filters with + may be."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from broker.reactor.turn import Hub
from broker.wire.packets import Disconnect, Publish, Suback, Subscribe, subscription
from broker.wire.reasons import CloseReason, Reason
from broker.worker.memory_guard import FULL_ROUTES_SHARE, MemoryGuard
from tests.support.turned_hub import TurnedHub

ROOM = 1 << 20


def test_routes_take_no_more_bytes_than_they_may_however_long_their_topics_are() -> None:
    broker = TurnedHub(route_cache_bytes_max=ROOM)
    publisher = broker.connect(b"publisher", 4)
    cache = broker.router.tree.cache
    for number in range(200):
        publisher.send(Publish(b"%d/" % number + b"x" * 60_000, b""))
        broker.turn()
        assert cache.size_bytes <= ROOM
    assert 10 <= broker.router.tree.route_cache_count <= 17
    for number in range(10_000):
        publisher.send(Publish(b"%d" % number, b""))
    broker.turn(5)
    assert cache.size_bytes <= ROOM
    assert broker.router.tree.route_cache_count > 3000


def test_a_route_with_many_receivers_counts_with_them_and_a_changed_one_anew() -> None:
    broker = TurnedHub(route_cache_bytes_max=65_536)
    cache = broker.router.tree.cache
    publisher = broker.connect(b"publisher")
    publisher.send(Publish(b"t", b""))
    before = cache.size_bytes
    clients = [broker.connect(b"reader%d" % number) for number in range(100)]
    for client in clients:
        client.send(Subscribe(1, (subscription(b"t"),)))
    broker.turn(2)
    publisher.send(Publish(b"u", b""), Publish(b"t", b""))
    assert cache.size_bytes >= before + 100 * 30
    for number in range(100):
        publisher.send(Publish(b"t%d" % number, b""))
        assert cache.size_bytes <= 65_536
    cache.bytes_max = 0
    assert cache.size_bytes == 0 == broker.router.tree.route_cache_count
    publisher.send(Publish(b"t", b"x"))
    assert [packet.payload for packet in clients[0].packets() if isinstance(packet, Publish)] == [b"", b"x"]


def test_the_guard_of_memory_leaves_routes_a_part_of_their_room_and_gives_it_back() -> None:
    broker = TurnedHub(route_cache_bytes_max=ROOM)
    assert isinstance(broker.hub, Hub)
    guard: Any = MemoryGuard(1, broker.hub, broker.router.ledger)
    publisher = broker.connect(b"publisher", 4)
    for number in range(200):
        publisher.send(Publish(b"%d/" % number + b"x" * 60_000, b""))
    broker.turn(10)
    guard.check()
    assert broker.router.ledger.memory_full
    assert broker.router.tree.cache.size_bytes <= ROOM // FULL_ROUTES_SHARE
    guard.limit_bytes = 1 << 50
    guard.check()
    assert broker.router.tree.cache.bytes_max == ROOM
    guard.close()


def test_topic_names_behind_a_client_s_aliases_have_a_bound_in_bytes() -> None:
    broker = TurnedHub(alias_bytes_max=100_000)
    client = broker.connect(b"aliases")
    long = b"x" * 40_000
    for alias, topic in ((1, long), (2, long), (1, b"short"), (3, long), (3, b"y" * 40_000)):
        client.send(Publish(topic, b"", properties={"topic_alias": alias}))
    broker.turn()
    assert client.packets() == []
    client.send(Publish(b"z" * 40_000, b"", properties={"topic_alias": 4}))
    broker.turn()
    (last,) = client.packets()
    assert isinstance(last, Disconnect)
    assert last.reason == Reason.QUOTA_EXCEEDED
    assert client.connection.close_reason == CloseReason.QUOTA_EXCEEDED


def test_while_there_is_no_memory_aliases_hold_little() -> None:
    broker = TurnedHub()
    client = broker.connect(b"aliases")
    broker.router.ledger.memory_full = True
    client.send(Publish(b"x" * 4000, b"", properties={"topic_alias": 1}))
    broker.turn()
    assert client.packets() == []
    client.send(Publish(b"x" * 4000, b"", properties={"topic_alias": 2}))
    broker.turn()
    assert client.connection.close_reason == CloseReason.QUOTA_EXCEEDED


def test_towards_a_client_long_topic_names_have_aliases_as_far_as_the_bound_goes() -> None:
    broker = TurnedHub(alias_bytes_max=100_000)
    reader = broker.connect(b"reader", properties={"topic_alias_maximum": 10})
    reader.send(Subscribe(1, (subscription(b"#"),)))
    publisher = broker.connect(b"publisher")
    broker.turn(2)
    reader.packets()
    for _ in range(2):
        for number in range(4):
            publisher.send(Publish(b"%d/" % number + b"x" * 40_000, b""))
        broker.turn(2)
    aliases = [packet.properties.get("topic_alias") for packet in reader.packets() if isinstance(packet, Publish)]
    assert aliases == [1, 2, None, None] * 2


@pytest.mark.parametrize("version", [4, 5])
def test_a_filter_with_a_plus_has_so_many_levels_at_most_and_one_without_has_more(version: int) -> None:
    broker = TurnedHub(wildcard_levels_max=3)
    client = broker.connect(b"filters", version)
    asked = (b"a/+/b", b"a/+/b/c", b"$share/g/a/+/b", b"$share/g/a/+/b/c", b"a/b/c/d/e/#", b"+/+/#", b"+/a/b/#")
    client.send(Subscribe(1, tuple(subscription(each) for each in asked)))
    broker.turn()
    refused = Reason.TOPIC_FILTER_INVALID if version == 5 else Reason.UNSPECIFIED_ERROR
    assert client.packets() == [Suback(1, (0, refused, 0, refused, 0, 0, refused))]


def test_whatever_is_subscribed_a_topic_is_looked_for_in_as_many_places_as_the_setting_allows() -> None:
    # The worst that filters of six levels can be: all that a topic name of six levels matches, and more below.
    levels = 6
    broker = TurnedHub(wildcard_levels_max=levels, subscriptions_per_client_max=100)
    broker.hub.bound_turns(share=1)  # a publish ends each share, so its work is seen by itself
    worst = [
        b"/".join(combination)
        for length in range(1, levels + 1)
        for combination in itertools.product((b"a", b"+", b"#"), repeat=length)
        if b"#" not in combination[:-1]
    ]
    deep = [
        b"/".join((b"a", b"+")[number >> bit & 1] if bit < 7 else b"a" for bit in range(100)) for number in range(128)
    ]
    filters = worst + deep
    for number, some in enumerate(filters[at : at + 100] for at in range(0, len(filters), 100)):
        client = broker.connect(b"attacker%d" % number)
        client.send(Subscribe(1, tuple(subscription(each, 0) for each in some)))
        broker.turn(20)
    publisher = broker.connect(b"publisher")
    broker.turn()
    publisher.send(Publish(b"/".join([b"a"] * 99 + [b"fresh"]), b""))
    assert broker.hub.turn_work <= 2 * (2 ** (levels + 1) + 100 + len(worst)) + 1000
