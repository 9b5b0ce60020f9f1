"""Two brokers of one worker each, in processes and folders of their own, linked over tcp:// with CURVE."""

from __future__ import annotations

import os
import socket
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from broker.config.loader import Config, Shutdown
from broker.config.schema import Mesh
from broker.worker.placement import Links, router_name
from mesh.node_identity import node_of
from tests.support.raw_client import wait_until
from tests.support.seamed_workers import FORKS, START_TIMEOUT_S, STOP_TIMEOUT_S, run_worker

CALM_S = 60.0  # longer than any test takes


class LinkedBroker:
    """One broker, which may be killed and started again.

    Args:
        folder: its own; made here.
        mesh: settings of its links.

    Attributes:
        port: where clients find it, another one after each start.
        keys: its CURVE key pair, (public, secret).
    """

    def __init__(self, folder: Path, mesh: Mesh) -> None:
        folder.mkdir()
        self.folder = folder
        self.node = node_of(folder)
        self.name = router_name(self.node, 0)
        self.keys = zmq.curve_keypair()
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.config = Config(listen=("tcp://127.0.0.1:0",), mesh=mesh, shutdown=Shutdown(drain_s=0.5))
        self.port = 0
        self._pipe: Connection | None = None
        self._process: Any = None

    def begin(self, peer: LinkedBroker) -> None:
        """Start its process; it listens when its peer is there, too."""
        links = Links(
            self.name,
            self.endpoint,
            {peer.name: (peer.endpoint, peer.keys[0])},
            self.keys,
            {peer.keys[0]: peer.node.identifier.encode()},
        )
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(
            target=run_worker, args=(self.config, self.folder, None, partial(dict, links=links), theirs)
        )
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Wait until clients are let in."""
        assert self._pipe is not None
        assert self._pipe.poll(START_TIMEOUT_S), "a broker does not start"
        self.port = self._pipe.recv()

    def send_signal(self, number: int) -> None:
        """Send its process a signal."""
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End its process by SIGKILL."""
        self._process.kill()
        self._process.join()
        assert self._pipe is not None
        self._pipe.close()

    def stop(self) -> int:
        """End it, however it is; returns its exit code."""
        if self._process is None:
            return 0
        assert self._pipe is not None
        self._pipe.close()
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return int(self._process.exitcode)

    @property
    def link(self) -> dict[str, Any]:
        """What it says of its link to the other one, and of who was not let in."""
        assert self._pipe is not None
        self._pipe.send("link")
        found: dict[str, Any] = self._pipe.recv()
        return found


class LinkedBrokers:
    """Two brokers that are one as far as links go. As a context manager, they serve within the block.

    Args:
        folder: of their folders.
        silence_s: as of the settings; by default, nothing that a test does to a broker lasts so long.
    """

    def __init__(self, folder: Path, silence_s: float = CALM_S) -> None:
        mesh = Mesh(silence_s=silence_s, interest_timeout_s=CALM_S)
        self.one, self.other = LinkedBroker(folder / "one", mesh), LinkedBroker(folder / "other", mesh)

    def __enter__(self) -> Self:
        try:
            self.one.begin(self.other)
            self.other.begin(self.one)
            self.one.wait()
            self.other.wait()
            self.wait_for_links()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def wait_for_links(self) -> None:
        """Wait until each knows what the other wants."""
        for broker in (self.one, self.other):
            wait_until(lambda broker=broker: broker.link["state"] == "up" and broker.link["wants"], "no link comes up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        codes = [broker.stop() for broker in (self.one, self.other)]
        assert error is not None or codes == [0, 0], codes


def free_port() -> int:
    """Return a port of the loopback interface that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
