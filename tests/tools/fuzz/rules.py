"""Rules files and the rules that clients bring: any bytes are rules, or an error that can be shown.

An input is a rules file if it begins with r, the JSON of a client's rules if it begins with anything else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable

import msgspec

from broker.auth.principal import Principal
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.rules_lines import RulesLineError, RulesLines
from broker.auth.token_rules import TokenRules, TokenRulesError
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

TOPICS = ("#", "a/+", "$a/#", "a#", "${clientid}/b", "${username}", "${x}", "", "é", "eq a/#")
VALUES = (
    '"all"',
    '"publish"',
    '["share", "replay"]',
    '"ann"',
    "[]",
    "true",
    "3",
    '"10.0.0.0/8"',
    '"22:00-06:00"',
    '["mon"]',
    '{cn = "x"}',
    "[0, 2]",
    '"tcp://here:1"',
)
KEYS = (
    "allow",
    "deny",
    "users",
    "anonymous",
    "client_ids",
    "groups",
    "networks",
    "listeners",
    "certificate",
    "qos",
    "retain",
    "hours",
    "days",
    "name",
    "other",
)
NAMES = (b"a", b"a/b", b"$a/x", b"c1/b")
FILTERS = (b"#", b"a/+", b"c1/#")


def make(draw: random.Random) -> bytes:
    """Return a file or a claim, mostly without a fault."""
    if draw.random() < 0.5:
        tables = []
        for _ in range(draw.randrange(4)):
            lines = [f"topics = {json.dumps(draw.choice(TOPICS[:5]), ensure_ascii=False)}", 'allow = "all"']
            lines += [f"{key} = {draw.choice(VALUES)}" for key in draw.sample(KEYS[2:], draw.randrange(3))]
            tables.append("[[rule]]\n" + "\n".join(lines))
        data = b"r" + "\n".join(tables).encode()
    else:
        rule = {
            "permission": draw.choice(("allow", "deny")),
            "action": draw.choice(("pub", "subscribe", "all")),
            "topic": draw.choice(TOPICS),
            "qos": draw.choice((None, 0, [1, 2], "0,1", 5)),
            "retain": draw.choice((None, True, "0", [])),
            "ipaddr": draw.choice((None, "10.0.0.0/8", "x")),
        }
        claim = draw.choice(([rule], [rule, rule], {"pub": [draw.choice(TOPICS)], "all": ["a"]}, [], {}))
        data = json.dumps(claim).encode()
    return mutated(draw, data) if draw.random() < 0.3 else data


def check(data: bytes) -> Hashable:
    """Read it, and ask it."""
    principal = Principal("ann", b"c1", "10.1.1.1", 0)
    if data.startswith(b"r"):
        try:
            lines = RulesLines(data[1:], "rules.toml", ("tcp://here:1",))
        except RulesLineError as error:
            str(error).encode()
            return str(error)[:30]
        for times in lines.times:
            times.look_at(1_790_000_000.0)
        chain = RuleChain([RuleSet(lines.rules, lines)], decides_by_qos=True)
    else:
        try:
            claim = json.loads(data)  # as libraries of tokens read it
            principal = msgspec.structs.replace(principal, rules=TokenRules(claim))
        except TokenRulesError as error:
            str(error).encode()
            return str(error)[:30]
        except (ValueError, RecursionError):
            return "no JSON"
        chain = RuleChain([], decides_by_qos=True)
    answers = []
    for name in NAMES:
        answers += [chain.may_publish(principal, name, 0, False), chain.may_read(principal, name)]
        assert chain.explain(principal, "publish", name, 0, False).by
    for asked in FILTERS:
        answers.append(int(chain.may_subscribe(principal, asked, 1)))
        chain.may_use(principal, b"$share/g/" + asked)
        chain.explain(principal, "subscribe", asked, 1, False)
    return tuple(answers)


TARGET = Target("rules", 1500, make, check)
