"""A broker of several workers in processes of their own, and what its log says about them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from mesh.node_identity import node_of
from mesh.placement import Homes
from tests.support.process import BrokerProcess
from tests.support.raw_client import wait_until


class Workers(BrokerProcess):
    """`shoal serve --workers COUNT`; settings by their names in the environment."""

    def __init__(self, folder: Path, count: int = 3, **settings: str) -> None:
        super().__init__(folder, "--workers", str(count), environment={"SHOAL_LOG__LEVEL": "debug", **settings})
        self.count = count

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait until the log has a line about an event, with these values; return the last one."""
        found: list[dict[str, Any]] = wait_until(
            lambda: self.events(event, **fields), f"no {event} {fields} in {self.log}"
        )
        return found[-1]

    def pid_of(self, worker: int) -> int:
        """Return the process id of a worker that listens, or listened last."""
        return int(self.wait_for("listening", worker=worker)["pid"])

    def pids(self) -> list[int]:
        """Return those of all workers."""
        return [self.pid_of(worker) for worker in range(self.count)]

    def kill_worker(self, worker: int, number: int = signal.SIGKILL) -> int:
        """Send a worker a signal; returns its process id. A killed one has ended: its sockets take nobody any more."""
        pid = self.pid_of(worker)
        os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_until(lambda: not is_alive(pid), f"worker {worker} lives on")
        return pid

    def names(self, home: int, count: int = 1) -> list[str]:
        """Return client identifiers that are at home on a worker."""
        homes = Homes(node_of(self.folder / "data").key, self.count)
        named = (f"client-{number}" for number in range(1000))
        return [name for name in named if homes.home_of(name.encode()) == home][:count]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
