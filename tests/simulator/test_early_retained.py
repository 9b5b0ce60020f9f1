"""A retained message that came from another worker ahead of its record, which that worker's death takes away."""

from __future__ import annotations

import pytest

from broker.wire.packets import Publish
from tests.simulator.clients import Publisher
from tests.simulator.retained import Reader
from tests.simulator.several import SeveralWorld

SEEDS = (8, 14, 32)
TOPIC = b"r/early"


class TwoWorkers:
    """A publisher on worker 0 of a simulated node, which syncs only when it is told to, and a reader on worker 1."""

    def __init__(self, seed: int) -> None:
        self.world = world = SeveralWorld(seed)
        world.heal()
        world.run_until_quiet(1000)
        assert world.retaining is not None
        self.publisher: Publisher = next(client for client in world.publishers if client.home == 0)
        self.reader: Reader = next(
            reader for reader in world.retaining.readers if reader.home == 1 and reader.topic_filter in ("#", "r/#"))
        self.seen: list[tuple[bytes, bool]] = []
        self.reader.saw = self.saw          # type: ignore[method-assign]
        for _ in range(20):
            self.step(synced=True)
        assert all(world.workers[1].router.retaining.fences.passed.values())

    def saw(self, packet: Publish) -> None:
        if packet.topic == TOPIC:
            self.seen.append((packet.payload, packet.retain))

    def retain(self, *, synced: bool) -> bytes:
        """Have a message retained at QoS 0, and brought to worker 1."""
        self.publisher.number += 1
        payload = self.publisher.send_message(TOPIC, 0, True, False)
        for _ in range(20):
            self.step(synced=synced)
        return payload

    def step(self, *, synced: bool) -> None:
        world = self.world
        world.now_ms += 10
        world.network.step(False)
        for client in world.clients:
            if world.workers[client.home].is_ready and client.connection is None:
                client.connect()
            client.carry()
        for worker in world.workers:
            if worker.is_up:
                worker.turn()
                if synced or worker.number:
                    worker.machine.commit()
                    worker.write_index()
                    if worker.machine.follower is not None:
                        worker.machine.follower.acknowledge()
                    worker.turn()
        for client in world.clients:
            client.read()
            client.answer()

    def ask(self, *, synced: bool, steps: int = 20) -> list[bytes]:
        """Subscribe anew; return what comes with RETAIN meanwhile."""
        self.seen.clear()
        self.reader.subscribe(renewed=True)
        for _ in range(steps):
            self.step(synced=synced)
        assert self.reader.subscribed
        return [payload for payload, retain in self.seen if retain]


@pytest.fixture(params=SEEDS)
def two(request: pytest.FixtureRequest) -> TwoWorkers:
    return TwoWorkers(request.param)


def test_it_is_shown_once_it_is_synced_and_not_before(two: TwoWorkers) -> None:
    assert two.ask(synced=True) == []
    kept = two.retain(synced=True)
    early = two.retain(synced=False)
    assert two.seen[-1] == (early, False)
    assert two.ask(synced=False) == [], f"neither {early!r}, which may be lost, nor {kept!r}, which is older"
    for _ in range(20):
        two.step(synced=True)
    assert two.seen == [(early, True)]
    assert two.ask(synced=True) == [early]


def test_who_waits_for_it_is_given_what_the_worker_that_died_has_kept(two: TwoWorkers) -> None:
    kept = two.retain(synced=True)
    two.retain(synced=False)
    assert two.ask(synced=False) == []
    two.world.bury(two.world.workers[0])
    two.world.start(two.world.workers[0])
    for _ in range(200):
        two.step(synced=True)
    assert two.seen == [(kept, True)]
    assert two.ask(synced=True) == [kept], "and it shows the same before that worker retains anything more"


def test_of_a_worker_that_does_not_answer_is_given_what_it_had_synced(two: TwoWorkers) -> None:
    kept = two.retain(synced=True)
    two.retain(synced=False)
    two.world.bury(two.world.workers[0])
    two.ask(synced=True)
    for _ in range(600):
        two.step(synced=True)
    assert two.seen == [(kept, True)]


def test_what_was_shown_is_what_stands_although_the_index_has_yet_to_have_it(two: TwoWorkers) -> None:
    two.retain(synced=True)
    worker = two.world.workers[0]
    worker.write_index = lambda: None       # type: ignore[method-assign]
    shown = two.retain(synced=True)
    assert two.ask(synced=True, steps=150) == [shown], "a heartbeat has said that it is synced"
    two.retain(synced=False)
    two.world.bury(worker)
    two.ask(synced=True)
    for _ in range(600):
        two.step(synced=True)
    assert two.seen == [(shown, True)]
    del worker.write_index
    two.world.start(worker)
    for _ in range(200):
        two.step(synced=True)
    assert two.ask(synced=True) == [shown]
