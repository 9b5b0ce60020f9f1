"""Rules that a client brings: the `acl` of a token, or of an HTTP server's answer, in EMQX's two forms."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from broker.auth.conditions import FromNetworks
from broker.auth.rule import EVERY_ACTION, PUBLISH, READ, REPLAY, SHARE, Rule
from broker.auth.rule_set import RuleSet
from broker.auth.rule_topics import topic_filter_of, written_filter

RULES_MAX: Final = 1000  # of one client
EXACT: Final = "eq "
READING: Final = READ | SHARE | REPLAY
ACTIONS: Final = {"publish": PUBLISH, "pub": PUBLISH, "subscribe": READING, "sub": READING, "all": EVERY_ACTION}
RETAIN: Final[Mapping[Any, bool | None]] = {
    "all": None,
    None: None,
    True: True,
    False: False,
    "true": True,
    "false": False,
    "1": True,
    "0": False,
}
# EMQX has them. A rule about others than it was meant for is worse than none.
UNKNOWN: Final = ("clientid_re", "username_re", "zone", "zone_re", "listener", "listener_re")


class TokenRulesError(ValueError):
    """What is wrong with the rules; a client is not to be let in by them."""


class TokenRules:
    """Rules of one client, as its principal has them.

    Args:
        claim: a list of rules, of which the first that fits decides and where none does, the authorizers; or a table of
            topic filters, `pub`, `sub` and `all`, beside which nothing is allowed.

    Raises TokenRulesError.

    Attributes:
        source: the claim; what a session keeps of them.
        rule_set: the same, compiled.
    """

    __slots__ = ("_packed", "rule_set", "source")

    def __init__(self, claim: Any) -> None:
        if isinstance(claim, list):
            rules = [rule for number, table in enumerate(claim, 1) for rule in _rules_of(table, number)]
        elif isinstance(claim, dict):
            rules = [*_listed(claim), Rule(False, EVERY_ACTION, None)]
        else:
            raise TokenRulesError("acl: expected a list of rules, or a table with pub, sub and all")
        if len(rules) > RULES_MAX:
            raise TokenRulesError(f"acl: found {len(rules)} rules, expected up to {RULES_MAX}")
        self.source = claim
        try:
            self._packed = msgspec.msgpack.encode(claim)
        except (ValueError, TypeError, OverflowError, RecursionError):
            # In what no rule looks at: a library that reads a token takes more than the log can keep.
            raise TokenRulesError("acl: expected what JSON can say, with whole numbers of 64 bits") from None
        self.rule_set = RuleSet(rules, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenRules) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)

    def __str__(self) -> str:
        return "the client's own rules"

    def described(self, rule: Rule) -> str:
        """Return a rule in words."""
        if rule.topic_filter is None:
            return f"{self}, beside which nothing is allowed"
        return f"{self}, rule {rule.line}: {self.words(rule)}"

    def words(self, rule: Rule) -> str:
        """Return a rule as it was given."""
        assert rule.topic_filter is not None, rule
        action = next(word for word, actions in ACTIONS.items() if actions == rule.actions)
        topic_filter = (EXACT if rule.exact else "") + written_filter(rule.topic_filter)
        return f"{'allow' if rule.allow else 'deny'} {action} {topic_filter}"


def _rules_of(table: object, number: int) -> Iterator[Rule]:
    """Yield the rules of one table, one for each of its topic filters."""
    if not isinstance(table, dict):
        raise TokenRulesError(f"acl, rule {number}: expected a table")
    for name in UNKNOWN:
        if name in table:
            raise TokenRulesError(f"acl, rule {number}: found {name}, which is not known here")
    permission = _one_of({"allow": True, "deny": False}, table, "permission", number)
    actions = _one_of(ACTIONS, table, "action", number)
    qos = _qos(table.get("qos"), number)
    retain = table.get("retain")
    if not isinstance(retain, (str, int, bool, type(None))) or retain not in RETAIN:
        raise TokenRulesError(f"acl, rule {number}: retain: expected true or false")
    condition = None
    if table.get("ipaddr") is not None:
        condition = _networks(table["ipaddr"], number)
    topics = [table["topic"]] if "topic" in table else table.get("topics")
    if not isinstance(topics, list) or not topics:
        raise TokenRulesError(f"acl, rule {number}: expected a topic")
    for topic in topics:
        text, exact = _topic_filter(topic, f"rule {number}")
        yield Rule(
            permission, actions, text, line=number, qos=qos, retain=RETAIN[retain], exact=exact, condition=condition
        )


def _one_of(known: Mapping[str, Any], table: Mapping[str, Any], name: str, number: int) -> Any:
    found = table.get(name)
    if not isinstance(found, str) or found not in known:
        raise TokenRulesError(f"acl, rule {number}: {name}: expected one of {', '.join(known)}")
    return known[found]


def _qos(found: object, number: int) -> tuple[int, ...]:
    if found is None:
        return (0, 1, 2)
    listed = found if isinstance(found, list) else found.split(",") if isinstance(found, str) else [found]
    known = {0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2}
    if not all(isinstance(one, (int, str)) and not isinstance(one, bool) and one in known for one in listed):
        raise TokenRulesError(f"acl, rule {number}: qos: expected 0, 1, 2 or a list of them")
    return tuple(sorted({known[one] for one in listed}))


def _networks(found: object, number: int) -> FromNetworks:
    try:
        return FromNetworks((ipaddress.ip_network(str(found), strict=False),))
    except ValueError:
        raise TokenRulesError(
            f"acl, rule {number}: ipaddr: expected an address, or a network such as 10.0.0.0/8"
        ) from None


def _listed(claim: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield the rules of the older form, which only allows."""
    for name, actions in (("pub", PUBLISH), ("sub", READING), ("all", EVERY_ACTION)):
        topics = claim.get(name) or []
        if not isinstance(topics, list):
            raise TokenRulesError(f"acl, {name}: expected a list of topic filters")
        for number, topic in enumerate(topics, 1):
            text, exact = _topic_filter(topic, f"{name} {number}")
            yield Rule(True, actions, text, line=number, exact=exact)


def _topic_filter(found: object, where: str) -> tuple[bytes, bool]:
    """Return a topic filter with the marks of what the client has in it, and whether it is about exactly that one."""
    if not isinstance(found, str):
        raise TokenRulesError(f"acl, {where}: topic: expected a text")
    exact = found.startswith(EXACT)
    text = found.removeprefix(EXACT)
    try:
        return topic_filter_of(text), exact
    except ValueError as error:
        raise TokenRulesError(f"acl, {where}: topic: {error}") from None
