"""What a link brings behind a newer retained message is not for a kept session, whoever dies meanwhile."""

from __future__ import annotations

import pytest

from broker.wire.packets import Unsubscribe, encode
from tests.simulator.two_workers import TOPIC, TwoWorkers

SEEDS = (8, 14, 32)


@pytest.fixture(params=SEEDS)
def two(request: pytest.FixtureRequest) -> TwoWorkers:
    return TwoWorkers(request.param, durable=True)


def restart(two: TwoWorkers, number: int) -> None:
    """A worker is killed, and comes back."""
    worker = two.world.workers[number]
    two.world.bury(worker)
    worker.down_steps = 0
    two.world.start(worker)
    for _ in range(200):
        two.step(synced=True)


def given_the_newer(two: TwoWorkers) -> bytes:
    """Two messages are retained that the link has yet to bring, and the reader subscribes; return the newer one."""
    two.is_held = True
    older, newer = two.retain(synced=True, qos=1), two.retain(synced=True, qos=1)
    assert two.ask(synced=True) == [newer]
    assert (older, False) not in two.seen
    return newer


def let_go(two: TwoWorkers) -> None:
    """The link brings what it holds."""
    two.is_held = False
    for _ in range(200):
        two.step(synced=True)


@pytest.mark.parametrize("deaths", [1, 2])
def test_what_its_worker_forgot_at_its_death_does_not_follow(two: TwoWorkers, deaths: int) -> None:
    newer = given_the_newer(two)
    for _ in range(deaths):
        restart(two, 1)
    let_go(two)
    assert two.seen == [(newer, True)]
    later = two.retain(synced=True, qos=1)
    assert two.seen == [(newer, True), (later, False)], "what is published from here on is for it"


def test_what_the_other_worker_owes_after_its_own_death_does_not_follow_either(two: TwoWorkers) -> None:
    newer = given_the_newer(two)
    restart(two, 1)
    restart(two, 0)
    let_go(two)
    later = two.retain(synced=True, qos=1)
    assert two.seen == [(newer, True), (later, False)]


def test_what_is_delivered_while_sessions_are_spread_anew_does_not_follow_either(two: TwoWorkers) -> None:
    newer = given_the_newer(two)
    world = two.world
    world.reshard()
    for worker in world.workers:
        world.start(worker)
    let_go(two)
    assert two.seen == [(newer, True)]
    later = two.retain(synced=True, qos=1)
    assert two.seen == [(newer, True), (later, False)]
    for worker in world.workers:
        assert len(worker.router.retaining.fences) == 0


def test_who_was_sent_a_message_before_its_suback_hears_that_the_topic_was_cleared(two: TwoWorkers) -> None:
    reader = two.reader
    reader.send(encode(Unsubscribe(2, (reader.topic_filter.encode(),)), reader.version))
    for _ in range(20):
        two.step(synced=True)
    two.holds_answers, reader.topic_filter = True, TOPIC.decode()
    reader.subscribe(renewed=False)
    for _ in range(20):
        two.step(synced=True)
    message = two.retain(synced=True, qos=1)
    assert not reader.subscribed, "the other worker has not said yet that it knows"
    assert two.seen == [(message, False)]
    two.is_held = True
    two.retain(synced=True, qos=1, empty=True)
    two.holds_answers = False
    for _ in range(20):
        two.step(synced=True)
    assert reader.subscribed, "and the index has it that nothing is retained"
    two.is_held = False
    for _ in range(20):
        two.step(synced=True)
    assert two.seen == [(message, False), (b"", False)]


def test_who_is_given_a_newer_message_does_not_hear_that_the_topic_was_cleared_before(two: TwoWorkers) -> None:
    two.is_held = True
    two.retain(synced=True, qos=1)
    two.retain(synced=True, qos=1, empty=True)
    newer = two.retain(synced=True, qos=1)
    assert two.ask(synced=True) == [newer]
    let_go(two)
    assert two.seen == [(newer, True)]
