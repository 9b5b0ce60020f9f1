"""Clients that come under one client identifier while the CONNACK of another one waits for its record."""

from __future__ import annotations

from typing import Any

import pytest

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config, Limits
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    Will,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.reasons import CloseReason, Reason
from broker.worker.terms import ledger, terms
from router.router import Router
from tests.support.doubles import FakeLog

NOW_MS = 1_000_000


class LateBroker:
    """A broker in memory whose records become durable when the test says so."""

    def __init__(self, limits: Limits | None = None) -> None:
        config = Config(limits=limits or Limits())
        self.log = FakeLog()
        self.router = Router(ledger(config))
        self.controller = Controller(config, self.router, Anonymous(), AllowAll())
        self.hub = Hub(self.router, self.controller, Pump(self.router, self.log), now_ms=NOW_MS, **terms(config))
        self.now_ms = NOW_MS

    def connect(
        self,
        expiry_s: int = 0,
        clean: bool = False,
        will: Will | None = None,
        *,
        identifier: bytes = b"c",
        version: int = 5,
    ) -> LateClient:
        """A client comes; its CONNECT is dealt with, and what it waits for is not durable."""
        client = LateClient(self, version)
        properties = {"session_expiry_interval": expiry_s} if expiry_s else {}
        client.say(Connect(version, identifier, clean, 0, will, properties=properties))
        return client

    def turn(self) -> None:
        """A turn."""
        self.hub.run_turn(self.now_ms)

    def settle(self) -> None:
        """All that is recorded becomes durable, and what rests on it leaves."""
        for _ in range(3):
            self.turn()
            self.log.sync()
        self.turn()

    def watch(self, topic: bytes) -> LateClient:
        """Return a client that is sent what is published to a topic, at once."""
        client = self.connect(clean=True, identifier=b"watching")
        client.say(Subscribe(1, (subscription(topic, 0),)))
        client.hear()
        return client


class LateClient:
    """A connection to it."""

    def __init__(self, broker: LateBroker, version: int) -> None:
        self.broker, self.version = broker, version
        self.connection: Any = broker.hub.connect()
        self._buffer = bytearray()

    def say(self, packet: Packet) -> None:
        """Send a packet, which is dealt with in a turn."""
        self.connection.feed_bytes(encode(packet, self.version))
        self.broker.turn()

    def cut(self) -> None:
        """The connection breaks."""
        self.connection.close(CloseReason.CONNECTION_LOST)
        self.broker.turn()

    def hear(self) -> list[Packet]:
        """Return what came."""
        self._buffer += self.connection.take_output()
        packets = []
        while (frame := next_frame(self._buffer)) is not None:
            packets.append(decode(*frame, self.version))
        return packets

    def heard(self) -> list[Any]:
        """Return what came: of a CONNACK its Session Present, of a DISCONNECT its code, of a PUBLISH its payload."""
        return [
            packet.session_present
            if isinstance(packet, Connack)
            else int(packet.reason)
            if isinstance(packet, Disconnect)
            else packet.payload
            if isinstance(packet, Publish)
            else packet
            for packet in self.hear()
        ]


def keep_session(broker: LateBroker, expiry_s: int = 600) -> None:
    """Leave a session behind, all of it durable."""
    kept = broker.connect(expiry_s)
    broker.settle()
    assert kept.heard() == [False]
    kept.say(Disconnect())
    broker.settle()


def test_three_connects_of_one_client_identifier_leave_one_connection() -> None:
    # Proves: [MQTT-3.1.4-3]
    broker = LateBroker()
    keep_session(broker)
    first = broker.connect(clean=True)
    second = broker.connect()
    third = broker.connect(600)
    broker.settle()
    assert first.heard() == [False, Reason.SESSION_TAKEN_OVER]
    assert second.heard() == [False, Reason.SESSION_TAKEN_OVER]
    assert third.heard() == [False]
    assert [one.connection.is_open for one in (first, second, third)] == [False, False, True]
    for one in (first, second, third):
        one.cut()
    broker.settle()
    assert list(broker.router.sessions) == [b"c"]


def test_who_comes_while_the_end_of_the_session_is_not_durable_waits_for_it() -> None:
    """After a crash the session would be there again, and its client had been told that it is not."""
    broker = LateBroker()
    keep_session(broker)
    broker.connect(clean=True).cut()
    client = broker.connect()
    assert client.heard() == []
    broker.settle()
    assert client.heard() == [False]


def test_who_comes_while_the_disconnect_that_ended_the_session_is_not_durable_waits_for_it() -> None:
    broker = LateBroker()
    first = broker.connect(600)
    broker.settle()
    first.say(Disconnect(properties={"session_expiry_interval": 0}))
    assert broker.router.sessions == {}
    client = broker.connect()
    assert client.heard() == []
    broker.settle()
    assert client.heard() == [False]
    assert len(broker.router.ending) == 0


@pytest.mark.parametrize("expiry_s", [0, 600])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("delay_s", [0, 30])
def test_the_will_of_a_client_that_is_taken_over_before_its_connack(expiry_s: int, clean: bool, delay_s: int) -> None:
    # Proves: [MQTT-3.1.2-8] [MQTT-3.1.3-9] [MQTT-3.1.4-3]
    broker = LateBroker()
    watching = broker.watch(b"w")
    first = broker.connect(expiry_s, will=Will(b"w", b"first", 1, False, {}, delay_s))
    second = broker.connect(600, clean)
    session_goes_on = expiry_s and not clean
    published = [] if delay_s and session_goes_on else [b"first"]
    assert watching.heard() == published
    broker.settle()
    assert first.heard() == [False, Reason.SESSION_TAKEN_OVER]
    assert second.heard() == [bool(session_goes_on)]
    broker.now_ms += 60_000
    broker.settle()
    assert watching.heard() == []  # a delay ends with the new connection


@pytest.mark.parametrize("delay_s", [0, 30])
def test_the_will_of_a_client_that_is_lost_before_its_connack(delay_s: int) -> None:
    # Proves: [MQTT-3.1.2-8]
    broker = LateBroker()
    watching = broker.watch(b"w")
    broker.connect(600, will=Will(b"w", b"first", 1, False, {}, delay_s)).cut()
    assert watching.heard() == ([] if delay_s else [b"first"])
    broker.now_ms += 31_000
    broker.settle()
    assert watching.heard() == ([b"first"] if delay_s else [])
    assert broker.router.sessions[b"c"].will is None


def test_clients_that_wait_for_their_records_count_among_the_connections() -> None:
    broker = LateBroker(Limits(connections_max=2))
    waiting = [broker.connect(600, identifier=b"%d" % number) for number in range(4)]
    again = broker.connect(600, identifier=b"1")  # in the place of the other one
    broker.settle()
    assert [one.connection.is_open for one in (*waiting, again)] == [True, False, False, False, True]
    assert waiting[2].connection.close_reason == waiting[3].connection.close_reason == CloseReason.CONNECTIONS_MAX
    assert waiting[1].connection.close_reason == CloseReason.TAKEN_OVER


@pytest.mark.parametrize("with_session", [False, True])
def test_an_administrator_can_send_away_who_waits_for_a_record(with_session: bool) -> None:
    broker = LateBroker()
    client = broker.connect(600)
    assert broker.controller.send_away(broker.router.sessions[b"c"], with_session)
    broker.settle()
    assert client.connection.close_reason == CloseReason.KICKED
    (answer,) = client.hear()
    assert isinstance(answer, Connack)
    assert answer.reason == Reason.SERVER_UNAVAILABLE
    assert (b"c" in broker.router.sessions) != with_session


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("behind", "published"),
    [
        (encode(Disconnect(), 5), []),
        (encode(Publish(b"t", b"x"), 4) + b"\xe0\0", []),
        (b"", [b"gone"]),
        (b"\xe0", [b"gone"]),  # not whole
        (b"\x82\x01", [b"gone"]),  # nor is what comes before
        (b"\x30\xff\xff\xff\xff\x7f\xe0\0", [b"gone"]),  # malformed
    ],
    ids=["DISCONNECT", "PUBLISH and DISCONNECT", "nothing", "a beginning", "another beginning", "malformed"],
)
@pytest.mark.parametrize("ends", ["taken over", "kicked", "lost"])
def test_a_disconnect_behind_a_connect_that_waits_discards_the_will(
    ends: str, behind: bytes, published: list[bytes], version: int
) -> None:
    # Proves: [MQTT-3.14.4-3]
    broker = LateBroker()
    watching = broker.watch(b"w")
    keep_session(broker)
    client = broker.connect(600 if version == 5 else 0, version=version, will=Will(b"w", b"gone"))
    client.connection.feed_bytes(behind)
    broker.turn()
    if ends == "taken over":
        broker.connect(600)
    elif ends == "kicked":
        broker.controller.send_away(broker.router.sessions[b"c"], False)
    else:
        client.cut()
    broker.settle()
    assert watching.heard() == published


@pytest.mark.parametrize(
    ("reason", "published"), [(Reason.NORMAL_DISCONNECTION, []), (Reason.DISCONNECT_WITH_WILL_MESSAGE, [b"gone"])]
)
@pytest.mark.parametrize("waits", ["behind a SUBSCRIBE", "alone"])
def test_a_disconnect_that_waits_while_its_client_is_taken_over_decides_on_the_will(
    waits: str, reason: Reason, published: list[bytes]
) -> None:
    # Proves: [MQTT-3.14.4-3]
    broker = LateBroker()
    watching = broker.watch(b"w")
    client = broker.connect(600, will=Will(b"w", b"gone"))
    broker.settle()
    coming = LateClient(broker, 5)
    # Its CONNECT is dealt with first.
    coming.connection.feed_bytes(encode(Connect(5, b"c", False, 0, None), 5))
    if waits != "alone":
        client.connection.feed_bytes(encode(Subscribe(1, (subscription(b"t", 0),)), 5))
    client.connection.feed_bytes(encode(Disconnect(reason), 5))
    broker.settle()
    assert watching.heard() == published
    assert client.connection.close_reason == CloseReason.TAKEN_OVER
