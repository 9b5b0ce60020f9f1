"""The machine under the broker: a disk, and a process that dies at any step and comes back from what the disk has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from broker.control.controller import Controller
from broker.control.will import PendingWill
from broker.reactor.pump import Durability, Pump
from router.log.log_writer import Log
from router.log.record_buffer import RecordBuffer
from router.recovery.open_log import Opened, open_log
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.disk import SimulatedDisk, broken

RELEASED = 3  # of router.sessions.outgoing's states
PASSING = 0x40  # of a peer's subscription options: it ends with the peer's process
TROUBLE_STEPS = 60  # of the world, at most, that the disk is in trouble

# Every step of the pump at which a process can die; operations of the disk have their own names, and `torn` in front
# where they were under way.
PUMP_STEPS = ("match", "append", "appended", "tell", "settle", "flush", "synced")
PEER_STEPS = ("peer send", "peer receive", "peer answer")

# Steps of every turn, so dying there is not worth so much.
OFTEN = {"match": 0.5, "flush": 0.5, "settle": 0.5, "peer send": 2, "peer receive": 2, "peer answer": 2}


class Killed(BaseException):
    """The process is gone. Nothing in the code under test may catch this."""


class Death:
    """Where a process dies: at each step it is asked, by the step's name.

    Attributes:
        deaths: how often somebody died, by step.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.likelihood = 0.0
        self.deaths: Counter[str] = Counter()

    def at(self, step: str) -> None:
        """Perhaps die here."""
        if self.likelihood and self.random.random() < self.likelihood * OFTEN.get(step, 10):
            self.deaths[step] += 1
            raise Killed(step)


class WatchedLog:
    """The log as the pump sees it, with a death before and behind what it is given."""

    def __init__(self, log: Log, death: Death) -> None:
        self.log = log
        self.death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def append(self, records: RecordBuffer) -> None:
        """Take records; they are in memory only."""
        self.death.at("append")
        self.log.append(records)
        self.death.at("appended")


class WatchedDurability(Durability):  # type: ignore[misc]
    """Asked by the pump when all is appended and told, and nothing is settled."""

    def __init__(self, death: Death, log: Log, followers: tuple[Any, ...], required: int) -> None:
        super().__init__(log, followers, required)
        self.death = death

    def durable(self) -> int:
        """Return how far effects may leave."""
        self.death.at("settle")
        return int(super().durable())


class FaultyDisk:
    """Decides what goes wrong with a simulated disk, and when it heals.

    Args:
        while_syncing: called in the middle of a sync, while everything else goes on.
    """

    def __init__(self, random: Random, death: Death, while_syncing: Callable[[], None]) -> None:
        self.random = random
        self.death = death
        self.disk = SimulatedDisk(random.randrange(1 << 30))
        self.disk.fail = self._fail
        self.disk.before_sync = while_syncing
        self.errors_likely = 0.0  # of each operation that writes
        self.operations: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    def _fail(self, operation: str) -> OSError | None:
        self.operations[operation] += 1
        if operation in ("read", "names", "open"):
            return None
        if self.death.likelihood and self.random.random() < self.death.likelihood * 10:
            # In the middle of the operation, so a write is torn.
            self.death.deaths[f"torn {operation}"] += 1
            self.disk.power_off_at = self.disk.steps
            return None
        self.death.at(operation)
        if (
            self.errors_likely
            and operation in ("write", "sync", "create", "sync_folder")
            and (self.random.random() < self.errors_likely)
        ):
            self.errors[operation] += 1
            return broken()
        return None

    def fill_up(self) -> None:
        """Leave little room, or none."""
        self.disk.capacity = self.disk.used_bytes + self.random.choice((0, 10, 300, 3000))
        self.errors["full"] += 1

    def heal(self) -> None:
        """From here on nothing fails."""
        self.errors_likely = 0.0
        self.disk.capacity = None


class Follower:
    """Another machine's copy of the log, as far as it has acknowledged it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.durable = log.durable

    def acknowledge(self) -> None:
        """It has what the log has."""
        self.durable = self.log.appended


class Teller:
    """Where other routers will be told; one can die behind it, and it is told every record, once and in order."""

    def __init__(self, death: Death, log: Log) -> None:
        self.death = death
        self.told = log.appended

    def tell(self, records: RecordBuffer) -> None:
        """Nobody is there to be told."""
        assert records.count, "the log has taken them already"
        assert records.last_number - records.count == self.told, (records.last_number, records.count, self.told)
        self.told = records.last_number
        self.death.at("tell")


class Machine:
    """A disk, and what runs on it.

    Attributes:
        had_trouble: the disk refused something in this life of the process, so the broker may refuse too.
        forgot: what the process had said was durable is lost, for nothing was synced (`os`, `none`).
        ever_forgot: that was so at any time.
        follower: None, or what else must acknowledge.

    Args:
        while_syncing: called in the middle of a sync, while everything else goes on.
        worker: whose it is.
    """

    def __init__(self, random: Random, while_syncing: Callable[[], None], worker: int = 0) -> None:
        self.random = random
        self.worker = worker
        self.death = Death(random)
        self.committing = False
        self.storage = FaultyDisk(random, self.death, lambda: while_syncing() if self.committing else None)
        self.durability = random.choice(("fsync", "fsync", "fsync", "fsync", "os", "none"))
        self.has_follower = random.random() < 0.3
        self.segment_bytes_max = random.choice((5_000, 20_000, 1 << 26))
        self.follower: Follower | None = None
        self.had_trouble = self.forgot = self.ever_forgot = False
        self.trouble_steps = 0
        self.power_loss_likely = 0.5 if self.durability == "fsync" else 0.2

    @property
    def disk(self) -> SimulatedDisk:
        """The disk, as the broker sees it."""
        return self.storage.disk

    @classmethod
    def quiet(cls, disk: SimulatedDisk, seed: int = 0) -> Machine:
        """Return a machine on which nothing goes wrong."""
        machine = cls(Random(seed), lambda: None)
        machine.durability, machine.has_follower, machine.segment_bytes_max = "fsync", False, 1 << 26
        machine.storage.disk = disk
        return machine

    def start(self, router: Router, controller: Controller, now_ms: int) -> tuple[Pump, Opened]:
        """Recover a router from what is there, and go on writing. Returns its pump, and what begin() needs."""
        self.had_trouble = False
        opened = self.open(self.disk, router, controller, now_ms)
        self.opened = opened
        self.forgot = False
        self.log = opened.log
        self.log.when_durable(lambda: self.death.at("synced"))
        self.follower = Follower(self.log) if self.has_follower else None
        durability = WatchedDurability(
            self.death, self.log, (self.follower,) if self.follower else (), int(self.has_follower)
        )
        return Pump(router, WatchedLog(self.log, self.death), durability, Teller(self.death, self.log)), opened

    def open(self, disk: SimulatedDisk, router: Router, controller: Controller, now_ms: int) -> Opened:
        """Read a log into a router, as a worker does."""
        return open_log(
            disk,
            router,
            worker=self.worker,
            make_will=partial(PendingWill.recovered, controller.handshake.acl),
            now_us=now_ms * 1000,
            now_ms=now_ms,
            make_mark=lambda: self.random.getrandbits(32),
            durability=self.durability,
            segment_bytes_max=self.segment_bytes_max,
        )

    def commit(self) -> None:
        """A step of the log's thread."""
        self.committing = True
        try:
            self.log.commit()
        finally:
            self.committing = False
            self.had_trouble |= self.log.trouble is not None

    def meddle(self) -> None:
        """Begin or end some trouble of the disk."""
        if self.trouble_steps:
            self.trouble_steps -= 1
            if not self.trouble_steps:
                self.storage.heal()
        elif self.random.random() < 0.004:
            self.trouble_steps = self.random.randint(1, TROUBLE_STEPS)
            if self.random.random() < 0.5:
                self.storage.errors_likely = self.random.choice((0.3, 1.0))
            else:
                self.storage.fill_up()

    def heal(self) -> None:
        """From here on the disk is well."""
        self.trouble_steps = 0
        self.storage.heal()

    def die_at_last(self) -> None:
        """A run with deaths has at least this one; nobody dies after it."""
        if self.death.likelihood:
            self.death.likelihood = 0.0
            self.death.deaths["at last"] += 1
            raise Killed("at last")

    def die(self) -> None:
        """The process is gone, perhaps with the power."""
        power_lost = self.random.random() < self.power_loss_likely
        self.forgot = self.durability == "none" or (self.durability == "os" and power_lost)
        self.ever_forgot |= self.forgot
        if power_lost:
            self.disk.power_loss()
        else:
            self.disk.process_killed()

    def write_all(self, turn: Callable[[], object]) -> bool:
        """Write and settle everything; returns whether the disk let us."""
        for _ in range(100):
            turn()
            idle = not self.log.commit()
            self.had_trouble |= self.log.trouble is not None
            if self.follower is not None:
                self.follower.acknowledge()
            turn()
            if idle and self.log.written == self.log.durable == self.log.appended:
                return self.log.trouble is None
        return False

    def compare(self, router: Router, controller: Controller, now_ms: int, check: Callable[[bool, str], None]) -> None:
        """What is recovered from the disk as it is must be the durable part of what lives, twice over.

        Everything must have been written, and settled.
        """
        expected = durable_state(router)
        if router.retaining.index is not None:
            del expected["retained"]  # it has no state of its own, and what the log says is in the index
        disk = self.disk.copy()
        for what in ("recovered", "recovered again"):
            again = Router(Ledger(1_000_000, 1 << 40, 1000))
            opened = self.open(disk, again, controller, now_ms)
            # A loss of power that took what was not synced leaves holes; they are the same ones each time.
            known = {(damage.file, damage.offset) for damage in self.opened.damages}
            check(
                {(damage.file, damage.offset) for damage in opened.damages} <= known
                and opened.problems == self.opened.problems,
                f"{what}: {opened.damages} {opened.problems}, not {self.opened.damages} {self.opened.problems}",
            )
            found = durable_state(again)
            if "retained" not in expected:
                del found["retained"]
            for name in sorted(expected.keys() | found.keys()):
                check(
                    expected.get(name) == found.get(name),
                    f"{what}, {name}: {found.get(name)}, but alive it is {expected.get(name)}",
                )


def durable_state(router: Router) -> dict[str, Any]:
    """Return what must survive of a router's state: whether a delivery was sent is in doubt after a crash anyway."""
    state: dict[str, Any] = {"retained": sorted((m.topic_name, m.body) for m in router.retained.match(b"#"))}
    for identifier, peer in router.peers.items():
        session = peer.session
        state[identifier.decode()] = {
            "subscriptions": sorted(entry for entry in router.tree.subscriptions_of(session) if not entry[1] & PASSING),
            # What has no record is owed as long as the process lives.
            "owed": []
            if session.owed is None
            else [
                (record, retain, _named_in(identifiers), group)
                for _, record, _, _, _, retain, identifiers, group in session.owed.deliveries()
                if record
            ],
        }
    for identifier, session in router.sessions.items():
        if not session.durable and session.will is None:
            continue
        owed = session.owed
        state[identifier.decode()] = {
            "expires": session.expiry_interval_s,
            "subscriptions": sorted(router.tree.subscriptions_of(session)),
            "incoming": session.incoming_identifiers,
            "principal": getattr(session.principal, "encoded", lambda kept=session.principal: kept)(),
            "will": None if session.will is None else session.will.fields(),
            "next": 0 if owed is None else owed.numbers[1],
            "owed": []
            if owed is None
            else [
                (number, record, size, qos, state == RELEASED, retain, identifiers, group)
                for number, record, size, qos, state, retain, identifiers, group in owed.deliveries()
            ],
        }
    return state


def _named_in(identifiers: bytes) -> bytes:
    """Return what says which group a peer was picked for; where the message was before is in no log."""
    end = next((at + 1 for at in range(1, len(identifiers)) if not identifiers[at] & 0x80), 0)
    return identifiers[:end]
