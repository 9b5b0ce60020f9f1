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
    two.is_held = two.is_cut = False
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


@pytest.mark.parametrize("deaths", [1, 2])
def test_what_a_process_published_that_was_not_heard_yet_does_not_follow(two: TwoWorkers, deaths: int) -> None:
    two.retain(synced=True, qos=1)
    two.is_stopped = True
    for _ in range(deaths):
        restart(two, 0)
        two.retain(synced=True, qos=1)
    newer = two.retain(synced=True, qos=1)
    two.is_stopped, two.is_cut = False, True
    assert two.ask(synced=True) == [newer]
    let_go(two)
    assert two.seen == [(newer, True)], "what its new process said before was older"
    later = two.retain(synced=True, qos=1)
    assert two.seen == [(newer, True), (later, False)]
    assert len(two.world.workers[1].router.retaining.fences) == 0


def test_nor_does_it_when_who_is_given_it_dies_before_it_is_heard(two: TwoWorkers) -> None:
    two.is_stopped = True
    restart(two, 0)
    two.retain(synced=True, qos=1)
    newer = two.retain(synced=True, qos=1)
    two.is_stopped, two.is_cut = False, True
    assert two.ask(synced=True) == [newer]
    restart(two, 1)
    let_go(two)
    later = two.retain(synced=True, qos=1)
    assert two.seen == [(newer, True), (later, False)]


def test_what_a_process_sent_at_qos_0_and_took_along_does_not_follow_what_the_next_one_said(two: TwoWorkers) -> None:
    two.retain(synced=True)
    two.is_held = True
    for _ in range(50):  # with numbers that the next one gives again
        two.publisher.number += 1
        two.publisher.send_message(TOPIC, 0, True, False)
    for _ in range(5):
        two.step(synced=False)
    worker = two.world.workers[0]
    on_the_way = [
        frame
        for lane in two.world.network.lanes()
        if lane.carrier.number == 0 and lane.target == 1
        for frame in (*lane.under_way, *lane.waiting)
    ]
    identity = worker.carrier.identity
    two.is_stopped = True
    restart(two, 0)
    newer = two.retain(synced=True, qos=1)
    two.is_stopped, two.is_held, two.is_cut = False, False, True
    assert two.ask(synced=True) == [newer]
    for frame in on_the_way:  # they were in its socket all the time
        two.world.workers[1].carrier.inbox.append((identity, False, frame))
    for _ in range(5):
        two.step(synced=True)
    assert two.seen == [(newer, True)]
    let_go(two)
    assert two.ask(synced=True) == [newer]
