"""A 5.0 client that sends its whole backlog when it comes back, more than the Receive Maximum, as paho-mqtt does."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.wire.packets import Ack, Disconnect, Publish, Subscribe, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient

RECEIVE_MAXIMUM = 4
BACKLOG = 60
SETTINGS = {"SHOAL_MQTT__RECEIVE_MAXIMUM": str(RECEIVE_MAXIMUM)}
WAITS = {**SETTINGS, "SHOAL_MQTT__RECEIVE_MAXIMUM_EXCEEDED": "wait"}


def backlog(qos: int, dup: bool) -> list[Publish]:
    """Return all messages of the client, each with its number."""
    return [Publish(b"t", b"%d" % number, qos, False, dup, number) for number in range(1, BACKLOG + 1)]


def answers(client: RawClient, kind: PacketType, count: int) -> None:
    """Read so many acknowledgements, in the order of the messages [MQTT-4.6.0-2]."""
    for number in range(1, count + 1):
        packet = client.read()
        assert isinstance(packet, Ack), packet
        assert (packet.type, packet.packet_identifier) == (kind, number)
        assert packet.reason < 0x80


@pytest.mark.parametrize("qos", [1, 2])
def test_a_backlog_of_more_than_receive_maximum_is_taken_after_a_kill(tmp_path: Path, qos: int) -> None:
    broker = BrokerProcess(tmp_path, environment=WAITS)
    first_answer = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    with broker:
        with RawClient(broker.port) as reader:
            reader.connect("reader", keep=True)
            reader.send(Subscribe(1, (subscription(b"t", qos),)))
            reader.read()
        with RawClient(broker.port) as client:
            assert client.connect("client", keep=True).properties["receive_maximum"] == RECEIVE_MAXIMUM
            client.send(*backlog(qos, False))
            answers(client, first_answer, BACKLOG // 2)
            broker.kill()
    with broker:
        with RawClient(broker.port) as client:
            assert client.connect("client", keep=True).session_present
            client.send(*backlog(qos, True))
            answers(client, first_answer, BACKLOG)
            if qos == 2:
                client.send(*(Ack(PacketType.PUBREL, number) for number in range(1, BACKLOG + 1)))
                answers(client, PacketType.PUBCOMP, BACKLOG)
        with RawClient(broker.port) as reader:
            assert reader.connect("reader", keep=True).session_present
            received: list[bytes] = []
            while received[-1:] != [b"%d" % BACKLOG]:
                packet = reader.read()
                if isinstance(packet, Publish):
                    received.append(packet.payload)
                    reader.send(Ack(first_answer, packet.packet_identifier))
                elif isinstance(packet, Ack):
                    reader.send(Ack(PacketType.PUBCOMP, packet.packet_identifier))
    everything = [packet.payload for packet in backlog(qos, False)]
    if qos == 2:
        assert received == everything
    else:
        assert sorted(set(received), key=int) == everything


def test_unless_it_is_set_such_a_client_is_disconnected(tmp_path: Path) -> None:
    # Proves: [MQTT-3.3.4-7]
    with BrokerProcess(tmp_path, environment=SETTINGS) as broker, RawClient(broker.port) as client:
        client.connect("client", keep=True)
        client.send(*backlog(2, False))
        while not isinstance(packet := client.read(), Disconnect):
            assert packet is not None
        assert packet.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED
