"""Rights that change while a simulated broker is at work: who may not read which topic, and what follows from it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from broker.auth.acl import Grant
from broker.auth.principal import Principal
from broker.wire.packets import Publish
from router.log.record_scan import matches

if TYPE_CHECKING:
    from broker.control.controller import Controller
    from tests.simulator.clients import Client, Subscriber
    from tests.simulator.promises import Promises

TOPICS = (b"t/0", b"t/1", b"t/2", b"r/p0")


class SimulatedRights:
    """An ACL that hides topics from subscribers, and now and then other ones.

    A hidden topic is in force when the broker has judged its subscriptions, and what rested on records has left: from
    then on nothing of it may come.

    Args:
        world: of whose clients it is.
        seed: what is hidden, and when, follows from it and from nothing else.
    """

    def __init__(self, world: Promises, seed: str) -> None:
        self.world = world
        self.random = random.Random(f"rights of {seed}")
        self.hidden: dict[str, set[bytes]] = {}
        self.forced: set[tuple[str, bytes]] = set()
        self.count = 0
        self.pending: dict[tuple[str, bytes], int] = {}  # hidden, and not in force yet -> which change it is
        self.changes = 0

    def introduce(self, subscribers: list[Subscriber], members: list[Subscriber]) -> None:
        """These may be forbidden something; of each topic, a member of the group may always read it."""
        self.may_hide = [
            (client, topic)
            for client in subscribers
            for topic in TOPICS
            if client.topic_filter != topic.decode() and matches(client.topic_filter.encode(), topic)
        ]
        self.may_hide += [
            (member, topic)
            for index, member in enumerate(members)
            for number, topic in enumerate(TOPICS)
            if matches(member.topic_filter.encode(), topic) and number % len(members) != index
        ]
        for client, topic in self.may_hide:
            if self.random.random() < 0.3:
                self.hidden.setdefault(client.identifier, set()).add(topic)

    # The ACL ----------------------------------------------------------------------------------------------------------

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Return True."""
        return True

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> Grant:
        """Return how much of a filter is not hidden; there is always something."""
        hidden = self.hidden.get(principal.client_identifier.decode(), ())
        return Grant.NARROWED if any(matches(topic_filter, topic) for topic in hidden) else Grant.WHOLE

    def may_read(self, principal: Principal, topic_name: bytes) -> bool:
        """Return whether a topic is not hidden."""
        return topic_name not in self.hidden.get(principal.client_identifier.decode(), ())

    # What changes -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A broker has started, and judged what is subscribed: all is in force."""
        self.pending.clear()
        self.forced = {(identifier, topic) for identifier, topics in self.hidden.items() for topic in topics}

    def change_while_down(self) -> None:
        """Hide a topic, or show it again, and no broker is there that could be told."""
        if self.may_hide and self.random.random() < 0.5:
            client, topic = self.random.choice(self.may_hide)
            topics = self.hidden.setdefault(client.identifier, set())
            if topic in topics:
                topics.discard(topic)
            else:
                topics.add(topic)
                self.excuse(client, topic)

    def change(self, controllers: list[Any]) -> None:
        """Hide a topic from a client, or show it again, and have that judged."""
        if not self.may_hide:
            return
        self.changes += 1
        client, topic = self.random.choice(self.may_hide)
        topics = self.hidden.setdefault(client.identifier, set())
        hides = topic not in topics
        if hides:
            topics.add(topic)
            self.excuse(client, topic)
        else:
            topics.discard(topic)
            self.forced.discard((client.identifier, topic))
            self.pending.pop((client.identifier, topic), None)
        for controller in controllers:
            judge(controller)
        if not hides:
            return
        self.count += 1
        mine = self.pending[client.identifier, topic] = self.count
        left = [controller for controller in controllers if controller.router.recording]
        count = [len(left)]

        def settled() -> None:
            count[0] -= 1
            if count[0] <= 0 and self.pending.get((client.identifier, topic)) == mine:
                client.read()  # what was written before
                self.forced.add((client.identifier, topic))

        for controller in left:
            controller.router.effects.call(settled)
        if not left:
            settled()

    def excuse(self, client: Client, topic: bytes) -> None:
        """What was published there may be left out from here on, as far as it has not come."""
        identifier = "group" if getattr(client, "group", "") else client.identifier
        world = self.world
        world.owed[identifier] = {
            payload
            for payload in world.owed[identifier]
            if world.topics[payload] != topic or payload in world.got.get(identifier, ())
        }
        for payload, audience in world.audience.items():
            if world.topics[payload] == topic and identifier in audience:
                audience.remove(identifier)

    def hides(self, client: Client, topic: bytes) -> bool:
        """Return whether a topic is hidden from a client of its own subscription."""
        return topic in self.hidden.get(client.identifier, ())

    def check(self, client: Client, packet: Publish) -> None:
        """A client has been sent something; what it has been sent before may come again."""
        self.world.check(
            packet.dup or (client.identifier, packet.topic) not in self.forced,
            f"{client.identifier} got {packet.topic!r}, which it may not read: {packet.payload[-20:]!r}",
        )


def judge(controller: Controller) -> None:
    """Have a broker know that its ACL says something else."""
    controller.review.begin()
    while controller.review.go_on():
        pass
