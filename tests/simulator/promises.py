"""What a broker promises to its clients, noted when it is promised and checked when it is kept."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING

from broker.wire.packets import Publish
from router.matching.topic_names import matches
from tests.simulator.clients import Client, Publisher, Subscriber

if TYPE_CHECKING:
    from broker.reactor.turn import Hub
    from tests.simulator.rights import SimulatedRights

START_MS = 1_000_000_000
DIGITS_READ = 9  # of a number


class ViolationError(AssertionError):
    """The broker broke a promise; the seed says how to see it again."""


class Promises(ABC):
    """The clients of one run, what they are owed, and what they got.

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
        self.acknowledged_count = self.recoveries = 0
        self.limited = False  # queues fill: what may be lost then is not counted, all else must hold
        self.digits = 1
        self.sent_again: set[bytes] = set()
        self.refused_unheard: set[bytes] = set()  # their publisher lost the connection before it heard that
        self.published_qos: dict[bytes, int] = {}
        self.got_at_qos2: dict[str, set[bytes]] = {}  # by client, in its present session
        self.wills_owed: set[bytes] = set()
        self.wills_came: set[bytes] = set()
        self.has_forgiven = False  # a worker has lost what it had acknowledged
        self.forgiven_twice: set[bytes] = set()  # may come twice at QoS 2: their worker forgot that it had them
        self.may_repeat: dict[str, set[bytes]] = {}  # the same, by client: its worker had them of another one
        self.audience: dict[bytes, list[str]] = {}
        self.topics: dict[bytes, bytes] = {}
        self.rights: SimulatedRights | None = None  # what may not be read; None: nothing is forbidden
        self.before: dict[str, set[bytes]] = {}
        self.highest: dict[tuple[str, bytes, bytes, int], int] = {}
        # topic -> what may stand, by its number: what was acknowledged last, and what was sent later
        self.retained: dict[bytes, dict[int, bytes]] = {}
        self.ever_retained: dict[bytes, dict[int, bytes]] = {}
        self.filters: set[bytes] = set()  # of subscribers of their own, which change their minds

    def introduce(
        self, publishers: list[Publisher], subscribers: list[Subscriber], members: list[Subscriber], watcher: Subscriber
    ) -> None:
        """Take in all clients; the members are one group, the watcher hears of wills."""
        self.publishers, self.subscribers, self.members, self.watcher = publishers, subscribers, members, watcher
        self.clients: list[Client] = [*publishers, *subscribers, *members, watcher]
        self.owed: dict[str, set[bytes]] = {client.identifier: set() for client in subscribers}
        self.owed["group"] = set()
        self.got: dict[str, dict[bytes, int]] = {client.identifier: {} for client in self.clients}

    @abstractmethod
    def hub_of(self, client: Client) -> Hub:
        """Return the worker that a client lives on."""

    @abstractmethod
    def in_trouble(self) -> bool:
        """Return whether the broker may refuse what it cannot log now."""

    def act_as_usual(self, client: Client, what: float) -> bool:
        """Let a client do what clients do, by a number that was drawn; False from 0.95 on: that is something else."""
        if client.connection is None:
            if what < 0.3:
                client.connect()
        elif what < 0.25 and isinstance(client, Publisher):
            for _ in range(self.random.randint(1, 4)):
                client.publish()
        elif what < 0.50:
            client.carry()
        elif what < 0.75:
            client.read()
        elif what < 0.95:
            client.answer()
        else:
            return False
        return True

    def is_promised(self, publisher: Client, client: Subscriber) -> bool:
        """Return whether what a client publishes now must come to a subscriber that it matches."""
        return client.subscribed

    def connected(self, client: Client) -> None:  # noqa: B027  (whoever has to do something there, does)
        """CONNACK came."""

    def subscribed(self, client: Subscriber) -> None:  # noqa: B027  (likewise)
        """SUBACK came."""

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
        reason = client.connection.close_reason
        return reason not in ("taken_over", "connection_lost", "queue_full") and not self.in_trouble()

    def published(self, publisher: Publisher, message: Publish, number: int) -> None:
        """A message is on its way: whoever is subscribed now is owed it as soon as it is acknowledged."""
        for client in self.subscribers:
            if not client.subscribed or (client.qos and not self.is_promised(publisher, client)):
                self.before.setdefault(client.identifier, set()).add(message.payload)
        self.published_qos[message.payload] = message.qos
        if message.retain:
            self.retained.setdefault(message.topic, {0: b""})[number] = message.payload
            self.ever_retained.setdefault(message.topic, {0: b""})[number] = message.payload
        if not message.payload:
            return
        self.audience[message.payload] = [
            client.identifier
            for client in self.subscribers
            if self.is_promised(publisher, client)
            and client.qos
            and not client.refuses
            and matches(client.topic_filter.encode(), message.topic)
            and not self.hides(client, message.topic)
        ]
        self.topics[message.payload] = message.topic
        if matches(b"t/#", message.topic) and any(
            self.is_promised(publisher, member) and not self.hides(member, message.topic) for member in self.members
        ):
            self.audience[message.payload].append("group")

    def hides(self, client: Client, topic: bytes) -> bool:
        """Return whether a client may not read a topic."""
        return self.rights is not None and self.rights.hides(client, topic)

    def acknowledged(self, message: Publish, number: int) -> None:
        """A publisher got PUBACK or PUBREC: from now on the message is owed."""
        self.acknowledged_count += 1
        if message.retain:
            values = self.retained[message.topic]
            self.retained[message.topic] = {later: values[later] for later in values if later >= number}
        for identifier in self.audience.pop(message.payload, ()):
            self.owed[identifier].add(message.payload)

    def refused(self, message: Publish, number: int) -> None:
        """A publisher was told that its message is not taken."""
        self.audience.pop(message.payload, None)
        if message.retain:
            self.retained[message.topic].pop(number, None)

    def forgive(self, clients: Collection[Client]) -> None:
        """A worker has lost what it had acknowledged, as the settings allow: nothing before counts for its clients.

        They are still there. What is promised from now on holds. Other workers may still have what they had sent to it,
        and send that again: it may have kept the message, and not who it had it of.
        """
        self.has_forgiven = True
        homeless = {client.identifier for client in clients}
        elsewhere = {payload for payload in self.published_qos if payload.partition(b":")[0].decode() not in homeless}
        for client in clients:
            self.may_repeat.setdefault(client.identifier, set()).update(elsewhere)
            client.forgive()
            self.got_at_qos2.pop(client.identifier, None)
            for packet in getattr(client, "in_flight", {}).values():
                self.forgiven_twice.add(packet.payload)  # it may be accepted again, or taken for a repeat
                self.audience.pop(packet.payload, None)
        # A log with holes may have the first copy of a later message, and only the second one of an earlier: it may be
        # that of the publisher's worker, or of the subscriber's.
        late = self.sent_again | {
            packet.payload for publisher in self.publishers for packet in publisher.in_flight.values()
        }
        for subscriber in [*self.subscribers, *self.members]:
            self.before.setdefault(subscriber.identifier, set()).update(
                payload for payload in late if subscriber in clients or payload.partition(b":")[0].decode() in homeless
            )
        self.highest = {key: number for key, number in self.highest.items() if key[0] not in homeless}
        if any(isinstance(client, Subscriber) and client.group for client in clients):
            homeless.add("group")
        got = {**self.got, "group": {payload for member in self.members for payload in self.got[member.identifier]}}
        for identifier, owed in self.owed.items():
            self.owed[identifier] = {
                payload
                for payload in owed
                if payload in got.get(identifier, ())
                or (identifier not in homeless and payload.partition(b":")[0].decode() not in homeless)
            }
        for payload, audience in self.audience.items():
            self.audience[payload] = [identifier for identifier in audience if identifier not in homeless]
        self.retained = {topic: dict(values) for topic, values in self.ever_retained.items()}
        if self.watcher.identifier in homeless:
            self.wills_owed.clear()
        self.wills_owed = {
            payload
            for payload in self.wills_owed
            if not any(payload.startswith(f"will of {identifier}:".encode()) for identifier in homeless)
        }

    def excuse(self, client: Client, payload: bytes) -> None:
        """A client is not owed a message any more."""
        for identifier in (client.identifier, "group"):
            self.owed.get(identifier, set()).discard(payload)
            if identifier in self.audience.get(payload, ()):
                self.audience[payload].remove(identifier)

    def will_owed(self, client: Client, payload: bytes) -> None:
        """A connection that the broker has acknowledged is over, without goodbye: its will is published."""
        if self.is_promised(client, self.watcher):
            self.wills_owed.add(payload)

    def delivered(self, client: Client, packet: Publish) -> None:
        """A subscriber got a message: not twice at QoS 2, and in order [MQTT-4.6.0-5]."""
        if self.rights is not None:
            self.rights.check(client, packet)
        if not packet.payload:
            return  # a retained message is removed
        got = self.got[client.identifier]
        times = got[packet.payload] = got.get(packet.payload, 0) + 1
        if packet.topic.startswith(b"w/"):
            if client is self.watcher:
                self.wills_came.add(packet.payload)
                self.check(
                    times == 1 or packet.qos < 2 or self.has_forgiven, f"the will {packet.payload!r} came {times} times"
                )
            return
        # Whoever refuses a message may be sent it again; and who subscribes anew what is retained.
        if packet.qos == 2 and not client.refuses and not packet.retain:
            got_at_qos2 = self.got_at_qos2.setdefault(client.identifier, set())
            is_forgiven = packet.payload in self.forgiven_twice or packet.payload in self.may_repeat.get(
                client.identifier, ()
            )
            self.check(
                packet.payload not in got_at_qos2 or is_forgiven,
                f"{client.identifier} got {packet.payload[-20:]!r} twice at QoS 2",
            )
            got_at_qos2.add(packet.payload)
        publisher, _, number = packet.payload.partition(b":")
        count = int(number[-DIGITS_READ:])  # zeros are in front of it
        if times > 1 or (isinstance(client, Subscriber) and client.group):
            return
        if packet.payload in self.before.get(client.identifier, ()):
            return  # first sent before the subscription, sent again after it: it may come late
        if (self.limited or self.rights is not None) and packet.qos < 2 and packet.payload in self.sent_again:
            return  # the first one was dropped or left out, and the second one is another message
        if packet.payload in self.refused_unheard:
            return  # the broker took the second one only, perhaps behind what was sent after the first
        if packet.qos == 0 and isinstance(client, Subscriber) and client.qos == 0:
            return  # what waits for its record elsewhere does not wait here: who sends again may do so late
        # Per publisher, topic and published QoS: the delivered one is the lower of two.
        key = (client.identifier, publisher, packet.topic, self.published_qos.get(packet.payload, 0))
        self.check(self.highest.get(key, 0) < count, f"{client.identifier}: {packet.payload[-20:]!r} out of order")
        self.highest[key] = count
