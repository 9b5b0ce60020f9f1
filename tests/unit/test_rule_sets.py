"""Compiled rules beside the same rules looked at one after the other, and what a chain of them makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.acl import Grant
from broker.auth.principal import Principal
from broker.auth.rule import CLIENT_IDENTIFIER, EVERY_ACTION, PUBLISH, READ, REPLAY, SHARE, USER_NAME, Holders, Rule
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from router.matching.topic_names import matches

USERS = ("ann", "bob", "a b", "é")
LEVELS = (b"a", b"b", b"ann", b"", CLIENT_IDENTIFIER, USER_NAME)


class Source:
    """Rules that are described by their numbers."""

    def described(self, rule: Rule) -> str:
        return f"rule {rule.line}"

    def __str__(self) -> str:
        return "rules"


@dataclass(frozen=True)
class FromListener:
    """A condition."""

    listener: int

    def holds(self, principal: Principal) -> bool:
        return principal.listener == self.listener


@st.composite
def filters(draw: st.DrawFn, markers: bool = True) -> bytes:
    texts = LEVELS if markers else LEVELS[:4]
    levels = draw(st.lists(st.sampled_from((*texts, b"+")), max_size=3))
    if markers and levels and draw(st.integers(0, 3)) == 0:
        levels[-1] = b"a" + levels[-1] + b"b" if levels[-1] != b"+" else b"+"
    if not levels or draw(st.booleans()):
        levels.append(b"#")
    if draw(st.integers(0, 5)) == 0:
        levels[0] = b"$a"
    return b"/".join(levels) or b"a"


rules = st.builds(
    Rule,
    st.booleans(),
    st.sampled_from((PUBLISH, READ, SHARE | READ, EVERY_ACTION)),
    st.one_of(filters(), filters(), st.none()),
    st.sampled_from((*USERS, *Holders)),
    st.just(0),
    st.sampled_from(((0, 1, 2), (0, 1, 2), (0,), (1, 2), ())),
    st.sampled_from((None, None, True, False)),
    st.booleans(),
    st.integers(0, 9).map(lambda draw: draw == 0),
    st.sampled_from((None, None, FromListener(0), FromListener(1))),
)
rule_lists = st.lists(rules, max_size=10).map(
    lambda found: [rule._replace(line=number) for number, rule in enumerate(found)]
)
principals = st.tuples(
    st.sampled_from((None, "", *USERS, "zoe", "a+", "a/b")),
    st.sampled_from((b"c1", b"ann", b"#", b"a/b")),
    st.integers(0, 1),
).map(lambda found: Principal(*found[:2], None, found[2]))
topics = (
    st.lists(st.sampled_from((b"a", b"b", b"ann", b"", b"c1", b"z", b"aannb", b"$a")), min_size=1, max_size=4)
    .map(b"/".join)
    .filter(bool)
)


def filled(rule: Rule, principal: Principal) -> bytes | None:
    """Return the topic filter that a rule has for a client; None: it has none."""
    assert rule.topic_filter is not None
    text = rule.topic_filter
    for mark, value in (
        (CLIENT_IDENTIFIER, principal.client_identifier),
        (USER_NAME, (principal.user_name or "").encode()),
    ):
        if mark in text and (not value or set(value) & set(b"/+#")):
            return None
        text = text.replace(mark, value)
    return text


def is_about(rule: Rule, principal: Principal, actions: int, qos: tuple[int, ...], retain: tuple[bool, ...]) -> bool:
    name = principal.user_name or None
    if rule.holder is not Holders.EVERYBODY and rule.holder != (Holders.NO_NAME if name is None else name):
        return False
    if not rule.actions & actions or (rule.condition is not None and not rule.condition.holds(principal)):
        return False
    if rule.dangerous and not set((name or "").encode() + principal.client_identifier) & set(b"+#"):
        return False
    fits = [one in rule.qos for one in qos]
    kept = [rule.retain in (None, one) for one in retain]
    if rule.allow:
        return all(fits) and all(kept)
    return any(fits) and (any(kept) or not kept)


def decided(
    found: list[Rule], principal: Principal, action: int, topic: bytes, qos: tuple[int, ...], retain: tuple[bool, ...]
) -> Rule | None:
    """Return the rule that decides about a topic name."""
    for rule in found:
        if not is_about(rule, principal, action, qos, retain):
            continue
        if rule.topic_filter is None:
            return rule
        text = filled(rule, principal)
        if text is None or (rule.exact and set(rule.topic_filter) & set(b"+#")):
            continue
        if matches(text, topic):
            return rule
    return None


def chain_of(found: list[Rule], **options: bool) -> RuleChain:
    return RuleChain([RuleSet(found, Source())], decides_by_qos=True, **options)


@given(rule_lists, principals, topics, st.integers(0, 2), st.booleans())
def test_the_first_rule_that_fits_decides(
    found: list[Rule], principal: Principal, topic: bytes, qos: int, retain: bool
) -> None:
    chain = chain_of(found)
    expected = decided(found, principal, PUBLISH, topic, (qos,), (retain,))
    assert chain.may_publish(principal, topic, qos, retain) == (expected is not None and expected.allow)
    said = chain.explain(principal, "publish", topic, qos, retain)
    assert said.by == ("no rule of rules" if expected is None else f"rule {expected.line}")
    assert said.grant == (Grant.WHOLE if expected is not None and expected.allow else Grant.REFUSED)
    expected = decided(found, principal, READ, topic, (0, 1, 2), ())
    assert chain.may_read(principal, topic) == (expected is not None and expected.allow)


@given(rule_lists, rule_lists, principals, topics)
def test_what_one_rule_set_does_not_decide_the_next_does(
    first: list[Rule], second: list[Rule], principal: Principal, topic: bytes
) -> None:
    both = RuleChain([RuleSet(first, Source()), RuleSet(second, Source())], decides_by_qos=True)
    one = chain_of(first + second)
    assert both.may_publish(principal, topic, 0, False) == one.may_publish(principal, topic, 0, False)
    assert both.may_read(principal, topic) == one.may_read(principal, topic)


@given(rule_lists, principals, filters(markers=False), st.integers(0, 2), st.lists(topics, max_size=20))
def test_what_is_granted_of_a_topic_filter_is_what_may_be_read_of_it(
    found: list[Rule], principal: Principal, topic_filter: bytes, qos: int, names: list[bytes]
) -> None:
    chain = chain_of(found)
    grant = chain.may_subscribe(principal, topic_filter, qos)
    matching = [name for name in names if matches(topic_filter, name)]
    if grant == Grant.REFUSED and not any(rule.exact for rule in found):
        assert not any(chain.may_read(principal, name) for name in matching)
    if grant == Grant.WHOLE and not any(rule.exact for rule in found):
        for name in matching:
            rule = decided(found, principal, READ, name, (qos,), ())
            assert rule is not None
            assert rule.allow
    strict = chain_of(found, is_strict=True).may_subscribe(principal, topic_filter, qos)
    assert strict == (Grant.REFUSED if grant == Grant.NARROWED else grant)
    assert chain.explain(principal, "subscribe", topic_filter, qos, False).grant == grant


ANN = Principal("ann", b"c1", None, 0)


def rule(allow: bool, topic_filter: bytes, **options: object) -> Rule:
    return Rule(allow, EVERY_ACTION, topic_filter, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "asked", "grant"),
    [
        # emqx's: `eq #` is the topic filter #, and no other.
        ([rule(False, b"#", exact=True), rule(True, b"#")], b"#", Grant.REFUSED),
        ([rule(False, b"#", exact=True), rule(True, b"#")], b"+/#", Grant.WHOLE),
        ([rule(False, b"#", exact=True), rule(True, b"#")], b"a/#", Grant.WHOLE),
        ([rule(True, b"#"), rule(False, b"#", exact=True)], b"#", Grant.WHOLE),
        ([rule(True, b"a/#"), rule(False, b"#", exact=True)], b"#", Grant.REFUSED),
        ([rule(True, b"a/#", exact=True)], b"a/#", Grant.WHOLE),
        ([rule(True, b"a/#", exact=True)], b"a/b", Grant.REFUSED),
        ([rule(False, b"a/b"), rule(True, b"a/#", exact=True)], b"a/#", Grant.REFUSED),
        ([rule(False, b"a/b"), rule(True, b"a/#", exact=True), rule(True, b"a/c")], b"a/#", Grant.NARROWED),
        ([rule(True, b"a/b", exact=True)], b"a/b", Grant.WHOLE),
        # A rule for some QoS counts for what lies in it as a whole.
        ([rule(True, b"a/#", qos=(0,))], b"a/b", Grant.WHOLE),
        ([rule(True, b"a/#", qos=(1, 2))], b"a/b", Grant.REFUSED),
        ([rule(True, b"a/#", qos=(0,))], b"#", Grant.REFUSED),
        ([rule(True, b"a/#", qos=(0,)), rule(True, b"b/#")], b"#", Grant.NARROWED),
        ([rule(False, b"a/#", qos=(1,)), rule(True, b"#")], b"#", Grant.WHOLE),
        ([rule(False, b"a/#", qos=(0,)), rule(True, b"#")], b"#", Grant.NARROWED),
        ([rule(False, b"a/#", qos=(0,)), rule(True, b"#")], b"a/+", Grant.REFUSED),
    ],
)
def test_rules_about_one_topic_filter_and_some_qos(found: list[Rule], asked: bytes, grant: Grant) -> None:
    assert chain_of(found).may_subscribe(ANN, asked, 0) == grant


def test_to_share_and_to_replay_are_rights_of_their_own() -> None:
    reading = chain_of([Rule(True, READ, b"a/#")])
    assert reading.may_subscribe(ANN, b"a/b", 0) == Grant.WHOLE
    assert not reading.may_use(ANN, b"$share/g/a/b")
    assert not reading.may_use(ANN, b"$replay/-1h/a/b")
    sharing = chain_of([Rule(True, READ, b"a/#"), Rule(True, SHARE, b"a/b/#"), Rule(True, REPLAY, b"#")])
    assert sharing.may_use(ANN, b"$share/g/a/b/+")
    assert not sharing.may_use(ANN, b"$share/g/a/+")
    assert sharing.may_use(ANN, b"$replay/-1h/a/+")
    assert reading.may_use(ANN, b"a/b")  # which asks for no such right
    # Where the same rules give both, what is narrowed is narrowed for both.
    mosquitto = chain_of([Rule(False, EVERY_ACTION, b"a/b"), Rule(True, READ | SHARE | REPLAY, b"a/#")])
    assert mosquitto.may_subscribe(ANN, b"a/#", 0) == Grant.NARROWED
    assert mosquitto.may_use(ANN, b"$share/g/a/#")


def test_rules_of_ten_thousand_users_are_small() -> None:
    found = []
    for number in range(10_000):
        found += [
            Rule(True, EVERY_ACTION, b"devices/device%d/#" % number, f"device{number}", 3 * number),
            Rule(True, READ, b"config/device%d/+" % number, f"device{number}", 3 * number + 1),
        ]
    rule_set = RuleSet(found, Source())
    assert rule_set.users_known == 10_000
    assert rule_set.bytes_held <= 200 * 10_000
    chain = RuleChain([rule_set])
    for number in range(0, 10_000, 37):
        principal = Principal(f"device{number}", b"c", None, 0)
        assert chain.may_publish(principal, b"devices/device%d/up" % number, 0, False)
        assert not chain.may_publish(principal, b"devices/device%d/up" % (number + 1), 0, False)
