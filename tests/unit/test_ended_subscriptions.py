"""What is left to be done about the subscriptions of a session that had many is done in turns."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire.packets import Connect, Publish, Subscribe, decode, encode, next_frame, subscription
from mesh.interest import Interest, Wish
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.held_link import Linked

MANY = 1000
LEVELS = b"/".join([b"x"] * 60)


def session_of_many(router: Router, name: bytes = b"many", expiry_s: int = 0) -> Any:
    session, _ = router.open_session(name, False, expiry_s)
    for number in range(MANY):
        router.subscribe(session, b"%d/%b" % (number, LEVELS), 1)
    router.subscribe(session, b"$share/g/t", 1)
    return session


def test_the_end_of_many_subscriptions_takes_turns_and_is_the_end_at_once_for_messages() -> None:
    linked = Linked()
    router = linked.router
    interest = router.interest = Interest()
    session = session_of_many(router)
    before = router.tree.node_count
    router.end_session(session)
    assert router.tree.subscription_count == 0
    assert interest.wish(b"$share/g/t") is None, "who is picked for a group must have a member"
    topic = b"7/" + LEVELS
    assert interest.wish(topic) == Wish(1, False, 0)
    client = linked.hub.connect()
    for packet in (Connect(5, b"c", True), Subscribe(1, (subscription(topic, 0),)), Publish(topic, b"one", 0)):
        client.feed_bytes(encode(packet, 5))
    turns = []
    while router.ended.count:
        count = router.ended.count
        linked.hub.run_turn(linked.now_ms)
        turns.append(count - router.ended.count)
    assert len(turns) > 10
    assert max(turns) <= 100
    assert router.tree.node_count < before / 10
    data = bytearray(client.take_output())
    got = []
    while (frame := next_frame(data)) is not None:
        got.append(decode(*frame, 5))
    assert [packet.payload for packet in got if isinstance(packet, Publish)] == [b"one"]
    assert interest.wish(topic) == Wish(0, False, 0)
    assert interest.wish(b"8/" + LEVELS) is None


FILTERS = [b"%d/%s" % (number, b"/".join([b"a"] * (number % 5 + 1))) for number in range(70)] + [
    b"+/a/%d" % number for number in range(10)
]
STEPS = st.lists(st.one_of(
    st.tuples(st.just("all"), st.integers(0, 3)),
    st.tuples(st.just("one"), st.integers(0, 3), st.sampled_from(FILTERS)),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("turn")),
), max_size=30)  # fmt: skip


@given(STEPS)
@settings(max_examples=60)
def test_whoever_subscribes_meanwhile_keeps_what_he_has(steps: list[Any]) -> None:
    router = Router(Ledger())
    interest = router.interest = Interest()
    sessions: dict[int, Any] = {}
    has: dict[int, set[bytes]] = {}
    for name, *arguments in steps:
        if name == "turn":
            router.forget_some()
            continue
        number = arguments[0]
        if number not in sessions:
            sessions[number], _ = router.open_session(b"%d" % number, False, 60)
            has[number] = set()
        if name == "end":
            router.end_session(sessions.pop(number))
            del has[number]
        for topic_filter in FILTERS if name == "all" else arguments[1:]:
            router.subscribe(sessions[number], topic_filter, 1)
            has[number].add(topic_filter)
        for topic_filter in FILTERS[::7]:
            topic = topic_filter.replace(b"+", b"b")
            wanted = {number for number, filters in has.items() if topic_filter in filters}
            assert {int(receiver.client_identifier) for receiver, *_ in router.tree.receivers(topic)} == wanted
    while router.ended.count:
        router.forget_some()
    for topic_filter in FILTERS:
        wanted = any(topic_filter in filters for filters in has.values())
        assert interest.wish(topic_filter) == (Wish(1, True, 0) if wanted else None)
    for session in sessions.values():
        router.end_session(session)
    while router.ended.count:
        router.forget_some()
    assert router.tree.node_count == 0
