"""CONNECTs and seams on which only a check stands between a client and the worker's end."""

from typing import Any

import pytest
import trio

from broker.auth.principal import Principal
from broker.config.loader import Config, Limits, Mqtt
from broker.wire.packets import Connect, Publish, Subscribe, Will, decode, encode, next_frame, subscription
from broker.wire.reasons import CloseReason, Reason
from tests.support.conversation import MemoryBroker
from tests.support.doubles import QuickAuthenticator

WILL = Will(b"w/t", b"gone", 1, True)


def said(connection: Any, version: int) -> list[Any]:
    """Take the packets that a client has been sent."""
    buffer = bytearray(connection.take_output())
    packets = []
    while (frame := next_frame(buffer)) is not None:
        packets.append(decode(*frame, version))
    assert not buffer
    return packets


class Broker(MemoryBroker):
    """A broker without sockets, whose ACL the test chooses."""

    def __init__(self, nursery: trio.Nursery, config: Config | None = None, acl: Any = None) -> None:
        super().__init__(config or Config(), nursery, None, None, QuickAuthenticator(), acl)

    def talk(self, connection: Any, data: bytes) -> None:
        """Hand bytes over and let a turn pass."""
        connection.feed_bytes(data)
        self.hub.run_turn(self.now_ms)


def connects(version: int) -> bytes:
    """Return the body of a CONNECT with everything in it."""
    properties = {"receive_maximum": 10, "user_property": [("a", "b")]} if version == 5 else {}
    frame = encode(Connect(version, b"name", True, 60, WILL, "user", b"pw", properties), version)
    return frame[2:]


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_connect_that_ends_anywhere_is_refused_and_hurts_nobody(version: int) -> None:
    # Proves: [MQTT-3.1.4-1]
    async with trio.open_nursery() as nursery:
        broker = Broker(nursery)
        body = connects(version)
        for length in range(len(body)):
            connection = broker.hub.connect()
            broker.talk(connection, bytes((0x10, length)) + body[:length])
            assert connection.close_reason in (CloseReason.MALFORMED_PACKET, CloseReason.UNSUPPORTED_PROTOCOL_VERSION)
        assert broker.controller.ends["internal_error"] == 0


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_connect_with_any_byte_changed_is_accepted_or_refused_and_hurts_nobody(version: int) -> None:
    async with trio.open_nursery() as nursery:
        broker = Broker(nursery)
        body = connects(version)
        for position in range(len(body)):
            for value in (0, 1, 0x7F, 0x80, 0xFF, body[position] ^ 1, body[position] ^ 0x80):
                connection = broker.hub.connect()
                changed = body[:position] + bytes((value,)) + body[position + 1 :]
                broker.talk(connection, bytes((0x10, len(body))) + changed)
                assert connection.is_open or connection.is_closing, (position, value)
        assert broker.controller.ends["internal_error"] == 0


async def test_response_information_too_long_with_the_clients_identifier_in_it_is_left_out() -> None:
    async with trio.open_nursery() as nursery:
        broker = Broker(
            nursery,
            Config(
                mqtt=Mqtt(response_information="answers/{client_identifier}"), limits=Limits(connect_bytes_max=100_000)
            ),
        )
        for length, there in ((65_000, True), (65_500, True), (65_535, False)):
            connection = broker.hub.connect()
            connect = Connect(5, b"x" * length, properties={"request_response_information": 1})
            broker.talk(connection, encode(connect, 5))
            (connack,) = said(connection, 5)
            assert ("response_information" in connack.properties) == there


class NoAcl:
    """Fails whatever it is asked."""

    def may_publish(self, principal: Principal, topic_name: bytes, qos: int, retain: bool) -> bool:
        """Fail."""
        raise ValueError("broken")

    def may_subscribe(self, principal: Principal, topic_filter: bytes, qos: int) -> bool:
        """Fail."""
        raise ValueError("broken")


async def test_an_acl_that_fails_says_no_and_hurts_nobody() -> None:
    async with trio.open_nursery() as nursery:
        broker = Broker(nursery, acl=NoAcl())
        connection = broker.hub.connect()
        broker.talk(
            connection,
            encode(Connect(5, b"one", will=WILL), 5)
            + encode(Subscribe(1, (subscription(b"t"),)), 5)
            + encode(Publish(b"t", b"x", 1, False, False, 1), 5),
        )
        connack, suback, puback = said(connection, 5)
        assert connack.reason == Reason.SUCCESS
        assert suback.reasons == (Reason.NOT_AUTHORIZED,)
        assert puback.reason == Reason.NOT_AUTHORIZED
        assert connection.is_open
        connection.close(CloseReason.CONNECTION_LOST)
        broker.hub.run_turn(broker.now_ms)
        assert broker.controller.ends == {"connection_lost": 1}  # and the will was not published
