"""A control packet takes as many turns as it needs, and the others go on between them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from broker.control.subscribe import SLICE_FILTERS
from broker.wire.packets import (
    Ack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from broker.wire.topic_filters import FilterList
from router.core.message import message
from router.retained.lmdb_index import RetainedIndex
from tests.support.doubles import FakeLog
from tests.support.turned_hub import TurnedClient, TurnedHub

COUNT = 20 * SLICE_FILTERS
FILTERS = [b"f/%05d" % number for number in range(COUNT)]


def turns_until(broker: TurnedHub, client: TurnedClient, witness: TurnedClient, kind: type) -> tuple[int, list[object]]:
    """Turn until a client gets a packet of a kind; in each turn a witness gets an answer. Returns turns and packets."""
    got: list[object] = []
    for turns in range(1, 10 * COUNT):
        witness.send(Pingreq())
        broker.turn()
        assert witness.packets() == [Pingresp()]
        got += client.packets()
        if any(isinstance(packet, kind) for packet in got):
            return turns, got
    raise AssertionError("it never came")


@pytest.mark.parametrize("logged", [False, True])
def test_a_subscribe_of_many_filters_is_done_in_slices_and_answered_once(logged: bool) -> None:
    broker = TurnedHub(FakeLog() if logged else None)
    client = broker.connect(b"many", properties={"session_expiry_interval": 60})
    witness = broker.connect(b"witness")
    session = broker.router.sessions[b"many"]
    client.send(Subscribe(7, tuple(subscription(each, 1) for each in FILTERS)), Publish(b"behind", b"it"), Pingreq())
    counts = []
    got: list[object] = []
    while not got:
        witness.send(Pingreq())
        broker.turn()
        assert witness.packets() == [Pingresp()]
        counts.append(len(broker.router.tree.subscriptions_of(session)))
        got += client.packets()
        assert len(counts) < 10 * COUNT
    assert counts[0] <= 2 * SLICE_FILTERS
    assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= 2 * SLICE_FILTERS
    assert counts[-1] == COUNT
    broker.turn(2)
    got += client.packets()
    assert got == [Suback(7, (Reason(1),) * COUNT), Pingresp()]
    turns, got = _unsubscribe(broker, client, witness)
    assert turns >= COUNT // (2 * SLICE_FILTERS)
    assert got == [Unsuback(8, (Reason.SUCCESS,) * COUNT)]
    assert broker.router.tree.subscriptions_of(session) == []


def _unsubscribe(broker: TurnedHub, client: TurnedClient, witness: TurnedClient) -> tuple[int, list[object]]:
    client.send(Unsubscribe(8, tuple(FILTERS)))
    return turns_until(broker, client, witness, Unsuback)


def test_whoever_goes_in_the_middle_of_a_subscribe_leaves_nothing_of_it_under_way() -> None:
    broker = TurnedHub()
    client = broker.connect(b"many")
    client.send(Subscribe(7, tuple(subscription(each) for each in FILTERS)))
    broker.turn(2)
    client.connection.close(CloseReason.CONNECTION_LOST)
    broker.turn(3)
    assert broker.router.sessions == {}
    assert broker.router.tree.subscription_count == 0
    assert client.connection.slices is None


def test_another_connection_takes_over_a_session_in_the_middle_of_its_subscribe() -> None:
    broker = TurnedHub()
    client = broker.connect(b"many", properties={"session_expiry_interval": 60})
    client.send(Subscribe(7, tuple(subscription(each) for each in FILTERS)))
    broker.turn(2)
    heir = TurnedClient(broker, 5)
    heir.send(Connect(5, b"many", False))
    broker.turn(3)
    count = len(broker.router.tree.subscriptions_of(broker.router.sessions[b"many"]))
    broker.turn(50)
    assert count < COUNT
    assert len(broker.router.tree.subscriptions_of(broker.router.sessions[b"many"])) == count
    assert [type(packet) for packet in client.packets()] == [Disconnect]


@pytest.mark.parametrize("on_disk", [False, True])
def test_one_filter_many_times_in_a_subscribe_asks_for_what_is_retained_once(on_disk: bool, tmp_path: Path) -> None:
    log = FakeLog()
    index = RetainedIndex(str(tmp_path / "retained")) if on_disk else None
    broker = TurnedHub(log, index)
    for number in range(50):
        broker.router.publish_message(message(b"kept/%d" % number, b"x", 1, True))
    broker.turn(2)
    while index is not None and index.commit(log.durable):
        pass
    client, witness = broker.connect(b"asks"), broker.connect(b"witness")
    client.send(Subscribe(1, (subscription(b"kept/#"),) * 1000))
    _, got = turns_until(broker, client, witness, Suback)
    broker.turn(100, passed_ms=200)
    got += client.packets()
    assert len([packet for packet in got if isinstance(packet, Publish)]) == 50
    if index is not None:
        index.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_client_that_reads_nothing_has_a_filter_asked_for_again_and_again_waiting_once(
    on_disk: bool, tmp_path: Path
) -> None:
    log = FakeLog()
    index = RetainedIndex(str(tmp_path / "retained")) if on_disk else None
    broker = TurnedHub(log, index, output_buffer_bytes_max=4096)
    for number in range(100):
        broker.router.publish_message(message(b"kept/%d" % number, b"x" * 1000, 1, True))
    broker.turn(2)
    while index is not None and index.commit(log.durable):
        pass
    client = broker.connect(b"asks")
    for number in range(1, 50):
        client.send(Subscribe(number, (subscription(b"kept/#"), subscription(b"+/#"))))
        broker.turn(2, passed_ms=200)
    backlog = client.connection.backlog
    assert backlog.pending <= 2 * 100
    assert len(backlog.scans) <= 2
    client.send(Unsubscribe(60, (b"kept/#", b"+/#")))
    broker.turn(2)
    assert client.connection.backlog is None or client.connection.backlog.pending == 0
    broker.turn(2)
    if index is not None:
        index.close()


def test_a_filter_more_than_once_in_a_subscribe_counts_with_its_last_options() -> None:
    broker = TurnedHub()
    client = broker.connect(b"twice")
    client.send(Subscribe(1, (subscription(b"t", 0), subscription(b"t", 2))))
    broker.turn()
    assert client.packets() == [Suback(1, (Reason(0), Reason(2)))]
    session = broker.router.sessions[b"twice"]
    assert broker.router.tree.subscriptions_of(session) == [(b"t", 2, 0)]


def test_a_control_packet_has_a_largest_size_of_its_own_and_a_publish_has_not() -> None:
    broker = TurnedHub(control_packet_bytes_max=1024)
    client = broker.connect(b"large")
    client.send(Publish(b"t", b"x" * 5000, 1, packet_identifier=1))
    broker.turn()
    assert client.packets() == [Ack(PacketType.PUBACK, 1, Reason.NO_MATCHING_SUBSCRIBERS)]
    fits = Subscribe(1, (subscription(b"a" * 1015, 0),))
    assert len(encode(fits, 5)) == 1024
    client.send(fits)
    broker.turn()
    assert client.packets() == [Suback(1, (Reason(0),))]
    client.send(Subscribe(1, (subscription(b"a" * 1016, 0),)))
    broker.turn()
    (last,) = client.packets()
    assert isinstance(last, Disconnect)
    assert last.reason == Reason.PACKET_TOO_LARGE
    assert client.connection.close_reason == CloseReason.PACKET_TOO_LARGE


def test_what_is_malformed_at_the_end_of_a_subscribe_is_so_before_anything_is_subscribed() -> None:
    broker = TurnedHub()
    client = broker.connect(b"malformed")
    body = encode(Subscribe(1, tuple(subscription(each) for each in FILTERS)), 5)
    client.connection.feed_bytes(body[:-1] + b"\x03")  # a Maximum QoS of 3
    broker.turn()
    (last,) = client.packets()
    assert isinstance(last, Disconnect)
    assert last.reason == Reason.PROTOCOL_ERROR
    assert broker.router.tree.subscription_count == 0


def test_a_filter_list_knows_its_filters_one_after_another() -> None:
    body = encode(Subscribe(1, (subscription(b"a", 1), subscription(b"b/#", 2, no_local=True))), 5)[2:]
    filters = FilterList(body, 3, True, 5)
    assert filters.count == 2
    assert [filters.next(), filters.next()] == [(b"a", 1), (b"b/#", 6)]
    assert filters.done
