"""A world of clients around one router, with a network that delays, cuts and breaks, and a log that syncs late."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from broker.hub import Hub
from broker.pump import Durability, Pump
from router.router import Router
from router.topics import matches

from broker.acl import AllowAll
from broker.auth import Anonymous
from broker.config import Config, Limits, Mqtt
from broker.control import Controller
from broker.packets import Publish
from broker.worker import ledger, terms
from tests.simulator.clients import Client, Publisher, Subscriber
from tests.support.doubles import FakeFollower, FakeLog

START_MS = 1_000_000


class ViolationError(AssertionError):
    """The broker broke a promise; the seed says how to see it again."""


class World:
    """One seed is one run.

    Args:
        seed: everything that is left to chance follows from it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = True
        self.now_ms = START_MS
        self.steps = 0
        self.trace = hashlib.sha256()
        draw = self.random
        self.log = FakeLog() if draw.random() < 0.6 else None
        self.follower = FakeFollower(self.log) if self.log is not None and draw.random() < 0.5 else None
        config = Config(
            mqtt=Mqtt(
                queue_messages_max=1_000_000, queue_bytes_max=1 << 40, topic_alias_maximum=0,
                inflight_max=draw.choice((3, 20, 1000)), shared_subscription_strategy=draw.choice(
                    ("round_robin", "random", "sticky", "hash_client", "hash_topic"))),
            limits=Limits(output_buffer_bytes_max=draw.choice((300, 4096, 1 << 20)), connect_timeout_s=10_000))
        self.router = Router(ledger(config), seed=seed, strategy=config.mqtt.shared_subscription_strategy)
        self.controller = Controller(config, self.router, Anonymous(), AllowAll())
        durability = Durability(self.log, [self.follower], 1) if self.follower is not None else None
        self.hub = Hub(
            self.router, self.controller, Pump(self.router, self.log, durability), now_ms=self.now_ms, **terms(config))
        self.publishers = [Publisher(self, f"p{i}", draw.choice((4, 5))) for i in range(draw.randint(1, 3))]
        self.subscribers = [
            Subscriber(self, f"s{i}", draw.choice((4, 5)), topic_filter=draw.choice(("t/#", "t/+", "t/1", "#")),
                       qos=draw.choice((0, 1, 2))) for i in range(draw.randint(1, 3))]
        for client in self.subscribers:
            if client.version == 5 and draw.random() < 0.5:
                client.receive_maximum = draw.randint(1, 4)
                client.refuses = draw.random() < 0.3
        self.members = [Subscriber(self, f"m{i}", draw.choice((4, 5)), topic_filter="t/#", qos=draw.choice((1, 2)),
                                   group="g") for i in range(draw.choice((0, 2, 3)))]
        self.clients: list[Client] = [*self.publishers, *self.subscribers, *self.members]
        self.owed: dict[str, set[bytes]] = {client.identifier: set() for client in self.subscribers}
        self.owed["group"] = set()
        self.audience: dict[bytes, list[str]] = {}
        self.before: dict[str, set[bytes]] = {}
        self.got: dict[str, dict[bytes, int]] = {client.identifier: {} for client in self.clients}
        self.highest: dict[tuple[str, bytes, bytes, int], int] = {}
        self.retained: dict[bytes, bytes] = {}

    # Checks ---------------------------------------------------------------------------------------------------------

    def check(self, holds: bool, what: str) -> None:
        """Fail with the seed if a promise does not hold."""
        if not holds:
            raise ViolationError(f"seed {self.seed}, step {self.steps}: {what}")

    def note(self, identifier: str, output: bytes) -> None:
        """Take what the broker sent into the trace."""
        if output:
            self.trace.update(f"{self.steps} {identifier} ".encode() + output)

    def must_stay(self, client: Client) -> bool:
        """Return whether the broker had no reason to end this connection."""
        return client.connection.close_reason not in ("taken_over", "connection_lost")

    def published(self, message: Publish) -> None:
        """A message is on its way: whoever is subscribed now is owed it as soon as it is acknowledged."""
        for client in self.subscribers:
            if not client.subscribed:
                self.before.setdefault(client.identifier, set()).add(message.payload)
        self.audience[message.payload] = [
            client.identifier for client in self.subscribers
            if client.subscribed and client.qos and not client.refuses and matches(
                client.topic_filter.encode(), message.topic)]
        if any(member.subscribed for member in self.members) and matches(b"t/#", message.topic):
            self.audience[message.payload].append("group")

    def acknowledged(self, publisher: Publisher, message: Publish) -> None:
        """A publisher got PUBACK or PUBREC: from now on the message is owed."""
        if message.retain:
            self.retained[message.topic] = message.payload
        for identifier in self.audience.pop(message.payload, ()):
            self.owed[identifier].add(message.payload)

    def delivered(self, client: Client, packet: Publish) -> None:
        """A subscriber got a message: not twice at QoS 2, and in order [MQTT-4.6.0-5]."""
        got = self.got[client.identifier]
        times = got[packet.payload] = got.get(packet.payload, 0) + 1
        if packet.qos == 2 and not client.refuses:      # whoever refuses a message may be sent it again
            self.check(times == 1, f"{client.identifier} got {packet.payload!r} {times} times at QoS 2")
        publisher, _, number = packet.payload.partition(b":")
        if times > 1 or (isinstance(client, Subscriber) and client.group):
            return
        if packet.payload in self.before.get(client.identifier, ()):
            return              # first sent before the subscription, sent again after it: it may come late
        # Per publisher, topic and published QoS, which the delivered QoS stands for: it is the lower of two.
        key = (client.identifier, publisher, packet.topic, packet.qos)
        if packet.qos == client.qos and client.qos < 2:
            return              # several published QoS end in this one: their orders are their own
        self.check(self.highest.get(key, 0) < int(number), f"{client.identifier}: {packet.payload!r} out of order")
        self.highest[key] = int(number)

    # Running --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let one thing happen."""
        self.steps += 1
        draw = self.random
        client = draw.choice(self.clients)
        what = draw.random()
        if client.connection is None:
            if what < 0.3:
                client.connect()
        elif what < 0.25 and isinstance(client, Publisher):
            client.publish()
        elif what < 0.50:
            client.carry()
        elif what < 0.75:
            client.read()
        elif what < 0.95:
            client.answer()
        elif self.faults and what < 0.975:
            client.cut()
        elif self.faults and what < 0.985:
            client.connect()                    # a takeover: the broker does not know of the broken connection
        else:
            self.now_ms += draw.randint(1, 5000)
        if self.log is not None and draw.random() < 0.2:
            self.log.sync()
        if self.follower is not None and draw.random() < 0.2:
            self.follower.acknowledge()
        self.hub.run_turn(self.now_ms)

    def run(self, steps: int) -> None:
        """Let things happen, faults included."""
        for number in range(steps):
            self.step()
            if number % 50 == 0:
                self.check_the_totals()

    def heal(self) -> None:
        """From here on nothing breaks, and everybody is connected."""
        self.faults = False
        for client in self.clients:
            if client.connection is None:
                client.connect()

    def quiet(self) -> bool:
        """Return whether nobody owes anybody anything."""
        return all(
            client.connected and not client.to_broker and not client.answers and not client.unanswered
            and not getattr(client, "in_flight", None) for client in self.clients) and len(self.router.effects) == 0

    def settle(self, rounds: int = 3000) -> None:
        """Run without faults until it is quiet; then everything that is owed has arrived."""
        self.heal()
        for _ in range(rounds):
            self.steps += 1
            for client in self.clients:
                client.carry()
                self.hub.run_turn(self.now_ms)
                client.read()
                client.answer()
            if self.log is not None:
                self.log.sync()
            if self.follower is not None:
                self.follower.acknowledge()
            self.hub.run_turn(self.now_ms)
            if self.quiet() and not any(client.connection.pending_bytes for client in self.clients):
                break
        else:
            raise ViolationError(f"seed {self.seed}: not quiet after {rounds} rounds: " + ", ".join(
                f"{c.identifier} {c.connected} {len(c.to_broker)} {c.answers} {c.unanswered} "
                f"{list(getattr(c, 'in_flight', ()))}" for c in self.clients))
        self.check_the_end()

    def check_the_totals(self) -> None:
        """What the ledger keeps count of is what the sessions hold."""
        ledger, sessions = self.router.ledger, self.router.sessions.values()
        held = [state["outgoing"] for session in sessions if (state := session.state())["outgoing"] is not None]
        counted = (ledger.sessions_online, ledger.inflight_messages, ledger.queued_messages, ledger.queued_bytes)
        there = (sum(session.connected for session in sessions), sum(len(state["in_flight"]) for state in held),
                 sum(state["queued"] for state in held), sum(state["queued_bytes"] for state in held))
        self.check(counted == there, f"the ledger counts {counted}, there are {there}")

    def check_the_end(self) -> None:
        """Nothing acknowledged is lost, retained messages are the last ones, nothing is left over."""
        for member in self.members:
            self.got.setdefault("group", {}).update(self.got[member.identifier])
        for identifier, owed in self.owed.items():
            missing = owed - self.got.get(identifier, {}).keys()
            self.check(not missing, f"{identifier} never got {sorted(missing)[:5]}")
        for topic, payload in self.retained.items():
            message: Any = self.router.retained.message_of(topic)
            self.check(message is not None, f"{topic!r} has lost its retained message")
            number = int(message.body.partition(b":")[2])
            self.check(number >= int(payload.partition(b":")[2]), f"{topic!r} went back to {message.body!r}")
        self.check(len(self.router.sessions) == len(self.clients), "sessions were lost or left over")
        self.check_the_totals()
        self.check(self.router.ledger.queued_messages == 0, "messages are left in queues")
        for session in self.router.sessions.values():
            state = session.state()
            self.check(not state["incoming"], f"{state} keeps identifiers")
            self.check(not state["outgoing"] or not state["outgoing"]["in_flight"], f"{state} keeps deliveries")


def run_seed(seed: int, steps: int = 1500) -> str:
    """Run one seed to its quiet end; returns a hash of all that the broker sent. Raises ViolationError."""
    world = World(seed)
    world.run(steps)
    world.settle()
    return world.trace.hexdigest()
