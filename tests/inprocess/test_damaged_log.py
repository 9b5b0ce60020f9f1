"""A log whose bytes are cut or flipped, one by one: the broker starts, and owes what it owed before the damage."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker.wire.packets import Ack, Connect, Publish, Subscribe, Will, decode, encode, next_frame, subscription
from router.log.log_writer import Durability
from router.log.segments import RECORDS_AT, Segments, segment_name
from tests.support.disk import SimulatedDisk
from tests.support.disk_broker import Broker

MESSAGES = 8
LAST_BYTES = 700  # at least the last ten records


def written() -> tuple[SimulatedDisk, int, list[tuple[int, bytes]]]:
    """Return a disk with a log, where the messages begin in it, and where the record of each acknowledged one ends.

    A publisher has sent messages at QoS 1 and 2, one turn each, to a session that is away; both have a will.
    """
    disk = SimulatedDisk()
    broker = Broker(disk)
    file = disk.open(segment_name(1)) if segment_name(1) in disk.names() else 0
    away = broker.connect(b"away", Will(b"w/1", b"will of who is away", 1))
    away.say(Subscribe(1, (subscription(b"t/#", 2), subscription(b"w/#", 1))))
    away.connection.close("connection_lost")
    broker.turn()
    publisher = broker.connect(b"publisher", Will(b"w/2", b"will of who was cut", 1))
    file = file or disk.open(segment_name(1))
    begin = disk.size(file)
    ends = []
    for number in range(1, MESSAGES + 1):
        payload = b"message %d" % number
        came = publisher.say(Publish(b"t/1", payload, 1 + number % 2, number % 3 == 0, False, number))
        assert isinstance(came[0], Ack)
        ends.append((disk.size(file), payload))
    return disk, begin, ends


def owed(disk: SimulatedDisk) -> list[bytes]:
    """Start a broker on a disk, and return what it has for the session that was away."""
    client = Broker(disk, 2).connect(b"away")
    client.say(Subscribe(9, (subscription(b"nothing", 0),)))
    return [payload for payload in client.got if payload.startswith(b"message")]


def in_order(got: list[bytes]) -> bool:
    """Return whether messages come in the order of their numbers, none twice."""
    numbers = [int(payload.split()[1]) for payload in got]
    return all(before < after for before, after in pairwise(numbers))


def test_the_log_cut_at_every_byte_of_its_last_records() -> None:
    disk, begin, ends = written()
    whole = disk.content(segment_name(1))
    assert owed(disk.copy()) == [payload for _, payload in ends]
    for size in range(max(begin, len(whole) - LAST_BYTES), len(whole)):
        cut = disk.copy()
        cut.put(segment_name(1), whole[:size])
        got = owed(cut)
        assert in_order(got), (size, got)
        assert set(got) >= {payload for end, payload in ends if end <= size}, (size, got)


def test_every_byte_of_the_log_flipped_in_turn() -> None:
    disk, begin, ends = written()
    whole = disk.content(segment_name(1))
    for at in range(len(whole)):
        if 64 <= at < RECORDS_AT - 64:
            continue  # nothing is there
        flipped = bytearray(whole)
        flipped[at] ^= 0xFF >> at % 8 or 1
        damaged = disk.copy()
        damaged.put(segment_name(1), bytes(flipped))
        got = owed(damaged)
        assert in_order(got), (at, got)
        if at < RECORDS_AT or at >= begin:
            # One record is lost, of which the damage is part; those before and behind it are not.
            starts = [begin, *(end for end, _ in ends)]
            there = {payload for start, (end, payload) in zip(starts, ends, strict=False) if not start <= at < end}
            assert set(got) >= there, (at, got)


@pytest.mark.parametrize("durability", ["os", "none"])
@pytest.mark.parametrize("kept", ["session", "accepted"])
def test_what_comes_after_a_loss_of_power_is_no_repeat_of_what_was_lost(durability: Durability, kept: str) -> None:
    # Proves: what the log has lost, the clients know; none of them takes a new message for it, and neither do we.
    disk = SimulatedDisk()
    before = Broker(disk, 1, durability)
    subscriber = before.connect(b"s")
    subscriber.say(Subscribe(1, (subscription(b"t", 2),)))
    before.connect(b"p").say(Publish(b"t", b"lost", 2, False, False, 7))
    (name,) = [name for name in disk.names() if name.startswith("segment")]
    ends = {}
    for cursor in Segments(disk, worker=0, rules=1).cursors():
        while cursor.step():
            ends[cursor.kind_name()] = cursor.base + cursor.offset
    disk.put(name, disk.content(name)[: ends[kept]])

    after = Broker(disk, 2, durability)
    connection = after.hub.connect()
    connection.feed_bytes(encode(Connect(4, b"s", False, 0), 4))
    after.turn()
    connection.take_output()
    # Its publisher has seen the exchange to its end, so identifier 7 is free for something new.
    publisher = after.hub.connect()
    publisher.feed_bytes(encode(Connect(4, b"p", False, 0), 4) + encode(Publish(b"t", b"new", 2, False, False, 7), 4))
    after.turn()
    output = bytearray(connection.take_output())
    packets = []
    while (frame := next_frame(output)) is not None:
        packets.append(decode(*frame, 4))
    (new,) = [packet for packet in packets if packet.payload == b"new"]
    assert not new.dup
    assert new.packet_identifier > 1000  # far from 1, under which the subscriber may hold the lost one
