"""What rules leave of a topic filter, beside trying every topic of a small alphabet."""

from __future__ import annotations

from functools import cache
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from broker.auth.coverage import what_is_left
from router.matching.topic_names import matches

LEVELS_MAX = 3
# Topics may have a text that is in no rule, and a level more than the longest rule.
TEXTS = (b"a", b"b", b"")
NOBODY_S = b"z"

Rules = list[tuple[bytes | None, bool]]


@st.composite
def filters(draw: st.DrawFn) -> bytes:
    levels = draw(st.lists(st.sampled_from((*TEXTS, b"+")), max_size=LEVELS_MAX))
    if draw(st.booleans()) or not levels:
        levels.append(b"#")
    if draw(st.integers(0, 4)) == 0:
        levels[0] = draw(st.sampled_from((b"$a", b"$")))
    topic_filter = b"/".join(levels)
    return topic_filter or b"a"


@cache
def topics() -> list[bytes]:
    found = []
    for count in range(1, LEVELS_MAX + 3):
        for first, *others in product((*TEXTS, NOBODY_S, b"$a", b"$"), *[(*TEXTS, NOBODY_S)] * (count - 1)):
            found.append(b"/".join((first, *others)))
    return [topic for topic in found if topic]


def decides(rules: Rules, topic: bytes) -> int:
    """Return the number of the rule that decides about a topic; behind the last: none does."""
    return next(
        (
            number
            for number, (topic_filter, _) in enumerate(rules)
            if topic_filter is None or matches(topic_filter, topic)
        ),
        len(rules),
    )


rule_lists = st.lists(st.tuples(st.one_of(filters(), filters(), filters(), st.none()), st.booleans()), max_size=6)


@given(filters(), rule_lists)
def test_what_is_left_is_what_trying_every_topic_says(topic_filter: bytes, rules: Rules) -> None:
    deciding = {decides(rules, topic) for topic in topics() if matches(topic_filter, topic)}
    allowing = {number for number in deciding if number < len(rules) and rules[number][1]}
    refusing = deciding - allowing
    left, allowed_by, refused_by = what_is_left(topic_filter, rules)
    assert left == (0 if not allowing else 1 if refusing else 2)
    # A rule that is named decides about something, or one of its kind before it does.
    assert (allowed_by >= 0) == bool(allowing)
    assert (refused_by >= 0) == bool(refusing)
    if allowing:
        assert allowed_by <= min(allowing)
    if refusing:
        assert refused_by <= min(refusing)


def test_rules_without_number_are_answered_in_bounded_time() -> None:
    # Each pair of them has to be looked at; beyond a bound the answer is the careful one.
    rules: Rules = [(b"+/+/+/+/+/+/+/+/%d" % number, number % 2 == 0) for number in range(4000)]
    assert what_is_left(b"#", rules)[0] == 1
    assert what_is_left(b"a/#", [*rules, (None, False)])[0] == 1
    denied: Rules = [(b"+/" * 8 + b"%d" % number, False) for number in range(4000)]
    assert what_is_left(b"#", [*denied, *((rule, True) for rule, _ in denied)])[0] == 1
