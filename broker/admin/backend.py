"""Whom the admin socket and health ask: one worker, or a supervisor of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.admin.pagination import Row

if TYPE_CHECKING:
    from collections.abc import Callable


class NewSettings(NamedTuple):
    """Settings that were read again: what differs, what the workers are to go by, and what says that they do."""

    changes: list[Row]
    config: Row | None
    adopt: Callable[[], object]


class Backend(Protocol):
    """What the admin socket asks: one worker, or a supervisor of several."""

    def workers(self) -> list[int]:
        """Return the numbers of the workers that can be asked, ascending."""

    async def ask(self, worker: int, query: str, arguments: Row) -> Row:
        """Return a worker's answer (broker.admin.worker_queries.Queries.answer). Raises QueryError if it gives none."""

    def home_of(self, client: str) -> int:
        """Return the number of the worker that a client lives on, if it has a session."""

    def describe(self) -> Row:
        """Return what is known of the broker as a whole: at least `ready` and `workers_wanted`."""

    async def drain(self, to: str | None, rate: int | None) -> Row:
        """Begin to end the broker in order.

        Args:
            to: another server for its clients; None: as the settings have it.
            rate: clients told to go in a second; None: likewise.
        """

    async def restart(self) -> Row:
        """Begin to replace the processes of all workers, one after the other. Raises QueryError."""

    def restarting(self) -> Row:
        """Return how far the last restart is: `running`, `workers` that are done, `error_text`."""

    async def read_settings(self) -> NewSettings:
        """Read the settings again; nothing has changed yet. Raises QueryError: they are wrong."""

    def settings(self) -> list[Row]:
        """Return each setting: its value, where that came from, and when another one would count."""

    async def keep_house(self) -> None:
        """Tidy up now and then, until cancelled."""
