"""`$replay` with several workers: what any of them stored comes once, in the order of time, and goes on live."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Packet, Publish, Suback, Subscribe, Unsuback, Unsubscribe, subscription
from broker.wire.properties import PacketType
from router.log.replay_position import decode_position
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

ARCHIVED = {"SHOAL_ARCHIVE__TOPIC_FILTERS": "sensors/#"}
EVERYTHING = b"$replay/1970-01-01T00:00:00Z/sensors/#"


class Publishers:
    """One client at home on each worker, who publish in turn; each waits for its PUBACK, so times tell the order."""

    def __init__(self, broker: Workers) -> None:
        self.clients = []
        self.sent: list[bytes] = []
        for home in range(broker.count):
            client = RawClient(broker.port)
            client.connect(broker.names(home, 9)[-1])
            self.clients.append(client)

    def publish(self, count: int) -> list[bytes]:
        """Publish so many numbered messages; returns their payloads."""
        first = len(self.sent)
        for number in range(first, first + count):
            # Not strictly in turn, so that the logs are of different lengths.
            client = self.clients[number * number % 7 % len(self.clients)]
            client.send(Publish(b"sensors/%d" % number, b"%d" % number, 1, packet_identifier=1))
            assert client.read().type == PacketType.PUBACK
            self.sent.append(b"%d" % number)
        return self.sent[first:]

    def close(self) -> None:
        """Go without a word."""
        for client in self.clients:
            client.socket.close()


def ask(client: RawClient, topic_filter: bytes, qos: int = 1, retain_handling: int = 0) -> None:
    client.send(Subscribe(1, (subscription(topic_filter, qos, retain_handling=retain_handling),)))
    packet = client.read()
    assert isinstance(packet, Suback), packet
    assert packet.reasons == (qos,)


def take(client: RawClient, count: int) -> list[Publish]:
    """Take so many messages, and acknowledge them."""
    found: list[Publish] = []
    while len(found) < count:
        packet: Packet | None = client.read()
        assert isinstance(packet, Publish), packet
        if packet.qos:
            client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
        found.append(packet)
    return found


def payloads(packets: list[Publish]) -> list[bytes]:
    return [packet.payload for packet in packets]


def position(packet: Publish) -> str:
    (found,) = (value for name, value in packet.properties["user_property"] if name == "shoal-position")
    return str(found)


def assert_no_more(client: RawClient) -> None:
    client.send(Unsubscribe(9, (b"nobody/asked",)))
    packet = client.read()
    assert isinstance(packet, Unsuback), packet


def keep_copies(broker: Workers) -> None:
    """Have sessions on all workers want everything, so that each message is in all logs."""
    for home in range(broker.count):
        with RawClient(broker.port) as client:
            client.connect(broker.names(home)[0], keep=True)
            client.send(Subscribe(1, (subscription(b"sensors/#", 1),)))
            assert isinstance(client.read(), Suback)


@pytest.mark.parametrize("qos", [0, 1])
def test_what_all_workers_stored_comes_once_in_order_and_then_live_from_any_position(tmp_path: Path, qos: int) -> None:
    with Workers(tmp_path, **ARCHIVED) as broker:
        keep_copies(broker)
        publishers = Publishers(broker)
        publishers.publish(30)
        with RawClient(broker.port) as reader:
            reader.connect(broker.names(1, 3)[-1])
            ask(reader, EVERYTHING, qos)
            stored = take(reader, 30)
            assert payloads(stored) == publishers.sent
            live = publishers.publish(20)
            stored += take(reader, 20)
            # Live ones are of several logs, each of which is durable in its own time.
            assert sorted(payloads(stored[30:])) == sorted(live)
            assert_no_more(reader)
        for index in (0, 17, 29, 41, 49):
            told = decode_position(position(stored[index]))
            assert sorted(told) == [0, 1, 2]
            with RawClient(broker.port) as reader:
                reader.connect(broker.names(index % 3, 4)[-1])
                ask(reader, b"$replay/%b/sensors/#" % position(stored[index]).encode(), qos)
                rest = take(reader, 49 - index)
                assert sorted(payloads(rest)) == sorted(payloads(stored[index + 1 :]))
                assert_no_more(reader)
        publishers.close()


def test_a_kept_replay_goes_on_where_it_was_though_workers_are_killed(tmp_path: Path) -> None:
    with Workers(tmp_path, **ARCHIVED) as broker:
        publishers = Publishers(broker)
        publishers.publish(25)
        name = broker.names(0, 2)[-1]
        with RawClient(broker.port) as reader:
            reader.connect(name, keep=True)
            ask(reader, EVERYTHING)
            assert payloads(take(reader, 25)) == publishers.sent
        publishers.publish(10)
        for worker in (0, 2):
            broker.kill_worker(worker)
            broker.wait_for("worker_listening", worker=worker, restarts=1)
        publishers.close()
        more = Publishers(broker)
        more.sent = publishers.sent
        more.publish(10)
        with RawClient(broker.port) as reader:
            assert reader.connect(name, keep=True).session_present
            got = payloads(take(reader, 20))
            assert sorted(got) == sorted(more.sent[25:])
            more.publish(5)
            assert sorted(payloads(take(reader, 5))) == sorted(more.sent[45:])
            assert_no_more(reader)
        more.close()


def test_a_replay_goes_on_without_a_worker_that_is_away_and_gives_what_it_has_when_it_is_back(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_MESH__SILENCE_S="1", SHOAL_PROCESSES__STALL_S="60", **ARCHIVED) as broker:
        publishers = Publishers(broker)
        publishers.publish(20)
        with RawClient(broker.port) as reader, RawClient(broker.port) as other:
            reader.connect(broker.names(1, 3)[-1])
            other.connect(broker.names(0, 3)[-1])  # now: nobody is let in at a worker that is stopped
            ask(reader, EVERYTHING)
            assert payloads(take(reader, 20)) == publishers.sent
            broker.kill_worker(2, signal.SIGSTOP)
            broker.wait_for("peer", worker=1, state="silent")
            ask(other, EVERYTHING)
            publishers.clients[0].send(Publish(b"sensors/x", b"x", 1, packet_identifier=1))
            assert publishers.clients[0].read().type == PacketType.PUBACK
            assert payloads(take(reader, 1)) == [b"x"]
            took = take(other, 1)
            broker.kill_worker(2, signal.SIGCONT)
            # What a worker has that is silent is not known to somebody who has only begun to read it.
            took += take(other, 20)
            assert sorted(payloads(took)) == sorted([*publishers.sent, b"x"])
            assert_no_more(other)
            assert_no_more(reader)
        publishers.close()


@pytest.mark.parametrize("counts", [(3, 1, 2), (1, 3)], ids=str)
def test_a_replay_shows_what_was_stored_and_goes_on_whatever_the_number_of_workers(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    sent: list[bytes] = []
    for index, count in enumerate(counts):
        with Workers(tmp_path, count, **ARCHIVED) as broker:
            publishers = Publishers(broker)
            publishers.sent = sent
            publishers.publish(12)
            with RawClient(broker.port) as reader:
                assert reader.connect("kept", keep=True).session_present == (index > 0)
                if index == 0:
                    ask(reader, EVERYTHING)
                assert sorted(payloads(take(reader, 12))) == sorted(sent[-12:])
                assert_no_more(reader)
            with RawClient(broker.port) as reader:
                reader.connect("new")
                ask(reader, EVERYTHING)
                assert payloads(take(reader, len(sent))) == sent
                assert_no_more(reader)
            publishers.close()
