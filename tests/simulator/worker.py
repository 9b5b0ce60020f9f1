"""One of several workers: a process on a machine of its own, and what it has of the mesh."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.control.controller import Controller
from broker.reactor.turn import Hub
from broker.worker.terms import ledger, terms
from mesh.mesh import Mesh
from router.recovery.open_log import begin, start_deadlines
from router.router import Router
from tests.simulator.index import index_of, write_index
from tests.simulator.machine import Machine
from tests.simulator.network import SimulatedCarrier

if TYPE_CHECKING:
    from tests.simulator.several import SeveralWorld

SILENCE_MS = 2000
NEVER = 1 << 64
NODE = b"node"


class Log:
    """Where the mesh says what happens; a frame of a peer that is none is never to be said here."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        """Nothing that has to be looked at."""

    def warning(self, event: str, **fields: object) -> None:
        """Something is wrong."""
        self.warnings.append(f"{event} {fields}")


class Worker:
    """One worker: a machine, and the process on it while there is one."""

    def __init__(self, world: SeveralWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.name = b"%b/%d" % (NODE, number)
        self.machine = Machine(world.random, lambda: world.while_syncing(self), number)
        self.log = Log()
        self.router: Any = None
        self.is_up = False
        self.is_ready = False  # clients are let in
        self.down_steps = 0
        self.stopped_steps = 0  # it is there, and has no turn (SIGSTOP)
        self.index: Any = None
        self.patience_ms = 1 << 40  # so long it waits at its start for peers that do not answer
        self.started_ms = 0
        self.dropped_before: Counter[str] = Counter()  # by processes that are gone
        self.silent_steps: dict[int, int] = {}  # other worker -> step at which its link was last not up

    def boot(self) -> None:
        """Start a process on what the disk has."""
        world, config = self.world, self.world.config
        if world.environment is not None:
            self.index = index_of(world.environment, self.number, world.count)
        self.router = Router(
            ledger(config), seed=world.seed, strategy=config.mqtt.shared_subscription_strategy, index=self.index
        )
        self.controller = Controller(config, self.router, Anonymous(), world.rights or AllowAll())
        pump, opened = self.machine.start(self.router, self.controller, world.now_ms)
        self.hub = Hub(self.router, self.controller, pump, now_ms=world.now_ms, **terms(config))
        begin(self.router, opened)
        self.controller.judge_all(world.seed)
        self.opened = opened
        if self.index is not None:
            opened.log.when_durable(self.log_is_durable)
            self.index.pass_over(opened.log.written)
            self.index.durable(opened.log.written)
        incarnation = opened.log.incarnation
        self.carrier = SimulatedCarrier(world.network, self.number, self.name, incarnation, self.machine.death)
        others = {b"%b/%d" % (NODE, other): other for other in range(world.count) if other != self.number}
        self.mesh: Any = Mesh(
            self.router,
            self.carrier,
            self.name,
            incarnation,
            others,
            lambda: None,
            self.log,
            began_after=opened.log.started_after,
            interest_timeout_ms=1 << 40,
            silence_ms=SILENCE_MS,
            window_bytes=1 << 20,
        )
        self.hub.mesh = self.mesh
        self.controller.join_mesh(self.mesh)
        world.network.enter(self.carrier)
        self.started_ms = world.now_ms
        self.is_up = True
        if world.rights_of_several is not None:
            world.rights_of_several.begin_on(self)

    def apply_retained(self) -> None:
        """Bring into the index what only this log has, for no process will run on it; as reshard_main does."""
        world, config = self.world, self.world.config
        index = index_of(world.environment, self.number, 1)
        router = Router(ledger(config), index=index)
        opened = self.machine.open(
            self.machine.disk, router, Controller(config, router, Anonymous(), AllowAll()), world.now_ms
        )
        index.pass_over(opened.log.written)
        while index.commit(opened.log.written):
            pass

    def log_is_durable(self) -> None:
        """Its log has got further."""
        self.machine.death.at("synced")
        self.index.durable(min(self.opened.log.durable, self.opened.log.written))

    def write_index(self) -> None:
        """A step of the thread that writes the index of retained messages."""
        if self.index is not None:
            write_index(self.index, self.machine.death.at)

    @property
    def moves(self) -> bool:
        """Whether there is a process, and nobody has stopped it."""
        return self.is_up and not self.stopped_steps

    def turn(self) -> None:
        """One turn, at whose beginning and end it may die."""
        self.machine.death.at("match")
        self.hub.run_turn(self.world.now_ms)
        if not self.is_ready and (self.mesh.ready or self.world.now_ms >= self.started_ms + self.patience_ms):
            start_deadlines(self.router, self.opened)
            self.router.expire()
            self.is_ready = True
        for name, neighbour in self.mesh.neighbours.items():
            if neighbour.link.state != "up":
                self.silent_steps[int(name.rpartition(b"/")[2])] = self.world.steps
        self.machine.death.at("flush")

    def die(self) -> None:
        """The process is gone."""
        self.dropped_before = self.dropped
        self.router = None
        self.machine.die()
        self.is_up = self.is_ready = False
        self.stopped_steps = 0
        self.world.network.leave(self.number)

    @property
    def dropped(self) -> Counter[str]:
        """Return what all its processes have dropped, by reason."""
        return self.dropped_before + Counter({} if self.router is None else self.router.ledger.dropped())

    def peer_session(self, other: Worker) -> Any:
        """Return the session that stands for another worker here."""
        return self.mesh.neighbours[other.name].peer.session

    @property
    def interest(self) -> tuple[int, int]:
        """Return this process, and the version of what is wanted here."""
        return self.opened.log.incarnation, self.mesh.interest.version

    def interest_of(self, other: Worker) -> tuple[int, int]:
        """Return another worker's process, and the version of its interest, that was heard last; (0, 0): none was."""
        neighbour = self.mesh.neighbours[other.name]
        return (neighbour.link.peer_incarnation, neighbour.wants) if neighbour.wants else (0, 0)

    def retained_of(self, identifier: str) -> tuple[int, int]:
        """Return the number of the first retained message that a session is owed, and that of its next delivery."""
        session = None if self.router is None else self.router.sessions.get(identifier.encode())
        if session is None:
            return 0, NEVER  # nobody can say
        if session.owed is None:
            return NEVER, 0
        return next((number for number, *_, retain, _, _ in session.owed.deliveries() if retain), NEVER), (
            session.owed.numbers[1]
        )

    @property
    def owes_nothing(self) -> bool:
        """Whether nothing waits here: for a record, for a peer, or on its way."""
        if self.index is not None and self.index.pending:
            return False
        return len(self.router.effects) == 0 and all(
            (state := neighbour.state())["installed"] >= self.mesh.interest.version
            and not state["waiting_acknowledgements"]
            and not _owed(neighbour.peer.session)
            for neighbour in self.mesh.neighbours.values()
        )

    # Checks ---------------------------------------------------------------------------------------------------------

    def check_its_ledger(self) -> None:
        """What its ledger keeps count of is what its sessions hold."""
        router = self.router
        sessions = [
            *router.sessions.values(),
            *router.ending.sessions,
            *(peer.session for peer in router.peers.values()),
        ]
        held = [state["outgoing"] for session in sessions if (state := session.state())["outgoing"] is not None]
        counted = (
            router.ledger.sessions_online,
            router.ledger.inflight_messages,
            router.ledger.queued_messages,
            router.ledger.queued_bytes,
        )
        there = (
            sum(session.connected for session in router.sessions.values()),
            sum(len(state["in_flight"]) for state in held),
            sum(state["queued"] for state in held),
            sum(state["queued_bytes"] for state in held),
        )
        self.world.check(counted == there, f"the ledger of worker {self.number} counts {counted}, there are {there}")

    def check_the_end(self, sessions: int, has_forgiven: bool) -> None:
        """Nothing is left over, and nothing to complain of.

        Args:
            sessions: that are at home here.
            has_forgiven: a worker has lost what it had acknowledged, and identifiers may be left.
        """
        check, router = self.world.check, self.router
        check(not self.log.warnings, f"worker {self.number} says {self.log.warnings[:3]}")
        check(len(router.sessions) == sessions, f"sessions were lost or left over on worker {self.number}")
        check(router.ledger.queued_messages == 0, f"messages are left in queues of worker {self.number}")
        for session in router.sessions.values():
            state = session.state()
            check(not state["incoming"] or has_forgiven, f"{state} keeps identifiers")
            check(not state["outgoing"] or not state["outgoing"]["in_flight"], f"{state} keeps deliveries")

    def compare(self) -> None:
        """What is recovered is the durable part of what lives, and recovering once more changes nothing."""

        def turn() -> None:
            self.hub.run_turn(self.world.now_ms)
            self.write_index()

        if self.machine.write_all(turn):
            self.machine.compare(self.router, self.controller, self.world.now_ms, self.world.check)


def _owed(session: Any) -> bool:
    return session.owed is not None and bool(session.owed.deliveries())
