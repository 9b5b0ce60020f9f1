"""Where a broker's settings come from, so that they can be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.config.live import HOW_IN_WORDS, Change, How, differences, how_it_changes, taken_over, value_of
from broker.config.loader import SETTINGS, Config, load
from broker.config.setting import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Read(NamedTuple):
    """What was read: the settings, where each came from, and how they differ from those in force."""

    config: Config
    origins: dict[str, str]
    changes: list[Change]


class Source:
    """The file, the environment and the flags that a broker was started with.

    Args:
        file, environ, flags: as of broker.config.loader.load; file and environment as they are now are read again.

    Attributes:
        config: the settings that are in force, as the layers gave them.
        origins: where each came from that is not at its default.

    Raises ConfigError.
    """

    def __init__(self, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> None:
        self._file = None if file is None else file.absolute()
        self._said_file = file
        self._environ = dict(environ)
        self._flags = dict(flags)
        self.origins: dict[str, str] = {}
        self.config = load(file, environ, flags, origins=self.origins)

    def read(self) -> Read:
        """Read the file again. From any thread. Raises ConfigError."""
        origins: dict[str, str] = {}
        config = load(self._file, self._environ, self._flags, origins=origins)
        return Read(config, origins, differences(self.config, config))

    def adopt(self, read: Read, hows: frozenset[How] = frozenset(("now", "new"))) -> None:
        """What was read is in force from now on, as far as it changes in one of these ways."""
        self.config = taken_over(self.config, read.config, hows)
        pending = {change.key for change in differences(self.config, read.config)}
        kept = {key: where for key, where in self.origins.items() if key in pending}
        self.origins = {**{key: where for key, where in read.origins.items() if key not in pending}, **kept}

    def rows(self) -> list[dict[str, Any]]:
        """Return each setting: its value, where that came from, and when another one would count."""
        rows = [
            {"key": key, "value": value_of(self.config, key), "origin": self.origins.get(key, "default")}
            for key in SETTINGS
        ]
        # Tables may hold secrets.
        rows += [
            {
                "key": table,
                "value": f"{len(getattr(self.config, table))} tables",
                "origin": self.origins.get(table, "default"),
            }
            for table in TABLES
        ]
        return [{**row, "changes": HOW_IN_WORDS[how_it_changes(str(row["key"]))]} for row in rows]
