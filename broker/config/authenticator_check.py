"""Reading and checking [[authenticator]] tables."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.config.authenticator import AUTHENTICATOR_TYPES, Authenticator
from broker.config.setting import Problem, Setting, settings_of, shown

AUTHENTICATOR_SETTINGS: Final[dict[str, dict[str, Setting]]] = {
    name: {setting.key: setting for setting in settings_of(struct)} for name, struct in AUTHENTICATOR_TYPES.items()}


def authenticators_read(tables: object, where: str, problems: list[Problem]) -> tuple[Authenticator, ...]:
    """Return the authenticators of the tables that a layer gives; what is wrong is added to the problems."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append(Problem(where, "authenticator", shown(tables), "tables: [[authenticator]]"))
        return ()
    found = []
    for number, table in enumerate(tables, 1):
        key = f"authenticator {number}"
        kind = table.get("type")
        known = AUTHENTICATOR_SETTINGS.get(kind) if isinstance(kind, str) else None
        if known is None:
            problems.append(Problem(where, f"{key}.type", shown(kind) if "type" in table else "nothing",
                                    "one of " + ", ".join(AUTHENTICATOR_TYPES)))
            continue
        values: dict[str, Any] = {}
        wrong = len(problems)
        for name, value in table.items():
            if name == "type":
                continue
            if name not in known:
                problems.append(Problem(
                    where, f"{key}.{name}", "an unknown setting", f"those of {kind}: {', '.join(known)}"))
                continue
            try:
                values[name] = msgspec.convert(value, known[name].kind)
            except msgspec.ValidationError:
                problems.append(Problem(where, f"{key}.{name}", shown(value), known[name].expected))
        problems.extend(Problem(where, f"{key}.{name}", "nothing", setting.expected) for name, setting in known.items()
                        if setting.default is msgspec.NODEFAULT and name not in table)
        if len(problems) == wrong:
            found.append(AUTHENTICATOR_TYPES[kind](**values))
    return tuple(found)
