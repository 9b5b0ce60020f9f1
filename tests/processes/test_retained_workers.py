"""Retained messages of a broker of several workers: what a new subscriber is sent never goes back."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

TOPIC = b"state"


def publish(client: RawClient, number: int) -> None:
    client.send(Publish(TOPIC, b"%d" % number, 1, True, packet_identifier=1))
    assert client.read() == Ack(PacketType.PUBACK, 1)


def seen_from(broker: Workers, name: str, last: int, more: RawClient) -> list[int]:
    """Return what a new subscriber gets, up to `last`, which `more` publishes when it has subscribed."""
    with RawClient(broker.port) as reader:
        reader.connect(name)
        reader.send(Subscribe(1, (subscription(TOPIC, 1),)))
        while not isinstance(packet := reader.read(), Suback):
            assert isinstance(packet, Publish)  # what is before the SUBACK does not count
            reader.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        publish(more, last)
        found: list[int] = []
        while not found or found[-1] != last:
            packet = reader.read()
            assert isinstance(packet, Publish)
            reader.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            found.append(int(packet.payload))
        return found


def test_a_new_subscriber_is_not_sent_what_was_there_before_when_its_worker_has_been_stopped(tmp_path: Path) -> None:
    with Workers(tmp_path, 2, SHOAL_MESH__SILENCE_S="1", SHOAL_PROCESSES__STALL_S="60") as broker:
        (publisher,), (watcher, *readers) = broker.names(0), broker.names(1, 4)
        numbers = count(1)
        with RawClient(broker.port) as one, RawClient(broker.port) as wants:
            one.connect(publisher)
            # Somebody there wants it, so it is owed to that worker, and durably: nobody waits for it long.
            wants.connect(watcher, keep=True)
            wants.send(Subscribe(1, (subscription(TOPIC, 1),)))
            assert isinstance(wants.read(), Suback)
            publish(one, next(numbers))
            for reader in readers:
                pid = broker.kill_worker(1, signal.SIGSTOP)
                try:
                    for _ in range(300):
                        publish(one, last := next(numbers))
                finally:
                    os.kill(pid, signal.SIGCONT)
                found = seen_from(broker, reader, next(numbers), one)
                assert found == sorted(found)
                assert found[0] >= last, (found[:5], last)
