"""What is dropped on its way to a peer is owed no more after a crash either."""

from __future__ import annotations

import pytest

from broker.wire.packets import Publish, encode
from tests.simulator.two_workers import TOPIC, TwoWorkers

SEEDS = (8, 14)  # whose publisher speaks 5.0


@pytest.mark.parametrize("seed", SEEDS)
def test_what_expired_while_a_peer_was_away_is_not_owed_to_it_again(seed: int) -> None:
    two = TwoWorkers(seed, durable=True)
    world, publisher = two.world, two.publisher
    here, away = world.workers[:2]
    world.bury(away)
    message = Publish(TOPIC, b"p0:900", 1, True, False, 39, {"message_expiry_interval": 1})
    publisher.in_flight[39], publisher.numbers[39] = message, 900
    world.published(publisher, message, 900)
    publisher.send(encode(message, publisher.version))
    for _ in range(300):
        two.step(synced=True)
    assert len(here.peer_session(away).owed.deliveries()) == 1
    away.down_steps = 0
    world.start(away)
    for _ in range(300):
        two.step(synced=True)
    assert here.dropped["expired"] == 1
    assert here.peer_session(away).owed.deliveries() == []
    here.compare()
