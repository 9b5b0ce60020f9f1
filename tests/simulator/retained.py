"""Retained messages of several workers: what may stand, and readers that subscribe again and again and look at it.

A topic whose messages come from one publisher has one order: what a reader sees of it never goes back, whatever workers
and links do meanwhile. What came live at QoS 0 may be lost with its worker, and while that does not answer, what is
retained is what it had synced. Of a topic that several publish to nobody is promised an order; but what has been
followed by a message that was sent after its acknowledgement, and is acknowledged itself, is shown to nobody new.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from broker.wire.packets import Publish, Suback, Subscribe, Unsuback, Unsubscribe, encode, subscription
from router.matching.topic_names import matches
from tests.simulator.clients import Client, Publisher
from tests.simulator.promises import DIGITS_READ, Promises

if TYPE_CHECKING:
    from tests.simulator.worker import Worker

READER_FILTERS = ("r/#", "r/#", "#", "r/all", "r/p0/1")
SHARED_TOPIC = b"r/all"
SUBSCRIBES_LIKELY = (0.05, 0.3)  # of a reader that could do something


@dataclass
class Sent:
    """A retained message of a publisher, and when things happened to it, by the count of all that happens.

    Attributes:
        doubtful: its worker has lost what it had acknowledged, and this perhaps with it; others may show it until they
            hear of that worker's next process, and then what the log has kept.
        unaware: readers that it is not promised to, live: its worker may not have heard of their subscriptions.
    """

    packet: Publish
    number: int
    sent: int
    acknowledged: int | None = None
    doubtful: bool = False
    unaware: Collection[str] = ()


class History:
    """What was retained."""

    def __init__(self) -> None:
        self.now = 0
        self.topics: dict[bytes, list[Sent]] = {}

    def tick(self) -> int:
        """Something happens; return when."""
        self.now += 1
        return self.now

    def published(self, packet: Publish, number: int, unaware: Collection[str]) -> None:
        """A message is on its way. Before the first one there was nothing."""
        nothing = [Sent(Publish(packet.topic, b"", 1), 0, 0, 0)]
        self.topics.setdefault(packet.topic, nothing).append(Sent(packet, number, self.tick(), unaware=unaware))

    def acknowledged(self, packet: Publish) -> None:
        """Its publisher knows that it stands."""
        for entry in self.topics.get(packet.topic, ()):
            if entry.packet is packet:
                entry.acknowledged = self.tick()
                entry.doubtful = False  # it was sent since, or the log has kept it

    def forget(self, publishers: Collection[str]) -> None:
        """A worker has lost what it had acknowledged; these publishers are its own."""
        for topic, entries in self.topics.items():
            for entry in entries:
                entry.acknowledged = None
                entry.doubtful |= topic.split(b"/")[1].decode() in publishers

    def missed(self, reader: str, publishers: Collection[str]) -> None:
        """A reader's SUBACK came, and the worker of these publishers had not heard of the subscription.

        What nobody has acknowledged may be published there yet, or have been published before, for others.
        """
        for topic, entries in self.topics.items():
            for entry in entries:
                if entry.acknowledged is None and topic.split(b"/")[1].decode() in publishers:
                    entry.unaware = {*entry.unaware, reader}

    def is_missed(self, topic: bytes, payload: bytes, reader: str) -> bool:
        """Return whether a message may have been published where a reader's subscription had not been heard of."""
        return any(entry.packet.payload == payload and reader in entry.unaware for entry in self.topics[topic])

    def is_doubtful(self, topic: bytes, number: int) -> bool:
        """Return whether a message may be shown, and then an older one again."""
        return any(entry.number == number and entry.doubtful for entry in self.topics[topic])

    def is_superseded(self, topic: bytes, payload: bytes, before: int) -> bool:
        """Return whether a message could not stand any more at some time."""
        entries = self.topics[topic]
        followed = max(
            (entry.sent for entry in entries if entry.acknowledged is not None and entry.acknowledged < before),
            default=0,
        )
        return all(
            entry.acknowledged is not None and entry.acknowledged < followed
            for entry in entries
            if entry.packet.payload == payload
        )

    def number_of(self, topic: bytes, payload: bytes, at_least: int) -> int:
        """Return the number of a message; of those without a payload the first from one on, -1 if there is none."""
        if payload:
            return int(payload.partition(b":")[2][-DIGITS_READ:])
        return next(
            (entry.number for entry in self.topics[topic] if not entry.packet.payload and entry.number >= at_least), -1
        )


@dataclass
class Reader(Client):
    """Subscribes to what is retained again and again, and remembers what it was shown last."""

    topic_filter: str = "r/#"
    qos: int = 1
    subscribed: bool = False
    asked: int = 0  # when it subscribed last
    asked_before: int = 0  # ... and before that in this session: of that something may be left
    asked_steps: tuple[int, int] = (0, 0)  # of the world, the last two times
    is_standing: bool = False  # it asked by a subscription that was there already
    asked_on: int = 0  # number of the connection
    # When it subscribed in this session, and which delivery came next; from the first on of which something is left.
    asks: list[tuple[int, int]] = field(default_factory=list)
    bound: int = 0  # what it is shown was not superseded then
    highest: dict[bytes, int] = field(default_factory=dict)  # topic -> number, of what was seen
    shown: dict[bytes, int] = field(default_factory=dict)  # ... with RETAIN, which is durable
    current: dict[bytes, bytes] = field(default_factory=dict)  # topic -> payload that came last since it asked

    def on_connected(self, session_present: bool) -> None:
        """Subscribe, unless a kept session is subscribed."""
        if not session_present:
            self.asked = 0
            self.asks.clear()
        if not (self.subscribed and session_present):
            self.subscribe(renewed=False)

    def subscribe(self, *, renewed: bool) -> None:
        """Ask for what is retained; `renewed`: by a new subscription in place of the one that stands."""
        history: History = self.world.history  # type: ignore[attr-defined]
        self.asked_before = self.asked
        self.asked, self.asked_on = history.tick(), self.connections
        self.asks.append((self.asked, self.waiting()[1]))
        self.asked_steps = self.asked_steps[1], self.world.steps
        self.is_standing = not renewed and self.asked_before > 0
        self.subscribed = False
        self.current.clear()
        if renewed:
            self.send(encode(Unsubscribe(2, (self.topic_filter.encode(),)), self.version))
        self.send(encode(Subscribe(1, (subscription(self.topic_filter.encode(), self.qos),)), self.version))

    @property
    def full_filter(self) -> bytes:
        """The topic filter as it is subscribed to."""
        return self.topic_filter.encode()

    @property
    def asked_step(self) -> int:
        """The step of the world at which it subscribed last."""
        return self.asked_steps[1]

    def waiting(self) -> tuple[int, int]:
        """Return the number of the first retained message that waits for it, and that of its next delivery."""
        worker: Worker = self.world.workers[self.home]  # type: ignore[attr-defined]
        return worker.retained_of(self.identifier)

    def on_packet(self, packet: Any) -> None:
        """Take note of the SUBACK."""
        if isinstance(packet, Suback):
            if packet.reasons[0] >= 0x80 and self.world.in_trouble():
                self.cut_quietly()  # and tries again
                return
            self.world.check(packet.reasons == (self.qos,), f"{self.identifier}: {packet}")
            self.subscribed = True
            self.world.subscribed(self)  # type: ignore[arg-type]
            # What it has asked for comes into its queue before it asks again, or as it does, and waits there for ever.
            first, _ = self.waiting()
            while len(self.asks) > 2 and self.asks[2][1] <= first:
                del self.asks[0]
            self.bound = self.asks[0][0]
        elif not isinstance(packet, Unsuback):
            super().on_packet(packet)

    def forgive(self) -> None:
        """What was seen may be lost."""
        super().forgive()
        self.subscribed = False
        self.forget_all()

    def forget_all(self) -> None:
        """What is seen from here on may be anything."""
        self.highest.clear()
        self.shown.clear()

    def forget_live(self) -> None:
        """What came at QoS 0, and live, may be lost with a worker: its publisher knew of nothing."""
        for topic in self.highest:
            if self.qos == 0 or topic.endswith(b"/0"):
                self.highest[topic] = self.shown.get(topic, 0)

    def saw(self, packet: Publish) -> None:
        """A retained message, or what was published while it was subscribed."""
        world, topic, payload = self.world, packet.topic, packet.payload
        history: History = world.history  # type: ignore[attr-defined]
        if topic not in history.topics:
            return
        self.current[topic] = payload
        said = f"{self.identifier} was sent {payload[-20:]!r} of {topic!r}, retain {packet.retain}"
        if packet.retain and not packet.dup:
            world.check(not history.is_superseded(topic, payload, self.bound), f"{said}, which was superseded")
        if topic == SHARED_TOPIC:
            return
        if packet.retain and self.is_standing and (packet.dup or world.was_silent(self)):  # type: ignore[attr-defined]
            return  # what a worker that does not answer has yet to send is still owed
        highest = self.highest.get(topic, 0)
        if packet.retain and (self.qos == 0 or topic.endswith(b"/0")) and (
                world.was_silent(self) or world.recoveries):  # type: ignore[attr-defined]  # fmt: skip
            highest = self.shown.get(topic, 0)
        repeated = packet.dup or payload in world.sent_again
        if repeated and not payload:
            return  # which one that is, nobody can say
        number = history.number_of(topic, payload, highest)
        world.check(repeated or number >= highest, f"{said}, behind {highest}")
        if not packet.qos and self.qos and not topic.endswith(b"/0"):
            return  # it came before its worker knew at what QoS: ahead of what is queued
        if history.is_doubtful(topic, number):
            return
        self.highest[topic] = max(self.highest.get(topic, 0), number)
        if packet.retain:
            self.shown[topic] = max(self.shown.get(topic, 0), number)


class Retaining:
    """The part of a world that retains messages and reads them: draws of its own, so that all else stays as it is.

    Args:
        count: of workers; each has two readers.
    """

    def __init__(self, world: Promises, seed: int, count: int) -> None:
        self.world = world
        self.random = draw = Random(f"retained of {seed}")
        self.publishes_likely = draw.choice((0.05, 0.2, 0.5))
        self.subscribes_likely = draw.choice(SUBSCRIBES_LIKELY)
        self.stops_likely = draw.choice((0.0, 0.005, 0.02))
        self.deaths_weigh = draw.choice((0.0, 0.05, 0.3, 1.0))  # most go on long enough to be looked at
        self.acts_max = draw.choice((0, 20, 60))  # of publishers and readers, at each step
        self.commit_likelihood = draw.choice((0.05, 0.2, 0.5))
        self.readers = [
            Reader(
                world,
                f"reader{number}",
                draw.choice((4, 5)),
                durable=draw.random() < 0.5,
                topic_filter=draw.choice(READER_FILTERS),
                qos=draw.choice((0, 1, 1, 2)),
            )
            for number in range(2 * count)
        ]
        self.busy: list[Client] = []  # who acts more often than others

    @property
    def history(self) -> History:
        """What was retained."""
        return self.world.history  # type: ignore[attr-defined,no-any-return]

    def act(self, client: Client) -> None:
        """Have a publisher retain something, or a reader subscribe anew."""
        if isinstance(client, Publisher) and self.random.random() < self.publishes_likely:
            self.publish(client)
        if (
            isinstance(client, Reader)
            and client.subscribed
            and client.connected
            and (self.random.random() < self.subscribes_likely)
        ):
            client.subscribe(renewed=self.random.random() < 0.7)

    def publish(self, publisher: Publisher) -> None:
        """Have a publisher send a retained message; each QoS has a topic of its own, so that it has one order."""
        draw = self.random
        if not publisher.connected or len(publisher.in_flight) >= 10:
            return
        publisher.number += 1
        qos = draw.choice((0, 1, 1, 2))
        topic = f"r/{publisher.identifier}/{qos}".encode()
        if draw.random() < 0.2:
            qos, topic = 1, SHARED_TOPIC
        payload = publisher.send_message(topic, qos, True, draw.random() < 0.15)
        if not qos:
            self.history.published(Publish(topic, payload, 0, True), publisher.number, ())

    def check_the_end(self, stands: list[dict[bytes, bytes]]) -> None:
        """All workers have the same, and it may stand; who was subscribed has seen it last.

        Args:
            stands: by worker, what stands under each topic.
        """
        check = self.world.check
        for topic in self.history.topics:
            values = {found[topic] for found in stands}
            check(len(values) == 1, f"{topic!r} has {values} retained")
            (value,) = values
            check(
                not self.history.is_superseded(topic, value, self.history.now + 1),
                f"{topic!r} has {value[-20:]!r} retained, which was superseded",
            )
            for reader in self.readers:
                if (
                    self.world.has_forgiven
                    or topic == SHARED_TOPIC
                    or topic.endswith(b"/0")
                    or reader.qos == 0
                    or not matches(reader.topic_filter.encode(), topic)
                ):
                    continue
                if reader.asked_on != reader.connections or (not value and reader.asked_before):
                    # It has lost the connection that it asked on; or that was cleared before it asked.
                    continue
                if self.history.is_missed(topic, value, reader.identifier):
                    continue
                seen = reader.current.get(topic, b"")
                check(
                    seen == value,
                    f"{reader.identifier} was sent {seen[-20:]!r} last of {topic!r}, and there is {value[-20:]!r}",
                )
