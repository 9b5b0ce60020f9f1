"""New processes for the workers of a broker that runs, one after the other: for a new version, or for settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from broker.config.start_error import StartError
from broker.logs import get
from broker.processes.file_check import check_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.config.live import How
    from broker.processes.settings_in_force import SettingsInForce
    from broker.processes.slot import Slot

log = get("supervisor")

GO_BY: Final[frozenset[How]] = frozenset(("now", "new", "restart"))  # settings that a new process has
POLL_S: Final = 0.05  # between two looks whether a new process serves clients


class Replacement:
    """Has each worker make place for a new process, when it is asked to.

    What was acknowledged is in a worker's log. What comes for its clients while it is away waits in the logs of the
    others, and clients wait for it, up to processes.home_wait_ms.

    Args:
        slots: the workers.
        in_force: the settings; new processes go by all that do not need a start of the broker.
        end: has a worker end in order, and waits for that.
        is_stopping: whether the broker is to end.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        in_force: SettingsInForce,
        end: Callable[[Slot], Awaitable[None]],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._slots = slots
        self._in_force = in_force
        self._end = end
        self._is_stopping = is_stopping
        self._asked = trio.Event()
        self._is_running = False
        self._done: list[int] = []
        self._error: str | None = None

    def ask(self) -> None:
        """Begin soon. Raises StartError if that cannot be now."""
        if self._is_running:
            raise StartError("The workers are being restarted already.")
        if self._is_stopping() or any(slot.state != "listening" for slot in self._slots):
            raise StartError("Not every worker serves clients now.")
        self._is_running = True
        self._asked.set()

    def describe(self) -> dict[str, Any]:
        """Return how far it is: which workers have new processes, and why it went no further."""
        return {"running": self._is_running, "workers": self._done, "error_text": self._error}

    async def run(self) -> None:
        """Do it whenever it is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            self._done, self._error = [], None
            try:
                await self._replace_all()
            except StartError as error:
                self._error = str(error)
                log.error("restart_failed", what=self._error, workers=self._done)
            self._is_running = False

    async def _replace_all(self) -> None:
        read = await self._in_force.read()
        before = self._in_force.config
        await trio.to_thread.run_sync(check_files, self._in_force.to_be(read, GO_BY))
        # A process that is started by itself from here on goes by them, too.
        self._in_force.config = self._in_force.to_be(read, GO_BY)
        for slot in self._slots:
            if not await self._replace(slot):
                self._in_force.config = before
                raise StartError(f"Worker {slot.number} did not start: {slot.reason or 'it ended'}")
            self._done.append(slot.number)
        self._in_force.adopt(read, GO_BY)

    async def _replace(self, slot: Slot) -> bool:
        """Replace one worker's process. Returns whether the new one serves clients."""
        failures, restarts, incarnation = slot.boot_failures, slot.restarts, slot.incarnation
        log.info("worker_replaced", worker=slot.number, pid=slot.pid)
        slot.is_replaced = True
        await self._end(slot)
        while not self._is_stopping():
            if slot.state == "listening" and slot.incarnation != incarnation:
                return True
            if slot.boot_failures > failures or slot.restarts > restarts:
                return False
            await trio.sleep(POLL_S)
        return False
