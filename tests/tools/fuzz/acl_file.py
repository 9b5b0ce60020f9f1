"""ACL files: any bytes are rules, or an error that names a line; rules are written down and read again the same.

An input is an ACL file.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.auth.acl_lines import AclLineError, AclLines
from broker.auth.principal import Principal
from broker.auth.rule import Holders
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from router.matching.topic_names import check_topic_filter
from tests.support.acl_files import acl_file
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

TOPICS = (b"a", b"a/b", b"$a/b", b"/", "é/x y".encode(), b"c1/up")
FILTERS = (b"#", b"a/+", b"+/b/#", b"$a/#", b"/+")
ASKING = (Principal("ann", b"c1", None, 0), Principal(None, b"a+", None, 0), Principal("a/b", b"c1", None, 0))


def make(draw: random.Random) -> bytes:
    """Return a file, mostly without a fault."""
    data = acl_file(draw, faulty=draw.random() < 0.3)
    return mutated(draw, data) if draw.random() < 0.4 else data


def check(data: bytes) -> Hashable:
    """Read it, ask it, write it down and read it again."""
    try:
        lines = AclLines(data, "acl.conf")
    except AclLineError as error:
        assert 1 <= error.line <= data.count(b"\n") + 1
        assert str(error).isprintable()
        assert len(str(error)) < 1000
        return str(error).partition(": ")[2][:40]
    chain = RuleChain([RuleSet(lines.rules, lines)])
    written = []
    for rule in sorted(lines.rules, key=lambda rule: rule.line):
        if not rule.dangerous:
            assert check_topic_filter(lines.words(rule).split(" ", 2)[2].encode()) is None
            if isinstance(rule.holder, str):
                written.append(f"user {rule.holder}")
            elif rule.holder is Holders.NO_NAME:
                assert not any(line.startswith("user") for line in written)
            written.append(lines.words(rule))
    again = AclLines("\n".join(written).encode(), "acl.conf")
    second = RuleChain([RuleSet(again.rules, again)])
    answers = []
    for principal in ASKING:
        answers += [chain.may_publish(principal, topic, 0, False) for topic in TOPICS]
        answers += [chain.may_read(principal, topic) for topic in TOPICS]
        answers += [int(chain.may_subscribe(principal, asked, 0)) for asked in FILTERS]
        assert answers[-len(FILTERS) :] == [int(second.may_subscribe(principal, asked, 0)) for asked in FILTERS]
        assert [second.may_read(principal, topic) for topic in TOPICS] == [
            chain.may_read(principal, topic) for topic in TOPICS
        ]
    return tuple(answers)


TARGET = Target("acl_file", 1500, make, check)
