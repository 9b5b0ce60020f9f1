"""The table of log events, docs/log-events.md and the code say the same."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import NamedTuple

from broker.telemetry.log_events import events, page
from tests.support.process import ROOT

METHODS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
CALL = re.compile(r"\blog\.(debug|info|warning|error|exception)\(\s*\"([a-z_]+)\"")
OWN_LINE = re.compile(r"_own_line\(\"([a-z_]+)\"|\"event\": \"(log_[a-z_]+)\"")
LOGGER = re.compile(r'^log = (?:logs\.)?get\("(\w+)"\)$', re.MULTILINE)
TABLES = ("log_events.py", "http_events.py", "ending_events.py")
UNFIXED = {"connection_ended": {"debug"}}  # levels that its meaning speaks of


class Call(NamedTuple):
    level: str
    fields: frozenset[str]
    logger: str | None = None


def calls() -> dict[str, list[Call]]:
    """Return each event that the code logs, and how."""
    found: dict[str, list[Call]] = defaultdict(list)
    for package in ("broker", "mesh", "router"):
        for path in sorted((ROOT / package).rglob("*.py*")):
            if path.suffix == ".pyx":
                for method, name in CALL.findall(path.read_text()):
                    found[name].append(Call(METHODS[method], frozenset()))
            elif path.suffix == ".py":
                logger = LOGGER.search(path.read_text())
                for node in ast.walk(ast.parse(path.read_text())):
                    if is_call(node):
                        assert isinstance(node, ast.Call)
                        assert isinstance(node.func, ast.Attribute)
                        found[name_of(node)].append(
                            Call(
                                METHODS[node.func.attr],
                                frozenset(keyword.arg for keyword in node.keywords if keyword.arg) - {"exc_info"},
                                logger[1] if logger else None,
                            )
                        )
    for first, second in OWN_LINE.findall((ROOT / "broker/logs.py").read_text()):
        found[first or second].append(Call("error" if second else "warning", frozenset()))
    return found


def is_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in METHODS
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and "log" in ast.unparse(node.func.value)
        and bool(node.args)
        and bool(name_of(node))
    )


def name_of(node: ast.Call) -> str:
    """Return the event, or the last of those that an expression chooses from."""
    constants = [
        each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return constants[-1] if constants else ""


def test_every_event_is_in_the_table_with_its_level_and_its_fields() -> None:
    table = events()
    found = calls()
    assert {"slow_turn", "connection_ended", "peer", "replay_gap", "log_dropped"} <= set(found)
    missing = set(found) - set(table)
    assert not missing, f"broker/telemetry/log_events.py does not name {sorted(missing)}"
    for name, event in table.items():
        levels = set(event.level.split(", ")) | UNFIXED.get(name, set())
        if name in found:
            assert {call.level for call in found[name]} <= levels, name
            named = set(event.fields.split(", "))
            assert {call.logger for call in found[name]} - {None} <= set(event.logger.split(", ")), name
            assert {field for call in found[name] for field in call.fields} <= named, name


def test_no_event_is_in_the_table_that_the_code_does_not_log() -> None:
    text = "".join(
        path.read_text()
        for package in ("broker", "mesh", "router")
        for path in (ROOT / package).rglob("*.py*")
        if path.suffix in (".py", ".pyx") and path.name not in TABLES
    )
    assert [name for name in events() if f'"{name}"' not in text] == []


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs/log-events.md").read_text() == page(), (
        "python -m broker.telemetry.log_events > docs/log-events.md"
    )


def test_no_event_is_named_twice() -> None:
    tables = "".join((ROOT / "broker/telemetry" / name).read_text() for name in TABLES)
    names = re.findall(r'^    Event\(\s*"(\w+)"', tables, re.MULTILINE)
    assert len(names) == len(set(names)) == len(events())
