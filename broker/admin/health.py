"""Health and metrics for all who can reach them: /livez, /readyz and /metrics, and nothing that changes anything.

/livez says whether the processes turn, and nothing of what they can do: to kill a broker that is merely busy, or whose
disk is full, makes it worse. /readyz says whether clients should be sent here.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from broker.admin.gathering import Gathering
from broker.admin.pagination import QueryError, Row
from broker.admin.requests import Admitted, Head, Text, plain_refusal
from broker.telemetry.prometheus import OPENMETRICS, TEXT, build_labels, is_openmetrics_wanted, page_of

if TYPE_CHECKING:
    from broker.admin.backend import Backend

PLAIN: Final = "text/plain; charset=utf-8"
LIVE_S: Final = 10.0  # without a turn, after which a worker does not live
BEAT_S: Final = 2.5  # between two looks at it
ASK_S: Final = 2.0  # that a scrape waits for a worker: Prometheus gives up after 10 s
GAP_S: Final = 0.1  # between two questions to all workers, however many ask
READY_S: Final = 0.5  # that /readyz waits: a probe has often no more than a second
INDEX: Final = b"""/metrics  for Prometheus
/livez    whether the processes turn
/readyz   whether clients should come; ?verbose says why not
"""


class Health:
    """What the paths of health and metrics answer.

    Args:
        backend: whom it asks.
        wanted: how many workers there should be.
    """

    health_paths = ("/livez", "/readyz")

    def __init__(self, backend: Backend, wanted: int) -> None:
        self.backend = backend
        self._wanted = wanted
        self._heard_s: dict[int, float] = {}  # when each worker answered last, or was first seen
        self._troubles: dict[int, str | None] = {}  # of each worker's log, when it was asked last
        self._started_s = time.time()
        self._looking = Gathering(partial(self._look, READY_S), GAP_S)
        self._scraping = Gathering(self._samples, GAP_S)

    async def keep_house(self) -> None:
        """Look at the workers now and then, so that a probe that comes seldom is told how long one has been silent."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.backend.keep_house)
            while True:
                await self._look(BEAT_S)
                await trio.sleep(BEAT_S)

    async def admit(self, head: Head) -> Admitted:
        """Admit a request that may have no body. Raises QueryError: it would change something."""
        if head.method not in ("GET", "HEAD"):
            raise QueryError(
                405, "method_not_allowed", f"{head.path} takes GET, not {head.method}.", (("Allow", "GET, HEAD"),)
            )
        return Admitted(0, partial(self.answer, head))

    def refusal(self, target: str, error: QueryError) -> Text:
        """Return what is answered to a request that is refused."""
        return plain_refusal(error)

    async def answer(self, head: Head, body: bytes) -> Text:
        """Return the text of one of three paths, or of what they are. Raises QueryError."""
        path, _, query = head.target.partition("?")
        if path == "/metrics":
            return await self._metrics(is_openmetrics_wanted(head.headers.get("accept", "")))
        if path == "/livez":
            return await self._live()
        if path == "/readyz":
            return await self._ready("verbose" in query.split("&"))
        if path == "/":
            return Text(200, PLAIN, INDEX)
        raise QueryError(404, "unknown_path", f"There is nothing at {path}; the paths are /metrics, /livez, /readyz.")

    async def _look(self, within_s: float) -> None:
        """Ask all workers that serve clients what keeps their logs from taking anything, and note who answers."""
        present = self.backend.workers()
        now_s = trio.current_time()
        # One that is being restarted is the supervisor's to look after.
        self._heard_s = {worker: self._heard_s.get(worker, now_s) for worker in present}

        async def ask(worker: int) -> None:
            with trio.move_on_after(within_s):
                try:
                    self._troubles[worker] = (await self.backend.ask(worker, "log", {})).get("trouble")
                    self._heard_s[worker] = trio.current_time()
                except QueryError:
                    pass  # it has just gone

        async with trio.open_nursery() as nursery:
            for worker in present:
                nursery.start_soon(ask, worker)

    async def _live(self) -> Text:
        now_s = trio.current_time()
        silent = [worker for worker, heard_s in self._heard_s.items() if now_s - heard_s > LIVE_S]
        if not silent:
            return Text(200, PLAIN, b"ok\n")
        names = ", ".join(map(str, silent))
        return Text(503, PLAIN, f"worker {names} has not turned for more than {LIVE_S:.0f} s\n".encode())

    def _checks(self) -> dict[str, str]:
        """Return what is wrong, "" for nothing, of each check of /readyz."""
        known = self.backend.describe()
        present = self.backend.workers()
        away = self._wanted - len(present)
        troubles = [f"worker {worker}: {self._troubles[worker]}" for worker in present if self._troubles.get(worker)]
        draining = known.get("draining", False)
        return {
            "draining": "the broker is ending" if draining else "",
            "workers": f"{away} of {self._wanted} do not serve clients" if away else "",
            "log": "; ".join(troubles),
        }

    async def _ready(self, verbose: bool) -> Text:
        await self._looking.found()
        checks = self._checks()
        wrong = [name for name, text in checks.items() if text]
        lines = []
        if verbose:
            lines = [f"[-]{name} failed: {text}" if text else f"[+]{name} ok" for name, text in checks.items()]
        lines.append(f"not ready: {', '.join(wrong)}" if wrong else "ok")
        return Text(503 if wrong else 200, PLAIN, ("\n".join(lines) + "\n").encode())

    async def _samples(self) -> dict[int, Row]:
        """Return the samples of all workers that give an answer."""
        found: dict[int, Row] = {}

        async def ask(worker: int) -> None:
            with trio.move_on_after(ASK_S):
                try:
                    answer = await self.backend.ask(worker, "samples", {})
                    if "samples" in answer:
                        found[worker] = answer
                except QueryError:
                    pass  # its sample of shoal_worker_up says so

        async with trio.open_nursery() as nursery:
            for worker in self.backend.workers():
                nursery.start_soon(ask, worker)
        return found

    async def _metrics(self, is_openmetrics: bool) -> Text:
        found = await self._scraping.found()
        uptime_s = max((answer["uptime_ms"] for answer in found.values()), default=0) / 1000
        started_s = min(self._started_s, time.time() - uptime_s)
        broker: dict[str, dict[str, float]] = {
            "shoal_build_info": {build_labels(): 1.0},
            "shoal_start_time_seconds": {"": round(started_s, 3)},
            "shoal_worker_up": {f'worker="{worker}"': int(worker in found) for worker in range(self._wanted)},
            "shoal_ready": {f'check="{name}"': int(not text) for name, text in self._checks().items()},
        }
        workers = {worker: found[worker]["samples"] for worker in sorted(found)}
        return Text(200, OPENMETRICS if is_openmetrics else TEXT, page_of(workers, broker, is_openmetrics))
