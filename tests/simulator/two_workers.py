"""Two workers of a simulated node on which one thing after another is done, and nothing is left to chance."""

from __future__ import annotations

from broker.wire.packets import Publish
from tests.simulator.clients import Publisher
from tests.simulator.retained import Reader
from tests.simulator.several import SeveralWorld

TOPIC = b"r/early"


class TwoWorkers:
    """A publisher on worker 0 of a simulated node, which syncs only when it is told to, and a reader on worker 1.

    Attributes:
        seen: what the reader was sent of TOPIC since it asked last: payload, RETAIN.
        is_held: nothing moves from worker 0 to worker 1, but answers.
        holds_answers: nor do these.
        is_cut: nothing moves between them at all.
        is_stopped: worker 1 has no turn, and hears nothing (SIGSTOP).
        is_full: worker 1 writes nothing to its disk.
    """

    def __init__(self, seed: int, *, durable: bool | None = None) -> None:
        self.world = world = SeveralWorld(seed)
        assert world.retaining is not None
        for each in world.retaining.readers if durable is not None else ():
            each.durable, each.qos = durable, 1
        world.heal()
        world.run_until_quiet(1000)
        self.publisher: Publisher = next(client for client in world.publishers if client.home == 0)
        self.reader: Reader = next(
            reader for reader in world.retaining.readers if reader.home == 1 and reader.topic_filter in ("#", "r/#")
        )
        self.seen: list[tuple[bytes, bool]] = []
        self.is_held = self.holds_answers = self.is_cut = self.is_stopped = self.is_full = False
        for worker in world.workers:
            worker.patience_ms = 1000
        self.reader.saw = self.saw  # type: ignore[method-assign]
        for _ in range(20):
            self.step(synced=True)
        assert all(record for _, record in world.workers[1].router.retaining.fences.passed.values())

    def saw(self, packet: Publish) -> None:
        if packet.topic == TOPIC:
            self.seen.append((packet.payload, packet.retain))

    def retain(self, *, synced: bool, qos: int = 0, empty: bool = False) -> bytes:
        """Have a message retained, or the topic cleared; it is brought to worker 1 unless the link is held."""
        self.publisher.number += 1
        payload = self.publisher.send_message(TOPIC, qos, True, empty)
        for _ in range(20):
            self.step(synced=synced)
        return payload

    def step(self, *, synced: bool) -> None:
        world = self.world
        world.now_ms += 10
        self.carry()
        for client in world.clients:
            if world.workers[client.home].is_ready and client.connection is None:
                client.connect()
            client.carry()
        for worker in world.workers:
            if worker.is_up and not (self.is_stopped and worker.number == 1):
                worker.turn()
                if synced or (worker.number and not self.is_full):
                    worker.machine.commit()
                    worker.write_index()
                    if worker.machine.follower is not None:
                        worker.machine.follower.acknowledge()
                    worker.turn()
        for client in world.clients:
            client.read()
            client.answer()

    def carry(self) -> None:
        """Let what is between the workers move."""
        if self.is_cut or self.is_stopped:
            return
        network = self.world.network
        held = [
            (lane, [*lane.under_way, *lane.waiting])
            for lane in network.lanes()
            if self.is_held and lane.carrier.number == 0 and lane.target == 1
        ]
        for lane, _ in held:
            lane.under_way.clear()
            lane.waiting.clear()
        answers = [
            (lane, list(lane.answers))
            for lane in network.lanes()
            if self.holds_answers and lane.carrier.number == 1 and lane.target == 0
        ]
        for lane, _ in answers:
            lane.answers.clear()
        network.step(False)
        for lane, frames in held:
            lane.waiting.extend(frames)
        for lane, frames in answers:
            lane.answers.extendleft(reversed(frames))

    def ask(self, *, synced: bool, steps: int = 20) -> list[bytes]:
        """Subscribe anew; return what comes with RETAIN meanwhile."""
        self.seen.clear()
        self.reader.subscribe(renewed=True)
        for _ in range(steps):
            self.step(synced=synced)
        assert self.reader.subscribed
        return [payload for payload, retain in self.seen if retain]
