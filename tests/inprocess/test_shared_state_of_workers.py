"""What two workers keep for one another, step by step in the simulator: both have the same in the end."""

from __future__ import annotations

from typing import Any

import pytest

from broker.control import shared_state
from broker.control.shared_state import LOOKS, SharedState
from broker.wire.packets import Publish, Subscribe, subscription
from tests.simulator.index import SharedEnvironment
from tests.support.two_workers import Client, Script

TOPIC = "s/kind/a"


class Follower:
    """The state of one worker, and a client that hears what changes."""

    def __init__(self, script: Script, worker: Any) -> None:
        self.worker = worker
        self.values: dict[str, Any] = {}
        self.state = SharedState(None, worker.router)  # type: ignore[arg-type]
        self.state.follow("kind", self.values.__setitem__)
        self.client = Client(script, worker, f"follower-{worker.number}")
        self.client.send(Subscribe(1, (subscription(b"s/kind/#", 1),)))

    def read(self) -> None:
        """Do what SharedState.run() does with each message that has come."""
        self.client.read()
        while self.client.got:
            self.client.got.pop()
            self.state._apply_newest(TOPIC)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Script, list[Follower], list[Client]]:
    """Two workers, what follows on each, and who publishes there."""
    monkeypatch.setattr(shared_state, "PREFIX", "s/")  # where clients may publish
    script = Script(SharedEnvironment())
    publishers = [Client(script, worker, f"publisher-{worker.number}") for worker in script.workers]
    followers = [Follower(script, worker) for worker in script.workers]
    script.until(lambda: all((one.read(), one.client.subscribed)[1] for one in followers))
    return script, followers, publishers


def put(script: Script, publisher: Client, worker: Any, number: int | None) -> None:
    """Retain a value, durably: what follows from that is on its way."""
    script.now_ms += 1
    payload = b"" if number is None else b'{"number":%d}' % number
    publisher.send(Publish(TOPIC.encode(), payload, 1, True, packet_identifier=number or 100))
    script.work(worker)


def look_again(followers: list[Follower]) -> None:
    for follower in followers:
        for _ in follower.state.look_again():
            pass


def look_until_all_is_old(script: Script, followers: list[Follower], publishers: list[Client]) -> None:
    """Have workers write to the index so often that nobody looks at all there is for that any more."""
    for number in range(10, 10 + LOOKS):
        for publisher, follower in zip(publishers, followers, strict=True):
            put(script, publisher, follower.worker, number)
            follower.worker.write_index()
        for _ in range(5):
            script.network.step(False)
            script.work(*script.workers)
        for follower in followers:
            follower.read()
        look_again(followers)
    assert not any(follower.state._has_more_been_written() for follower in followers)


def test_what_comes_late_does_not_hide_for_good_what_is_newer(two: tuple[Script, list[Follower], list[Client]]) -> None:
    script, followers, publishers = two
    here, there = script.workers
    look_until_all_is_old(script, followers, publishers)
    put(script, publishers[0], here, 1)
    put(script, publishers[1], there, 2)
    there.write_index()
    for follower in followers:
        follower.read()
    script.now_ms += 1000
    for _ in range(5):  # what the first has retained comes to the second, which does not know when that was
        script.network.step(False)
        script.work(here, there)
        for follower in followers:
            follower.read()
    here.write_index()
    look_again(followers)
    assert [follower.values for follower in followers] == [{"a": {"number": 2}}] * 2


def test_what_was_set_before_a_worker_heard_of_another_one_is_seen_when_it_is_in_the_index(
    two: tuple[Script, list[Follower], list[Client]],
) -> None:
    script, _, publishers = two
    here, there = script.workers
    put(script, publishers[0], here, 1)
    here.write_index()
    put(script, publishers[0], here, 2)
    there.die()
    there.boot()
    late = Follower(script, there)
    late.state.load()
    assert late.values == {"a": {"number": 1}}
    script.until(lambda: (late.read(), late.client.subscribed)[1])
    look_again([late])
    here.write_index()
    look_again([late])
    assert late.values == {"a": {"number": 2}}


@pytest.mark.parametrize("number", [2, None])
def test_what_a_log_brings_back_is_seen_when_it_is_in_the_index(
    two: tuple[Script, list[Follower], list[Client]], number: int | None
) -> None:
    script, _, publishers = two
    here, there = script.workers
    put(script, publishers[0], here, 1)
    here.write_index()
    put(script, publishers[0], here, number)  # it is in the log, and nowhere else
    for worker in script.workers:
        worker.die()
        worker.boot()
    late = Follower(script, there)
    late.state.load()
    assert late.values == {"a": {"number": 1}}
    script.until(lambda: (late.read(), late.client.subscribed)[1])
    look_again([late])
    here.write_index()
    look_again([late])
    assert late.values == {"a": number and {"number": number}}


def test_what_was_lost_with_its_worker_holds_nowhere(two: tuple[Script, list[Follower], list[Client]]) -> None:
    script, followers, publishers = two
    here, there = script.workers
    look_until_all_is_old(script, followers, publishers)
    put(script, publishers[0], here, 1)
    here.write_index()
    script.until(lambda: ([one.read() for one in followers], followers[1].values == {"a": {"number": 1}})[1])
    publishers[0].send(Publish(TOPIC.encode(), b'{"number":2}', 0, True))
    here.turn()  # no disk has it
    script.network.step(False)
    script.work(there)
    followers[1].read()
    assert followers[1].values == {"a": {"number": 2}}
    here.die()
    here.boot()
    script.until(lambda: here.is_ready)
    here.write_index()
    look_again(followers[1:])
    assert followers[1].values == {"a": {"number": 1}}
