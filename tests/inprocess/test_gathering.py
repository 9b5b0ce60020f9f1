"""Before a turn sends to many it looks for more input; under load it sleeps first, so that a send takes more along."""

from __future__ import annotations

import select
import socket
from typing import Any

import pytest

from broker.wire.packets import Publish, Subscribe, encode, subscription
from tests.inprocess.test_reactor_turns import Turned, turned

READERS = 20  # from 16 on a turn looks again


def say(broker: Turned, client: socket.socket, packets: bytes) -> None:
    """Send, and turn when that has come."""
    client.sendall(packets)
    select.select([broker.reactor], [], [])
    broker.turn(2)


def publisher_to_many(broker: Turned, qos: int, readers: int) -> tuple[socket.socket, Any]:
    """Return a publisher, whose topic so many others read, after a turn in which it published one message."""
    for number in range(readers):
        reader, _ = broker.connect(b"reader%d" % number)
        say(broker, reader, encode(Subscribe(1, (subscription(b"t", qos),)), 4))
    publisher, its_end = broker.connect(b"publisher")
    say(broker, publisher, messages(1, qos))
    return publisher, its_end


def messages(count: int, qos: int = 0) -> bytes:
    """Return so many PUBLISH packets."""
    return b"".join(
        encode(Publish(b"t", b"%d" % number, qos, packet_identifier=1 + number if qos else 0), 4)
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("qos", "readers", "count", "pauses"),
    [
        (0, READERS, 1, 1),  # a message for each, and the next ones on their way
        (0, READERS, 40, 0),  # each send takes enough along as it is
        (0, READERS - 10, 1, 0),  # there are not many sends to save
        (1, READERS, 1, 0),  # somebody waits for an acknowledgement
    ],
)
def test_a_turn_with_little_for_many_sleeps_once_before_it_looks_for_more(
    qos: int, readers: int, count: int, pauses: int
) -> None:
    with turned() as broker:
        publisher, its_end = publisher_to_many(broker, qos, readers)
        publisher.sendall(messages(count, qos))
        before = its_end.counters()["messages_in"]
        select.select([broker.reactor], [], [])
        broker.reactor.turn_once(True)  # its first look finds the message: it has not waited
        assert its_end.counters()["messages_in"] - before == count
        assert broker.reactor.pauses == pauses


def test_a_turn_that_another_program_drives_never_sleeps() -> None:
    with turned() as broker:
        publisher, _ = publisher_to_many(broker, 0, READERS)
        publisher.sendall(messages(1))
        select.select([broker.reactor], [], [])
        broker.reactor.turn_once(False)
        assert broker.reactor.pauses == 0
