"""The process that starts the workers of a broker, looks after them, and ends them. It carries no MQTT traffic.

It owns the listening sockets and passes them on, so what waits in a socket's backlog outlives its worker. Workers are
started by exec from the main thread; each is killed by the system when this process ends, however that ends. No other
processes may be started here by other means: whatever child ends is reaped as a worker or as an orphan, which process 1
of a container gets.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from broker import logs
from broker.admin.pagination import QueryError
from broker.admin.windows import windows_of
from broker.config.authenticator import DynamicSecurityTable
from broker.config.host_resources import memory_available_bytes
from broker.config.loader import Address, Config
from broker.logs import get
from broker.processes.admin_backend_supervisor import ManyWorkers
from broker.processes.control_channel import ControlChannel, ControlError, pack
from broker.processes.replacement import Replacement
from broker.processes.service_manager import ENDING, SERVING
from broker.processes.slot import Slot
from broker.reactor.listeners import bind_shared, refusal, remove_paths, start_listening
from broker.reactor.shared_counts import clear
from broker.storage.run_folder import copies_in_use
from broker.transport.tickets import ROTATE_S, TicketKeys
from broker.worker.drain import Drain
from broker.worker.placement import Start
from mesh.node_identity import Node

if TYPE_CHECKING:
    from broker.control.dynamic_security import CommandOrder
    from broker.processes.service_manager import ServiceManager
    from broker.processes.settings_in_force import SettingsInForce

log = get("supervisor")

EXIT_NOT_BOOTED: Final = 3
BOOT_FAILURES_MAX: Final = 3  # of one worker in a row; then the broker ends
BACKOFF_S: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)  # before the first restart in a row, the second, ...
STEADY_S: Final = 10.0  # who listened for so long is not restarted in a row with the ends before
PING_S: Final = 5.0
GRACE_S: Final = 2.0  # for a second ping: we may have been the ones who were stopped
DUMP_S: Final = 1.0  # for a worker that hangs to write down where
STOP_S: Final = 5.0  # beyond the drain, for a worker to end
LAST_WORDS_S: Final = 1.0  # for what an ended worker said to be read
COPIES_S: Final = 10.0  # between two looks for brokers that run on a copy of our data
ENDING_S: Final = 30.0  # for a worker to end that has hung up
MEANINGS: Final = {
    signal.SIGKILL: "killed; perhaps there was no memory left",
    signal.SIGSEGV: "a fault in native code",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "a fault in native code, or no room on the disk",
}


class WorkersError(Exception):
    """Why a broker ends whose workers cannot be kept running, in one sentence.

    Attributes:
        booted: False if a worker could not start; True if one ended too often.
    """

    def __init__(self, text: str, *, booted: bool) -> None:
        super().__init__(text)
        self.booted = booted


class Supervisor:
    """Keeps the workers of a broker running.

    Args:
        in_force: checked settings.
        folder: the data folder; its lock's descriptor, which the workers hold as well.
        node: whose workers they are.
        run_dir: for the workers' sockets.
        accept_loss: as of Worker.
        ready: called once, when clients can connect, with the addresses.
        manager: is told how it goes.

    Raises OSError if an address cannot be bound.
    """

    def __init__(
        self,
        in_force: SettingsInForce,
        folder: Path,
        lock: int,
        node: Node,
        run_dir: Path,
        accept_loss: bool,
        ready: Callable[[list[Address]], None],
        manager: ServiceManager,
    ) -> None:
        config = in_force.config
        limits = config.limits
        if not limits.memory_bytes_max:
            share = memory_available_bytes() // 4 * 3 // config.workers
            config = msgspec.structs.replace(config, limits=msgspec.structs.replace(limits, memory_bytes_max=share))
        self.in_force = in_force
        in_force.config = config
        self.folder = folder
        self.lock = lock
        self.node = node
        self.run_dir = run_dir
        self.accept_loss = accept_loss
        self.slots = [
            Slot(number, listeners) for number, listeners in enumerate(bind_shared(config.listeners, config.workers))
        ]
        self.addresses = [listener.address for listener in self.slots[0].listeners]
        self._ticket_keys = TicketKeys.new() if any(listener.where.is_tls for listener in config.listeners) else None
        self._verified_logins = _memory_for_logins(config)
        self.orphans = 0
        self.replacement = Replacement(self.slots, in_force, self._end_one, lambda: self._stopping.is_set())
        self._ready = ready
        self._manager = manager
        self._announced = False
        self._all_joined = trio.Event()
        self._failure: WorkersError | None = None
        self._stopping = trio.Event()
        self._asked_to_end = False  # by a signal
        self._drain = Drain()
        self._by_pid: dict[int, Slot] = {}
        self._requests = (
            self._order_of_requests()
            if any(isinstance(table, DynamicSecurityTable) for table in config.authenticator)
            else None
        )
        self._windows = windows_of(config, folder, lambda: ManyWorkers(self))

    def _order_of_requests(self) -> CommandOrder:
        from broker.control.dynamic_security import CommandOrder

        backend = ManyWorkers(self)
        return CommandOrder(backend.workers, backend.ask, QueryError)

    @property
    def config(self) -> Config:
        """The settings that are in force."""
        return self.in_force.config

    @property
    def stopping(self) -> bool:
        """Whether the broker has been asked to end."""
        return self._stopping.is_set()

    async def run(self) -> dict[str, int]:
        """Run the workers until SIGINT or SIGTERM; returns what they did, in a few numbers.

        Raises WorkersError.
        """
        with trio.open_signal_receiver(
            signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD
        ) as signals:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._heed, signals)
                watching.start_soon(self._kill_late)
                watching.start_soon(self._manager.keep_alive)
                watching.start_soon(self.replacement.run)
                watching.start_soon(self._look_for_copies)
                for window in self._windows:
                    watching.start_soon(window.serve)
                watching.start_soon(self._rotate_ticket_keys)
                async with trio.open_nursery() as keeping:
                    for slot in self.slots:
                        keeping.start_soon(self._keep, slot)
                watching.cancel_scope.cancel()
        for window in self._windows:
            window.close()
        if self._failure is not None:
            raise self._failure
        totals: Counter[str] = Counter()
        for slot in self.slots:
            totals.update(slot.totals)
        return dict(totals)

    def stop(self, drain: Drain | None = None) -> None:
        """Ask the workers to end, and accept no more; one that has not ended after a while is killed.

        Args:
            drain: how; None: as the settings have it.
        """
        if self._stopping.is_set():
            return
        self._drain = Drain.of(self.config) if drain is None else drain
        self._stopping.set()
        if not self._drain.wait_s:
            self._accept_no_more()
        for slot in self.slots:
            self._end(slot, self._drain.shared(len(self.slots)))

    def _end(self, slot: Slot, drain: Drain) -> None:
        """Ask a worker to end."""
        if slot.state == "listening" and slot.channel is not None:
            slot.channel.tell("drain", msgspec.to_builtins(drain))
        else:
            # Before a worker has handlers of its own this ends it, and it has nothing to lose then.
            slot.sent_away.set()
            slot.send_signal(signal.SIGTERM)

    def _accept_no_more(self) -> None:
        remove_paths(self.slots[0].listeners)
        for slot in self.slots:
            for listener in slot.listeners:
                listener.socket.close()

    def _fail(self, text: str, *, booted: bool) -> None:
        if self._failure is None and not self._stopping.is_set():
            self._failure = WorkersError(text, booted=booted)
        self.stop(Drain())

    async def _rotate_ticket_keys(self) -> None:
        """Give all workers new keys of TLS sessions from time to time."""
        while self._ticket_keys is not None:
            await trio.sleep(ROTATE_S)
            self._ticket_keys = self._ticket_keys.rotated()
            self._tell_all("ticket_keys", msgspec.to_builtins(self._ticket_keys))

    async def _end_one(self, slot: Slot) -> None:
        """Have a worker end in order, without a pause, and wait for that."""
        self._end(slot, Drain(clients_per_second=self.config.shutdown.clients_per_second))
        await self._kill_if_late(slot)

    async def _kill_late(self) -> None:
        await self._stopping.wait()
        self._manager.stopping(ENDING)
        if self._drain.wait_s:
            await trio.sleep(self._drain.wait_s)
            self._accept_no_more()
        async with trio.open_nursery() as nursery:
            for slot in self.slots:
                nursery.start_soon(self._kill_if_late, slot)

    async def _kill_if_late(self, slot: Slot) -> None:
        """Kill a worker that was asked to end and, when it has sent its clients away, does not."""
        exited = slot.exited
        await slot.sent_away.wait()
        with trio.move_on_after(self.config.shutdown.drain_s + STOP_S):
            await exited.wait()
        if slot.pid and not exited.is_set():
            log.error("worker_killed", worker=slot.number, pid=slot.pid, what="it did not end in time")
            slot.send_signal(signal.SIGKILL)

    async def _look_for_copies(self) -> None:
        """Say once if another broker runs on a copy of our data folder, whichever was there first."""
        known: set[str] = set()
        while True:
            found = set(copies_in_use(self.run_dir, self.node))
            for folder in sorted(found - known):
                log.warning("node_in_use_twice", folder=folder, what="a broker runs on a copy of this data folder")
            known = found
            await trio.sleep(COPIES_S)

    # Signals --------------------------------------------------------------------------------------------------------

    async def _heed(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGHUP:
                logs.reopen()
                self._tell_all("reopen_logs")
                with self._manager.reloading(SERVING):
                    await self._reload()
            elif number == signal.SIGUSR2:
                for slot in self.slots:
                    if slot.state in ("joined", "listening"):
                        slot.send_signal(number)
            elif self._asked_to_end:
                for slot in self.slots:
                    slot.send_signal(signal.SIGKILL)
                logs.flush()
                os._exit(128 + number)  # asked again: whoever it is does not want to wait
            else:
                self._asked_to_end = True
                self.stop()

    async def _reload(self) -> None:
        """Have settings and files read again by all, unless the settings are wrong."""
        read = await self.in_force.read_or_say()
        if read is not None:
            self._tell_all("reload", msgspec.to_builtins(self.in_force.adopt(read)))

    def _tell_all(self, kind: str, payload: object = None) -> None:
        for slot in self.slots:
            if slot.channel is not None:
                slot.channel.tell(kind, payload)

    def _reap(self) -> None:
        """Learn which children have ended: workers, and if we are process 1 every orphan of the container."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            slot = self._by_pid.pop(pid, None)
            if slot is None:
                self.orphans += 1
                log.debug("orphan_reaped", pid=pid)
                continue
            assert slot.process is not None
            slot.process.returncode = os.waitstatus_to_exitcode(status)
            slot.pid = 0
            slot.exited.set()
            slot.sent_away.set()

    # One worker -----------------------------------------------------------------------------------------------------

    async def _keep(self, slot: Slot) -> None:
        """Have a process run as a worker, one after another, until the broker ends."""
        while not self._stopping.is_set():
            code = await self._run_once(slot)
            if self._stopping.is_set():
                break
            slot.state = "away"
            was_replaced, slot.is_replaced = slot.is_replaced, False
            if was_replaced and code == 0:
                continue
            now_s = trio.current_time()
            if slot.listened_s and now_s - slot.listened_s >= STEADY_S:
                slot.row = 0
            if code == EXIT_NOT_BOOTED:
                slot.boot_failures += 1
                log.error("worker_not_booted", worker=slot.number, what=slot.reason, in_a_row=slot.boot_failures)
                if slot.boot_failures >= BOOT_FAILURES_MAX:
                    self._fail(f"Worker {slot.number} could not start: {slot.reason}", booted=False)
                    break
            else:
                log.error("worker_ended", worker=slot.number, what=meaning(code), listened=slot.listened_s > 0)
            processes = self.config.processes
            slot.ends_s.append(now_s)
            while slot.ends_s[0] < now_s - processes.restarts_within_s:
                slot.ends_s.popleft()
            if len(slot.ends_s) > processes.restarts_max:
                self._fail(
                    f"Worker {slot.number} ended {len(slot.ends_s)} times within "
                    f"{processes.restarts_within_s:g} s, at last: {meaning(code)}.",
                    booted=True,
                )
                break
            with trio.move_on_after(BACKOFF_S[min(slot.row, len(BACKOFF_S) - 1)]):
                await self._stopping.wait()
            slot.row += 1
            slot.restarts += 1
        slot.state = "ended"

    async def _run_once(self, slot: Slot) -> int:
        """Run one process as a worker; returns its exit code, or minus the signal that ended it."""
        channel = self._start(slot)
        hung_up = trio.Event()

        async def follow() -> None:
            await channel.run()
            hung_up.set()
            await trio.sleep(ENDING_S)
            log.error("worker_killed", worker=slot.number, what="it has hung up and does not end")
            slot.send_signal(signal.SIGKILL)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            nursery.start_soon(self._watch, slot, channel)
            nursery.start_soon(self._let_listen, slot, channel)
            await slot.exited.wait()
            with trio.move_on_after(LAST_WORDS_S):
                await hung_up.wait()
            nursery.cancel_scope.cancel()
        slot.channel = None
        clear(self.run_dir, slot.number)
        assert slot.process is not None
        assert slot.process.returncode is not None
        return slot.process.returncode

    def _start(self, slot: Slot) -> ControlChannel:
        ours, theirs = socket.socketpair()
        listeners = [(one.socket.fileno(), one.listener, one.scheme) for one in slot.listeners]
        descriptors = [descriptor for descriptor, _, _ in listeners]
        shared = [] if self._verified_logins is None else [self._verified_logins]
        start = Start(
            config=self.config,
            folder=str(self.folder),
            accept_loss=self.accept_loss,
            number=slot.number,
            count=len(self.slots),
            node=self.node,
            run_dir=str(self.run_dir),
            listeners=listeners,
            ticket_keys=self._ticket_keys,
            verified_logins=self._verified_logins,
        )
        # Ours comes first; what else is to be found, an authenticator's modules for instance, they find as we do.
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            # Not by trio, which starts processes from threads that end: see worker_process.die_with.
            slot.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "broker.processes.worker_process", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), self.lock, *descriptors, *shared],
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        slot.pid = slot.process.pid
        self._by_pid[slot.pid] = slot
        slot.state = "starting"
        slot.reason = ""
        slot.listened_s = 0.0
        slot.joined, slot.exited, slot.sent_away = trio.Event(), trio.Event(), trio.Event()
        ours.sendall(pack(0, "start", msgspec.json.encode(start)))  # some kilobytes: they fit
        slot.channel = channel = ControlChannel(ours, f"worker {slot.number}")

        def on_joined(told: dict[str, int]) -> None:
            slot.incarnation = told["incarnation"]
            slot.state = "joined"
            slot.boot_failures = 0
            slot.joined.set()
            if not self._all_joined.is_set() and all(other.state == "joined" for other in self.slots):
                self._start_listening()

        def on_not_booted(reason: str) -> None:
            slot.reason = reason

        if self._requests is not None:
            channel.handle("dynamic_security", self._requests.execute)
        channel.handle("joined", on_joined)
        channel.handle("not_booted", on_not_booted)
        channel.handle("ended", slot.totals.update)
        sent_away = slot.sent_away
        channel.handle("sent_away", lambda _payload: sent_away.set())
        return channel

    def _start_listening(self) -> None:
        """All have joined: clients may queue up at the addresses, unless another process has come to listen there."""
        for slot in self.slots:
            for address, listener in zip(self.addresses, slot.listeners, strict=True):
                try:
                    start_listening([listener])
                except OSError as error:
                    self._fail(refusal(address, error), booted=False)
                    return
        self._all_joined.set()

    async def _let_listen(self, slot: Slot, channel: ControlChannel) -> None:
        """Once a worker has joined, and at the start all have, clients may come; once they can, say so."""
        await slot.joined.wait()
        await self._all_joined.wait()
        try:
            await channel.ask("listen")
        except ControlError:
            return  # it has ended, and that is dealt with where its end is seen
        slot.state = "listening"
        slot.listened_s = trio.current_time()
        log.info("worker_listening", worker=slot.number, incarnation=slot.incarnation, restarts=slot.restarts)
        if not self._announced and all(other.state == "listening" for other in self.slots):
            self._announced = True
            self._ready(self.addresses)
            self._manager.ready(SERVING)

    async def _watch(self, slot: Slot, channel: ControlChannel) -> None:
        """Kill a worker that does not turn any more."""
        stall_s = self.config.processes.stall_s
        await slot.joined.wait()
        try:
            while await _answers(channel, stall_s) or await _answers(channel, GRACE_S):
                with trio.move_on_after(min(PING_S, stall_s / 4)):
                    await slot.exited.wait()
        except ControlError:
            return  # it is ending
        log.error("worker_killed", worker=slot.number, pid=slot.pid, what="it does not turn", stall_s=stall_s)
        slot.send_signal(signal.SIGABRT)
        await trio.sleep(DUMP_S)
        slot.send_signal(signal.SIGKILL)


def _memory_for_logins(config: Config) -> int | None:
    """Return the descriptor of what workers remember of passwords, also when one of them is started anew."""
    if not config.authenticator:
        return None
    # Here, so that a broker without authenticators does not load what they use.
    from broker.auth.chain import takes_passwords
    from broker.auth.verified_logins import shared_memory

    if not takes_passwords(config):
        return None

    return shared_memory()


async def _answers(channel: ControlChannel, patience_s: float) -> bool:
    with trio.move_on_after(patience_s):
        await channel.ask("ping")
        return True
    return False


def meaning(code: int) -> str:
    """Return in words how a process ended: by its exit code, or by the signal that is minus its code."""
    if code >= 0:
        return f"it ended with exit code {code}"
    number = signal.Signals(-code)
    return f"it was ended by {number.name}" + (f" ({MEANINGS[number]})" if number in MEANINGS else "")
