"""Reading and checking [[authenticator]] tables."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from broker.config.authenticator import AUTHENTICATOR_TYPES, Authenticator
from broker.config.setting import Problem, Setting, settings_of, shown, tables_of, values_of

AUTHENTICATOR_SETTINGS: Final[dict[str, dict[str, Setting]]] = {
    name: {setting.key: setting for setting in settings_of(struct)} for name, struct in AUTHENTICATOR_TYPES.items()}


def authenticators_read(tables: object, where: str, problems: list[Problem]) -> tuple[Authenticator, ...]:
    """Return the authenticators of the tables that a layer gives; what is wrong is added to the problems."""
    found = []
    for number, table in enumerate(tables_of(tables, "authenticator", where, problems), 1):
        key = f"authenticator {number}"
        kind = table.get("type")
        if not isinstance(kind, str) or kind not in AUTHENTICATOR_SETTINGS:
            problems.append(Problem(where, f"{key}.type", shown(kind) if "type" in table else "nothing",
                                    "one of " + ", ".join(AUTHENTICATOR_TYPES)))
            continue
        known = AUTHENTICATOR_SETTINGS[kind]
        values = values_of(
            {name: value for name, value in table.items() if name != "type"}, known,
            {name: setting.expected for name, setting in known.items() if setting.default is msgspec.NODEFAULT},
            where, key, problems, partial(_instead, kind))
        if values is not None:
            found.append(AUTHENTICATOR_TYPES[kind](**values))
    return tuple(found)


def _instead(kind: str, _name: str) -> str:
    return f"those of {kind}: {', '.join(AUTHENTICATOR_SETTINGS[kind])}"
