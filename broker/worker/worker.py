"""One worker: what it is made of, and how it runs inside another program."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import trio

from broker.auth.authenticator import Admissions, Anonymous
from broker.auth.bans import Bans
from broker.config.start_error import StartError
from broker.control.controller import Controller
from broker.control.inprocess_client import INBOX_MAX, InProcess, InProcessClient
from broker.control.lost_messages import tell_losses
from broker.control.presence import ClientInfo, Watch, describe
from broker.control.rights_questions import reads_whole
from broker.control.shared_state import SharedState
from broker.control.will import PendingWill
from broker.logs import get
from broker.reactor.acceptor import Acceptor
from broker.reactor.epoll import Reactor
from broker.reactor.listeners import bind, remove_paths
from broker.reactor.pump import Pump
from broker.replay.engine import Replays
from broker.replay.log_sources import ReplayLogs
from broker.storage.worker_log import CommitLog, open_index
from broker.telemetry.metrics import Metrics, collect, flat
from broker.telemetry.sys_topics import SysTopics
from broker.transport.listener import Entrance
from broker.transport.tickets import ROTATE_S, TicketKeys
from broker.worker.access import acl_of, authenticator_of, logins_of, renew_tokens, wait_outside
from broker.worker.drain import Drain, send_away
from broker.worker.handover import Handover
from broker.worker.memory_guard import MemoryGuard
from broker.worker.reload import Reload
from broker.worker.settings_change import change_settings
from broker.worker.terms import ledger, terms
from mesh.placement import Homes
from router.matching.archive_filters import ArchiveFilters
from router.router import Router

if TYPE_CHECKING:
    from pathlib import Path

    from broker.auth.acl import Acl
    from broker.auth.authenticator import Admission, Authenticator
    from broker.auth.chain import Member
    from broker.config.listener import Address
    from broker.config.loader import Config
    from broker.control.dynamic_security import DynamicSecurity
    from broker.reactor.listeners import ListeningSocket
    from broker.worker.placement import Links, Place
    from router.retained.lmdb_index import RetainedIndex

log = get("worker")

HOUSEKEEPING_S = 5.0
ROUTES_SWEPT_MAX = 32_768  # places of the route cache looked at per housekeeping
PURGE_EXPIRED_MAX = 1000  # retained messages looked at per housekeeping
DRAIN_POLL_S = 0.02
OPENING_BYTES_MIN = 16_384  # of a TLS handshake, however small a CONNECT must be: a chain of certificates
CONNECTIONS_BEYOND = 256  # over connections_max, so that who comes too late can be told
DESCRIBED_PER_STEP = 500  # clients described between two checkpoints: some 5 ms


class Worker:
    """A reactor and what hangs on it.

    Args:
        config: checked settings.
        authenticator, admission, acl: seams of identity; by default the settings say who is let in, and all may do
            everything.
        transform: makes a filter between socket and protocol for every connection; None for plain TCP.
        log_store, durability, mesh: seams of the pump; by default nothing rests on a record.
        folder: where the data is kept, which nobody else uses; None: in memory, it ends with the worker.
        accept_loss: go on without what is missing, foreign or newer in the folder.
        place: among the workers of a node; None: it is the only one.
        links: to other workers, wherever they are, for which it needs a folder; None: those to the others of its place.

    Raises SegmentError (of router.log.segments) if the folder cannot be used as it is, OSError, and StartError if a
    file that the settings name cannot be.
    """

    def __init__(self, config: Config, *, authenticator: Authenticator | None = None,
                 admission: Admission | None = None, acl: Acl | None = None,
                 transform: Callable[[], Any] | None = None, log_store: Any = None, durability: Any = None,
                 mesh: Any = None, folder: Path | None = None, accept_loss: bool = False,
                 place: Place | None = None, links: Links | None = None) -> None:  # fmt: skip
        self.config = config
        self.place = place
        self.mesh: Any = None
        self.acceptor: Acceptor | None = None
        self._bound: list[ListeningSocket] = []  # here, and not by a supervisor
        self.handover: Handover | None = None
        self.sys_topics: SysTopics | None = None
        self.store: CommitLog | None = None
        self._drain, self._stop, self.sent_away = Drain(), trio.Event(), trio.Event()
        mqtt, limits = config.mqtt, config.limits
        authenticator, members = authenticator_of(config, authenticator, folder, place)
        acl, authorizers = acl_of(config, acl, members)
        self.router = Router(
            ledger(config), seed=SystemRandom().getrandbits(64), strategy=mqtt.shared_subscription_strategy,
            routes_max=limits.route_cache_max, routes_bytes_max=limits.route_cache_bytes_max,
            index=None if folder is None else self._open_index(folder, accept_loss))  # fmt: skip
        self.bans = Bans()
        self.controller = Controller(
            config, self.router, self._guarded(authenticator), acl, self._admission(admission), self._accept_on
        )
        if folder is not None:
            self.store = self._recover(folder, accept_loss)
            log_store = self.store.log
        self.reactor = Reactor(
            self.router, self.controller, Pump(self.router, log_store, durability, mesh),
            bytes_per_read=limits.bytes_per_read_max, sockets_per_turn=limits.sockets_per_turn_max,
            pending_handshakes_max=limits.pending_handshakes_max, **terms(config))  # fmt: skip
        self.memory_guard = MemoryGuard(limits.memory_bytes_max, self.reactor, self.router.ledger)
        self.reactor.guard_memory(self.memory_guard)
        self.entrances = [Entrance(number, listener, max(limits.connect_bytes_max, OPENING_BYTES_MIN), transform)
                          for number, listener in enumerate(config.listeners)]  # fmt: skip
        self.reload = Reload(self.entrances, members, authorizers)
        if self.store is not None:
            self.reactor.look_at_clock()
            self.store.begin(self.reactor.wake)
        elif log_store is not None:
            log_store.when_durable(self.reactor.wake)
        self.in_process = InProcess(
            self.reactor, self.router, self.controller.acl, self.controller.presence, self._router_failed
        )
        self.state = SharedState(self.in_process, self.router)
        self.dynamic_security = self._share_state(members)
        self._judge_rights()
        self._join(links, folder)
        if place is not None:
            from broker.reactor.shared_counts import Places

            self.controller.handshake.session_limit.share(Places(place.run_dir, place.number, place.count, "sessions"))
        if self.store is not None:
            logs = ReplayLogs(self.store.log, 0 if place is None else place.number, folder, self.mesh)
            replays = Replays(self.router, logs)
            self.reactor.replay_from(replays)
            self.controller.replay_from(replays)
        if mqtt.sys_interval_s:
            self.sys_topics = SysTopics(self.router, self.metrics, mqtt.sys_interval_s, self.mesh)

    def _guarded(self, authenticator: Authenticator | None) -> Authenticator:
        """Return an authenticator behind bans, and delays after failures; one that asks nothing stays as it is."""
        if authenticator is None:
            return Anonymous()
        from broker.auth.login_guard import LoginGuard

        return LoginGuard(authenticator, self.bans, self.config.limits.login_delay_max_s)

    def _admission(self, admission: Admission | None) -> Admission:
        """Return what is asked before a client is authenticated: bans, settings, then the program around us."""
        asked: list[Admission] = [self.bans]
        if self.config.limits.reconnects_per_minute_max:
            from broker.auth.flapping import Flapping

            asked.append(Flapping(self.config.limits.reconnects_per_minute_max))
        if admission is not None:
            asked.append(admission)
        return asked[0] if len(asked) == 1 else Admissions(asked)

    def _share_state(self, members: list[Member]) -> DynamicSecurity | None:
        """Have bans, clients, groups and roles as the log has them, before anything is judged by them."""
        self.bans.keep_in(self.state)
        renew_tokens(self.config, self.controller)
        wait_outside(members, self.controller.handshake.pending)
        logins = logins_of(members)
        if logins is None:
            return None
        from broker.control.dynamic_security import DynamicSecurity

        self.reactor.look_at_clock()
        is_first = self.place is None or self.place.number == 0
        try:
            return DynamicSecurity(logins, self.state, self.controller, is_first)
        except StartError:
            self.reactor.close()
            if self.store is not None:
                self.store.close()
            raise

    # A start, step by step: recover, join, publish the wills that are due, listen -----------------------------------

    def _open_index(self, folder: Path, accept_loss: bool) -> RetainedIndex:
        number, count = (0, 1) if self.place is None else (self.place.number, self.place.count)
        return open_index(folder, number, count, accept_loss=accept_loss)

    def _recover(self, folder: Path, accept_loss: bool) -> CommitLog:
        """Bring back what the folder holds; nothing follows from it yet."""
        filters = [text.encode() for text in self.config.archive.topic_filters]
        if filters:
            self.router.archive(ArchiveFilters(filters, SystemRandom().getrandbits(64)))
        place = self.place
        try:
            return CommitLog(self.config.storage, self.router, partial(PendingWill.recovered, self.controller.acl),
                             folder, worker=0 if place is None else place.number,
                             workers=1 if place is None else place.count,
                             accept_loss=accept_loss, archive=self.config.archive)  # fmt: skip
        except BaseException:
            self.router.retaining.index.close()
            raise

    def _join(self, links: Links | None, folder: Path | None) -> None:
        """Bind, and connect to the peers, if there are any; they need not be there yet."""
        # Imported here, because it takes ZeroMQ along, which nobody needs who is alone.
        if links is None and self.place is not None and self.place.count > 1 and folder is not None:
            from broker.worker.mesh_links import links_of

            links = links_of(self.place)
        if links is not None:
            from broker.worker.mesh_links import join

            self.mesh = join(self, links)

    async def hear_peers(self) -> None:
        """Wait until the peers, if there are any, have said what they want; bounded, and no longer than to stop().

        The reactor turns meanwhile.
        """
        if self.mesh is not None:
            from broker.worker.mesh_links import ready

            await ready(self)

    def publish_due_wills(self) -> None:
        """Publish wills, and end sessions, whose time came while no process ran; deadlines run from now on.

        The first of them at once, the others turn by turn.

        Once, when the peers were heard: a will goes to those only whose wish is known. Where a reactor turns already,
        it is publish_due_wills_in_turns().
        """
        for _ in self._due_wills():
            pass

    async def publish_due_wills_in_turns(self) -> None:
        """publish_due_wills(), and the peers are answered meanwhile."""
        for _ in self._due_wills():
            await trio.lowlevel.checkpoint()

    def _due_wills(self) -> Iterator[None]:
        if self.store is not None:
            self.reactor.look_at_clock()
            yield from self.store.start_deadlines()

    def listen(self, sockets: list[ListeningSocket] | None = None) -> None:
        """Accept, and let the other workers send clients here. Raises OSError if an address cannot be bound.

        Args:
            sockets: listening already, which the worker closes; None: the addresses of the settings are bound.
        """
        assert self.store is None or self.store.deadlines_run, "due wills are published before clients are let in"
        self.reactor.look_at_clock()
        self.state.load()
        handshake = self.controller.handshake
        handshake.limit_connections(_connections_max(self.config))
        if sockets is None:
            sockets = self._bound = bind(self.config.listeners)
        self.acceptor = Acceptor(
            self.reactor, sockets, self.entrances, handshake.connections_max + CONNECTIONS_BEYOND, handshake.pending
        )
        if self.place is not None:
            from broker.reactor.shared_counts import FILE_NAME, Places, UserPlaces

            place = self.place.run_dir, self.place.number, self.place.count
            self.handover = Handover(
                self.reactor, handshake, Homes(self.place.node.key, self.place.count), self.place.number,
                self.place.run_dir, self.config.processes.home_wait_ms, self.config.limits.tcp_keepalive_s)  # fmt: skip
            handshake.share(self.handover, Places(*place), {
                number: Places(*place, f"{FILE_NAME}-{number}")
                for number, listener in enumerate(self.config.listeners) if listener.connections_max})  # fmt: skip
            if handshake.limit_rules.counts_users:
                handshake.user_connections.share(UserPlaces(*place), self.place.node.key)
            self.handover.listen()
        self.acceptor.resume()

    def change(self, config: Config) -> None:
        """Go by other settings from now on; they differ as broker.config.live lets them. From trio's thread."""
        change_settings(self, config)

    def limit_connections(self) -> None:
        """Take as many connections as the settings have it, or fit into this process."""
        self.controller.handshake.limit_connections(_connections_max(self.config))
        if self.acceptor is not None:
            self.acceptor.limit(self.controller.handshake.connections_max + CONNECTIONS_BEYOND)

    def _accept_on(self) -> None:
        """There is room for a CONNECT that asks the authenticator, or for a client that another worker sends."""
        assert self.acceptor is not None, "CONNECTs wait after listen() only"
        self.acceptor.resume()
        if self.handover is not None:
            self.handover.resume()

    def _accept_no_more(self) -> None:
        remove_paths(self._bound)
        self._bound = []
        if self.acceptor is not None:
            self.acceptor.close()
        if self.handover is not None:
            self.handover.close()

    def close(self) -> None:
        """Close everything at once; what serve() left behind because it was cancelled."""
        self._accept_no_more()
        self.in_process.end()
        if self.mesh is not None:
            self.reactor.leave_mesh()
            self.mesh.close()
        self.reactor.close()
        self.memory_guard.close()
        self.controller.presence.end()
        if self.reactor.replays is not None:
            self.reactor.replays.close()
        if self.store is not None:
            self.store.close()

    @property
    def ready(self) -> bool:
        """Whether clients can connect: it listens and has not been asked to end."""
        return self.acceptor is not None and bool(self.acceptor.addresses) and not self._stop.is_set()

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to end."""
        return self._stop.is_set()

    def stop(self, drain: Drain | None = None) -> None:
        """Ask serve() to end. From trio's thread.

        Args:
            drain: how, if it has not been asked before; None: as the settings have it.
        """
        if not self._stop.is_set():
            self._drain = Drain.of(self.config) if drain is None else drain
            self._stop.set()

    async def stopped(self) -> None:
        """Wait for stop()."""
        await self._stop.wait()

    async def serve(self, started: Callable[[], None]) -> None:
        """Serve until stop(), then stop accepting, say goodbye, and give the last bytes `drain_s` to leave."""
        assert self.acceptor is not None, "listen() comes first"
        async with trio.open_nursery() as nursery:
            self.controller.handshake.run_tasks_by(nursery.start_soon)
            nursery.start_soon(self.acceptor.watch)
            nursery.start_soon(self._keep_house)
            if self.store is not None:
                nursery.start_soon(self.store.watch)
                nursery.start_soon(self.store.compact)
            if self.sys_topics is not None:
                nursery.start_soon(self.sys_topics.run)
            nursery.start_soon(self.state.run)
            if self.dynamic_security is not None:
                nursery.start_soon(self.dynamic_security.run)
            nursery.start_soon(
                self.bans.send_away, self.controller.holders, lambda session: self.controller.send_away(session, False)
            )
            nursery.start_soon(self.reload.run)
            for member in self.reload.members:
                nursery.start_soon(member.run)
            nursery.start_soon(self.controller.run, self.reactor.wake)
            if self.place is None and any(entrance.context is not None for entrance in self.entrances):
                nursery.start_soon(_rotate_ticket_keys)
            started()
            await self._stop.wait()
            await trio.sleep(self._drain.wait_s)
            self._accept_no_more()
            self.in_process.end()
            await send_away(self.reactor.connections_snapshot(), self.controller, self._drain)
            self.sent_away.set()
            with trio.move_on_after(self.config.shutdown.drain_s):
                while self.reactor.connection_count:  # noqa: ASYNC110  (the reactor knows no trio)
                    await trio.sleep(DRAIN_POLL_S)
            tell_losses(self.router.ledger.losses, self.reactor.look_at_clock())
            nursery.cancel_scope.cancel()

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            self.router.retaining.purge_expired(PURGE_EXPIRED_MAX)
            self.router.tree.sweep_routes(ROUTES_SWEPT_MAX)
            self.controller.handshake.session_limit.tell()
            self.controller.slow_turns.tell(self.reactor.look_at_clock())
            tell_losses(self.router.ledger.losses, self.reactor.look_at_clock())
            self.reactor.trim()

    def _judge_rights(self) -> None:
        """Judge what has been brought back, and whatever comes, by the rights of now."""
        if self.reload.authorizers is not None:
            self.reload.authorizers.tell(partial(reads_whole, self.router))
        self.controller.join_local(lambda: [client.local for client in self.in_process.clients.values()])
        self.controller.judge_all(SystemRandom().getrandbits(64))
        self.controller.acl.watch(self._rights_changed)
        self.controller.limit_recovered()

    def _rights_changed(self) -> None:
        """The ACL's answers may be others now: those for publishing hold at once, what is subscribed is judged soon."""
        self.reactor.forget_verdicts()
        self.controller.review.begin()

    async def rights_in_force(self) -> None:
        """Wait until what the ACL says now holds for all that is subscribed and queued."""
        await self.controller.review.in_force()

    def _router_failed(self, error: BaseException) -> None:
        """An in-process client's call found the router broken: serve() raises what was found."""
        spawn = self.controller.handshake.spawn
        assert spawn is not None, "in-process clients live while serve() runs"
        spawn(_raise, error)

    # For programs that the broker is embedded in -------------------------------------------------------------------

    @property
    def addresses(self) -> list[Address]:
        """Where clients can connect; port 0 of the configuration is the port that was free here."""
        return [] if self.acceptor is None else self.acceptor.addresses

    def addresses_of(self, listener: int) -> list[Address]:
        """Return where clients can connect to a listener, by its number."""
        return [] if self.acceptor is None else self.acceptor.addresses_of(listener)

    async def connect(
        self, client_identifier: str, *, identity: str | None = None, inbox_max: int = INBOX_MAX
    ) -> InProcessClient:
        """Connect a client inside this process. The caller disconnects it, or takes client() instead.

        Its name belongs to in-process clients alone: it shares no session with a network client of the same client
        identifier, and neither takes over the other. Its subscriptions end with it.

        Args:
            client_identifier: 1..65535 bytes of UTF-8; one client of a name at a time.
            identity: the user name that the ACL is asked about; None: a trusted client, which may do everything.
            inbox_max: messages that wait to be taken, 1 or more; those beyond are dropped and counted, whatever their
                QoS (`dropped` of the client, `dropped_inbox_full` of counters()).

        Raises:
            ValueError, TypeError: the name is in use, or an argument is wrong.
            trio.ClosedResourceError: the broker has ended.
        """
        await trio.lowlevel.checkpoint()
        return self.in_process.connect(client_identifier, identity, inbox_max)

    @asynccontextmanager
    async def client(
        self, client_identifier: str, *, identity: str | None = None, inbox_max: int = INBOX_MAX
    ) -> AsyncIterator[InProcessClient]:
        """connect(), and disconnect at the end of the block."""
        async with await self.connect(client_identifier, identity=identity, inbox_max=inbox_max) as client:
            yield client

    async def clients(self) -> list[ClientInfo]:
        """Return all connected clients, those of this process last.

        It takes about 10 us per client, in steps between which the broker goes on: each entry is true for the moment
        in which it was made. Who must not miss anybody listens to presence() first and asks then.
        """
        found = []
        for index, connection in enumerate(self.reactor.connections_snapshot()):
            if index % DESCRIBED_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            if connection.is_open:
                found.append(describe(connection, self.reactor.look_at_clock()))
        await trio.lowlevel.checkpoint()
        return found + [client.describe() for client in self.in_process.clients.values()]

    def presence(self, events_max: int = 1000) -> Watch:
        """Return who comes and goes: `async with broker.presence() as events`, then `async for event in events`.

        From the beginning of the block each client that is accepted gives a Connected, its end a Disconnected.

        Args:
            events_max: that wait to be taken, 1 or more; beyond that the oldest is dropped and counted (`dropped` of
                the events, `presence_events_dropped` of counters()).
        """
        return Watch(self.controller.presence, events_max)

    def metrics(self) -> Metrics:
        """Everything that the worker counts, now; about a tenth of a millisecond."""
        return collect(
            self.reactor, self.controller, self.acceptor, self.entrances, self.reload, self.in_process.own_subscriptions
        )

    def counters(self) -> dict[str, int]:
        """The same under plain names, for a log line."""
        return flat(self.metrics())


async def _rotate_ticket_keys() -> None:
    """Use new keys of TLS sessions from time to time; where there are other workers, the supervisor has them do so."""
    keys = TicketKeys.new()
    while True:
        keys.use()
        await trio.sleep(ROTATE_S)
        keys = keys.rotated()


async def _raise(error: BaseException) -> None:
    raise error


def _connections_max(config: Config) -> int:
    """Raise the limit on open files as far as we may; returns how many connections fit into this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reserved = 64 + CONNECTIONS_BEYOND  # listening sockets, log, epoll, trio, data folder
    limit = config.limits.connections_max
    limit = min(limit, max(hard - reserved, 1))
    log.info("connections_limit", connections_max=limit, open_files_max=hard)
    return limit


@asynccontextmanager
async def open_broker(config: Config, **seams: Any) -> AsyncIterator[Worker]:
    """Run one worker inside the caller's trio program; the block gets it once clients can connect.

    Installs no signal handler, freezes nothing, sets nothing process-wide but the limit on open files. At the end of
    the block, or when it is cancelled, connections are told and closed. An exception out of the block leaves as it is;
    what ends the broker itself, which cancels the block, comes in an ExceptionGroup.

    Args:
        config: checked settings.
        seams: authenticator, admission, acl, transform, log_store, durability, mesh, folder, accept_loss, links, as of
            Worker.

    Raises:
        OSError: an address cannot be bound.
    """
    worker = Worker(config, **seams)
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as driving:  # of its own: what listen() raises is in no group
            driving.start_soon(drive, worker.reactor)
            await worker.hear_peers()
            driving.cancel_scope.cancel()
        await worker.publish_due_wills_in_turns()
        worker.listen()
        async with trio.open_nursery() as driving:
            driving.start_soon(drive, worker.reactor)
            async with trio.open_nursery() as serving:
                started = trio.Event()
                serving.start_soon(worker.serve, started.set)
                await started.wait()
                try:
                    yield worker
                except Exception as error:
                    failure = error  # the nurseries here are nobody's business: not in their groups
                finally:
                    worker.stop()
            driving.cancel_scope.cancel()
    finally:
        worker.close()
    if failure is not None:
        raise failure


async def drive(reactor: Reactor) -> None:
    """Turn a reactor from a trio task until cancelled: the second driver, beside Reactor.run()."""
    while True:
        if reactor.turn_once(False):
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(reactor.idle_s):
                await trio.lowlevel.wait_readable(reactor.fileno())
