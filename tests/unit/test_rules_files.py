"""Rules files, ours: what they can ask for, what is wrong with one, and how a rule is named."""

from __future__ import annotations

import calendar
from typing import Any

import pytest

from broker.auth.acl import Grant
from broker.auth.conditions import Times
from broker.auth.principal import Principal
from broker.auth.rule_chain import RuleChain
from broker.auth.rule_set import RuleSet
from broker.auth.rules_lines import RulesLineError, RulesLines
from broker.transport.facts import Certificate

LISTENERS = ("tcp://127.0.0.1:1883", "tls://0.0.0.0:8883")


def chain_of(text: str) -> RuleChain:
    lines = RulesLines(text.encode(), "rules.toml", LISTENERS)
    return RuleChain([RuleSet(lines.rules, lines)], decides_by_qos=True)


def client(
    user: str | None = "ann", identifier: bytes = b"c1", address: str | None = None, listener: int = 0, **more: Any
) -> Principal:
    return Principal(user, identifier, address, listener, **more)


def may(chain: RuleChain, principal: Principal, topic: bytes, qos: int = 0, retain: bool = False) -> bool:
    found = chain.may_publish(principal, topic, qos, retain)
    assert isinstance(found, bool)
    return found


def test_the_first_rule_that_fits_decides_and_none_is_a_no() -> None:
    chain = chain_of("""
[[rule]]
name = "the vault"
deny = "all"
topics = "plant/secret/#"

[[rule]]
users = ["ann", "bob"]
allow = ["publish", "subscribe"]
topics = ["plant/#", "devices/${clientid}/+"]

[[rule]]
anonymous = true
allow = "subscribe"
topics = "public/#"
""")
    assert may(chain, client(), b"plant/a")
    assert may(chain, client("bob"), b"devices/c1/up")
    assert not may(chain, client("bob"), b"devices/c2/up")
    assert not may(chain, client(), b"plant/secret/a")
    assert not may(chain, client("zoe"), b"plant/a")
    assert chain.may_subscribe(client(None), b"public/#", 0) == Grant.WHOLE
    assert chain.may_subscribe(client(), b"public/#", 0) == Grant.REFUSED
    assert chain.may_subscribe(client(), b"plant/#", 0) == Grant.NARROWED
    assert not chain.may_use(client(), b"$share/g/plant/a")
    assert chain.explain(client(), "publish", b"plant/secret/a", 0, False).by == (
        "rules.toml:2 (the vault) deny all plant/secret/#"
    )
    assert chain.explain(client(), "publish", b"devices/c1/up", 0, False).by == (
        "rules.toml:7 allow publish,subscribe devices/${clientid}/+"
    )
    assert chain.explain(client(), "publish", b"x", 0, False).by == "no rule of rules.toml"


CERTIFICATE = Certificate(cn="pump", san_dns=("a.example", "b.example"))


@pytest.mark.parametrize(
    ("asked", "fits", "does_not"),
    [
        ('client_ids = ["c1"]', client(), client(identifier=b"c2")),
        ('groups = ["ops", "dev"]', client(groups=("dev",)), client(groups=("other",))),
        ('networks = ["10.0.0.0/8", "2001:db8::/32"]', client(address="10.1.2.3"), client(address="11.1.2.3")),
        ('networks = "10.0.0.0/8"', client(address="::ffff:10.1.2.3"), client(address=None)),
        ('networks = "2001:db8::/32"', client(address="[2001:db8::1]"), client(address="2001:db9::1")),
        ('listeners = "tls://0.0.0.0:8883"', client(listener=1), client(listener=0)),
        ('certificate = {cn = "pump"}', client(certificate=CERTIFICATE), client()),
        ('certificate = {cn = "pump"}', client(certificate=CERTIFICATE), client(certificate=Certificate(cn="x"))),
        (
            'certificate = {cn = "pump", san_dns = ["b.example"]}',
            client(certificate=CERTIFICATE),
            client(certificate=Certificate(cn="pump", san_dns=("c.example",))),
        ),
        ('client_ids = "c1"\ngroups = "ops"', client(groups=("ops",)), client(identifier=b"c2", groups=("ops",))),
    ],
)
def test_a_rule_holds_for_clients_that_have_what_it_asks_for(asked: str, fits: Principal, does_not: Principal) -> None:
    chain = chain_of(f'[[rule]]\nallow = "all"\ntopics = "#"\n{asked}\n')
    assert may(chain, fits, b"a")
    assert not may(chain, does_not, b"a")


def test_a_rule_may_be_about_some_qos_and_about_retain() -> None:
    chain = chain_of("""
[[rule]]
deny = "publish"
topics = "#"
retain = true
[[rule]]
allow = "publish"
topics = "#"
qos = [0, 1]
""")
    assert may(chain, client(), b"a", 1)
    assert not may(chain, client(), b"a", 2)
    assert not may(chain, client(), b"a", 0, retain=True)
    # And where RETAIN is not named, that rule says nothing about messages without it.
    assert may(chain_of('[[rule]]\nallow = "publish"\ntopics = "#"\nretain = false\n'), client(), b"a")


def moment(day: int, hour: int, minute: int) -> float:
    # 2026-11-23 is a Monday.
    return calendar.timegm((2026, 11, 23 + day, hour, minute, 0))


@pytest.mark.parametrize(
    ("rule", "times"),
    [
        ('hours = "08:00-17:30"', {(0, 8, 0): True, (0, 7, 59): False, (0, 17, 29): True, (0, 17, 30): False}),
        ('hours = "22:00-06:00"', {(0, 22, 0): True, (1, 5, 59): True, (1, 6, 0): False, (0, 12, 0): False}),
        (
            'hours = "22:00-06:00"\ndays = ["mon"]',
            {(0, 23, 0): True, (1, 5, 0): True, (0, 5, 0): False, (1, 23, 0): False},
        ),
        ('days = ["sat", "sun"]', {(5, 0, 0): True, (6, 23, 59): True, (0, 0, 0): False}),
        ('hours = "20:00-24:00"', {(0, 23, 59): True, (1, 0, 0): False}),
    ],
)
def test_a_rule_may_hold_for_some_hours(rule: str, times: dict[tuple[int, int, int], bool]) -> None:
    lines = RulesLines(f'time_zone = "UTC"\n[[rule]]\nallow = "publish"\ntopics = "#"\n{rule}\n'.encode(), "rules.toml")
    chain = RuleChain([RuleSet(lines.rules, lines)], decides_by_qos=True)
    (found,) = lines.times
    assert isinstance(found, Times)
    assert not may(chain, client(), b"a")  # it has not been told the time
    for at, expected in times.items():
        before = found.is_open
        assert found.look_at(moment(*at)) == (before != expected)
        assert may(chain, client(), b"a") == expected, at


RULE = '[[rule]]\nallow = "publish"\ntopics = "a"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]]\ntopics = 'a'\n", "1: expected allow or deny, one of them"),
        (f"{RULE}deny = 'all'\n", "1: expected allow or deny, one of them"),
        (
            '\n\n[[rule]]\nallow = "write"\ntopics = "a"\n',
            "3: found 'write', expected some of publish, subscribe, share,",
        ),
        ('[[rule]]\nallow = "publish"\n', "1: topics: expected a text, or a list of them"),
        ('[[rule]]\ndeny = "publish"\ntopics = "a/%c/#"\n', "1: topics: found 'a/%c/#': expected ${clientid}"),
        ('[[rule]]\ndeny = "subscribe"\ntopics = "eq #"\n', "1: topics: found 'eq #', expected a topic filter"),
        ('[[rule]]\ndeny = "subscribe"\ntopics = "$share/#"\n', "found '$share/#', expected the topics in it"),
        ('[[rule]]\ndeny = "replay"\ntopics = "$replay/-1h/a"\n', "expected the topics in it"),
        ('[[rule]]\nallow = "subscribe"\ntopics = "#"\nretain = false\n', "1: retain: expected it beside publish"),
        ('[[rule]]\ndeny = "share"\ntopics = "#"\nqos = 2\n', "1: qos: expected it beside publish and subscribe"),
        ('[[rule]]\nallow = "publish"\ntopics = []\n', "1: topics: expected a text, or a list of them"),
        ('[[rule]]\nallow = "publish"\ntopics = "a#"\n', "1: topics: found 'a#': # fills a whole level"),
        (
            '[[rule]]\nallow = "publish"\ntopics = "${name}"\n',
            "expected no placeholders but ${clientid} and ${username}",
        ),
        (f"{RULE}{RULE}user = 'ann'\n", "4: found user, expected some of allow, deny, topics, users,"),
        (f"{RULE}users = []\n", "1: users: expected a text, or a list of them"),
        (f"{RULE}anonymous = false\n", "1: anonymous: expected true"),
        (f"{RULE}qos = 3\n", "1: qos: expected 0, 1, 2 or a list of them"),
        (f"{RULE}qos = []\n", "1: qos: expected 0, 1, 2 or a list of them"),
        (f"{RULE}qos = true\n", "1: qos: expected 0, 1, 2 or a list of them"),
        (f"{RULE}retain = 1\n", "1: retain: expected true or false"),
        (f"{RULE}networks = '10.0.0.0/33'\n", "1: networks: found '10.0.0.0/33', expected addresses and networks"),
        (
            f"{RULE}listeners = 'tcp://0.0.0.0:1'\n",
            "expected addresses of the settings: tcp://127.0.0.1:1883, tls://0.0.0.0",
        ),
        (f"{RULE}certificate = {{}}\n", "1: certificate: expected a table with some of cn, dn"),
        (f"{RULE}certificate = {{name = 'x'}}\n", "1: certificate: found name, expected some of cn"),
        (f"{RULE}hours = '8:00-9:00'\n", "1: hours: found '8:00-9:00', expected hours such as 08:00-17:30"),
        (f"{RULE}hours = '08:00-08:00'\n", "1: hours: they begin when they end"),
        (f"{RULE}days = ['monday']\n", "1: days: found 'monday', expected some of mon, tue"),
        ("time_zone = 'Nowhere/Land'\n", "time_zone: found 'Nowhere/Land', expected a name that this machine knows"),
        ("rules = 3\n", "found rules, expected [[rule]] tables"),
        ("rule = 3\n", "rule: expected tables: [[rule]]"),
        ("[[rule]\n", "(at line 1, column 7)"),
    ],
)
def test_an_error_names_the_rule_and_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(RulesLineError) as caught:
        RulesLines(text.encode(), "rules.toml", LISTENERS)
    assert said in str(caught.value)


def test_a_rule_whose_line_cannot_be_told_is_named_by_its_number() -> None:
    lines = RulesLines(b'[[rule]]\nallow = "publish"\ntopics = "a"\nname = """\n[[rule]]\n"""\n', "rules.toml")
    assert lines.described(lines.rules[0]).startswith("rules.toml:rule 1 (")
