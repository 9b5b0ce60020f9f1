"""SUBACK and UNSUBACK that wait for the log and for the other workers stand in one queue."""

from collections.abc import Callable

from broker.control.pending_answers import WaitsFor
from broker.wire.packets import Pingreq, Pingresp, Suback, Subscribe, Unsuback, Unsubscribe, subscription
from tests.support.doubles import FakeLog
from tests.support.turned_hub import TurnedHub


class Peers:
    """Stands in for the mesh: the peers know of an interest when the test says so, or at once."""

    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once
        self.asked: list[Callable[[], None]] = []

    def when_installed(self, action: Callable[[], None]) -> None:
        if self.at_once:
            action()
        else:
            self.asked.append(action)


def waiting(broker: TurnedHub) -> list[tuple[str, WaitsFor]]:
    return [(pending.packet, pending.waits_for) for pending in broker.controller.answers]


def test_a_suback_waits_for_its_record_and_then_for_the_peers_and_what_comes_behind_it_waits_too() -> None:
    broker, peers = TurnedHub(log := FakeLog()), Peers()
    client = broker.connect(b"c", 4, clean_start=False)
    broker.controller.answers.join_mesh(peers)
    client.send(Subscribe(1, (subscription(b"t", 1),)), Pingreq())
    broker.hub.run_turn(broker.now_ms)
    assert waiting(broker) == [("suback", WaitsFor.RECORD)]
    pending = broker.controller.answers.of(client.connection)
    assert pending is not None
    assert pending.since_ms == broker.now_ms
    log.sync()
    broker.hub.run_turn(broker.now_ms)
    assert waiting(broker) == [("suback", WaitsFor.PEERS)]
    assert client.packets() == []
    peers.asked.pop()()
    broker.turn()
    assert [type(packet) for packet in client.packets()] == [Suback, Pingresp]
    assert waiting(broker) == []
    assert pending.waits_for == WaitsFor.NOTHING
    assert broker.controller.answers.of(client.connection) is None


def test_an_unsuback_does_not_wait_for_the_peers() -> None:
    broker, peers = TurnedHub(log := FakeLog()), Peers()
    client = broker.connect(b"c", 4, clean_start=False)
    client.send(Subscribe(1, (subscription(b"t", 1),)))
    broker.turn(2)
    assert [type(packet) for packet in client.packets()] == [Suback]
    broker.controller.answers.join_mesh(peers)
    client.send(Unsubscribe(2, (b"t",)))
    broker.hub.run_turn(broker.now_ms)
    assert waiting(broker) == [("unsuback", WaitsFor.RECORD)]
    log.sync()
    broker.turn()
    assert [type(packet) for packet in client.packets()] == [Unsuback]
    assert peers.asked == []


def test_what_no_record_says_waits_for_the_peers_alone_and_for_nothing_if_they_know() -> None:
    for at_once in (False, True):
        broker, peers = TurnedHub(FakeLog()), Peers(at_once)
        client = broker.connect(b"c", 4, clean_start=True)
        broker.controller.answers.join_mesh(peers)
        client.send(Subscribe(1, (subscription(b"t", 1),)), Pingreq())
        broker.hub.run_turn(broker.now_ms)
        assert waiting(broker) == ([] if at_once else [("suback", WaitsFor.PEERS)])
        for action in peers.asked:
            action()
        broker.turn()
        assert [type(packet) for packet in client.packets()] == [Suback, Pingresp]


def test_an_answer_of_a_connection_that_has_ended_leaves_the_queue_and_reaches_nobody() -> None:
    broker, peers = TurnedHub(log := FakeLog()), Peers()
    older = broker.connect(b"c", 4, clean_start=False)
    broker.controller.answers.join_mesh(peers)
    older.send(Subscribe(1, (subscription(b"t", 1),)))
    broker.hub.run_turn(broker.now_ms)
    newer = broker.connect(b"c", 4, clean_start=False)  # takes the session over [MQTT-3.1.4-3]
    newer.send(Subscribe(2, (subscription(b"u", 1),)))
    for _ in range(3):
        broker.turn()
        while peers.asked:
            peers.asked.pop(0)()
    log.sync()
    broker.turn()
    assert waiting(broker) == []
    assert not [packet for packet in older.packets() if isinstance(packet, Suback)]
    assert [packet.packet_identifier for packet in newer.packets() if isinstance(packet, Suback)] == [2]
