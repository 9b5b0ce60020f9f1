"""The admin socket of a broker with several workers: the supervisor serves it and asks them over their channels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import trio

from broker.admin.backend import NewSettings
from broker.admin.pagination import QueryError, Row
from broker.config.start_error import StartError
from broker.logs import LEVELS, get, set_level
from broker.processes.control_channel import ControlError
from broker.processes.settings_in_force import new_settings
from broker.worker.drain import drain_asked
from mesh.placement import Homes

if TYPE_CHECKING:
    from pathlib import Path

    from broker.config.loader import Config
    from broker.processes.replacement import Replacement
    from broker.processes.settings_in_force import SettingsInForce
    from broker.processes.slot import Slot
    from broker.worker.drain import Drain
    from mesh.node_identity import Node

log = get("admin")


class Workers(Protocol):
    """What is asked of the supervisor: broker.processes.supervisor.Supervisor."""

    node: Node
    folder: Path
    slots: list[Slot]
    replacement: Replacement
    in_force: SettingsInForce

    @property
    def config(self) -> Config:
        """The settings that are in force."""

    @property
    def stopping(self) -> bool:
        """Whether it is to end."""

    def stop(self, drain: Drain | None = None) -> None:
        """Begin an orderly end."""


class ManyWorkers:
    """The backend of a broker whose workers are processes of their own."""

    def __init__(self, supervisor: Workers) -> None:
        self.supervisor = supervisor
        self._homes = Homes(supervisor.node.key, supervisor.config.workers)

    def workers(self) -> list[int]:
        """Return the numbers of the workers that serve clients now."""
        return [slot.number for slot in self.supervisor.slots if slot.state == "listening"]

    async def ask(self, worker: int, query: str, arguments: Row) -> Row:
        """Return a worker's answer. Raises QueryError if it is away or ends meanwhile."""
        if query == "log_level" and arguments.get("level") in LEVELS:
            set_level(arguments["level"])  # of this process's own lines
        channel = self.supervisor.slots[worker].channel
        if channel is None:
            raise QueryError(503, "worker_away", f"Worker {worker} is being restarted.")
        try:
            answer: Row = await channel.ask("admin", {"query": query, "arguments": arguments})
        except ControlError as error:
            raise QueryError(503, "worker_away", f"Worker {worker} gave no answer: {error}") from None
        return answer

    def home_of(self, client: str) -> int:
        """Return the number of the worker that a client lives on, if it has a session."""
        return self._homes.home_of(client.encode("utf-8", "surrogateescape"))

    def describe(self) -> Row:
        """Return what is known of the broker as a whole: it is ready while every worker serves clients."""
        slots = self.supervisor.slots
        return {
            "ready": not self.supervisor.stopping and all(slot.state == "listening" for slot in slots),
            "draining": self.supervisor.stopping,
            "workers_wanted": len(slots), "data_folder": str(self.supervisor.folder), "pid": os.getpid(),
            "restarts": sum(slot.restarts for slot in slots),
        }  # fmt: skip

    async def drain(self, to: str | None, rate: int | None) -> Row:
        """Begin to end the broker, as SIGTERM does."""
        log.warning("drain_asked", to=to, rate=rate)
        self.supervisor.stop(drain_asked(self.supervisor.config, to, rate))
        return {"draining": True}

    async def restart(self) -> Row:
        """Begin to replace the processes of all workers, one after the other. Raises QueryError."""
        try:
            self.supervisor.replacement.ask()
        except StartError as error:
            raise QueryError(409, "not_restarted", str(error)) from None
        return self.supervisor.replacement.describe()

    def restarting(self) -> Row:
        """Return how far the last restart is."""
        return self.supervisor.replacement.describe()

    async def read_settings(self) -> NewSettings:
        """Read the settings again; nothing has changed yet. Raises QueryError: they are wrong."""
        return await new_settings(self.supervisor.in_force)

    def settings(self) -> list[Row]:
        """Return each setting: its value, where that came from, and when another one would count."""
        return self.supervisor.in_force.rows()

    async def keep_house(self) -> None:
        """Do nothing: each worker tidies up for itself."""
        await trio.sleep_forever()
