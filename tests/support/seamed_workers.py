"""Several workers in processes of their own with the seams of the tests in them, and what they count."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from broker.config.loader import Config
from broker.worker.placement import Place
from broker.worker.worker import Worker, drive
from mesh.node_identity import node_of

START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 10
Seams = Callable[[], dict[str, Any]]

# They are forked from a process that has loaded everything and does nothing else: a tenth of a new one's time.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.conversation", "tests.support.seamed_workers"])


class SeamedWorkers:
    """Some workers of one broker, on a port each.

    Args:
        config: settings of all of them; each listens on a free port.
        count: 2 or more.
        seams: called in each process for the keyword arguments of its Worker; importable by its name.

    As a context manager, they serve within the block.
    """

    def __init__(self, config: Config, count: int, seams: Seams) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-"))
        node = node_of(self.folder)
        self.ports: list[int] = []
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = FORKS.Pipe()
            process = FORKS.Process(
                target=run_worker, args=(config, self.folder, Place(number, count, node, self.folder), seams, theirs)
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        try:
            for pipe in self._pipes:
                assert pipe.poll(START_TIMEOUT_S), "a worker does not start"
                self.ports.append(pipe.recv())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(self.folder)
        codes = [process.exitcode for process in self._processes]
        assert error is not None or codes == [0] * len(codes), codes

    def counts(self, kind: str) -> dict[str, int]:
        """Return what all workers counted under a heading of tests.support.conversation.counts."""
        totals: Counter[str] = Counter()
        for pipe in self._pipes:
            pipe.send(kind)
            totals.update(pipe.recv())
        return totals

    def in_turn(self) -> Callable[[], int]:
        """Return a function that returns one port after another."""
        return itertools.cycle(self.ports).__next__


def run_worker(config: Config, folder: Path, place: Place | None, seams: Seams, pipe: Connection) -> None:
    """Serve until the other end of the pipe is closed; say the port, and answer what is counted, or how the link is."""
    from tests.support.conversation import counts

    worker = Worker(config, folder=folder, place=place, **seams())

    async def answer() -> None:
        while True:
            try:
                kind = await trio.to_thread.run_sync(pipe.recv, abandon_on_cancel=True)
            except EOFError:
                worker.stop()
                return
            pipe.send(link_of(worker) if kind == "link" else counts(worker, kind))

    async def main() -> None:
        async with trio.open_nursery() as driving:
            driving.start_soon(drive, worker.reactor)
            await worker.hear_peers()
            await worker.publish_due_wills_in_turns()
            worker.listen()
            pipe.send(worker.addresses[0].port)
            async with trio.open_nursery() as answering:
                answering.start_soon(answer)
                await worker.serve(lambda: None)
                answering.cancel_scope.cancel()
            driving.cancel_scope.cancel()

    try:
        trio.run(main)
        assert "internal_error" not in worker.controller.ends, worker.controller.ends
    finally:
        worker.close()


def link_of(worker: Worker) -> dict[str, Any]:
    """Return what the one link of a worker counts, and what its sockets do."""
    mesh = worker.mesh
    (neighbour,) = mesh.neighbours.values()
    return {
        **neighbour.state(),
        "bad_frames": mesh.errors,
        "refused": mesh.transport.refused,
        "impostors": mesh.transport.impostors,
    }
