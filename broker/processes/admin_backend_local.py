"""The admin socket of a broker with one worker: served by that worker's own trio, which no message passes through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.admin.backend import NewSettings
from broker.admin.pagination import QueryError, Row
from broker.admin.worker_queries import Queries
from broker.logs import get
from broker.processes.settings_in_force import new_settings
from broker.worker.drain import drain_asked

if TYPE_CHECKING:
    from broker.processes.settings_in_force import SettingsInForce
    from broker.worker.worker import Worker

log = get("admin")


class OneWorker:
    """The backend of a broker with one worker, in this process."""

    def __init__(self, worker: Worker, folder: Path, in_force: SettingsInForce | None = None) -> None:
        self.worker = worker
        self._in_force = in_force
        self.folder = folder
        self.queries = Queries(worker)

    def workers(self) -> list[int]:
        """Return the one number."""
        return [self.queries.number]

    async def ask(self, worker: int, query: str, arguments: Row) -> Row:
        """Return the worker's answer."""
        return await self.queries.answer(query, arguments)

    def home_of(self, client: str) -> int:
        """Return the one number."""
        return self.queries.number

    def describe(self) -> Row:
        """Return what is known of the broker as a whole."""
        return {
            "ready": self.worker.ready,
            "draining": self.worker.stopping,
            "workers_wanted": 1,
            "data_folder": str(self.folder),
        }

    async def drain(self, to: str | None, rate: int | None) -> Row:
        """Begin to end the broker, as SIGTERM does."""
        log.warning("drain_asked", to=to, rate=rate)
        self.worker.stop(drain_asked(self.worker.config, to, rate))
        return {"draining": True}

    async def restart(self) -> Row:
        """Refuse: meanwhile no process would serve its clients."""
        raise QueryError(409, "one_worker", "The broker has one worker: end it, and start it again.")

    def restarting(self) -> Row:
        """Return that there is no such thing."""
        return {"running": False, "workers": [], "error_text": None}

    async def read_settings(self) -> NewSettings:
        """Read the settings again; nothing has changed yet. Raises QueryError: they are wrong."""
        return NewSettings([], None, lambda: None) if self._in_force is None else await new_settings(self._in_force)

    def settings(self) -> list[Row]:
        """Return each setting: its value, where that came from, and when another one would count."""
        return [] if self._in_force is None else self._in_force.rows()

    async def keep_house(self) -> None:
        """End what was left open, until cancelled."""
        await self.queries.keep_house()
