"""Answers of servers that decide on clients: any bytes are a verdict, or an error; what is none of both lets nobody in.

Likewise those of servers that decide on rights: what is no answer allows nothing.

An input is a contract, a status and a Cache-Control, each in a line, and a body.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable

from broker.auth.http_client import HttpAnswer, HttpError
from broker.auth.http_contracts import ALLOW, CONTRACTS, DENY, IGNORE, kept_for, verdict_of
from broker.auth.http_rights import Wish, answer_to
from broker.auth.principal import Principal
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

TOPICS = (
    [{"topic": "a/+", "qos": 2}],
    [{"topic": "a/+", "qos": 128}],
    [{"topic": "a/+", "qos": True}],
    [{"topic": "a/b", "qos": 1}],
    [{}, 5],
    {},
    "a",
)
RESULTS = ("allow", "deny", "ignore", "ok", "next", {"error": "x"}, True, None, "", 5, ["allow"])
MORE = {
    "user_name": ("ann", "", 5, "a\\0", "x" * 70_000, None),
    "superuser": (True, "yes", None),
    "is_superuser": (True, 1),
    "groups": (["a"], "a", [5]),
    "expires_at": (5, 1e300, -1, "x", None),
    "expire_at": (5, 1e300, -1, "x"),
    "topics": TOPICS,
    "modifiers": ({}, {"topics": TOPICS[0]}, {"topics": TOPICS[1]}, {"topic": "a"}, [], 5, None),
    "acl": (
        None,
        [],
        {"pub": ["a"], "all": "b"},
        [{"permission": "allow", "action": "all", "topic": "a/${clientid}", "qos": [0, 2], "retain": "all"}],
        [{"permission": "deny", "action": "pub", "topics": ["#", "eq a/#"], "ipaddr": "10.0.0.0/8"}, 5],
    ),
}
BODIES = (b"allow", b"allow a b", b"deny", b"", b"ok", b"[" * 5000, b"\xff", b"refused")
CONTROLS = (b"", b"max-age=5", b"no-store", b"max-age=5, stale-if-error=7", b"max-age=99999999999")


WISHES = (
    Wish(Principal("ann", b"c", "127.0.0.1", 0), "publish", "a/b", 1, True),
    Wish(Principal(None, b"c", None, 0), "subscribe", "a/+", 2, False),
)


def make(draw: random.Random) -> bytes:
    """Return an answer of one of the contracts, mutated or not."""
    said = {
        "result": draw.choice(RESULTS),
        **{name: draw.choice(values) for name, values in MORE.items() if draw.random() < 0.2},
    }
    body = draw.choice(BODIES) if draw.random() < 0.3 else json.dumps(said).encode()
    body = mutated(draw, body) if draw.random() < 0.4 else body
    status = draw.choice((b"200", b"204", b"403", b"500", b"302", b"429"))
    return b"\n".join((draw.choice(list(CONTRACTS)).encode(), status, draw.choice(CONTROLS), body))


def check(data: bytes) -> Hashable:
    """Read it."""
    contract, status, control, body = (*data.split(b"\n", 3), b"", b"", b"")[:4]
    name = contract.decode("latin-1")
    answer = HttpAnswer(int(status) if status.isdigit() and len(status) < 4 else 200, {}, body)
    fresh_s, stale_s = kept_for({"cache-control": control.decode("latin-1")}, 1.0, 2.0)
    assert fresh_s >= 0
    assert stale_s >= 0
    rights = tuple(_right(name if name in CONTRACTS else "shoal", answer, wish) for wish in WISHES)
    try:
        verdict = verdict_of(name if name in CONTRACTS else "shoal", answer)
    except HttpError as error:
        assert str(error).isprintable()
        return str(error), rights
    assert verdict.result in (ALLOW, DENY, IGNORE)
    assert answer.status < 500
    assert verdict.user_name != ""
    assert verdict.expires_at_s is None or 0 <= verdict.expires_at_s < 1 << 40
    if verdict.result == ALLOW:
        assert (
            body[:5] == b"allow"
            or b"allow" in body
            or b"ok" in body
            or answer.status == 204
            or (name == "mosquitto-go-auth" and answer.status == 200)
        )
    assert verdict.rules is None or (verdict.result == ALLOW and b"acl" in body)
    rules = None if verdict.rules is None else verdict.rules.rule_set.rule_count
    return verdict.result, verdict.superuser, len(verdict.groups), verdict.user_name is None, rules, rights


def _right(contract: str, answer: HttpAnswer, wish: Wish) -> str:
    """Return what an answer says about a wish, or that it says nothing."""
    try:
        said = answer_to(contract, answer, wish)
    except HttpError as error:
        assert str(error).isprintable()
        return str(error)
    assert said in (ALLOW, DENY, IGNORE)
    assert answer.status < 500
    assert said != ALLOW or answer.status in (200, 201, 204)
    return said


TARGET = Target("http_answers", 3000, make, check)
