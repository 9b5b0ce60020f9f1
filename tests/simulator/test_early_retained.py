"""A retained message that came from another worker ahead of its record, which that worker's death takes away."""

from __future__ import annotations

import pytest

from broker.wire.packets import Publish, encode
from tests.simulator.two_workers import TwoWorkers

SEEDS = (8, 14, 32)


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
    worker.write_index = lambda: None  # type: ignore[method-assign]
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


def test_what_was_asked_for_before_a_subscription_was_renewed_does_not_come_any_more() -> None:
    two = TwoWorkers(8, durable=False)
    two.retain(synced=True)
    early = two.retain(synced=False)
    assert two.seen[-1] == (early, False)
    two.is_full = True
    other = next(client for client in two.world.clients if client.home == 1 and client is not two.reader)
    other.send(encode(Publish(b"x", b"waits for the disk of worker 1", 0, True), other.version))
    assert two.ask(synced=False) == []
    two.is_cut = True
    for _ in range(600):
        two.step(synced=False)
    assert two.seen == [], "of the silent worker it may have what was synced, behind the records of its own worker"
    two.is_cut = False
    for _ in range(200):
        two.step(synced=False)
    assert two.ask(synced=False) == []
    two.is_full = False
    for _ in range(200):
        two.step(synced=False)
    assert two.seen == [], "that was asked for by a subscription that has ended, and is older than what came live"
    for _ in range(200):
        two.step(synced=True)
    assert two.seen == [(early, True)]
    assert len(two.world.workers[1].controller.held) == 0


def test_what_the_link_brings_behind_what_was_waited_for_does_not_follow_it(two: TwoWorkers) -> None:
    two.retain(synced=False, qos=1)
    newer = two.retain(synced=False, qos=1)
    two.publisher.number += 1
    two.publisher.send_message(b"r/other", 0, True, False)
    for _ in range(20):
        two.step(synced=False)
    assert two.world.workers[1].router.retaining.is_early
    assert two.ask(synced=False) == []
    two.is_held = True
    for _ in range(100):
        two.step(synced=True)
    assert two.seen == [(newer, True)], "the index has it, and what was there before is still on its way"
    two.is_held = False
    for _ in range(100):
        two.step(synced=True)
    assert two.seen == [(newer, True)]
    later = two.retain(synced=True, qos=1)
    assert two.seen == [(newer, True), (later, False)]
