"""The rules of a rules file, ours: what mosquitto's ACL file cannot say."""

from __future__ import annotations

import ipaddress
import re
import tomllib
import zoneinfo
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.auth.conditions import DAYS, All, ByListener, FromNetworks, HasCertificate, InGroups, Named, Times
from broker.auth.rule import EVERY_ACTION, PUBLISH, READ, REPLAY, SHARE, Condition, Holders, Rule
from broker.auth.rule_topics import topic_filter_of, written_filter

ACTIONS: Final = {"publish": PUBLISH, "subscribe": READ, "share": SHARE, "replay": REPLAY, "all": EVERY_ACTION}
CERTIFICATE_FIELDS: Final = ("cn", "dn", "san_dns", "san_uri", "san_email", "sha256", "issuer")
HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|24:00)")
KEYS: Final = (
    "allow",
    "deny",
    "topics",
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
)
RULES_MAX: Final = 1_000_000


class RulesLineError(ValueError):
    """What is wrong with a rules file, and in which rule."""


class RulesLines:
    """A rules file, taken apart: TOML, a table [[rule]] for each rule; from the top, the first that fits decides.

    Args:
        data: the file.
        name: its, for what describes a rule.
        listeners: addresses of the listeners, as the settings have them, in their order.

    Attributes:
        rules: in their order; one for each user and topic filter of a table.
        times: those that rules ask for, which have to be told what time it is.

    Raises RulesLineError.
    """

    def __init__(self, data: bytes, name: str, listeners: Sequence[str] = ()) -> None:
        self.name = name
        self._listeners = tuple(listeners)
        self.times: list[Times] = []
        try:
            text = data.decode()
            tables = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # of UTF-8 and of TOML
            raise RulesLineError(str(error)) from None
        found = tables.pop("rule", [])
        self._zone = _zone(tables.pop("time_zone", None))
        if tables:
            raise RulesLineError(f"found {next(iter(tables))}, expected [[rule]] tables, and time_zone before them")
        if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
            raise RulesLineError("rule: expected tables: [[rule]]")
        # Where a table begins, unless a text that looks like one confuses it: then its number has to do.
        begins = [number for number, line in enumerate(text.split("\n"), 1) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)]
        self._lines = begins if len(begins) == len(found) else []
        self._names: dict[int, str] = {}
        self.rules: list[Rule] = []
        for number, table in enumerate(found, 1):
            try:
                self.rules.extend(self._rules_of(table, number))
            except ValueError as error:
                raise RulesLineError(f"{self._place(number)}: {error}") from None
            if len(self.rules) > RULES_MAX:
                raise RulesLineError(f"{self._place(number)}: more than {RULES_MAX:,} pairs of user and topic filter")

    def __str__(self) -> str:
        return self.name

    def described(self, rule: Rule) -> str:
        """Return a rule in words, with the file and where it stands."""
        named = f" ({self._names[rule.line]})" if rule.line in self._names else ""
        return f"{self.name}:{self._place(rule.line)}{named} {self.words(rule)}"

    def words(self, rule: Rule) -> str:
        """Return a rule in words, as far as what it does and about which topics."""
        assert rule.topic_filter is not None, rule
        actions = (
            "all"
            if rule.actions == EVERY_ACTION
            else ",".join(word for word, action in ACTIONS.items() if action != EVERY_ACTION and rule.actions & action)
        )
        return f"{'allow' if rule.allow else 'deny'} {actions} {written_filter(rule.topic_filter)}"

    def _place(self, number: int) -> str:
        return f"{self._lines[number - 1]}" if self._lines else f"rule {number}"

    def _rules_of(self, table: Mapping[str, Any], number: int) -> Iterator[Rule]:
        for key in table:
            if key not in KEYS:
                raise ValueError(f"found {key}, expected some of {', '.join(KEYS)}")
        if ("allow" in table) == ("deny" in table):
            raise ValueError("expected allow or deny, one of them")
        if "name" in table:
            self._names[number] = _text(table["name"], "name")
        actions = 0
        for word in _texts(table, "allow" if "allow" in table else "deny"):
            if word not in ACTIONS:
                raise ValueError(f"found {word!r}, expected some of {', '.join(ACTIONS)}")
            actions |= ACTIONS[word]
        for key, words in (("retain", "publish"), ("qos", "publish and subscribe")):
            if key in table and not actions & (PUBLISH if key == "retain" else PUBLISH | READ):
                raise ValueError(f"{key}: expected it beside {words}, of which alone it is asked")
        condition = self._condition(table)
        retain = table.get("retain")
        if retain is not None and not isinstance(retain, bool):
            raise ValueError("retain: expected true or false")
        qos = table.get("qos", [0, 1, 2])
        qos = qos if isinstance(qos, list) else [qos]
        if not qos or not all(type(one) is int and 0 <= one <= 2 for one in qos):
            raise ValueError("qos: expected 0, 1, 2 or a list of them")
        for text in _texts(table, "topics"):
            topic_filter = _topic_filter(text)
            for holder in _holders(table):
                yield Rule(
                    "allow" in table,
                    actions,
                    topic_filter,
                    holder,
                    number,
                    tuple(sorted(set(qos))),
                    retain,
                    condition=condition,
                )

    def _condition(self, table: Mapping[str, Any]) -> Condition | None:
        """Return what a rule asks for beside user name and topic."""
        found: list[Condition] = []
        if "client_ids" in table:
            found.append(Named(frozenset(text.encode() for text in _texts(table, "client_ids"))))
        if "groups" in table:
            found.append(InGroups(frozenset(_texts(table, "groups"))))
        if "networks" in table:
            found.append(FromNetworks(tuple(_network(text) for text in _texts(table, "networks"))))
        if "listeners" in table:
            found.append(ByListener(frozenset(self._listener(text) for text in _texts(table, "listeners"))))
        if "certificate" in table:
            found.extend(_certificate(table["certificate"]))
        if "hours" in table or "days" in table:
            found.append(self._times(table))
        return None if not found else found[0] if len(found) == 1 else All(tuple(found))

    def _listener(self, text: str) -> int:
        if text not in self._listeners:
            raise ValueError(
                f"listeners: found {text!r}, expected addresses of the settings: "
                + (", ".join(self._listeners) or "there are none")
            )
        return self._listeners.index(text)

    def _times(self, table: Mapping[str, Any]) -> Times:
        begin, end = 0, 24 * 60
        if "hours" in table:
            match = HOURS.fullmatch(_text(table["hours"], "hours"))
            if match is None:
                raise ValueError(f"hours: found {table['hours']!r}, expected hours such as 08:00-17:30")
            begin = int(match[1]) * 60 + int(match[2])
            end = int(match[3]) * 60 + int(match[4]) if match[3] else 24 * 60
            if begin == end:
                raise ValueError("hours: they begin when they end")
        days = _texts(table, "days") if "days" in table else list(DAYS)
        for day in days:
            if day not in DAYS:
                raise ValueError(f"days: found {day!r}, expected some of {', '.join(DAYS)}")
        times = Times(begin, end, frozenset(DAYS.index(day) for day in days), self._zone)
        self.times.append(times)
        return times


def _holders(table: Mapping[str, Any]) -> Iterable[str | Holders]:
    anonymous = table.get("anonymous")
    if anonymous is not None and anonymous is not True:
        raise ValueError("anonymous: expected true: clients without a user name")
    holders: list[str | Holders] = [Holders.NO_NAME] if anonymous else []
    if "users" in table:
        holders += _texts(table, "users")
    return holders or [Holders.EVERYBODY]


def _certificate(found: object) -> Iterator[HasCertificate]:
    if not isinstance(found, dict) or not found:
        raise ValueError("certificate: expected a table with some of " + ", ".join(CERTIFICATE_FIELDS))
    for field in found:
        if field not in CERTIFICATE_FIELDS:
            raise ValueError(f"certificate: found {field}, expected some of {', '.join(CERTIFICATE_FIELDS)}")
        yield HasCertificate(field, frozenset(_texts(found, field)))


def _topic_filter(text: str) -> bytes:
    if text.startswith("eq "):
        raise ValueError(f"topics: found {text!r}, expected a topic filter: there is no eq here")
    if text.startswith(("$share/", "$replay/")):
        raise ValueError(f"topics: found {text!r}, expected the topics in it; the rights are share and replay")
    try:
        return topic_filter_of(text)
    except ValueError as error:
        raise ValueError(f"topics: found {text[:100]!r}: {error}") from None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"networks: found {text!r}, expected addresses and networks such as 10.0.0.0/8") from None


def _zone(found: object) -> zoneinfo.ZoneInfo | None:
    if found is None:
        return None
    try:
        return zoneinfo.ZoneInfo(_text(found, "time_zone"))
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise RulesLineError(
            f"time_zone: found {found!r}, expected a name that this machine knows, such as Europe/Berlin"
        ) from None


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    found = table.get(key)
    listed = [found] if isinstance(found, str) else found
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise ValueError(f"{key}: expected a text, or a list of them")
    return listed


def _text(found: object, key: str) -> str:
    if not isinstance(found, str) or not found:
        raise ValueError(f"{key}: expected a text")
    return found
