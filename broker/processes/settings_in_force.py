"""The settings of a broker that runs: read again, put in force, and said to who asks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from broker.config.live import taken_over
from broker.config.loader import Config, ConfigError
from broker.config.start_error import StartError
from broker.logs import get, set_level

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.admin.backend import NewSettings
    from broker.config.live import How
    from broker.config.source import Read, Source

log = get("reload")


class SettingsInForce:
    """What a broker goes by, and what it would go by if it was started now.

    Args:
        source: where they came from.
        config: likewise, with what the start has found out: how many workers, and how much memory.

    Attributes:
        config: in force, with the same.
    """

    def __init__(self, source: Source, config: Config) -> None:
        self._source = source
        self.config = config

    def read_now(self) -> Read:
        """Read them again; nothing has changed yet. From any thread. Raises StartError."""
        try:
            return self._source.read()
        except ConfigError as error:
            raise StartError(str(error)) from error

    async def read(self) -> Read:
        """read_now(), in a thread."""
        return await trio.to_thread.run_sync(self.read_now)

    async def read_or_say(self) -> Read | None:
        """read(); None: the log says what is wrong."""
        try:
            return await self.read()
        except StartError as error:
            log.error("reload_failed", what=f"{error} What was read before stays in use.")
            return None

    def to_be(self, read: Read, hows: frozenset[How] = frozenset(("now", "new"))) -> Config:
        """Return what would be in force."""
        return taken_over(self.config, read.config, hows)

    def adopt(self, read: Read, hows: frozenset[How] = frozenset(("now", "new"))) -> Config:
        """They are in force, as far as they change in one of these ways: return them, and say so in the log."""
        level = self.config.log.level
        self.config = self.to_be(read, hows)
        if self.config.log.level != level:
            set_level(self.config.log.level)
        self._source.adopt(read, hows)
        if not read.changes:
            log.info("settings_as_before")
        else:
            log.info(
                "settings_changed",
                changed=[str(change) for change in read.changes if change.how in hows],
                pending=[str(change) for change in read.changes if change.how not in hows],
            )
        return self.config

    def reader_for(self, change: Callable[[Config], object]) -> Callable[[], Callable[[], None]]:
        """Return what reads the settings and returns what puts them in force by `change`, for broker.worker.reload."""

        def use(read: Read) -> None:
            change(self.to_be(read))
            self.adopt(read)

        return lambda: partial(use, self.read_now())

    def rows(self) -> list[dict[str, Any]]:
        """Return each setting: its value, where that came from, and when another one would count."""
        return self._source.rows()


async def new_settings(in_force: SettingsInForce) -> NewSettings:
    """Read the settings again, for an operator who has asked. Raises QueryError."""
    # Here, because one who is not asked needs none of it.
    import msgspec

    from broker.admin.backend import NewSettings
    from broker.admin.pagination import QueryError

    try:
        read = await in_force.read()
    except StartError as error:
        raise QueryError(422, "not_reloaded", f"{error} Nothing has changed.") from None
    return NewSettings(
        [change.described() for change in read.changes],
        msgspec.to_builtins(in_force.to_be(read)),
        partial(in_force.adopt, read),
    )
