"""A link that falls silent with messages on their way: two workers of the simulator, step by step."""

from __future__ import annotations

from broker.wire.packets import Publish, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.support.two_workers import Client, Script, link_of


def begun(qos: int = 2) -> tuple[Script, Client, Client]:
    """Return two workers, a publisher on the first, and an ephemeral subscriber on the second."""
    script = Script()
    publisher, subscriber = (
        Client(script, worker, name) for worker, name in zip(script.workers, ("publisher", "subscriber"), strict=True)
    )
    script.until(lambda: True)
    script.work(*script.workers)
    subscriber.send(Subscribe(1, (subscription(b"t", qos),)))

    def is_subscribed() -> bool:
        subscriber.read()
        publisher.read()
        return subscriber.subscribed

    script.until(is_subscribed)
    return script, publisher, subscriber


def published(script: Script, publisher: Client, first: int, *qualities: int) -> None:
    """Publish numbered messages in one piece; the log does not move on, so only what rests on no record leaves."""
    publisher.send(
        *(
            Publish(b"t", b"%d" % (first + index), qos, packet_identifier=first + index)
            for index, qos in enumerate(qualities)
        )
    )
    script.workers[0].turn()


def recorded_late() -> tuple[Script, Client, Client]:
    """Begin, publish QoS 1, 2 and 1, and lose the first with the connection, and then the peer."""
    script, publisher, subscriber = begun()
    here = script.workers[0]
    published(script, publisher, 1, 1, 2, 1)
    script.break_connection(0)
    script.work(here)
    script.fall_silent(here)
    return script, publisher, subscriber


def arrive(script: Script, publisher: Client, subscriber: Client, count: int) -> list[bytes]:
    """Let everything move until a number of messages has come; return them in the order in which they came first."""

    def all_came() -> bool:
        subscriber.read()
        publisher.read()
        return len(set(subscriber.got)) == count

    script.until(all_came)
    return list(dict.fromkeys(subscriber.got))


def test_what_was_recorded_when_its_link_fell_silent_is_not_overtaken_by_what_came_after_it() -> None:
    # Proves: [MQTT-4.6.0-5]
    script, publisher, subscriber = begun()
    here = script.workers[0]
    published(script, publisher, 1, 1, 2, 1)  # 1 is in no record; 3 is, since it waits behind 2
    script.break_connection(0)  # which takes 1 along
    script.work(here)  # 2 and 3 have left, and wait for a connection
    publisher.read()
    assert publisher.acknowledged == []  # the first one's answer waits, and those behind it
    script.fall_silent(here)
    publisher.read()
    assert publisher.acknowledged == [(PacketType.PUBACK, 1), (PacketType.PUBREC, 2), (PacketType.PUBACK, 3)]
    published(script, publisher, 4, 1)
    assert arrive(script, publisher, subscriber, 4) == [b"1", b"2", b"3", b"4"]
    assert len(subscriber.got) == 4


def test_what_the_peer_had_taken_when_its_link_fell_silent_does_not_come_again() -> None:
    script, publisher, subscriber = begun()
    here, there = script.workers
    published(script, publisher, 1, 1, 1, 1)
    script.network.step(False)
    there.turn()  # it has them, and its answer
    script.lane(0).answers.clear()  # is lost
    script.fall_silent(here)
    publisher.read()
    assert publisher.acknowledged == [(PacketType.PUBACK, number) for number in (1, 2, 3)]
    published(script, publisher, 4, 1)
    assert arrive(script, publisher, subscriber, 4) == [b"1", b"2", b"3", b"4"]
    assert len(subscriber.got) == 4


def test_what_was_recorded_when_its_link_fell_silent_comes_though_its_process_dies() -> None:
    script, publisher, subscriber = begun()
    here = script.workers[0]
    published(script, publisher, 1, 1, 1)
    script.break_connection(0)
    script.fall_silent(here)
    publisher.read()
    assert [number for _, number in publisher.acknowledged] == [1, 2]
    here.die()
    here.boot()
    assert arrive(script, publisher, subscriber, 2) == [b"1", b"2"]


def test_what_was_recorded_is_recorded_once_however_often_its_link_falls_silent() -> None:
    script, publisher, subscriber = begun()
    here, there = script.workers
    published(script, publisher, 1, 1)
    records = []
    for _ in range(3):
        script.break_connection(0)
        script.fall_silent(here)
        records.append(here.router.last_record)
        for _ in range(2):  # it connects, and a heartbeat gets there
            script.network.step(False)
        there.turn()
        script.network.step(False)
        here.turn()  # the answer is there, and the message on its way again
        assert link_of(here).state == "up"
    assert records == records[:1] * 3
    assert arrive(script, publisher, subscriber, 1) == [b"1"]


def test_what_was_recorded_late_is_owed_no_more_once_the_peer_has_it_and_not_before() -> None:
    script, publisher, subscriber = recorded_late()
    here = script.workers[0]
    assert arrive(script, publisher, subscriber, 3) == [b"1", b"2", b"3"]
    script.until(lambda: here.owes_nothing)
    script.work(here)
    here.die()
    here.boot()
    owed = next(iter(here.router.peers.values())).session.owed
    assert owed is None or owed.deliveries() == []


def test_an_acknowledgement_of_what_was_recorded_late_does_not_stand_for_what_has_yet_to_arrive() -> None:
    script, publisher, subscriber = recorded_late()
    here = script.workers[0]
    forwarding = here.mesh.forwarding
    (peer,) = here.router.peers.values()
    first = peer.session.owed.deliveries()[0][0]
    forwarding.acknowledge(peer, first)  # the peer has 1; its copy is behind 2 and 3 in the log
    script.work(here)
    here.die()
    here.boot()
    assert {b"2", b"3"} <= set(arrive(script, publisher, subscriber, 3))


def test_a_message_that_is_sent_again_on_a_new_connection_is_answered_there_though_it_waits() -> None:
    # Proves: [MQTT-4.3.3-10]
    script, _, subscriber = begun()
    here = script.workers[0]
    client = Client(script, here, "kept", keep=True)
    script.work(here)
    script.break_connection(0)
    client.send(Publish(b"t", b"0", 1, packet_identifier=7), Publish(b"t", b"1", 2, packet_identifier=8))
    script.work(here)  # 0 waits for the peer, and 1 behind it
    again = Client(script, here, "kept", keep=True)
    script.work(here)
    again.send(Publish(b"t", b"1", 2, dup=True, packet_identifier=8))
    script.work(here)
    again.read()
    assert again.acknowledged == []
    script.fall_silent(here)
    again.read()
    assert again.acknowledged == [(PacketType.PUBREC, 8)]
    assert arrive(script, again, subscriber, 2) == [b"0", b"1"]
    assert subscriber.got.count(b"1") == 1
