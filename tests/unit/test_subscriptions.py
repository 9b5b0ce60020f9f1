"""The subscription tree against a dict of subscriptions and the one rule it must obey."""

import gc
import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.message import message
from router.matching.subscription_tree import SubscriptionTree
from router.matching.topic_names import matches, parse_shared
from router.sessions.local_receiver import LocalClient

NO_LOCAL = 0x04
RETAIN_AS_PUBLISHED = 0x08

levels = st.sampled_from([b"a", b"b", b"", b"$S", b"a-level-of-more-than-sixteen-bytes"])
topic_names = st.lists(levels, min_size=1, max_size=4).map(b"/".join).filter(bool)
plain_filters = (
    st.tuples(st.lists(st.one_of(levels, st.just(b"+")), max_size=3), st.sampled_from([[], [b"#"]]))
    .map(lambda parts: b"/".join(parts[0] + parts[1]))
    .filter(bool)
)
shared_filters = st.builds(
    lambda share, inner: b"$share/" + share + b"/" + inner, st.sampled_from([b"g", b"h"]), plain_filters
)
numbers = st.integers(0, 4)


def encoded(identifier):
    """Return a Subscription Identifier property (5.0, 3.3.2.3.8)."""
    out = bytearray(b"\x0b")
    while identifier > 0x7F:
        out.append(identifier & 0x7F | 0x80)
        identifier >>= 7
    out.append(identifier)
    return bytes(out)


def split_identifiers(data):
    """Return the properties in a block of Subscription Identifiers, sorted."""
    found = []
    while data:
        assert data[0] == 0x0B
        end = 1
        while data[end] & 0x80:
            end += 1
        found.append(data[: end + 1])
        data = data[end + 1 :]
    return sorted(found)


class SubscriptionTreeMachine(RuleBasedStateMachine):
    """The smallest cache and all topics of the rules, so that routes are found, rebuilt and evicted."""

    def __init__(self):
        super().__init__()
        self.tree = SubscriptionTree(seed=3, routes_max=8)
        self.clients = [LocalClient(b"c%d" % number) for number in range(5)]
        self.model = {}  # (number, topic filter) -> (options, identifier)
        self.held = []  # (route, topic name, what it said)

    @rule(
        number=numbers,
        topic_filter=st.one_of(plain_filters, plain_filters, shared_filters),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        retain_as_published=st.booleans(),
        retain_handling=st.integers(0, 2),
        identifier=st.sampled_from([0, 0, 1, 127, 128, 16384, 2097152, 268435455]),
    )
    def subscribe(self, number, topic_filter, qos, no_local, retain_as_published, retain_handling, identifier):
        options = qos | RETAIN_AS_PUBLISHED * retain_as_published | retain_handling << 4
        if no_local and not topic_filter.startswith(b"$share/"):
            options |= NO_LOCAL
        is_new = self.tree.subscribe(self.clients[number], topic_filter, options, identifier)
        assert is_new == ((number, topic_filter) not in self.model)
        self.model[number, topic_filter] = (options, identifier)

    @rule(number=numbers, topic_filter=st.one_of(plain_filters, shared_filters))
    def unsubscribe(self, number, topic_filter):
        was_there = self.tree.unsubscribe(self.clients[number], topic_filter)
        assert was_there == ((number, topic_filter) in self.model)
        self.model.pop((number, topic_filter), None)

    @rule(choice=st.integers(0, 1000))
    def unsubscribe_one_that_is_there(self, choice):
        if self.model:
            number, topic_filter = sorted(self.model)[choice % len(self.model)]
            self.unsubscribe(number, topic_filter)

    @rule(number=numbers)
    def remove_receiver(self, number):
        keys = [key for key in self.model if key[0] == number]
        assert self.tree.remove_receiver(self.clients[number]) == len(keys)
        for key in keys:
            del self.model[key]

    @rule(number=numbers)
    def forget_client(self, number):
        """A client that is freed with subscriptions takes itself out."""
        self.clients[number] = LocalClient(b"c%d" % number)
        for key in [key for key in self.model if key[0] == number]:
            del self.model[key]

    def expected(self, topic_name, number, *, skip_no_local=False):
        """Return (QoS, retain as published, No Local, identifiers) that one client is owed of a topic, or None."""
        found = [
            self.model[key]
            for key in self.model
            if key[0] == number
            and parse_shared(key[1]) is None
            and matches(key[1], topic_name)
            and not (skip_no_local and self.model[key][0] & NO_LOCAL)
        ]
        if not found:
            return None
        return (
            max(options & 3 for options, _ in found),
            any(options & RETAIN_AS_PUBLISHED for options, _ in found),
            any(options & NO_LOCAL for options, _ in found),
            sorted(encoded(identifier) for _, identifier in found if identifier),
        )

    def expected_groups(self, topic_name):
        return {
            key[1].removeprefix(b"$share/")
            for key in self.model
            if parse_shared(key[1]) is not None and matches(parse_shared(key[1])[1], topic_name)
        }

    @rule(topic_name=topic_names)
    def route(self, topic_name):
        told = self.tree.receivers(topic_name)
        numbers_told = [self.clients.index(target[0]) for target in told]
        assert len(set(numbers_told)) == len(told)
        for number in range(len(self.clients)):
            expected = self.expected(topic_name, number)
            assert (expected is not None) == (number in numbers_told)
            if expected is not None:
                _, qos, retain_as_published, no_local, ids = told[numbers_told.index(number)]
                assert (qos, retain_as_published, no_local, split_identifiers(ids)) == expected
        groups = self.tree.shared_groups(topic_name)
        assert len({group.name for group in groups}) == len(groups)
        assert {group.name for group in groups} == self.expected_groups(topic_name)

    @rule(topic_name=topic_names, number=numbers, skip_no_local=st.booleans())
    def route_of_one(self, topic_name, number, skip_no_local):
        target = self.tree.receiver_for(topic_name, self.clients[number], skip_no_local)
        expected = self.expected(topic_name, number, skip_no_local=skip_no_local)
        if expected is None:
            assert target is None
        else:
            assert (*target[1:4], split_identifiers(target[4])) == expected

    @rule(topic_name=topic_names)
    def hold_a_route(self, topic_name):
        self.held.append((self.tree.read_route(topic_name), topic_name, self.told(topic_name)))

    def told(self, topic_name):
        """Return everything that a route of a topic must say now."""
        return (
            [self.expected(topic_name, number) for number in range(len(self.clients))],
            self.expected_groups(topic_name),
        )

    @invariant()
    def a_held_route_that_is_fresh_is_right(self):
        for route, topic_name, told in self.held:
            if self.tree.is_fresh(route):
                assert told == self.told(topic_name)

    @invariant()
    def counts_agree(self):
        assert self.tree.subscription_count == len(self.model)
        assert self.tree.route_cache_count <= 8
        inner = [(parse_shared(key[1]) or (None, key[1]))[1] for key in self.model]
        assert self.tree.node_count == len(
            {
                tuple(topic_filter.split(b"/")[: depth + 1])
                for topic_filter in inner
                for depth in range(topic_filter.count(b"/") + 1)
            }
        )
        assert self.tree.group_count == len({key[1] for key in self.model if parse_shared(key[1])})
        for number, client in enumerate(self.clients):
            assert sorted(self.tree.subscriptions_of(client)) == sorted(
                (key[1], *self.model[key]) for key in self.model if key[0] == number
            )


TestSubscriptionTree = SubscriptionTreeMachine.TestCase


def test_overlapping_subscriptions_are_one_copy_at_the_highest_qos_with_all_identifiers():
    # Proves: [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]
    tree = SubscriptionTree()
    client = LocalClient()
    tree.subscribe(client, b"a/#", 1, 1)
    tree.subscribe(client, b"a/+", 2, 300)
    tree.subscribe(client, b"a/b", 0)
    ((receiver, qos, _, _, ids),) = tree.receivers(b"a/b")
    assert (receiver, qos, split_identifiers(ids)) == (client, 2, [b"\x0b\x01", b"\x0b\xac\x02"])


def test_an_identical_filter_is_replaced_in_place():
    # Proves: [MQTT-3.8.4-3]
    tree = SubscriptionTree()
    client = LocalClient()
    for topic_filter in (b"a/+", b"a/b", b"$share/g/a"):
        assert tree.subscribe(client, topic_filter, 2, 5)
        assert not tree.subscribe(client, topic_filter, 1, 0)
        assert (topic_filter, 1, 0) in tree.subscriptions_of(client)
    assert tree.subscription_count == 3
    assert tree.receivers(b"a/b") == [(client, 1, False, False, b"")]


def test_wildcards_do_not_reach_dollar_topics():
    # Proves: [MQTT-4.7.2-1]
    tree = SubscriptionTree()
    client = LocalClient()
    tree.subscribe(client, b"#", 0)
    tree.subscribe(client, b"+/a", 0)
    tree.subscribe(client, b"$share/g/#", 0)
    assert tree.receivers(b"$SYS/a") == []
    assert tree.shared_groups(b"$SYS/a") == []
    tree.subscribe(client, b"$SYS/#", 0)
    assert len(tree.receivers(b"$SYS/a")) == 1
    assert len(tree.receivers(b"$SYS")) == 1


def test_an_exact_filter_makes_only_its_own_topic_stale():
    tree = SubscriptionTree()
    client = LocalClient()
    routes = {topic: tree.read_route(topic) for topic in (b"a/b", b"a/c", b"d")}
    tree.subscribe(client, b"a/b", 0)
    assert {topic for topic, route in routes.items() if not tree.is_fresh(route)} == {b"a/b"}


def test_a_wildcard_filter_makes_stale_what_lies_under_its_first_level():
    tree = SubscriptionTree()
    client = LocalClient()
    routes = {topic: tree.read_route(topic) for topic in (b"a/b", b"a", b"d/b")}
    tree.subscribe(client, b"a/+/c", 0)
    assert {topic for topic, route in routes.items() if not tree.is_fresh(route)} == {b"a/b", b"a"}
    tree.subscribe(client, b"+/b", 0)
    assert not any(tree.is_fresh(route) for route in routes.values())


def test_a_subscription_replaced_by_its_like_makes_nothing_stale():
    tree = SubscriptionTree()
    client = LocalClient()
    tree.subscribe(client, b"a/#", 1, 7)
    tree.subscribe(client, b"$share/g/#", 1)
    route = tree.read_route(b"a/b")
    tree.subscribe(client, b"a/#", 1 | 0x20, 7)  # only Retain Handling is another
    tree.subscribe(client, b"$share/g/#", 2)
    tree.subscribe(LocalClient(), b"$share/g/#", 2)
    assert tree.is_fresh(route)
    assert tree.read_route(b"a/b") is route


def test_a_route_that_is_held_is_replaced_and_not_changed():
    tree = SubscriptionTree()
    client = LocalClient()
    route = tree.read_route(b"a")
    tree.subscribe(client, b"a", 0)
    assert tree.read_route(b"a") is not route
    assert not tree.is_fresh(route)


def test_an_evicted_route_that_is_held_is_stale():
    tree = SubscriptionTree(routes_max=8)
    held = [tree.read_route(b"t%d" % number) for number in range(100)]
    assert tree.route_cache_count <= 8
    assert sum(tree.is_fresh(route) for route in held) == tree.route_cache_count


def test_a_used_route_outlives_a_stream_of_new_ones():
    tree = SubscriptionTree(routes_max=8)
    used = tree.read_route(b"used")
    for number in range(100):
        assert tree.read_route(b"used") is used
        tree.read_route(b"t%d" % number)
    assert tree.read_route(b"used") is used


def test_the_cache_grows_to_its_bound_and_not_beyond():
    tree = SubscriptionTree(routes_max=1000)
    for number in range(3000):
        tree.read_route(b"t%d" % number)
    assert 400 <= tree.route_cache_count <= 512
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        SubscriptionTree(routes_max=7)


def test_filters_and_names_of_thousands_of_levels_are_walked():
    tree = SubscriptionTree()
    client = LocalClient()
    tree.subscribe(client, b"+/" * 32767 + b"#", 1)
    tree.subscribe(client, b"/" * 65535, 1)
    assert len(tree.receivers(b"/" * 65535)) == 1
    assert len(tree.receivers(b"/" * 32766)) == 1
    assert tree.receivers(b"/" * 32765) == []
    tree.remove_receiver(client)
    assert tree.node_count == 0


def test_a_walk_that_branches_at_every_level_finds_every_filter():
    tree = SubscriptionTree()
    clients = []
    for number in range(256):
        clients.append(LocalClient())
        tree.subscribe(clients[-1], b"/".join(b"+" if number >> bit & 1 else b"x" for bit in range(8)), 0)
    assert {id(target[0]) for target in tree.receivers(b"/".join([b"x"] * 8))} == {id(client) for client in clients}


def test_many_receivers_leave_one_node_in_any_order():
    tree = SubscriptionTree()
    clients = [LocalClient() for _ in range(500)]
    for client in clients:
        tree.subscribe(client, b"a/b", 1)
        tree.subscribe(client, b"a/#", 1)
        tree.subscribe(client, b"$share/g/a/b", 1)
    random.Random(1).shuffle(clients)
    while clients:
        assert tree.remove_receiver(clients.pop()) == 3
        assert len(tree.receivers(b"a/b")) == len(clients)
    assert (tree.node_count, tree.subscription_count, tree.group_count) == (0, 0, 0)


def test_a_tree_that_goes_lets_its_receivers_go():
    tree = SubscriptionTree()
    client = LocalClient()
    tree.subscribe(client, b"a/b", 1)
    tree.subscribe(client, b"$share/g/a", 1)
    group = tree.shared_groups(b"a")[0]
    route = tree.read_route(b"a/b")
    del tree
    gc.collect()
    assert client.subscription_count == 0
    assert group.publish(None, message(b"a", b"x", 1)) == 0
    other = SubscriptionTree()
    assert not other.is_fresh(route)
    assert other.subscribe(client, b"a/b", 1)


def test_a_receiver_is_in_one_tree_only():
    first, second, client = SubscriptionTree(), SubscriptionTree(), LocalClient()
    first.subscribe(client, b"a", 1)
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        second.subscribe(client, b"a", 1)
    assert not second.unsubscribe(client, b"a")
    assert second.remove_receiver(client) == 0
    assert first.remove_receiver(client) == 1
    assert second.subscribe(client, b"a", 1)


@pytest.mark.parametrize(
    ("topic_filter", "options", "identifier"),
    [
        (b"", 0, 0),
        (b"a/#/b", 0, 0),
        (b"\xff", 0, 0),
        (b"$share/g", 0, 0),
        (b"$share/g+/a", 0, 0),
        (b"a", 3, 0),
        (b"a", 0x30, 0),
        (b"a", 0x40, 0),
        (b"a", -1, 0),
        (b"a", 0, -1),
        (b"a", 0, 268435456),
        (b"$share/g/a", NO_LOCAL, 0),
    ],
)
def test_a_malformed_subscription_is_refused_and_leaves_nothing(topic_filter, options, identifier):
    # Proves: [MQTT-3.8.3-4] [MQTT-4.8.2-1] [MQTT-4.8.2-2]
    tree = SubscriptionTree()
    client = LocalClient()
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        tree.subscribe(client, topic_filter, options, identifier)
    assert (tree.node_count, tree.subscription_count, tree.group_count) == (0, 0, 0)


def test_a_sweep_forgets_routes_that_are_stale_or_unused():
    tree = SubscriptionTree(routes_max=64)
    client = LocalClient()
    for number in range(20):
        tree.read_route(b"t%d" % number)
    held = tree.read_route(b"held")
    tree.read_route(b"t3")  # used again
    assert tree.route_cache_count == 21
    assert tree.sweep_routes(64) == 19  # all but t3 and the one that is held
    assert tree.is_fresh(held)
    assert tree.sweep_routes(64) == 1
    assert tree.is_fresh(held)
    tree.subscribe(client, b"held", 0)
    assert not tree.is_fresh(held)
    assert tree.sweep_routes(64) == 1
    assert tree.route_cache_count == 0
