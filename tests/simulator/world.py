"""A world of clients around one router, with a network that delays, cuts and breaks, on a machine that dies."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config, Limits, Mqtt
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.worker.terms import ledger, terms
from router.recovery.open_log import begin, start_deadlines
from router.router import Router
from router.sessions.queue_policy import POLICIES
from tests.simulator.clients import Client, Publisher, Subscriber
from tests.simulator.machine import Killed, Machine
from tests.simulator.promises import Promises, ViolationError
from tests.simulator.rights import SimulatedRights
from tests.support.disk import PowerLoss

RIGHTS_EVERY, RIGHTS_AT = 11, (1, 6)  # the seeds in which topics are hidden from clients
DEATHS_LIKELY = (0.0002, 0.0006, 0.002)  # for each step of the pump, in a run with deaths


class World(Promises):
    """One seed is one run.

    Args:
        seed: everything that is left to chance follows from it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.random
        self.machine = Machine(draw, self.while_syncing) if draw.random() < 0.75 else None
        # In some worlds queues fill: what may be lost then is not counted, all else must hold.
        self.limited = seed % 5 == 4
        queues: dict[str, Any] = {"queue_messages_max": 1_000_000, "queue_bytes_max": 1 << 40}
        if self.limited:
            limits = random.Random(f"queues of {seed}")
            queues = {
                "queue_messages_max": limits.randint(1, 6),
                "queue_bytes_max": limits.choice((1024, 1 << 20)),
                "queue_rules": (f"t/1:{limits.choice(POLICIES)}",),
                "queue_overflow": limits.choice(POLICIES),
                "queue_push_back_s": 0.5,
                "queue_qos0": limits.random() < 0.3,
            }
        self.config = Config(
            mqtt=Mqtt(
                **queues,
                topic_alias_maximum=0,
                inflight_max=draw.choice((3, 20, 1000)),
                shared_subscription_strategy=draw.choice(
                    ("round_robin", "random", "sticky", "hash_client", "hash_topic")
                ),
            ),
            limits=Limits(output_buffer_bytes_max=draw.choice((300, 4096, 1 << 20)), connect_timeout_s=10_000),
        )
        self.digits = draw.choice((1, 1, 150))  # long ones put a turn's records into several sectors
        self.commit_likelihood = draw.choice((0.05, 0.2, 0.5))
        rights = SimulatedRights(self, str(seed)) if seed % RIGHTS_EVERY in RIGHTS_AT else None
        self.rights = rights
        self.boot()
        publishers = [Publisher(self, f"p{i}", draw.choice((4, 5))) for i in range(draw.randint(1, 3))]
        subscribers = [
            Subscriber(self, f"s{i}", draw.choice((4, 5)), topic_filter=draw.choice(("t/#", "t/+", "t/1", "#")),
                       qos=draw.choice((0, 1, 2))) for i in range(draw.randint(1, 3))]  # fmt: skip
        for client in subscribers:
            if client.version == 5 and draw.random() < 0.5:
                client.receive_maximum = draw.randint(1, 4)
                client.refuses = draw.random() < 0.3
        members = [
            Subscriber(self, f"m{i}", draw.choice((4, 5)), topic_filter="t/#", qos=draw.choice((1, 2)), group="g")
            for i in range(draw.choice((0, 2, 3)))
        ]
        watcher = Subscriber(self, "w", draw.choice((4, 5)), topic_filter="w/#", qos=2)
        self.introduce(publishers, subscribers, members, watcher)
        if rights is not None:
            rights.introduce(subscribers, members)
            rights.begin()
        for client in self.clients:
            client.has_will = client is not self.watcher and draw.random() < 0.3
        if self.machine is not None and draw.random() < 0.7:
            self.machine.death.likelihood = draw.choice(DEATHS_LIKELY)

    @property
    def machines(self) -> list[Machine]:
        """The one under the broker, if there is any."""
        return [] if self.machine is None else [self.machine]

    def boot(self) -> None:
        """Start a broker on what the disk has, or on nothing."""
        config = self.config
        self.router = Router(ledger(config), seed=self.seed, strategy=config.mqtt.shared_subscription_strategy)
        self.router.ledger.gap_min = 3
        self.controller = Controller(config, self.router, Anonymous(), self.rights or AllowAll())
        pump, opened = Pump(self.router), None
        if self.machine is not None:
            pump, opened = self.machine.start(self.router, self.controller, self.now_ms)
        self.hub = Hub(self.router, self.controller, pump, now_ms=self.now_ms, **terms(config))
        if opened is not None:
            begin(self.router, opened)
        self.controller.judge_all(self.seed)
        if self.rights is not None:
            self.rights.begin()
        if opened is not None:
            start_deadlines(self.router, opened)

    # Checks ---------------------------------------------------------------------------------------------------------

    def hub_of(self, client: Client) -> Hub:
        """Return the only worker."""
        return self.hub

    def in_trouble(self) -> bool:
        """Return whether the broker may refuse what it cannot log now."""
        return self.machine is not None and self.machine.had_trouble

    # Running --------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Let one thing happen to one client."""
        draw = self.random
        client = draw.choice(self.clients)
        what = draw.random()
        if self.act_as_usual(client, what):
            return
        if self.faults and what < 0.975:
            client.cut()
        elif self.faults and what < 0.985:
            client.connect()  # a takeover: the broker does not know of the broken connection
        else:
            self.now_ms += draw.randint(1, 1000)

    def turn(self) -> None:
        """One turn of the broker, at whose beginning and end it may die."""
        if self.machine is not None:
            self.machine.death.at("match")
        self.hub.run_turn(self.now_ms)
        if self.machine is not None:
            self.machine.death.at("flush")

    def while_syncing(self) -> None:
        """A sync is slow: the broker goes on meanwhile."""
        if self.faults and self.random.random() < 0.3:
            for _ in range(self.random.randint(1, 5)):
                self.act()
                self.turn()

    def step(self) -> None:
        """Let one thing happen."""
        self.steps += 1
        self.survive(self._step)

    def _step(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.act()
        if self.rights is not None and self.rights.random.random() < 0.05:
            self.rights.change([self.controller])
        self.turn()
        machine = self.machine
        if machine is None:
            return
        if self.random.random() < self.commit_likelihood:
            machine.commit()
        if machine.follower is not None and self.random.random() < 0.2:
            machine.follower.acknowledge()
        if self.faults:
            machine.meddle()
        self.turn()

    def survive(self, action: Callable[[], None]) -> None:
        """Do something; if the broker dies of it, start it again, though it may die of that too."""
        try:
            action()
        except (Killed, PowerLoss):
            assert self.machine is not None
            self.die()
            for client in self.clients:
                client.survive()
            self.notice_loss()
            if self.rights is not None:
                self.rights.change_while_down()
            while True:
                self.recoveries += 1
                try:
                    self.boot()
                    self.notice_loss()
                    return
                except (Killed, PowerLoss):
                    self.die()
                except OSError:
                    self.die()
                    self.machine.heal()  # somebody makes room, or puts in another disk, and starts it again

    def die(self) -> None:
        """The process is gone, and perhaps with it what it had acknowledged."""
        assert self.machine is not None
        self.machine.die()
        self.notice_loss()

    def notice_loss(self) -> None:
        """Nothing counts any more that the machine has forgotten."""
        if self.machine is not None and self.machine.forgot:
            self.forgive(self.clients)

    def run(self, steps: int) -> None:
        """Let things happen, faults included."""
        for number in range(steps):
            self.step()
            if number % 50 == 0:
                self.check_the_totals()
            if number % 200 == 199 and self.machine is not None:
                self.survive(self.compare)

    def compare(self) -> None:
        """What is recovered is the durable part of what lives, and recovering once more changes nothing."""
        assert self.machine is not None
        likelihood, self.machine.death.likelihood = self.machine.death.likelihood, 0.0
        faults, self.faults = self.faults, False
        if self.machine.write_all(lambda: self.hub.run_turn(self.now_ms)):
            self.machine.compare(self.router, self.controller, self.now_ms, self.check)
        self.machine.death.likelihood, self.faults = likelihood, faults

    def heal(self) -> None:
        """From here on nothing breaks, and everybody is connected."""
        self.faults = False
        if self.machine is not None:
            self.machine.heal()
            self.survive(lambda: self.machine.die_at_last())  # type: ignore[union-attr]
        for client in self.clients:
            if client.connection is None:
                client.connect()

    def quiet(self) -> bool:
        """Return whether nobody owes anybody anything."""
        return (
            all(
                client.connected
                and not client.to_broker
                and not client.answers
                and not client.has_unanswered
                and not getattr(client, "in_flight", None)
                for client in self.clients
            )
            and len(self.router.effects) == 0
        )

    def settle(self, rounds: int = 3000) -> None:
        """Run without faults until it is quiet; then everything that is owed has arrived."""
        self.heal()
        for _ in range(rounds):
            self.steps += 1
            for client in self.clients:
                if client.connection is None:
                    client.connect()  # it was refused while the disk was in trouble
                client.carry()
                self.hub.run_turn(self.now_ms)
                client.read()
                client.answer()
            if self.machine is not None:
                self.machine.commit()
                if self.machine.follower is not None:
                    self.machine.follower.acknowledge()
            self.hub.run_turn(self.now_ms)
            if self.quiet() and not any(client.connection.pending_bytes for client in self.clients):
                break
        else:
            raise ViolationError(
                f"seed {self.seed}: not quiet after {rounds} rounds: "
                + ", ".join(
                    f"{c.identifier} {c.connected} {len(c.to_broker)} {c.answers} {c.unanswered} "
                    f"{list(getattr(c, 'in_flight', ()))}"
                    for c in self.clients
                )
            )
        self.check_the_end()
        if self.machine is not None:
            self.compare()

    def check_the_totals(self) -> None:
        """What the ledger keeps count of is what the sessions hold."""
        ledger, sessions = self.router.ledger, self.router.sessions.values()
        held = [state["outgoing"] for session in sessions if (state := session.state())["outgoing"] is not None]
        counted = (ledger.sessions_online, ledger.inflight_messages, ledger.queued_messages, ledger.queued_bytes)
        there = (
            sum(session.connected for session in sessions),
            sum(len(state["in_flight"]) for state in held),
            sum(state["queued"] for state in held),
            sum(state["queued_bytes"] for state in held),
        )
        self.check(counted == there, f"the ledger counts {counted}, there are {there}")

    def check_the_end(self) -> None:
        """Nothing acknowledged is lost, retained messages are the last ones, nothing is left over."""
        for member in self.members:
            self.got.setdefault("group", {}).update(self.got[member.identifier])
        for identifier, owed in self.owed.items():
            missing = owed - self.got.get(identifier, {}).keys()
            self.check(not missing or self.limited, f"{identifier} never got {sorted(missing)[:5]}")
        missing = self.wills_owed - self.wills_came
        self.check(not missing or self.limited, f"the wills {sorted(missing)[:5]} never came")
        for topic, values in self.retained.items():
            message: Any = self.router.retained.message_of(topic)
            stands = b"" if message is None else message.body
            self.check(stands in values.values(), f"{topic!r} has {stands!r} retained, which is none of {values}")
        self.check(len(self.router.sessions) == len(self.clients), "sessions were lost or left over")
        self.check_the_totals()
        self.check(self.router.ledger.queued_messages == 0, "messages are left in queues")
        for session in self.router.sessions.values():
            state = session.state()
            self.check(not state["incoming"] or self.has_forgiven, f"{state} keeps identifiers")
            self.check(not state["outgoing"] or not state["outgoing"]["in_flight"], f"{state} keeps deliveries")


def run_seed(seed: int, steps: int = 1500) -> World:
    """Run one seed to its quiet end; `trace` has a hash of all that the broker sent. Raises ViolationError."""
    world = World(seed)
    world.run(steps)
    world.settle()
    for machine in world.machines:
        machine.disk.wipe()
    return world
