"""Reading and checking [[authorizer]] tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from broker.config.authenticator_check import url_problems
from broker.config.authorizer import AUTHORIZER_TYPES, Authorizer, HttpRightsTable
from broker.config.setting import Problem, Setting, settings_of, shown, tables_of, values_of

AUTHORIZER_SETTINGS: Final[dict[str, dict[str, Setting]]] = {
    name: {setting.key: setting for setting in settings_of(struct)} for name, struct in AUTHORIZER_TYPES.items()
}


def authorizers_read(tables: object, where: str, problems: list[Problem]) -> tuple[Authorizer, ...]:
    """Return the authorizers of the tables that a layer gives; what is wrong is added to the problems."""
    found = []
    for number, table in enumerate(tables_of(tables, "authorizer", where, problems), 1):
        key = f"authorizer {number}"
        kind = table.get("type")
        if not isinstance(kind, str) or kind not in AUTHORIZER_SETTINGS:
            problems.append(
                Problem(
                    where,
                    f"{key}.type",
                    shown(kind) if "type" in table else "nothing",
                    "one of " + ", ".join(AUTHORIZER_TYPES),
                )
            )
            continue
        known = AUTHORIZER_SETTINGS[kind]
        values = values_of(
            {
                # One of a list may stand without its brackets.
                name: [value] if isinstance(value, str) and name == "urls" else value
                for name, value in table.items()
                if name != "type"
            },
            known,
            {name: setting.expected for name, setting in known.items() if setting.default is msgspec.NODEFAULT},
            where,
            key,
            problems,
            partial(_instead, kind),
        )
        if values is not None:
            found.append(AUTHORIZER_TYPES[kind](**values))
    return tuple(found)


def authorizer_problems(tables: Iterable[Authorizer], problem: Callable[[str, Any, str], Problem]) -> Iterator[Problem]:
    """Yield what is wrong with authorizers whose values are each in their range.

    Args:
        problem: makes one of a key, what was found and what was expected.
    """
    names: set[str] = set()
    for number, table in enumerate(tables, 1):
        if table.name is not None:
            if table.name in names:
                yield problem(f"authorizer {number}.name", table.name, "each name once")
            names.add(table.name)
        if isinstance(table, HttpRightsTable):
            yield from url_problems(f"authorizer {number}.urls", table.urls, problem)


def _instead(kind: str, _name: str) -> str:
    return f"those of {kind}: {', '.join(AUTHORIZER_SETTINGS[kind])}"
