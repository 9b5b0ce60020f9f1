"""`--workers` changed between starts: every session finds its queue, whoever keeps it now."""

import os
import signal
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers

NAMES = [f"client-{number}" for number in range(12)]


def subscribe_all(port: int) -> None:
    """Make a session for each name, with a subscription of its own and one that all share the topic of."""
    for name in NAMES:
        with RawClient(port) as client:
            assert not client.connect(name, keep=True).session_present
            client.send(Subscribe(1, (subscription(f"to/{name}".encode(), 2), subscription(b"to/all", 1))))
            assert isinstance(client.read(), Suback)


def publish(port: int, round_number: int) -> None:
    """Publish a message to each and one to all, at QoS 2."""
    with RawClient(port) as client:
        client.connect("publisher")
        for number, topic in enumerate([*(f"to/{name}" for name in NAMES), "to/all"], 1):
            client.send(Publish(topic.encode(), b"%d" % round_number, 2, packet_identifier=number))
            assert client.read().type == PacketType.PUBREC
            client.send(Ack(PacketType.PUBREL, number))
            assert client.read() == Ack(PacketType.PUBCOMP, number)


def take(client: RawClient, count: int) -> list[tuple[bytes, bytes]]:
    """Take so many messages, each to its end; returns their topics and payloads."""
    found = []
    ended = 0
    while ended < count:
        packet = client.read()
        if isinstance(packet, Publish):
            found.append((packet.topic, packet.payload))
            answer = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
            client.send(Ack(answer, packet.packet_identifier))
            ended += packet.qos == 1
        else:
            assert packet.type == PacketType.PUBREL, packet
            client.send(Ack(PacketType.PUBCOMP, packet.packet_identifier))
            ended += 1
    return found


@pytest.mark.parametrize("counts", [(4, 2, 8), (1, 3, 1)], ids=str)
def test_sessions_and_their_queues_are_there_whatever_the_number_of_workers(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    for round_number, count in enumerate(counts):
        with Workers(tmp_path, count) as broker:
            if round_number == 0:
                subscribe_all(broker.port)
                publish(broker.port, 0)
                continue
            publish(broker.port, round_number)
            for name in NAMES[round_number::2]:
                with RawClient(broker.port) as client:
                    assert client.connect(name, keep=True).session_present
                    took = take(client, 2 * (round_number + 1))
                    for topic in (f"to/{name}".encode(), b"to/all"):
                        assert [payload for of, payload in took if of == topic] == [
                            b"%d" % number for number in range(round_number + 1)
                        ]
    with Workers(tmp_path, counts[-1]) as broker:
        for name in NAMES:
            with RawClient(broker.port) as client:
                assert client.connect(name, keep=True).session_present


def test_what_was_under_way_goes_on_under_the_same_packet_identifiers(tmp_path: Path) -> None:
    with Workers(tmp_path, 1) as broker:
        subscribe_all(broker.port)
        publish(broker.port, 0)
        under_way = {}
        for name in NAMES:
            with RawClient(broker.port) as client:
                client.connect(name, keep=True)
                packets = [client.read(), client.read()]
                assert all(isinstance(packet, Publish) for packet in packets)
                released = next(packet for packet in packets if packet.qos == 2)
                client.send(Ack(PacketType.PUBREC, released.packet_identifier))
                assert client.read() == Ack(PacketType.PUBREL, released.packet_identifier)
                client.send(Publish(b"nobody/wants", b"x", 2, packet_identifier=77))  # and a PUBREL that is due
                assert client.read().type == PacketType.PUBREC
                under_way[name] = {packet.qos: packet.packet_identifier for packet in packets}
    with Workers(tmp_path, 3) as broker:
        for name in NAMES:
            with RawClient(broker.port) as client:
                assert client.connect(name, keep=True).session_present
                again = {type(packet): packet for packet in (client.read(), client.read())}
                assert again[Ack] == Ack(PacketType.PUBREL, under_way[name][2])
                assert again[Publish].dup
                assert again[Publish].packet_identifier == under_way[name][1]
                client.send(Ack(PacketType.PUBREL, 77))
                assert client.read() == Ack(PacketType.PUBCOMP, 77)  # and not "not found"


def test_what_a_worker_owed_another_arrives_once_though_their_number_has_changed(tmp_path: Path) -> None:
    broker = Workers(tmp_path, 2)
    broker.start()
    (name, shared), (publisher,) = broker.names(1, 2), broker.names(0)
    with RawClient(broker.port) as client, RawClient(broker.port) as member:
        for one, identifier, topic_filter in ((client, name, b"a/#"), (member, shared, b"$share/group/b/+")):
            one.connect(identifier, keep=True)
            one.send(Subscribe(1, (subscription(topic_filter, 2),)))
            assert isinstance(one.read(), Suback)
    with RawClient(broker.port) as client:
        client.connect(publisher)
        os.kill(broker.pid_of(1), signal.SIGSTOP)
        for number in range(1, 6):
            for topic in (b"a/b", b"b/b"):
                client.send(Publish(topic, b"%d" % number, 1, packet_identifier=number))
                assert client.read().packet_identifier == number
    broker.kill()
    broker.process.stdout.close()
    with Workers(tmp_path, 3) as again:
        spread = again.events("sessions_spread", workers=3)[-1]
        assert (spread["messages_delivered"], spread["messages_lost"]) == (10, 0)
        for identifier, topic in ((name, b"a/b"), (shared, b"b/b")):
            with RawClient(again.port) as client:
                assert client.connect(identifier, keep=True).session_present
                assert take(client, 5) == [(topic, b"%d" % number) for number in range(1, 6)]
        with RawClient(again.port) as client:
            client.connect(publisher)
            for topic in (b"a/b", b"b/b"):
                client.send(Publish(topic, b"6", 1, packet_identifier=6))
                client.read()
    with Workers(tmp_path, 3) as again:
        for identifier, topic in ((name, b"a/b"), (shared, b"b/b")):
            with RawClient(again.port) as client:
                client.connect(identifier, keep=True)
                assert take(client, 1) == [(topic, b"6")]


def segments_of(folder: Path) -> list[str]:
    """Return the names of a log's segments."""
    return sorted(path.name for path in folder.glob("segment-*.log"))


def replayed(client: RawClient) -> list[int]:
    """Return the numbers of all messages that are archived, 63 being the last."""
    client.connect("reader")
    client.send(Subscribe(1, (subscription(b"$replay/1970-01-01T00:00:00Z/archived", 0),)))
    assert isinstance(client.read(), Suback)
    found: list[int] = []
    while 63 not in found:
        found.append(int(client.read().payload[:2]))
    return found


def test_the_archive_of_a_worker_that_is_no_more_is_kept_within_its_limits(tmp_path: Path) -> None:
    archiving = {"SHOAL_ARCHIVE__TOPIC_FILTERS": "archived", "SHOAL_STORAGE__SEGMENT_BYTES_MAX": "1048576"}
    payload = b"x" * 65_536
    with Workers(tmp_path, 2, **archiving) as broker, RawClient(broker.port) as publisher:
        publisher.connect(broker.names(1)[0])
        for number in range(64):
            publisher.send(Publish(b"archived", b"%02d" % number + payload, 1, packet_identifier=1))
            assert publisher.read().type == PacketType.PUBACK
    left = tmp_path / "data" / "worker-1"
    before = segments_of(left)
    assert len(before) >= 4
    with Workers(tmp_path, 1, **archiving) as broker, RawClient(broker.port) as client:
        assert replayed(client) == list(range(64))  # as much as one likes may be kept
    assert set(before) <= set(segments_of(left))
    with Workers(tmp_path, 1, **archiving, SHOAL_ARCHIVE__RETENTION_BYTES="1500000") as broker:
        wait_until(lambda: not set(before[:-2]) & set(segments_of(left)), "all but two segments go")
        with RawClient(broker.port) as client:
            found = replayed(client)
    assert 16 <= len(found) < 48
    assert found == list(range(64))[-len(found) :]
    with Workers(tmp_path, 2, **archiving) as broker, RawClient(broker.port) as client:
        assert replayed(client) == found
        assert broker.events("log_damaged") == broker.events("log_record_unfit") == []


def test_what_prevents_a_number_of_workers_leaves_the_one_before(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as broker:
        subscribe_all(broker.port)
        publish(broker.port, 0)
    in_the_way = tmp_path / "data" / "worker-2"
    in_the_way.write_text("no folder")
    broker = Workers(tmp_path, 3)
    with pytest.raises(AssertionError, match="did not start"):
        broker.start()
    assert broker.process.returncode == 3
    said = broker.errors.read_text().splitlines()[-1]
    assert said.startswith("The sessions cannot be spread over 3 workers: ")
    assert "worker-2" in said
    assert said.endswith("Nothing has moved: --workers 2 starts the broker with as many as before.")
    with Workers(tmp_path, 2) as broker, RawClient(broker.port) as client:
        assert client.connect(NAMES[0], keep=True).session_present
        assert {payload for _, payload in take(client, 2)} == {b"0"}
    in_the_way.unlink()
    with Workers(tmp_path, 3) as broker, RawClient(broker.port) as client:
        assert client.connect(NAMES[1], keep=True).session_present


@pytest.mark.parametrize("count", [1, 2, 3])
def test_spreading_that_was_interrupted_goes_on_with_any_number_of_workers(tmp_path: Path, count: int) -> None:
    with Workers(tmp_path, 2) as broker:
        subscribe_all(broker.port)
        publish(broker.port, 0)
    (tmp_path / "data" / "workers").write_text("-3\n")  # as one that was killed leaves it
    with Workers(tmp_path, count) as broker:
        assert len(broker.events("sessions_spread")) == 1
        for name in NAMES:
            with RawClient(broker.port) as client:
                assert client.connect(name, keep=True).session_present
                assert len(take(client, 2)) == 2
