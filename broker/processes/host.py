"""The process that a worker has for itself: signals, garbage, the reactor as the host of trio."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from broker import logs
from broker.config.start_error import StartError
from broker.logs import get
from broker.processes.service_manager import ENDING, SERVING
from broker.reactor.trio_guest import Guest
from broker.storage.data_folder import unusable
from broker.telemetry.metrics import unraisable
from broker.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from broker.admin.windows import Window
    from broker.config.loader import Address
    from broker.processes.admin_backend_local import OneWorker
    from broker.processes.service_manager import ServiceManager
    from broker.processes.settings_in_force import SettingsInForce

log = get("worker")

GARBAGE_S = 10.0
SWITCH_S = 0.0005  # how long another thread, the log's, waits for the interpreter at most
SUMMARY = ("connections", "messages_in", "messages_out", "bytes_in", "bytes_out")


def run_worker(
    in_force: SettingsInForce,
    ready: Callable[[list[Address]], None],
    folder: Path,
    accept_loss: bool,
    manager: ServiceManager,
) -> dict[str, int]:
    """Run one worker in this process until SIGINT or SIGTERM; returns what it did, in a few numbers.

    Args:
        in_force: checked settings.
        ready: called once clients can connect, with the addresses.
        folder, accept_loss: as of Worker.
        manager: is told how it goes.

    Raises:
        OSError: an address cannot be bound.
        StartError: the folder cannot be used.
        SegmentError (of router.log.segments): what is in the folder cannot be used.
    """
    try:
        worker = Worker(in_force.config, folder=folder, accept_loss=accept_loss)
    except OSError as error:
        raise StartError(unusable(folder, error)) from error
    worker.publish_due_wills()
    worker.listen()
    worker.reload.settings = in_force.reader_for(worker.change)
    windows = open_windows(worker, folder, in_force)

    worker.reload.around = partial(manager.reloading, SERVING)

    def started() -> None:
        ready(say_listening(worker))
        manager.ready(SERVING)

    async def tell_end() -> None:
        await worker.stopped()
        manager.stopping(ENDING)

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            for window in windows:
                nursery.start_soon(window.serve)
            nursery.start_soon(manager.keep_alive)
            nursery.start_soon(tell_end)
            await worker.serve(started)
            nursery.cancel_scope.cancel()

    try:
        return host(worker, serve)
    finally:
        for window in windows:
            window.close()


def open_windows(worker: Worker, folder: Path, in_force: SettingsInForce) -> list[Window]:
    """Open what a broker that has this one worker answers over HTTP. Raises OSError and StartError."""
    # Here, because one worker of several does not need it.
    from broker.admin.windows import windows_of

    def load() -> OneWorker:
        from broker.processes.admin_backend_local import OneWorker

        return OneWorker(worker, folder, in_force)

    return windows_of(worker.config, folder, load)


def say_listening(worker: Worker) -> list[Address]:
    """Log where clients can connect, and return it."""
    log.info("listening", addresses=[str(address) for address in worker.addresses], pid=os.getpid())
    return worker.addresses


def host(worker: Worker, serve: Callable[[], Awaitable[None]]) -> dict[str, int]:
    """Run a worker's reactor, with `serve` under trio as its guest, until that returns; then close the worker.

    SIGINT and SIGTERM ask the worker to end, a second one ends the process; SIGHUP has log file and
    certificates opened anew, SIGUSR2 dumps the last turns and all tasks.
    Returns what the worker did, in a few numbers.
    """
    reactor = worker.reactor
    guest = Guest(reactor)
    reactor.guest = guest
    token: trio.lowlevel.TrioToken | None = None
    root: trio.lowlevel.Task | None = None
    asked = 0

    def on_signal(number: int, frame: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(128 + number)  # asked again: whoever it is does not want to wait
        if token is not None:
            token.run_sync_soon(worker.stop)

    def on_dump(number: int, frame: object) -> None:
        log.warning("dump", turns_us=reactor.recent_turns_us(), turn_histogram=reactor.turn_histogram(),
                    tasks=sorted(_task_names(root)) if root is not None else [], **worker.counters())  # fmt: skip

    def on_hangup(number: int, frame: object) -> None:
        logs.reopen()
        if token is not None:
            token.run_sync_soon(worker.reload.ask)

    async def main() -> None:
        nonlocal token, root
        root = trio.lowlevel.current_root_task()
        token = trio.lowlevel.current_trio_token()
        if asked:
            worker.stop()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_collect_garbage)
            await serve()
            nursery.cancel_scope.cancel()

    # Before the guest starts, so that trio leaves SIGINT alone and KeyboardInterrupt never exists in a worker.
    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, on_hangup)
    previous[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, on_dump)
    faulthandler.enable(2)  # the descriptor: sys.stderr is None if it was closed when we started
    sys.unraisablehook = _on_unraisable
    sys.setswitchinterval(SWITCH_S)
    gc.disable()
    gc.collect()
    gc.freeze()
    reactor.trim()  # imports leave holes of a megabyte
    try:
        guest.start(main)
        reactor.run()
    finally:
        gc.enable()
        for number, handler in previous.items():
            signal.signal(number, handler)
        summary = {name: count for name, count in worker.counters().items()
                   if name in SUMMARY or (count and name.startswith(("dropped_", "unraisable")))}  # fmt: skip
        worker.close()
    assert guest.outcome is not None
    guest.outcome.unwrap()
    return summary


def _task_names(task: trio.lowlevel.Task) -> list[str]:
    """Return the names of a task and of all below it."""
    names = [task.name]
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            names += _task_names(child)
    return names


def _on_unraisable(raised: Any) -> None:
    """An exception where none can be raised is our bug: it is counted and logged, and the worker goes on."""
    unraisable["count"] += 1
    log.error("unraisable", where=repr(raised.object), exc_info=raised.exc_value)


async def _collect_garbage() -> None:
    """Collect from a timer, not from the middle of a turn; what survives is frozen and never looked at again."""
    while True:
        await trio.sleep(GARBAGE_S)
        started_s = time.monotonic()
        gc.collect()
        gc.freeze()
        log.debug("collected_garbage", seconds=round(time.monotonic() - started_s, 4))
