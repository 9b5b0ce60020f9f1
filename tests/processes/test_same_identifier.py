"""Several clients that claim one client identifier at the same instant, over TCP, while a disk is synced."""

from pathlib import Path

import pytest

from broker.wire.packets import Connack, Connect, Disconnect, Publish, Subscribe, Will, encode, subscription
from broker.wire.reasons import Reason
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient

ROUNDS = 40
KEPT = {"session_expiry_interval": 600}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_last_of_those_who_come_at_once_has_the_session(tmp_path: Path, workers: int) -> None:
    with BrokerProcess(tmp_path, "--workers", str(workers)) as broker:
        for _ in range(ROUNDS):
            clients = [RawClient(broker.port) for _ in range(3)]
            for client, clean in zip(clients, (True, False, False), strict=True):
                client.socket.sendall(encode(Connect(5, b"same", clean), 5))
            for client in clients:
                answer = client.read()
                assert isinstance(answer, Connack)
                assert answer.reason == Reason.SUCCESS
            for client in clients:
                client.socket.close()
            with RawClient(broker.port) as last:
                last.connect("same", keep=True)
                last.send(Disconnect())
                assert last.read() is None
        assert broker.events("worker_ended") == []


def test_each_will_of_those_who_are_taken_over_is_published(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, RawClient(broker.port) as reader:
        reader.connect("reader")
        reader.send(Subscribe(1, (subscription(b"will", 0),)))
        reader.read()
        clients = [RawClient(broker.port) for _ in range(100)]
        for number, client in enumerate(clients):
            will = Will(b"will", b"%d" % number, 1, False)
            client.socket.sendall(encode(Connect(5, b"same", False, 0, will, None, None, KEPT), 5))
        for client in clients:
            assert isinstance(client.read(), Connack)
        published = [reader.read() for _ in range(99)]
        assert len({packet.payload for packet in published if isinstance(packet, Publish)}) == 99
        for client in clients:
            client.socket.close()
