"""Our Receive Maximum towards a publisher while records are not yet durable."""

from typing import Any, Literal

import pytest

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config, Mqtt
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Ack, Connect, Disconnect, Publish, decode, encode, next_frame
from broker.wire.reasons import Reason
from broker.worker.terms import terms
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.doubles import FakeLog

RECEIVE_MAXIMUM = 4
NOW_MS = 1_000_000


class Publisher:
    """One durable 5.0 client of a broker whose log syncs when the test says so."""

    def __init__(self, exceeded: Literal["disconnect", "wait"] = "disconnect") -> None:
        self.log = FakeLog()
        self.router = Router(Ledger())
        config = Config(mqtt=Mqtt(receive_maximum=RECEIVE_MAXIMUM, receive_maximum_exceeded=exceeded))
        controller = Controller(config, self.router, Anonymous(), AllowAll())
        self.hub = Hub(self.router, controller, Pump(self.router, self.log), now_ms=NOW_MS, **terms(config))
        self.connection: Any = None

    def connect(self) -> None:
        """Connect and wait for CONNACK."""
        self.connection = self.hub.connect()
        self.connection.feed_bytes(encode(Connect(5, b"c", False, properties={"session_expiry_interval": 100}), 5))
        self.turn()
        self.log.sync()
        self.turn()
        self.connection.take_output()
        assert self.connection.is_open

    def publish(self, identifier: int, qos: int) -> None:
        """Publish a retained message, which always rests on a record."""
        self.connection.feed_bytes(encode(Publish(b"t", b"x", qos, True, False, identifier), 5))

    def turn(self) -> None:
        """One turn of the hub."""
        self.hub.run_turn(NOW_MS)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_whole_window_of_messages_may_wait_for_the_log(qos: int) -> None:
    # Proves: [MQTT-3.3.4-7]
    publisher = Publisher()
    publisher.connect()
    for identifier in range(1, RECEIVE_MAXIMUM + 1):
        publisher.publish(identifier, qos)
    publisher.turn()
    assert publisher.connection.is_open
    publisher.publish(RECEIVE_MAXIMUM + 1, qos)
    publisher.turn()
    frame = next_frame(bytearray(publisher.connection.take_output()))
    assert frame is not None
    packet = decode(*frame, 5)
    assert isinstance(packet, Disconnect)
    assert packet.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("qos", [1, 2])
def test_where_it_waits_no_more_is_taken_than_the_log_has_room_for(qos: int) -> None:
    publisher = Publisher("wait")
    publisher.connect()
    before = publisher.router.last_record
    for identifier in range(1, 3 * RECEIVE_MAXIMUM + 1):
        publisher.publish(identifier, qos)
    answered = bytearray()
    for taken in range(1, 4):
        publisher.turn()
        assert publisher.router.last_record == before + taken * RECEIVE_MAXIMUM
        publisher.log.sync()
        publisher.turn()
        answered += publisher.connection.take_output()
        assert publisher.connection.is_open
    identifiers = []
    while (frame := next_frame(answered)) is not None:
        packet = decode(*frame, 5)
        assert isinstance(packet, Ack)
        identifiers.append(packet.packet_identifier)
    assert identifiers == list(range(1, 3 * RECEIVE_MAXIMUM + 1))
