"""What links bring of the time before a subscription, and whom it is not for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from router.core.message import message
from router.forwarding import Forwarding
from router.matching.topic_names import matches
from router.retained.fences import LOWERED_MAX, PASSED_MAX, Fences, filters_of
from tests.simulator.index import SharedEnvironment, index_of
from tests.support.doubles import FakeLog
from tests.support.turned_hub import NOW_MS, TurnedHub


class Tree:
    """Subscriptions of receivers, who are names."""

    def __init__(self, **filters: list[bytes]) -> None:
        self.filters = filters

    def subscriptions_of(self, receiver: str) -> list[tuple[bytes, int, int]]:
        return [(topic_filter, 0, 0) for topic_filter in self.filters[receiver]]

    def options_of(self, receiver: str, topic_filter: bytes) -> int:
        return 0 if topic_filter in self.filters[receiver] else -1


def fences(**passed: int) -> Any:
    made: Any = Fences()
    made.passed.update({int(worker[1:]): (6, record) for worker, record in passed.items()})
    return made


def behind(found: Any, record: int, tree: Tree, *, worker: int = 1, incarnation: int = 6, topic: bytes = b"t") -> Any:
    return found.behind(worker, (incarnation, record), topic, list(tree.filters), tree)


def test_what_a_link_has_brought_already_needs_no_fence() -> None:
    found = fences(w1=7)
    found.put("a", b"t", {1: (6, 7), 5: (6, 100)})  # nothing comes from 5: it has no link
    assert len(found) == 0
    found.put("a", b"t", {1: (6, 8)})
    assert behind(found, 8, Tree(a=[b"t"])) == ["a"]
    assert behind(found, 9, Tree(a=[b"t"])) == []
    assert behind(found, 8, Tree(a=[b"t"]), worker=2) == []
    found.brought(1, 7)
    assert len(found) == 1
    found.brought(1, 8)
    assert len(found) == 0


def test_who_wanted_it_before_by_any_subscription_gets_it() -> None:
    found = fences(w1=0)
    found.put("a", b"t", {1: (6, 8)})
    found.put("b", b"t", {1: (6, 8)})
    tree = Tree(a=[b"t", b"+", b"$share/g/t"], b=[b"t", b"u", b"$share/g/t"])
    assert behind(found, 3, tree) == ["b"]
    found.put("a", b"+", {1: (6, 2)})
    assert behind(found, 3, tree) == ["b"]
    assert behind(found, 2, tree) == ["a", "b"]
    found.take_down("a", b"t")
    found.forget("b")
    assert behind(found, 2, Tree(a=[b"+"])) == ["a"]


def test_numbers_that_a_worker_gives_anew_are_behind_no_fence() -> None:
    found = fences(w1=5)
    found.put("a", b"t", {1: (6, 20)})
    found.began(1, 7, 10)
    assert behind(found, 11, Tree(a=[b"t"]), incarnation=7) == []
    assert behind(found, 10, Tree(a=[b"t"]), incarnation=7) == ["a"]
    found.brought(1, 10)
    assert len(found) == 0


def test_who_was_given_what_a_process_said_has_its_numbers_whenever_that_is_heard() -> None:
    found = fences(w1=15)
    found.put("a", b"t", {1: (6, 20)})
    found.put("b", b"t", {1: (6, 20)})
    found.put("b", b"t", {1: (7, 20)})  # the index has it already
    found.put("c", b"t", {1: (7, 12)})
    tree = Tree(a=[b"t"], b=[b"t"], c=[b"t"])
    assert behind(found, 21, tree) == ["b", "c"], "it was lost, or is older than what the next process said"
    found.brought(1, 21)
    assert len(found) == 2
    found.put("a", b"t", {1: (6, 22)})
    found.began(1, 7, 10)
    assert behind(found, 11, tree, incarnation=7) == ["b", "c"]
    assert behind(found, 13, tree, incarnation=7) == ["b"]
    found.brought(1, 20)
    assert len(found) == 0


def test_a_worker_that_has_lost_all_that_it_had_takes_down_its_own_fences_only() -> None:
    found = fences(w1=0, w2=0)
    found.put("a", b"t", {1: (6, 20)})
    found.put("b", b"t", {2: (6, 20)})
    found.began(2, 7, 0)
    assert behind(found, 20, Tree(a=[b"t"], b=[b"t"])) == ["a"]
    assert len(found) == 1


def calls_in(action: Callable[[], None]) -> int:
    """Return how many functions an action calls, ours and built-in ones."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def test_a_link_that_brings_one_record_after_another_does_not_go_through_all_fences_for_each() -> None:
    number = 300
    found = fences(w1=0)
    for record in range(1, number + 1):
        found.put(record, b"t", {1: (6, record)})

    def bring() -> None:
        for record in range(1, number + 1):
            found.brought(1, record)

    assert calls_in(bring) < 20 * number
    assert len(found) == 0


def test_what_no_fence_reaches_is_known_without_looking_at_them() -> None:
    found = fences(w1=0)
    for record in range(1, 301):
        found.put(record, b"t", {1: (6, record)})
    assert calls_in(lambda: behind(found, 301, Tree())) < 10


def test_a_message_costs_what_it_costs_to_deliver_however_many_fences_stand() -> None:
    found = fences(w1=0)
    for receiver in range(3000):
        found.put(receiver, b"other", {1: (6, 20)})
    filters = [b"t/%d" % number for number in range(3000)]
    for topic_filter in filters:
        found.put("a", topic_filter, {1: (6, 20)})
    tree = Tree(a=filters)
    there: list[list[str]] = []
    assert calls_in(lambda: there.append(behind(found, 20, tree, topic=b"t/7"))) < 60
    assert there == [["a"]]
    deep = b"/".join([b"t"] * 9)
    found.put("a", deep, {1: (6, 20)})
    tree.filters["a"] = [deep]
    assert behind(found, 20, tree, topic=deep) == ["a"]


def test_what_a_link_has_brought_takes_down_some_fences_at_a_time() -> None:
    number = 10 * PASSED_MAX
    found = fences(w1=0)
    for receiver in range(number):
        found.put(receiver, b"t", {1: (6, 20)})
    assert calls_in(lambda: found.brought(1, 20)) < 10 * PASSED_MAX
    assert len(found) == number - PASSED_MAX
    assert behind(found, 21, Tree(a=[])) == []
    for _ in range(9):
        found.brought(1, 20)  # by each heartbeat
    assert len(found) == 0
    assert not found._ahead


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from((b"a", b"b", b"", b"$s")), min_size=1, max_size=4),
    st.lists(st.sampled_from((b"a", b"b", b"", b"$s", b"+")), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_filters_of_a_topic_are_those_that_match_it(levels: list[bytes], parts: list[bytes], ends: bool) -> None:
    topic_name, topic_filter = b"/".join(levels), b"/".join([*parts, b"#"] if ends else parts)
    assert (topic_filter in filters_of(topic_name)) == matches(topic_filter, topic_name)
    assert len(set(filters_of(topic_name))) == len(filters_of(topic_name))


def test_a_fence_that_was_put_up_anew_stands_where_it_stands_now() -> None:
    found = fences(w1=0)
    found.put("a", b"t", {1: (6, 5)})
    found.put("a", b"t", {1: (6, 9)})
    found.put("b", b"t", {1: (6, 7)})
    found.forget("b")
    found.brought(1, 6)
    assert behind(found, 7, Tree(a=[b"t"], b=[b"t"])) == ["a"]
    found.began(1, 7, 4)
    found.put("c", b"t", {1: (7, 6)})
    assert behind(found, 6, Tree(a=[b"t"], c=[b"t"]), incarnation=7) == ["c"]
    found.brought(1, 5)
    assert len(found) == 1
    found.brought(1, 6)
    assert len(found) == 0


def test_who_subscribes_again_and_again_while_a_link_stands_still_leaves_nothing() -> None:
    found = fences(w1=0)
    for _ in range(1000):
        found.put("a", b"t", {1: (6, 5)})
        found.take_down("a", b"t")
    found.put("b", b"t", {1: (6, 5)})
    assert len(found._ahead[1]) <= 100
    found.brought(1, 5)
    assert len(found) == 0


@pytest.mark.parametrize("subscribes", [1, 2], ids=["once", "again"])
def test_what_is_published_elsewhere_after_the_suback_comes_though_retained_messages_wait_for_a_record(
    subscribes: int,
) -> None:
    environment = SharedEnvironment()
    here = TurnedHub(FakeLog(), index_of(environment, 0, 2))
    there = index_of(environment, 1, 2)
    forwarding: Any = Forwarding(here.router)
    peer = forwarding.peer(b"node/1")
    peer.shares_node = True
    here.router.retaining.fences.passed[1] = 0, 0
    client, other = (here.connect(name, properties={"session_expiry_interval": 1000}) for name in (b"client", b"other"))
    for number in range(1, subscribes):
        client.send(Subscribe(number, (subscription(b"r/#", 1),)))
        here.turn(3)
    client.send(Subscribe(subscribes, (subscription(b"r/#", 1),)))
    here.turn()
    other.send(Publish(b"t", b"", 2, packet_identifier=1))
    here.hub.run_turn(here.now_ms)  # SUBACK leaves, and something is not durable
    assert [type(packet) for packet in client.packets()] == [Suback] * subscribes
    published = [message(b"r/1", body, 1, True, b"", -1, NOW_MS, 0) for body in (b"1", b"2")]
    for record, each in enumerate(published, 1):
        there.apply(record, b"r/1", each, stamp_us=NOW_MS * 1000 + record, now_ms=NOW_MS)
    there.durable(2)
    assert there.commit(2)
    here.turn(3)  # what is retained is sent now
    for record, each in enumerate(published, 1):
        forwarding.receive_message(peer, each, record, 1, record)
    here.turn(3)
    assert [packet.payload for packet in client.packets()] == [b"1", b"2"]


def test_who_asks_again_before_he_was_given_all_is_given_what_came_before_he_subscribed() -> None:
    here = TurnedHub(FakeLog(), index_of(SharedEnvironment(), 0, 2))
    forwarding: Any = Forwarding(here.router)
    peer = forwarding.peer(b"node/1")
    peer.shares_node = True
    fences_here = here.router.retaining.fences
    fences_here.passed[1] = 0, 0
    fences_here.waits.hears(1, False)
    client = here.connect(b"client", properties={"receive_maximum": 1})
    for record, topic in enumerate((b"r/1", b"r/2"), 1):
        forwarding.receive_message(peer, message(topic, b"x", 1, True, b"", -1, NOW_MS, 0), record, 1, record)
    here.router.retaining.index._forwarded.applied[1] = 0, 0  # and is in no index yet
    for identifier in (1, 2):
        client.send(Subscribe(identifier, (subscription(b"r/#", 1),)))
        here.turn(4)
    got = []
    for _ in range(4):
        packets = [packet for packet in client.packets() if isinstance(packet, Publish)]
        got += [packet.topic for packet in packets]
        client.send(*(Ack(PacketType.PUBACK, packet.packet_identifier) for packet in packets))
        here.turn(4)
    assert sorted(set(got)) == [b"r/1", b"r/2"]


def test_what_came_ahead_of_its_record_is_waited_for_until_a_log_or_the_index_has_it() -> None:
    written: dict[int, tuple[int, int]] = {}
    found: Any = Fences(lambda: written)
    found.passed.update(dict.fromkeys((1, 2, 3, 4, 5), (1, 5)))
    done: list[str] = []
    found.came_early(1, 1, 7)
    found.when_sure(lambda: done.append("brought"))
    found.came_early(2, 1, 8)
    found.brought(1, 7)
    assert done == ["brought"], "what came since is live for whoever waits"
    found.when_sure(lambda: done.append("written"))
    written[2] = 1, 8
    assert found.waits.waits_for_index
    found.waits.look()
    assert done == ["brought", "written"]
    found.came_early(5, 1, 9)
    found.when_sure(lambda: done.append("known of the next process"))
    written[5] = 2, 6
    found.waits.look()
    assert done.pop() == "known of the next process", "which has said something behind it: it was lost, or is there"
    assert not found.waits.waits_for_index
    found.came_early(3, 1, 9)
    found.when_sure(lambda: done.append("began"))
    found.began(3, 7, 6)
    found.came_early(4, 1, 9)
    found.when_sure(lambda: done.append("silent"))
    found.waits.hears(4, False)
    assert done == ["brought", "written", "began", "silent"]
    assert found.early() == {4: (1, 9)}, "which is not sure"


def test_a_link_that_is_owed_much_is_waited_for_by_whoever_has_it_live_although_the_index_is_further() -> None:
    found: Any = Fences(lambda: {1: (1, 9)})
    found.passed.update({1: (1, 5)})
    done: list[str] = []
    found.when_passed({1: (1, 9)}, lambda: done.append("brought"))
    found.waits.look()
    assert done == []
    found.began(1, 7, 7)
    found.brought(1, 7)
    assert done == ["brought"], "the numbers behind it are given anew"


def test_a_fence_that_a_log_has_told_of_stands_until_a_link_has_brought_what_is_older() -> None:
    kept: list[tuple[str, bytes, Any]] = []
    found: Any = Fences(dict, lambda *fence: kept.append(fence))
    found.passed.update({1: (7, 5), 2: (3, 5)})
    found.put("a", b"t", {1: (7, 20), 2: (3, 5)})
    assert kept == [], "nobody has been given anything yet"
    found.put("a", b"t", {1: (7, 20), 2: (3, 5)}, keep=True)
    assert kept == [("a", b"t", {1: (7, 20)})]
    found.restore("b", b"t", [1, 7, 20, 2, 3, 9])
    found.restore("c", b"t", [1, 7, 20])
    found.restore("c", b"t", [])
    assert behind(found, 20, Tree(a=[b"t"], b=[b"t"]), incarnation=7) == ["a", "b"]
    assert found.standing("b") == [(b"t", {1: (7, 20), 2: (3, 9)})]
    found.brought(1, 20)
    assert found.standing("b") == [(b"t", {2: (3, 9)})]
    found.brought(2, 9)
    assert len(found) == 0
    for wrong in ([1], [1, 2, -3], [1, 2, None], [1, b"", 3]):
        with pytest.raises(ValueError, match="a fence at"):
            found.restore("a", b"t", wrong)


def test_a_fence_that_a_log_has_told_of_is_lowered_by_processes_that_begin_later_only() -> None:
    kept: list[tuple[str, bytes, Any]] = []
    found: Any = Fences(dict, lambda *fence: kept.append(fence))
    found.passed.update({1: (7, 0)})
    found.restore("a", b"t", [1, 7, 20])
    found.restore("b", b"t", [1, 8, 20])
    found.restore("c", b"t", [1, 7, 10])
    assert found.is_new(1, 8)
    found.began(1, 8, 10)
    assert not found.is_new(1, 8)
    assert behind(found, 11, Tree(b=[b"t"]), incarnation=8) == ["b"]
    assert behind(found, 10, Tree(a=[b"t"], b=[b"t"], c=[b"t"]), incarnation=8) == ["a", "b", "c"]
    assert kept == [("a", b"t", {1: (8, 10)})], "a log that has it as it was would take what is new for old"
    found.began(1, 9, 0)
    assert len(found) == 0
    assert sorted(kept[1:]) == [(name, b"t", {}) for name in ("a", "b", "c")]


def test_fences_count_as_lowered_at_once_and_are_written_down_some_at_a_time() -> None:
    kept: list[tuple[str, bytes, Any]] = []
    found: Any = Fences(dict, lambda *fence: kept.append(fence))
    found.passed.update({1: (6, 0)})
    names = [f"r{number}" for number in range(4 * LOWERED_MAX)]
    for name in names:
        found.put(name, b"t", {1: (6, 20)})
    found.began(1, 7, 10)
    tree = Tree(**{name: [b"t"] for name in names})
    assert len(kept) == LOWERED_MAX
    assert behind(found, 11, tree, incarnation=7) == []
    assert behind(found, 10, tree, incarnation=7) == names
    assert [found.standing(name) for name in names] == [[(b"t", {1: (7, 10)})]] * len(names)
    found.began(1, 8, 5)
    assert behind(found, 6, tree, incarnation=8) == []
    slices = 0
    while found.has_more:
        before = len(kept)
        found.go_on()
        slices += 1
        assert len(kept) <= before + LOWERED_MAX
    assert slices >= 3
    assert {name: reached for name, _, reached in kept} == {name: {1: (8, 5)} for name in names}
    assert behind(found, 5, tree, incarnation=8) == names
    while len(found):
        found.brought(1, 5)


FENCE_STEPS = st.lists(st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abcd"), st.sampled_from([b"t", b"+"]), st.integers(1, 2),
              st.integers(1, 9)),
    st.tuples(st.just("take_down"), st.sampled_from("abcd"), st.sampled_from([b"t", b"+"])),
    st.tuples(st.just("brought"), st.integers(1, 2), st.integers(1, 9)),
    st.tuples(st.just("began"), st.integers(1, 2), st.integers(0, 9)),
    st.tuples(st.just("go_on")),
), max_size=60)  # fmt: skip


@given(FENCE_STEPS)
def test_it_makes_no_difference_how_far_fences_have_been_lowered(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("router.retained.fences.LOWERED_MAX", 1)
        patched.setattr("router.retained.fences.ROOM_MIN", 2)
        at_once, later = fences(w1=0, w2=0), fences(w1=0, w2=0)
        newest = {1: 6, 2: 6}
        for name, *arguments in steps:
            if name == "put":
                receiver, topic_filter, worker, record = arguments
                arguments = [receiver, topic_filter, {worker: (newest[worker], record)}]
            elif name == "began":
                worker, after = arguments
                newest[worker] += 1
                arguments = [worker, newest[worker], after]
            if name != "go_on":
                getattr(at_once, name)(*arguments)
                getattr(later, name)(*arguments)
            elif later.has_more:
                later.go_on()
            while at_once.has_more:
                at_once.go_on()
            tree = Tree(a=[b"t", b"+"], b=[b"t"], c=[b"+"], d=[b"t", b"+"])
            for worker in (1, 2):
                # What has been passed does not come again, so nobody asks whom it is for.
                for record in range(at_once.passed[worker][1] + 1, 10):
                    assert behind(at_once, record, tree, worker=worker, incarnation=newest[worker]) == behind(
                        later, record, tree, worker=worker, incarnation=newest[worker]
                    )
        while later.has_more:
            later.go_on()
        assert [at_once.standing(name) for name in "abcd"] == [later.standing(name) for name in "abcd"]
        for worker in (1, 2):
            at_once.brought(worker, 9)
            later.brought(worker, 9)
        assert len(at_once) == len(later) == 0
        assert not later._ahead
        assert not later._highest


def test_who_waits_is_looked_at_when_it_may_be_due_and_in_the_order_of_asking() -> None:
    number = 300
    written: dict[int, tuple[int, int]] = {}
    found: Any = Fences(lambda: written)
    found.passed.update(dict.fromkeys((1, 2, 3), (1, 0)))
    done: list[int] = []
    for record in range(1, number + 1):
        found.came_early(2, 1, record)
        found.when_passed({1: (1, record), 3: (1, 1)}, lambda record=record: done.append(record))
    found.waits.hears(3, False)

    def bring() -> None:
        for record in range(1, number + 1):
            written[2] = 1, record - 1
            found.brought(1, record)
            found.waits.look()

    assert calls_in(bring) < 60 * number
    assert done == list(range(1, number))
    found.brought(2, number)
    assert done == list(range(1, number + 1))
