"""The logs that a replay reads: this worker's own, the other workers', and those of workers that are no more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.logs import get
from broker.storage.worker_folders import worker_folder, workers_of
from router.log.disk import Disk
from router.log.read_cache import LogWindows
from router.log.remote_log import FollowedLog

if TYPE_CHECKING:
    from router.log.log_writer import Log

log = get("replay")


class ReplayLogs:
    """All logs of a data folder, for one worker. Those of other nodes are in other folders, and are not read.

    The other workers' are read in their folders, which all workers of a node share, and never beyond what their workers
    have said to be durable: while somebody replays, they say so over the mesh whenever it changes, and that is also
    what wakes a replay which has come to the end. Of one that says nothing, no more is read than was known before.

    Args:
        own: this worker's log.
        worker: its number.
        folder: the data folder; None: there is only the own log.
        mesh: the links to the workers that run, None where there are no others.

    Attributes:
        windows: of each log, by worker.
    """

    def __init__(self, own: Log, worker: int = 0, folder: Path | None = None, mesh: Any = None) -> None:
        self.worker = worker
        self.windows = {worker: LogWindows(own)}
        self._mesh = mesh
        self._followed: dict[bytes, FollowedLog] = {}  # of workers that run, by their routers' names
        self._question = 0
        self._unanswered: set[bytes] = set()
        if mesh is not None:
            assert folder is not None, "several workers share a folder"
            mesh.log_reach = own.reach
            mesh.on_reach = self._told
            for name in (name for name, neighbour in mesh.neighbours.items() if neighbour.peer.shares_node):
                number = int(name.rpartition(b"/")[2])
                self._followed[name] = FollowedLog(Disk(str(worker_folder(folder, number))), number)
                self.windows[number] = LogWindows(self._followed[name])
        for number, path in workers_of(folder).items() if folder is not None else ():
            if number not in self.windows:
                left = FollowedLog(Disk(str(path)), number)
                left.finish()
                self.windows[number] = LogWindows(left)
        self.windows = dict(sorted(self.windows.items()))

    @property
    def readable(self) -> int:
        """A number that rises when there is more to be read in any log."""
        return sum([windows.readable for windows in self.windows.values()])

    def ask(self) -> None:
        """A client begins a replay: have the other workers say how far their logs have come by now."""
        if self._mesh is not None:
            self._question = self._mesh.follow()
            self._unanswered = set(self._followed)
            self._look_for_silent()

    def leave(self) -> None:
        """No client replays any more."""
        if self._mesh is not None:
            self._mesh.unfollow()
            self._unanswered.clear()

    def is_ready(self) -> bool:
        """Take in what was told; whether every worker that is there has answered the last ask(). Raises OSError."""
        if self._unanswered:
            self._look_for_silent()
        for followed in self._followed.values():
            if followed.is_behind:
                followed.catch_up()
        return not self._unanswered

    def _told(self, neighbour: Any) -> None:
        if neighbour.reach is not None and neighbour.name in self._followed:
            self._followed[neighbour.name].told(neighbour.reach)
            if neighbour.answered >= self._question:
                self._unanswered.discard(neighbour.name)

    def _look_for_silent(self) -> None:
        for name in list(self._unanswered):
            if self._mesh.neighbours[name].link.state != "up":
                self._unanswered.discard(name)
                self._followed[name].lost()

    def close(self) -> None:
        """Let go of files."""
        for windows in self.windows.values():
            windows.close()
