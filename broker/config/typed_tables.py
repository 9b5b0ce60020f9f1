"""Reading tables of several types, each with settings of its own: [[authenticator]] and [[authorizer]]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from broker.config.setting import Problem, Setting, settings_of, shown, tables_of, values_of


class Named(Protocol):
    """A table that others may name."""

    @property
    def name(self) -> str | None:
        """Its name; None: it has none."""


Table = TypeVar("Table", bound=Named)


class TypedTables(Generic[Table]):
    """How the tables of a name are read; `type` tells which settings one has.

    Args:
        name: of the tables, "authenticator".
        types: what each type is read into.
        lists: settings that are lists and have no default, of which that could be seen.

    Attributes:
        name, types: as given.
        settings: by type and key.
    """

    def __init__(self, name: str, types: Mapping[str, type[Table]], lists: tuple[str, ...]) -> None:
        self.name = name
        self.types = types
        self._lists = lists
        self.settings: dict[str, dict[str, Setting]] = {
            kind: {setting.key: setting for setting in settings_of(struct)}  # type: ignore[arg-type]
            for kind, struct in types.items()
        }

    def read(self, tables: object, where: str, problems: list[Problem]) -> tuple[Table, ...]:
        """Return what the tables say that a layer gives; what is wrong is added to the problems."""
        found = []
        for number, table in enumerate(tables_of(tables, self.name, where, problems), 1):
            key = f"{self.name} {number}"
            kind = table.get("type")
            if not isinstance(kind, str) or kind not in self.settings:
                given = shown(kind) if "type" in table else "nothing"
                problems.append(Problem(where, f"{key}.type", given, "one of " + ", ".join(self.types)))
                continue
            known = self.settings[kind]
            # One of a list may stand without its brackets.
            lists = {name for name, one in known.items() if isinstance(one.default, tuple) or name in self._lists}
            values = values_of(
                {
                    name: [value] if isinstance(value, str) and name in lists else value
                    for name, value in table.items()
                    if name != "type"
                },
                known,
                {name: setting.expected for name, setting in known.items() if setting.default is msgspec.NODEFAULT},
                where,
                key,
                problems,
                partial(self._instead, kind),
            )
            if values is not None:
                found.append(self.types[kind](**values))
        return tuple(found)

    def repeated_names(self, tables: Iterable[Table], problem: Callable[[str, Any, str], Problem]) -> Iterator[Problem]:
        """Yield the tables whose name another one has before them.

        Args:
            problem: makes one of a key, what was found and what was expected.
        """
        names: set[str] = set()
        for number, table in enumerate(tables, 1):
            if table.name is not None:
                if table.name in names:
                    yield problem(f"{self.name} {number}.name", table.name, "each name once")
                names.add(table.name)

    def _instead(self, kind: str, _name: str) -> str:
        return f"those of {kind}: {', '.join(self.settings[kind])}"
