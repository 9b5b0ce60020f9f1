"""The store of retained messages against a dict and the one rule it must obey."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.message import message
from router.matching.topic_names import matches
from router.retained.memory_store import RetainedStore

levels = st.sampled_from([b"a", b"b", b"", b"$S", b"a-level-of-more-than-sixteen-bytes"])
topic_names = st.lists(levels, min_size=1, max_size=4).map(b"/".join).filter(bool)
topic_filters = (
    st.tuples(st.lists(st.one_of(levels, st.just(b"+")), max_size=4), st.sampled_from([[], [b"#"]]))
    .map(lambda parts: b"/".join(parts[0] + parts[1]))
    .filter(bool)
)


def tree_order(topics):
    """Return topics depth first, levels of one parent in the order of appearance: the documented order."""
    branches = {}
    for topic in topics:
        at = branches
        for level in topic.split(b"/"):
            at = at.setdefault(level, {})
    ordered = []

    def descend(at, path):
        for level, below in at.items():
            if b"/".join([*path, level]) in topics:
                ordered.append(b"/".join([*path, level]))
            descend(below, [*path, level])

    descend(branches, [])
    return ordered


class RetainedStoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.store = RetainedStore(seed=7)
        self.model = {}

    @rule(topic_name=topic_names, payload=st.binary(min_size=1, max_size=3), expires_ms=st.integers(0, 5))
    def keep(self, topic_name, payload, expires_ms):
        is_new = self.store.keep(message(topic_name, payload, retain=True, expires_ms=expires_ms))
        assert is_new == (topic_name not in self.model)
        self.model[topic_name] = (payload, expires_ms)

    @rule(topic_name=topic_names)
    def clear(self, topic_name):
        self.store.keep(message(topic_name, b"", retain=True))
        self.model.pop(topic_name, None)

    @rule(now_ms=st.integers(0, 7), limit=st.integers(1, 4))
    def purge_round(self, now_ms, limit):
        """As many calls as it takes to look at every level once, wherever the last purge stopped."""
        expected = {topic for topic, (_, expires_ms) in self.model.items() if 0 < expires_ms < now_ms}
        removed = sum(self.store.purge_expired(now_ms, limit) for _ in range(2 * (self.store.node_count // limit + 2)))
        assert removed == len(expected)
        for topic in expected:
            del self.model[topic]

    @rule(now_ms=st.integers(0, 7), limit=st.integers(1, 4))
    def purge_some(self, now_ms, limit):
        self.store.purge_expired(now_ms, limit)
        for topic, (_, expires_ms) in list(self.model.items()):
            if self.store.message_of(topic) is None:
                assert 0 < expires_ms < now_ms
                del self.model[topic]

    @rule(topic_filter=topic_filters)
    def match(self, topic_filter):
        found = self.store.match(topic_filter)
        assert len({kept.topic_name for kept in found}) == len(found)
        assert {(kept.topic_name, kept.body) for kept in found} == {
            (topic, payload) for topic, (payload, _) in self.model.items() if matches(topic_filter, topic)
        }

    @invariant()
    def counts_agree(self):
        assert self.store.count == len(self.model)
        assert self.store.size_bytes == sum(len(topic) + len(payload) for topic, (payload, _) in self.model.items())
        prefixes = {
            tuple(topic.split(b"/")[: depth + 1]) for topic in self.model for depth in range(topic.count(b"/") + 1)
        }
        assert self.store.node_count == len(prefixes)
        for topic, (payload, _) in self.model.items():
            assert self.store.message_of(topic).body == payload


TestRetainedStore = RetainedStoreMachine.TestCase


def store_of(*topics):
    store = RetainedStore()
    for topic in topics:
        store.keep(message(topic, b"x", retain=True))
    return store


def names(found):
    return [kept.topic_name for kept in found]


def test_messages_come_depth_first_in_the_order_in_which_levels_came_to_be():
    topics = [b"z/1", b"a", b"z", b"a/b/c", b"m/k", b"a/a", b"z/0/x", b"m"]
    for seed in range(5):
        store = RetainedStore(seed=seed)
        for topic in topics:
            store.keep(message(topic, b"x", retain=True))
        assert names(store.match(b"#")) == tree_order(topics)
        assert names(store.match(b"+")) == [b"z", b"a", b"m"]


def test_a_replaced_message_keeps_its_place():
    # Proves: [MQTT-3.3.1-5]
    store = store_of(b"a", b"b")
    assert not store.keep(message(b"a", b"newer", retain=True))
    assert [kept.body for kept in store.match(b"#")] == [b"newer", b"x"]


def test_wildcards_do_not_reach_dollar_topics():
    # Proves: [MQTT-4.7.2-1]
    store = store_of(b"$SYS/a", b"x", b"$SYS", b"$other", b"y/$z")
    assert names(store.match(b"#")) == [b"x", b"y/$z"]
    assert names(store.match(b"+")) == [b"x"]
    assert names(store.match(b"+/a")) == []
    assert names(store.match(b"$SYS/#")) == [b"$SYS", b"$SYS/a"]
    assert names(store_of(b"$SYS/a").match(b"#")) == []


def test_an_empty_payload_clears_and_leaves_nothing_behind():
    # Proves: [MQTT-3.3.1-6]
    store = store_of(b"a/b/c", b"a/b")
    store.keep(message(b"a/b/c", b"", retain=True))
    assert (store.count, store.node_count) == (1, 2)
    store.keep(message(b"a/b", b"", retain=True))
    store.keep(message(b"a/b", b"", retain=True))
    assert (store.count, store.node_count, store.size_bytes) == (0, 0, 0)


def test_filters_and_names_of_thousands_of_levels_are_walked():
    deep = b"/" * 65534
    store = store_of(deep + b"a", b"/")
    assert names(store.match(b"/".join([b"+"] * 32768))) == []
    assert names(store.match(b"+/" * 32767 + b"#")) == [deep + b"a"]
    assert names(store.match(b"+/#")) == [b"/", deep + b"a"]
    store.keep(message(deep + b"a", b"", retain=True))
    assert store.node_count == 2


def test_purging_looks_at_no_more_than_its_limit():
    store = RetainedStore()
    for index in range(10):
        store.keep(message(b"t%d" % index, b"x", retain=True, expires_ms=5))
    assert store.purge_expired(5, 100) == 0
    assert [store.purge_expired(6, 4) for _ in range(4)] == [4, 4, 2, 0]
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        store.purge_expired(6, 0)


def test_a_malformed_filter_is_refused():
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        store_of().match(b"a/#/b")
