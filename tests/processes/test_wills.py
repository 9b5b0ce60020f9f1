"""Wills when workers, or all of them, end and come back, under the same or another number: each is published once."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Publish, Suback, Subscribe, Will, subscription
from broker.wire.properties import PacketType
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

NAMES = [f"client-{number}" for number in range(8)]
NEVER_S = 3600


def will_of(name: str, delay_s: int = 0, retain: bool = False) -> Will:
    """Return the will of a client: its name, at QoS 1."""
    return Will(f"will/{name}".encode(), name.encode(), 1, retain, delay_interval_s=delay_s)


def watch(client: RawClient, name: str, *, keep: bool) -> None:
    """Subscribe to all wills."""
    client.connect(name, keep=keep)
    client.send(Subscribe(1, (subscription(b"will/#", 1),)))
    assert isinstance(client.read(), Suback)


def take(client: RawClient, count: int) -> list[bytes]:
    """Take so many messages and acknowledge them; returns their payloads, sorted."""
    found = []
    for _ in range(count):
        packet = client.read()
        assert isinstance(packet, Publish), packet
        client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        found.append(packet.payload)
    return sorted(found)


def check_that_no_will_follows(port: int, watcher: str) -> None:
    """Whatever was published to the watcher before this has come."""
    with RawClient(port) as client, RawClient(port) as publisher:
        assert client.connect(watcher, keep=True).session_present
        publisher.connect("publisher")
        publisher.send(Publish(b"will/last", b"last", 1, packet_identifier=1))
        assert publisher.read() == Ack(PacketType.PUBACK, 1)
        assert take(client, 1) == [b"last"]


@pytest.mark.parametrize("counts", [(1, 2), (2, 3), (3, 2), (3, 1)], ids=str)
def test_a_delayed_will_waits_on_whatever_the_number_of_workers(tmp_path: Path, counts: tuple[int, int]) -> None:
    before, after = counts
    with Workers(tmp_path, before) as broker:
        with RawClient(broker.port) as watcher:
            watch(watcher, "watcher", keep=True)
        for name in NAMES:
            with RawClient(broker.port) as client:
                client.connect(name, keep=True, will=will_of(name, NEVER_S))
    with Workers(tmp_path, after) as broker:
        with RawClient(broker.port) as watcher:
            assert watcher.connect("watcher", keep=True).session_present
            for name in NAMES[::2]:
                with RawClient(broker.port) as client:
                    assert client.connect(name, keep=True).session_present  # it is back: no will
            for name in NAMES:
                with RawClient(broker.port) as client:
                    client.connect(name)  # its session ends, and has a will
            assert take(watcher, 4) == sorted(name.encode() for name in NAMES[1::2])
        check_that_no_will_follows(broker.port, "watcher")


@pytest.mark.parametrize("counts", [(1, 2), (2, 3), (3, 2), (3, 3)], ids=str)
def test_wills_that_are_due_at_a_start_come_once_whatever_the_number_of_workers(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    before, after = counts
    broker = Workers(tmp_path, before)
    broker.start()
    with ExitStack() as open_clients:
        with RawClient(broker.port) as watcher:
            watch(watcher, "watcher", keep=True)
        for number, name in enumerate(NAMES):
            client = open_clients.enter_context(RawClient(broker.port))
            assert client.connect(name, keep=number % 2 == 1, will=will_of(name)).reason == 0
        broker.kill()
        broker.process.stdout.close()
    with Workers(tmp_path, after) as broker, RawClient(broker.port) as watcher:
        assert watcher.connect("watcher", keep=True).session_present
        assert take(watcher, len(NAMES)) == [name.encode() for name in NAMES]
    with Workers(tmp_path, before) as broker:
        check_that_no_will_follows(broker.port, "watcher")


def test_the_wills_of_a_killed_workers_clients_come_to_whoever_is_subscribed_on_the_others(tmp_path: Path) -> None:
    with Workers(tmp_path, 3) as broker, ExitStack() as open_clients:
        watchers = []
        for home, name in ((0, broker.names(0)[0]), (2, broker.names(2)[0])):
            watchers.append(open_clients.enter_context(RawClient(broker.port)))
            watch(watchers[-1], name, keep=home == 2)
        names = broker.names(1, 8)
        for number, name in enumerate(names):
            client = open_clients.enter_context(RawClient(broker.port))
            assert client.connect(name, keep=number % 2 == 1, will=will_of(name)).reason == 0
        broker.kill_worker(1)
        for watcher in watchers:
            assert take(watcher, len(names)) == sorted(name.encode() for name in names)


def test_wills_that_are_retained_come_however_many_there_are(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as broker, ExitStack() as open_clients:
        watcher = open_clients.enter_context(RawClient(broker.port))
        watch(watcher, broker.names(0)[0], keep=False)
        names = broker.names(1, 70)  # more than a publish may wait for peers
        for name in names:
            client = open_clients.enter_context(RawClient(broker.port))
            assert client.connect(name, will=will_of(name, retain=True)).reason == 0
        broker.kill_worker(1)
        assert take(watcher, len(names)) == sorted(name.encode() for name in names)
        assert len(broker.events("worker_ended")) == 1
