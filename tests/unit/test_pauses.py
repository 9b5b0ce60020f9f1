"""Why a connection is not read, not parsed on or not sent to: one mask, whose names are the same everywhere."""

from broker.config.loader import Mqtt
from broker.wire.packets import Pingreq, Pingresp, Publish, Suback, Subscribe, subscription
from tests.support.doubles import FakeLog
from tests.support.turned_hub import TurnedHub


def publish(number: int) -> Publish:
    return Publish(b"t", b"x", 1, packet_identifier=number)


def test_a_control_packet_that_waits_parks_what_comes_behind_it() -> None:
    broker = TurnedHub(log := FakeLog())
    client = broker.connect(b"c", 4, clean_start=False)
    assert client.connection.paused_by == []
    client.send(Subscribe(1, (subscription(b"t", 1),)), Pingreq())
    assert client.connection.paused_by == ["parked"]
    broker.hub.run_turn(broker.now_ms)
    assert client.connection.paused_by == ["parked"]
    assert client.packets() == []
    log.sync()
    broker.turn()
    assert [type(packet) for packet in client.packets()] == [Suback, Pingresp]
    assert client.connection.paused_by == []


def test_who_is_over_receive_maximum_is_parsed_on_when_what_it_sent_has_settled() -> None:
    broker = TurnedHub(log := FakeLog(), mqtt=Mqtt(receive_maximum=2))
    broker.connect(b"s", 4, clean_start=False).send(Subscribe(1, (subscription(b"t", 1),)))
    broker.turn(3)
    client = broker.connect(b"c", 4)
    client.send(*map(publish, range(1, 6)))
    assert client.connection.paused_by == ["unsettled"]
    assert broker.hub.counters()["unsettled"] == 1
    identifiers = []
    for _ in range(6):
        broker.hub.run_turn(broker.now_ms)
        log.sync()
        identifiers += [packet.packet_identifier for packet in client.packets()]
    assert identifiers == [1, 2, 3, 4, 5]
    assert client.connection.paused_by == []
    assert broker.hub.counters()["unsettled"] == 2


def test_who_has_had_its_share_goes_on_behind_the_others() -> None:
    broker = TurnedHub()
    broker.hub.bound_turns(share_bytes=64)
    client = broker.connect(b"c", 4)
    client.send(*map(publish, range(1, 21)))
    assert client.connection.paused_by == ["cut"]
    for _ in range(20):
        broker.turn()
    assert client.connection.paused_by == []
    assert [packet.packet_identifier for packet in client.packets()] == list(range(1, 21))


def test_each_reason_stands_by_itself() -> None:
    """A client is over its rate, has had its share, and too much of it waits, at once; each of these ends by itself."""
    broker = TurnedHub(log := FakeLog(), mqtt=Mqtt(receive_maximum=5), messages_per_second_max=1)
    broker.hub.bound_turns(share_bytes=16)
    broker.connect(b"s", 4, clean_start=False).send(Subscribe(1, (subscription(b"t", 1),)))
    broker.turn(3)
    client = broker.connect(b"c", 4)
    client.send(*map(publish, range(1, 10)))
    seen = set(client.connection.paused_by)
    for turn in range(40):
        broker.hub.run_turn(broker.now_ms)
        seen |= set(client.connection.paused_by)
        if turn > 10:
            log.sync()
        broker.now_ms += 250
    assert seen == {"cut", "unsettled", "throttled"}
    assert client.connection.paused_by == []
    assert [packet.packet_identifier for packet in client.packets()] == list(range(1, 10))
