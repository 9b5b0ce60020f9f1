"""Rules that clients bring, in EMQX's two forms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.auth.acl import Grant
from broker.auth.acl_lines import AclLines
from broker.auth.principal import Principal
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.token_rules import TokenRules, TokenRulesError

FILE = AclLines(b"pattern readwrite file/#\n", "acl.conf")
CHAIN = RuleChain([RuleSet(FILE.rules, FILE)], decides_by_qos=True)


def client(claim: Any, address: str | None = None) -> Principal:
    return Principal("ann", b"c1", address, 0, rules=TokenRules(claim))


def rule(permission: str = "allow", action: str = "all", topic: str = "t/#", **more: Any) -> dict[str, Any]:
    return {"permission": permission, "action": action, "topic": topic, **more}


def test_the_first_rule_that_fits_decides_and_then_the_files() -> None:
    ann = client(
        [
            rule("deny", "publish", "t/a"),
            rule("allow", "publish", "t/${clientid}/+"),
            rule("allow", "all", "t/a"),
            rule("deny", "all", "file/secret"),
            rule("allow", "subscribe", "${username}/#"),
        ]
    )
    for topic, expected in (
        (b"t/a", False),
        (b"t/c1/x", True),
        (b"t/c2/x", False),
        (b"file/x", True),
        (b"file/secret", False),
        (b"ann/x", False),
    ):
        assert CHAIN.may_publish(ann, topic, 0, False) == expected, topic
    assert CHAIN.may_read(ann, b"t/a")
    assert CHAIN.may_subscribe(ann, b"ann/+", 0) == Grant.WHOLE
    assert CHAIN.may_subscribe(ann, b"file/+", 0) == Grant.NARROWED
    assert CHAIN.may_use(ann, b"$share/g/ann/+")
    assert CHAIN.explain(ann, "publish", b"t/a", 0, False).by == "the client's own rules, rule 1: deny publish t/a"
    assert CHAIN.explain(ann, "publish", b"file/x", 0, False).by == "acl.conf:1 pattern readwrite file/#"


def test_the_older_form_is_all_that_is_allowed() -> None:
    ann = client({"pub": ["p/${clientid}"], "sub": ["s/#", "eq e/+"], "all": ["a"]})
    assert [CHAIN.may_publish(ann, topic, 0, False) for topic in (b"p/c1", b"p/c2", b"s/x", b"a", b"file/x")] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert [CHAIN.may_read(ann, topic) for topic in (b"p/c1", b"s/x", b"a", b"file/x", b"$SYS/x")] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert CHAIN.may_subscribe(ann, b"e/+", 0) == Grant.WHOLE
    assert CHAIN.may_subscribe(ann, b"e/x", 0) == Grant.REFUSED
    assert CHAIN.may_subscribe(ann, b"#", 0) == Grant.NARROWED
    assert CHAIN.explain(ann, "publish", b"x", 0, False).by == (
        "the client's own rules, beside which nothing is allowed"
    )
    assert not CHAIN.may_publish(client({}), b"file/x", 0, False)


@pytest.mark.parametrize(
    ("more", "asked", "expected"),
    [
        ({"qos": [0, 1]}, (1, False), True),
        ({"qos": [0, 1]}, (2, False), False),
        ({"qos": 2}, (2, False), True),
        ({"qos": "0,2"}, (2, True), True),
        ({"qos": "0,2"}, (1, True), False),
        ({"qos": None}, (1, True), True),
        ({"retain": True}, (0, True), True),
        ({"retain": True}, (0, False), False),
        ({"retain": 0}, (0, False), True),
        ({"retain": "false"}, (0, True), False),
        ({"retain": "all"}, (0, True), True),
        ({"ipaddr": "10.0.0.0/8"}, (0, False), True),
        ({"ipaddr": "11.0.0.1"}, (0, False), False),
        ({"note": "anything"}, (0, False), True),
    ],
)
def test_a_rule_may_ask_for_qos_retain_and_address(
    more: dict[str, Any], asked: tuple[int, bool], expected: bool
) -> None:
    ann = client([rule(topic="t/#", **more)], "10.2.3.4")
    assert CHAIN.may_publish(ann, b"t/x", *asked) == expected


def test_a_rule_may_have_several_topics_and_short_words() -> None:
    ann = client([{"permission": "allow", "action": "pub", "topics": ["x", "y/#"]}])
    assert CHAIN.may_publish(ann, b"x", 0, False)
    assert CHAIN.may_publish(ann, b"y/z", 0, False)
    assert not CHAIN.may_read(ann, b"x")


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (None, "expected a list of rules, or a table"),
        ("t/#", "expected a list of rules, or a table"),
        ([3], "rule 1: expected"),
        ([rule(permission="yes")], "rule 1: permission: expected one of allow, deny"),
        ([rule(), rule(action="write")], "rule 2: action: expected one of publish"),
        ([{"permission": "allow", "action": "all"}], "rule 1: expected a topic"),
        ([rule(topic=3)], "rule 1: topic: expected a text"),
        ([rule(topic="a#")], "# fills a whole level"),
        ([rule(topic="")], "1 to 65535 bytes"),
        ([rule(topic="\ud800")], "topic: expected UTF-8"),
        ([rule(topic="t/${peerhost}")], "expected no placeholders but"),
        ([rule(topic="t/%c/#")], "expected ${clientid} and ${username}, not %c and %u"),
        ({"pub": ["%u"]}, "expected ${clientid} and ${username}, not %c and %u"),
        ([rule(qos=3)], "qos: expected 0, 1, 2"),
        ([rule(qos=[True])], "qos: expected"),
        ([rule(retain="maybe")], "retain: expected"),
        ([rule(retain=[])], "retain: expected"),
        ([rule(clientid_re="^a")], "found clientid_re, which is not known here"),
        ([rule(ipaddr="here")], "ipaddr: expected"),
        ({"pub": "t/#"}, "pub: expected a list"),
        ({"sub": [None]}, "sub 1: topic: expected a text"),
        ([rule(note="\ud800")], "expected what JSON can say"),
        ([rule(note=1 << 70)], "expected what JSON can say"),
        ([rule()] * 1001, "found 1001 rules, expected up to 1000"),
    ],
)
def test_what_is_no_rule_is_refused_as_a_whole(claim: Any, said: str) -> None:
    with pytest.raises(TokenRulesError) as caught:
        TokenRules(claim)
    assert said in str(caught.value)


def test_rules_are_made_again_of_what_the_log_keeps() -> None:
    for claim in ([rule("deny"), rule(topic="u/#", qos=[0], retain=True)], {"pub": ["a"]}):
        rules = TokenRules(claim)
        again = TokenRules(msgspec.msgpack.decode(msgspec.msgpack.encode(rules.source)))
        assert again == rules
        assert hash(again) == hash(rules)
        assert again != TokenRules([])
        # As a session has them whose client has not been back since the broker's start.
        plain = Principal("ann", b"c1", None, 0, rules=rules.source)
        for topic in (b"t/x", b"u/x", b"a", b"file/x"):
            for qos, retain in ((0, True), (1, False)):
                expected = CHAIN.may_publish(client(claim), topic, qos, retain)
                assert CHAIN.may_publish(plain, topic, qos, retain) == expected
            assert CHAIN.may_read(plain, topic) == CHAIN.may_read(client(claim), topic)
    with pytest.raises(TokenRulesError):
        CHAIN.may_publish(Principal("ann", b"c1", None, 0, rules=[3]), b"a", 0, False)


def test_plain_rules_of_many_clients_are_not_mixed_up() -> None:
    many = [Principal("ann", b"c1", None, 0, rules=[rule(topic=f"t/{number}")]) for number in range(3000)]
    for _ in range(2):
        for number, principal in enumerate(many):
            assert CHAIN.may_publish(principal, b"t/%d" % number, 0, False)
            assert not CHAIN.may_publish(principal, b"t/%d" % (number + 1), 0, False)
