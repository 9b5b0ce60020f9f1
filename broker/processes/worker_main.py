"""The process of one worker of several, started by the supervisor through broker/processes/worker_process.py.

It reads its settings from the control channel, recovers, tells that it has joined, and listens when it is asked to.
What the supervisor may ask of it are the handlers registered here, and what is told to the supervisor is:

- `joined`: the log has been read, the worker turns; it awaits `listen`.
- `not_booted`: why it cannot boot; exit code 3 follows.
- `ended`: what it did, in a few numbers; exit code 0 follows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from setproctitle import setproctitle

from broker import logs
from broker.processes.control_channel import ChannelClosedError, ControlChannel, pack, receive_now
from broker.worker.placement import Start

if TYPE_CHECKING:
    from broker.admin.worker_queries import Queries
    from broker.reactor.listeners import ListeningSocket
    from broker.worker.worker import Worker

EXIT_NOT_BOOTED: Final = 3
EXIT_ORPHANED: Final = 4
PR_SET_PDEATHSIG: Final = 1  # of prctl(2)
LAST_WORDS_S: Final = 1.0  # how long the supervisor may take to read them


def main(arguments: list[str]) -> int:
    """Run the worker that the supervisor at the other end of a socket wants; returns the exit code."""
    descriptor, parent = map(int, arguments)
    if not die_with(parent):
        return EXIT_ORPHANED
    for inherited in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # of the listing itself
            os.set_inheritable(int(inherited), int(inherited) <= 2)  # no process that this one starts holds them
    end = socket.socket(fileno=descriptor)
    try:
        start = msgspec.json.decode(receive_now(end)[2], type=Start)
    except ChannelClosedError:
        return EXIT_ORPHANED
    last_words = end.dup()
    try:
        code, kind, said = _run(start, end)
    finally:
        logs.flush()
    if code:
        print(said, file=sys.stderr, flush=True)
    last_words.settimeout(LAST_WORDS_S)
    try:
        last_words.sendall(pack(0, kind, said))
    except OSError:
        pass  # nobody wants to know
    return code


def die_with(parent: int) -> bool:
    """Have this process killed when its parent ends, however that ends, until orphan.end_with_parent() is called.

    Returns False if it has ended already.

    What was acknowledged is in the log: nothing is lost by that, and no worker is left that nobody looks after. The
    signal comes when the parent's *thread* ends that started us, so it must be its main thread.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    return os.getppid() == parent


def _run(start: Start, end: socket.socket) -> tuple[int, str, object]:
    """Boot and serve. Returns the exit code, and what the supervisor is told last."""
    # Here, so that a worker without a parent does not load what it never needs.
    from broker.admin.worker_queries import Queries
    from broker.config.start_error import StartError
    from broker.processes.host import host
    from broker.processes.orphan import end_with_parent
    from broker.reactor.listeners import ListeningSocket
    from broker.storage.data_folder import unusable
    from broker.storage.folder_check import log_refusal
    from broker.storage.worker_folders import worker_folder
    from broker.worker.worker import Worker
    from router.log.segments import SegmentError

    setproctitle(f"shoal: worker {start.number} of {start.count}")
    try:
        logs.configure(start.config.log, worker=start.number)
    except OSError as error:
        return (
            EXIT_NOT_BOOTED,
            "not_booted",
            (f"The log file {start.config.log.file} cannot be opened: {error.strerror}."),
        )
    signal.signal(signal.SIGHUP, lambda *_: logs.reopen())
    end_with_parent([descriptor for descriptor, _, _ in start.listeners])
    try:
        worker = Worker(start.config, folder=start.folder_path, accept_loss=start.accept_loss, place=start.place)
    except StartError as error:
        return EXIT_NOT_BOOTED, "not_booted", str(error)
    except SegmentError as error:
        return EXIT_NOT_BOOTED, "not_booted", log_refusal(worker_folder(start.folder_path, start.number), error)
    except OSError as error:
        return EXIT_NOT_BOOTED, "not_booted", unusable(start.folder_path, error)
    if start.ticket_keys is not None:
        start.ticket_keys.use()
    sockets = [
        ListeningSocket(number, scheme, socket.socket(fileno=descriptor))
        for descriptor, number, scheme in start.listeners
    ]
    queries = Queries(worker, start.number)

    async def serve() -> None:
        await _serve(worker, ControlChannel(end, "supervisor"), sockets, queries)

    return 0, "ended", host(worker, serve)


async def _serve(worker: Worker, channel: ControlChannel, sockets: list[ListeningSocket], queries: Queries) -> None:
    """Join the others, listen when the supervisor says so, and serve until stop(), or until the supervisor is gone."""
    from broker.config.loader import Config
    from broker.processes.host import say_listening
    from broker.transport.tickets import TicketKeys
    from broker.worker.drain import Drain

    assert worker.store is not None, "a worker of several has a folder"
    asked, listening = trio.Event(), trio.Event()

    async def listen(_payload: object) -> None:
        asked.set()
        await listening.wait()

    def started() -> None:
        say_listening(worker)
        listening.set()

    async def follow() -> None:
        await channel.run()
        worker.stop()
        asked.set()

    async def say_when_empty() -> None:
        await worker.sent_away.wait()
        channel.tell("sent_away")

    async def stop_waiting() -> None:
        await worker.stopped()
        asked.set()

    channel.handle("listen", listen)
    channel.handle("drain", lambda how: worker.stop(msgspec.convert(how, Drain)))
    channel.handle("ping", lambda _payload: None)
    channel.handle("ticket_keys", lambda keys: msgspec.convert(keys, TicketKeys).use())
    channel.handle("reopen_logs", lambda _payload: logs.reopen())
    channel.handle(
        "reload", lambda settings: worker.reload.ask(lambda: partial(worker.change, msgspec.convert(settings, Config)))
    )
    channel.handle("admin", lambda asked: queries.answer(asked["query"], asked["arguments"]))
    if worker.dynamic_security is not None:
        worker.dynamic_security.order_by(partial(channel.ask, "dynamic_security"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queries.keep_house)
        nursery.start_soon(follow)
        nursery.start_soon(stop_waiting)
        nursery.start_soon(say_when_empty)
        channel.tell("joined", {"incarnation": worker.store.log.incarnation})
        await asked.wait()
        await worker.hear_peers()
        if not worker.stopping:
            await worker.publish_due_wills_in_turns()
        if not worker.stopping:  # else nobody listens on these sockets, nor ever will
            worker.listen(sockets)
            await worker.serve(started)
        nursery.cancel_scope.cancel()
