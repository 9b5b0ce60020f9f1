"""Reading and checking [[limit]] tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from broker.config.limit import Limit
from broker.config.setting import Problem, Setting, settings_of, shown, tables_of, values_of

LIMIT_SETTINGS: Final[dict[str, Setting]] = {setting.key: setting for setting in settings_of(Limit)}
WHOM: Final = ("users", "groups", "anonymous")


def limits_read(tables: object, where: str, problems: list[Problem]) -> tuple[Limit, ...]:
    """Return what the [[limit]] tables of a layer say; what is wrong is added to the problems."""
    found = []
    for number, table in enumerate(tables_of(tables, "limit", where, problems), 1):
        values = values_of(table, LIMIT_SETTINGS, {}, where, f"limit {number}", problems, _instead)
        for name in ("users", "groups"):
            if values is not None and name in values and not values[name]:  # it would be about all clients
                problems.append(Problem(where, f"limit {number}.{name}", shown(table[name]), "one or more names"))
                values = None
        if values is not None:
            found.append(Limit(**values))
    return tuple(found)


def _instead(_name: str) -> str:
    return "one of " + ", ".join(LIMIT_SETTINGS)


def limit_problems(limits: Sequence[Limit], problem: Callable[[str, Any, str], Problem]) -> Iterator[Problem]:
    """Yield what is wrong with tables whose values are each in their range.

    Args:
        problem: makes one of a key, what was found and what was expected.
    """
    for number, limit in enumerate(limits, 1):
        if not any(getattr(limit, name) for name in LIMIT_SETTINGS if name not in WHOM):
            yield problem(f"limit {number}", "a table without a limit", "one or more limits")
        if number < len(limits) and not (limit.users or limit.groups or limit.anonymous):
            yield problem(f"limit {number}", "a table about all clients before others", "it to be the last")
