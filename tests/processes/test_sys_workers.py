"""`$SYS` of several workers: whichever a client is on, it is told what all of them count."""

from __future__ import annotations

from pathlib import Path

from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

PREFIX = "$SYS/broker/"


def values_at(client: RawClient, wanted: dict[str, str]) -> dict[str, str]:
    """Read until these topics have had these values at one time; return what all topics had then."""
    found: dict[str, str] = {}
    while any(found.get(topic) != value for topic, value in wanted.items()):
        packet = client.read()
        assert isinstance(packet, Publish), packet
        found[packet.topic.decode().removeprefix(PREFIX)] = packet.payload.decode()
    return found


def test_the_counters_are_those_of_all_workers_on_each_of_them(tmp_path: Path) -> None:
    with Workers(tmp_path, SHOAL_MQTT__SYS_INTERVAL_S="1") as broker:
        clients = []
        for home in range(3):
            for name in broker.names(home, 3):
                clients.append(RawClient(broker.port))
                clients[-1].connect(name, keep=True)
                clients[-1].send(Subscribe(1, (subscription(f"to/{name}".encode(), 1),)))
                assert isinstance(clients[-1].read(), Suback)
        for client in clients:
            for _ in range(5):
                client.send(Publish(b"nowhere", b"12345", 1, packet_identifier=1))
                answer = client.read()
                assert isinstance(answer, Ack)
                assert answer.type == PacketType.PUBACK
        clients[0].send(Publish(b"kept", b"x", 1, True, packet_identifier=1))
        assert clients[0].read().type == PacketType.PUBACK
        clients.pop().socket.close()
        for home in range(3):
            with RawClient(broker.port) as watcher:
                watcher.connect(broker.names(home, 4)[-1])
                watcher.send(Subscribe(1, (subscription(b"$SYS/#", 0),)))
                assert isinstance(watcher.read(), Suback)
                values_at(
                    watcher,
                    {
                        "clients/connected": "9",
                        "clients/total": "10",
                        "clients/disconnected": "1",
                        "subscriptions/count": "10",
                        "publish/messages/received": "46",
                        "retained messages/count": "1",
                        "shoal/packets/received/publish": "46",
                        "shoal/messages/received/qos1": "46",
                    },
                )
        for client in clients:
            client.socket.close()
