"""Client libraries that speak MQTT over WebSocket, in 3.1.1 and in 5.0, to one worker and to three."""

from __future__ import annotations

import itertools

import pytest

from tests.clients.conftest import found
from tests.clients.drivers.base import Message
from tests.support.process import BrokerProcess
from tests.support.relay import Relay

LIBRARIES = ("paho_driver", "aiomqtt_driver", "mqtt_js_driver")
LARGE = 900_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=[1, 3], ids=["one_worker", "three_workers"])
def broker(request, tmp_path_factory):
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"), "--workers", str(request.param), "--listen", "ws://127.0.0.1:0"
    ) as broker:
        yield broker


@pytest.fixture(params=LIBRARIES, ids=lambda module: module.removesuffix("_driver"))
def driver(request):
    return found(request.param)


@pytest.fixture
def new_client(broker, driver, version):
    """Make a connected client of the library under test; it is closed when the test ends."""
    clients = []
    number = next(_numbers)

    def make(name="client", port=None, over="ws", **arguments):
        client = driver(port or broker.ports[over], version, over)
        clients.append(client)
        client.session_present = client.connect(f"test{number}-{name}", **arguments)
        return client

    yield make
    for client in clients:
        client.close()


def test_messages_go_between_websocket_and_tcp(new_client):
    # Proves: [MQTT-6.0.0-1] [MQTT-6.0.0-4]
    web, plain = new_client("web"), new_client("plain", over="tcp")
    for receiver, sender in ((web, plain), (plain, web), (web, web)):
        receiver.subscribe("t/+", 2)
        for qos in (0, 1, 2):
            sender.publish(f"t/{qos}", f"grün {qos}".encode(), qos)
            message = receiver.receive()
            assert (message.topic, message.payload, message.qos) == (f"t/{qos}", f"grün {qos}".encode(), qos)
        receiver.unsubscribe("t/+")


def test_a_large_message_arrives_whole(new_client):
    # Proves: [MQTT-6.0.0-2]
    client = new_client()
    client.subscribe("large", 1)
    payload = bytes(range(48, 58)) * (LARGE // 10)
    client.publish("large", payload, 1)
    assert client.receive().payload == payload


def test_many_messages_arrive_once_and_in_order(new_client):
    client = new_client()
    client.subscribe("many", 1)
    expected = [str(number).encode() for number in range(300)]
    client.publish_all("many", expected, 1)
    assert [client.receive().payload for _ in expected] == expected


def test_a_lost_connection_publishes_the_will_and_an_orderly_end_does_not(new_client, broker):
    # Proves: [MQTT-3.1.2-8] [MQTT-3.14.4-3]
    observer = new_client("observer")
    observer.subscribe("will/#", 1)
    orderly = new_client("orderly", will=Message("will/orderly", b"gone", 1))
    orderly.disconnect()
    relay = Relay(broker.ports["ws"])
    new_client("mortal", port=relay.port, will=Message("will/mortal", b"gone", 1))
    relay.cut()
    assert observer.receive().topic == "will/mortal"


def test_a_session_is_found_again_over_another_transport(new_client):
    # Proves: [MQTT-3.1.2-5] [MQTT-4.5.0-1]
    sleeper = new_client("sleeper", durable=True)
    sleeper.subscribe("kept", 1)
    sleeper.disconnect()
    new_client("publisher").publish("kept", b"while it was away", 1)
    awake = new_client("sleeper", over="tcp", durable=True)
    assert awake.session_present or not awake.knows_session_present
    assert awake.receive().payload == b"while it was away"
