"""Retained messages of two workers, step by step in the simulator: what a new subscriber is sent, in which order."""

from __future__ import annotations

from broker.wire.packets import Publish, Subscribe, subscription
from tests.simulator.index import SharedEnvironment
from tests.support.two_workers import Client, Script


def begun() -> tuple[Script, Client, Client]:
    """Return two workers, a publisher on the first, and on the second one whose messages rest on its log."""
    script = Script(SharedEnvironment())
    publisher, keeper = (
        Client(script, worker, name, keep=name == "keeper")
        for worker, name in zip(script.workers, ("publisher", "keeper"), strict=True)
    )
    script.work(*script.workers)
    keeper.send(Subscribe(1, (subscription(b"t", 1),)))

    def is_subscribed() -> bool:
        keeper.read()
        publisher.read()
        return keeper.subscribed

    script.until(is_subscribed)
    return script, publisher, keeper


def publish(script: Script, publisher: Client, *numbers: int) -> None:
    """Retain these one after another, durably; they are on their way to the other worker then."""
    publisher.send(*(Publish(b"t", b"%d" % number, 1, True, packet_identifier=number) for number in numbers))
    script.work(script.workers[0])


def test_what_a_link_has_brought_comes_before_what_is_retained_though_it_waits_for_a_record() -> None:
    script, publisher, keeper = begun()
    here, there = script.workers
    reader = Client(script, there, "reader")
    script.work(there)
    keeper.send(Publish(b"other", b"", 2, packet_identifier=1))  # a record which the SUBSCRIBE waits for
    reader.send(Subscribe(1, (subscription(b"t", 1),)))
    there.turn()
    publish(script, publisher, 1, 2)
    script.network.step(False)
    script.network.step(False)
    script.work(there)  # both have come, and leave with one sync
    reader.read()
    script.until(lambda: (reader.read(), reader.subscribed and b"2" in reader.got)[1])
    script.work(here, there)
    reader.read()
    assert reader.got == sorted(reader.got)


def test_who_asks_again_gets_what_a_link_has_yet_to_bring_before_what_is_retained() -> None:
    script, publisher, _ = begun()
    here, there = script.workers
    reader = Client(script, there, "reader")
    script.work(there)
    reader.send(Subscribe(1, (subscription(b"t", 1),)))
    script.until(lambda: (reader.read(), reader.subscribed)[1])
    publish(script, publisher, 1, 2, 3)
    here.write_index()  # the index has 3, and nothing has come to the reader
    reader.send(Subscribe(2, (subscription(b"t", 1),)))
    script.work(there)
    reader.read()
    assert reader.got == []
    script.until(lambda: (reader.read(), reader.got.count(b"3") == 2)[1])
    assert reader.got == [b"1", b"2", b"3", b"3"]  # live, and retained


def test_who_asks_again_does_not_wait_for_a_worker_that_does_not_answer() -> None:
    script, publisher, _ = begun()
    here, there = script.workers
    reader = Client(script, there, "reader")
    script.work(there)
    reader.send(Subscribe(1, (subscription(b"t", 1),)))
    script.until(lambda: (reader.read(), reader.subscribed)[1])
    publish(script, publisher, 1)
    here.write_index()
    script.break_connection(0)
    reader.send(Subscribe(2, (subscription(b"t", 1),)))
    script.work(there)
    reader.read()
    assert reader.got == []
    script.fall_silent(there)
    reader.read()
    assert reader.got == [b"1"]
