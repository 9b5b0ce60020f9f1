"""Rights that change over several workers: each of them knows of a change when it has judged it, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.rights import SimulatedRights, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.clients import Client
    from tests.simulator.several import SeveralWorld
    from tests.simulator.worker import Worker

CHANGES_LIKELY = 0.05  # in a step of the world
JUDGES_LIKELY = 0.2  # ... by a worker that has yet to


class RightsOfSeveral(SimulatedRights):
    """The same ACL on all workers, which is changed for all of them at once and judged by each in its own time.

    What is hidden is in force when the client's own worker has judged it, and what rested on records there has left.
    What is shown again may come from then on that it is, and has to from when it was judged. Until all of that, nobody
    can say which member of the group a message of that topic comes to, and whether it gets it.

    Attributes:
        unjudged: numbers of workers that have not judged what is hidden now.
        unshown: by client identifier and topic, what is shown again, and has not been judged so.
    """

    world: SeveralWorld

    def __init__(self, world: SeveralWorld, seed: str) -> None:
        super().__init__(world, seed)
        self.unjudged: set[int] = set()
        self.unshown: set[tuple[str, bytes]] = set()

    def hides(self, client: Client, topic: bytes) -> bool:
        """Return whether a client need not get a topic."""
        return super().hides(client, topic) or (client.identifier, topic) in self.unshown

    def unsettles(self, topic: bytes) -> bool:
        """Return whether a member of the group may be picked for a topic, and then not be sent it."""
        return any((member.identifier, topic) in self.pending for member in self.world.members)

    def step(self) -> None:
        """Something may change, and some workers may judge what has."""
        draw = self.random
        if draw.random() < CHANGES_LIKELY:
            self.change_something()
        for worker in self.world.workers:
            if worker.number in self.unjudged and worker.is_ready and worker.moves and draw.random() < JUDGES_LIKELY:
                self.judge_on(worker)

    def change_something(self) -> None:
        """Hide a topic from a client, or show it again."""
        if not self.may_hide:
            return
        self.changes += 1
        client, topic = self.random.choice(self.may_hide)
        key = client.identifier, topic
        topics = self.hidden.setdefault(client.identifier, set())
        if topic in topics:
            topics.discard(topic)
            self.forced.discard(key)
            self.pending.pop(key, None)
            self.unshown.add(key)
        else:
            topics.add(topic)
            self.excuse(client, topic)
            self.unshown.discard(key)
            self.count += 1
            self.pending[key] = self.count
        self.unjudged.update(worker.number for worker in self.world.workers)

    def judge_on(self, worker: Worker) -> None:
        """Have a worker know that its ACL says something else."""
        self.unjudged.discard(worker.number)
        judge(worker.controller)
        mine = self._clients_of(worker)
        self.unshown = {key for key in self.unshown if key[0] not in mine}
        judged = {key: count for key, count in self.pending.items() if key[0] in mine}
        if judged:
            worker.router.effects.call(self._when_settled(judged, mine))

    def _when_settled(self, judged: dict[tuple[str, bytes], int], clients: dict[str, Client]) -> Callable[[], None]:
        def settled() -> None:
            for key, count in judged.items():
                if self.pending.get(key) == count:
                    del self.pending[key]
                    clients[key[0]].read()  # what was written before
                    self.forced.add(key)

        return settled

    def begin_on(self, worker: Worker) -> None:
        """A worker has started, and judged what is subscribed: all is in force there."""
        mine = self._clients_of(worker)
        self.unjudged.discard(worker.number)
        self.unshown = {key for key in self.unshown if key[0] not in mine}
        self.pending = {key: count for key, count in self.pending.items() if key[0] not in mine}
        self.forced.update((identifier, topic) for identifier in mine for topic in self.hidden.get(identifier, ()))

    def judge_all(self) -> None:
        """Have all workers that are there know."""
        for worker in self.world.workers:
            if worker.number in self.unjudged and worker.is_up:
                self.judge_on(worker)

    def _clients_of(self, worker: Worker) -> dict[str, Client]:
        return {client.identifier: client for client in self.world.clients if client.home == worker.number}
