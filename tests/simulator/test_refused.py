"""What was refused, and is sent again since nobody heard that, is another message: it may come behind later ones."""

from __future__ import annotations

import pytest

from broker.wire.packets import Publish
from tests.simulator.promises import ViolationError
from tests.simulator.world import World

SEED = 3  # a disk that is synced, nobody dies, and rights stay as they are


class Refusing:
    """A publisher and a subscriber of t/1, and a disk that can be made to refuse."""

    def __init__(self) -> None:
        self.world = world = World(SEED)
        world.heal()
        assert world.machine is not None
        self.machine = world.machine
        self.publisher = next(each for each in world.publishers if each.version == 5)
        self.subscriber = world.subscribers[0]
        for _ in range(20):
            self.step()
        assert self.subscriber.subscribed

    def step(self, *, reads: bool = True) -> None:
        """Let everything move on; reads: the publisher reads what it is sent, too."""
        world = self.world
        for client in world.clients:
            if client.connection is None:
                client.connect()
            client.carry()
            world.hub.run_turn(world.now_ms)
            if reads or client is not self.publisher:
                client.read()
                client.answer()
        self.machine.commit()
        world.hub.run_turn(world.now_ms)

    def publish(self, *, reads: bool = True) -> bytes:
        payload = self.publisher.publish_one(b"t/1", 1)
        self.step(reads=reads)
        return payload


@pytest.fixture
def refusing() -> Refusing:
    return Refusing()


def refuse_one_and_take_the_next(refusing: Refusing) -> tuple[bytes, bytes]:
    """A message is refused, and one that is sent after it is taken; the publisher hears of neither."""
    refusing.machine.storage.errors_likely = 1.0
    refusing.publish()
    assert refusing.machine.log.trouble is not None
    refused = refusing.publish(reads=False)
    refusing.machine.heal()
    for _ in range(3):
        refusing.step(reads=False)
    assert refusing.machine.log.trouble is None
    taken = refusing.publish(reads=False)
    for _ in range(3):
        refusing.step(reads=False)
    got = refusing.world.got[refusing.subscriber.identifier]
    assert taken in got
    assert refused not in got
    return refused, taken


@pytest.mark.parametrize("is_cut", [True, False])
def test_it_may_come_behind_what_was_taken_meanwhile(refusing: Refusing, is_cut: bool) -> None:
    refused, taken = refuse_one_and_take_the_next(refusing)
    if is_cut:
        refusing.publisher.cut()
    else:
        refusing.publisher.connect()  # a takeover: the broker has written it, and nobody reads it
    refusing.world.settle()
    got = refusing.world.got[refusing.subscriber.identifier]
    assert refused in got
    assert taken in got


def test_what_was_taken_may_not_nor_what_was_refused_before_its_publisher_sends_it_again(refusing: Refusing) -> None:
    refused, _ = refuse_one_and_take_the_next(refusing)
    world = refusing.world
    with pytest.raises(ViolationError, match="out of order"):
        world.delivered(refusing.subscriber, Publish(b"t/1", refused, 1))
    refusing.publisher.cut()
    world.settle()
    assert world.refused_unheard == {refused}
