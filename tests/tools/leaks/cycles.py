"""Cycles: something happens and is over, and nothing of it should be left. Each one over a hub without sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio.testing

from broker.wire.packets import Ack, Auth, Connect, Publish, Subscribe, Unsubscribe, Will, encode, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason
from tests.support.conversation import MemoryBroker

ROUTES_SWEPT_MAX = 1_000_000
NEVER_S = 0xFFFFFFFF


class Talk:
    """A hub and its clients, for one cycle after another.

    Args:
        version: of all clients.
    """

    def __init__(self, broker: MemoryBroker, version: int) -> None:
        self.broker = broker
        self.version = version
        self.connections: list[Any] = []

    def client(
        self,
        name: str,
        *packets: Any,
        clean: bool = True,
        expiry_s: int = 0,
        will: Will | None = None,
        **properties: Any,
    ) -> Any:
        """Connect a client; it sends these packets right behind its CONNECT."""
        if self.version == 5 and expiry_s:
            properties["session_expiry_interval"] = expiry_s
        connection = self.broker.hub.connect()
        self.connections.append(connection)
        found = properties if self.version == 5 else {}
        hello = Connect(self.version, name.encode(), clean, 60, will, None, None, found)
        connection.feed_bytes(encode(hello, self.version) + self.encoded(packets))
        self.turn()
        return connection

    def encoded(self, packets: tuple[Any, ...]) -> bytes:
        """Return packets as bytes; bytes stay as they are."""
        return b"".join(each if isinstance(each, bytes) else encode(each, self.version) for each in packets)

    def send(self, connection: Any, *packets: Any) -> None:
        """Send packets on a connection."""
        if not connection.is_closing:
            connection.feed_bytes(self.encoded(packets))
        self.turn()

    def turn(self, ms: int = 0) -> None:
        """Let time pass, and everything happen; what was sent is read."""
        broker = self.broker
        broker.now_ms += ms
        for _ in range(2):
            broker.hub.run_turn(broker.now_ms)
            if broker.log is not None:
                broker.log.sync()
        broker.hub.run_turn(broker.now_ms)
        for connection in self.connections:
            connection.take_output()

    async def wait(self) -> None:
        """Let tasks go on, and then everything happen."""
        await trio.testing.wait_all_tasks_blocked()
        self.turn()

    def cut(self, *connections: Any) -> None:
        """Connections break."""
        for connection in connections:
            connection.close(CloseReason.CONNECTION_LOST)
        self.turn()

    def over(self) -> None:
        """End of the cycle: who is still there breaks; routes are swept, as the worker does from time to time."""
        self.cut(*self.connections)
        self.connections.clear()
        for _ in range(2):
            self.broker.router.tree.sweep_routes(ROUTES_SWEPT_MAX)
        if self.broker.log is not None:
            del self.broker.log.records[:-1]  # the newest one's number is needed


def sub(*topic_filters: bytes, qos: int = 2, number: int = 1) -> Subscribe:
    """Return a SUBSCRIBE."""
    return Subscribe(number, tuple(subscription(topic_filter, qos) for topic_filter in topic_filters))


def pub(
    topic: bytes, qos: int, number: int = 0, retain: bool = False, payload: bytes = b"x" * 100, **properties: Any
) -> Publish:
    """Return a PUBLISH."""
    return Publish(topic, payload, qos, retain, False, number if qos else 0, properties)


async def come_and_go(talk: Talk) -> None:
    """CONNECT, DISCONNECT."""
    talk.client("c", b"\xe0\0")


async def refused(talk: Talk) -> None:
    """CONNECTs that are not accepted."""
    talk.client("banned")
    talk.client("moved")
    talk.client("c", b"\x10\x06\0\x04MQTT")


async def other_protocols(talk: Talk) -> None:
    """TLS, HTTP, something else, half a packet, nothing."""
    for data in (b"\x16\x03\x01\0\xc8\x01", b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0\r\n", b"\x10\xff\xff\x03", b""):
        connection = talk.broker.hub.connect()
        talk.connections.append(connection)
        talk.send(connection, data)


async def malformed(talk: Talk) -> None:
    """Packets that end their connection, behind some that are kept."""
    for data in (b"\x36\x05\0\x01a\0\x01", b"\xff\xff\xff\xff\xff", b"\x82\x02\0\x01", b"\x20\x02\0\0"):
        talk.client("c", sub(b"m/#"), pub(b"m/1", 2, 1), data)


async def half_a_packet(talk: Talk) -> None:
    """A large PUBLISH, of which half comes."""
    talk.client("c", encode(pub(b"a", 1, 1, payload=b"x" * 30_000), talk.version)[:20_000])


async def subscribe(talk: Talk) -> None:
    """Subscriptions of every kind that are taken back, replaced, or end with their client."""
    client = talk.client("c", sub(b"a/b", b"a/+", b"#", b"$share/g/a/#", b"$SYS/#"))
    talk.send(client, sub(b"a/b", b"a/+", qos=1, number=2))
    talk.send(client, Unsubscribe(3, (b"a/b", b"a/+", b"$share/g/a/#", b"not/there")))


async def publish(talk: Talk) -> None:
    """Every QoS to itself and to another one, all acknowledged."""
    reader = talk.client("reader", sub(b"p/#"))
    writer = talk.client("writer", sub(b"p/+"))
    talk.send(writer, pub(b"p/0", 0), pub(b"p/1", 1, 1), pub(b"p/2", 2, 2), Ack(PacketType.PUBREL, 2))
    for client in (reader, writer):
        talk.send(client, Ack(PacketType.PUBACK, 1), Ack(PacketType.PUBREC, 2), Ack(PacketType.PUBCOMP, 2))


async def publish_and_leave(talk: Talk) -> None:
    """QoS 1 and 2 in both directions, nothing acknowledged, and everybody breaks."""
    talk.client("reader", sub(b"p/#"))
    talk.client("writer", pub(b"p/1", 1, 1), pub(b"p/2", 2, 2))


async def new_topics(talk: Talk) -> None:
    """Topic names that nobody used before and nobody will use again."""
    number = talk.broker.now_ms
    topic = f"new/{number}".encode()
    talk.client("c", sub(topic), pub(topic, 0), pub(b"other/" + topic, 0))
    talk.turn(1)


async def properties(talk: Talk) -> None:
    """Properties of every kind, aliases in both directions, identifiers of subscriptions."""
    client = talk.client(
        "c", Subscribe(1, (subscription(b"q/#", 1),), {"subscription_identifier": 7}), topic_alias_maximum=10
    )
    talk.send(
        client,
        pub(
            b"q/1",
            0,
            topic_alias=1,
            user_property=[("a", "b")],
            content_type="text",
            message_expiry_interval=10,
            correlation_data=b"x",
            response_topic="r",
        ),
        pub(b"" if talk.version == 5 else b"q/1", 0, topic_alias=1),
    )


async def retained(talk: Talk) -> None:
    """A retained message is set, replaced, sent to a subscriber, and removed."""
    topic = b"r/a/b/c"
    client = talk.client("c", pub(topic, 1, 1, True), pub(topic, 0, 0, True, b"y" * 3000), sub(b"r/#"))
    talk.send(client, pub(topic, 1, 2, True, b""))


async def wills(talk: Talk) -> None:
    """Wills: published, dropped, delayed and cancelled, not allowed."""
    reader = talk.client("reader", sub(b"w/#", qos=1))
    talk.cut(talk.client("c", will=Will(b"w/1", b"gone", 1)))
    talk.client("c", b"\xe0\0", will=Will(b"w/1", b"gone", 1))
    delayed = Will(b"w/1", b"gone", 1, False, {}, 20 if talk.version == 5 else 0)
    talk.cut(talk.client("c", expiry_s=100, clean=False, will=delayed))
    talk.client("c", b"\xe0\0", clean=False)
    talk.cut(talk.client("c", will=Will(b"secret/w", b"gone")))
    talk.client("c", b"\xe0\0")
    talk.send(reader, Ack(PacketType.PUBACK, 1))


async def durable_session(talk: Talk) -> None:
    """A session that is left, has messages queued, is resumed, left again, and ended by a clean start."""
    talk.client("durable", sub(b"d/#"), b"\xe0\0", clean=False, expiry_s=NEVER_S)
    writer = talk.client("writer")
    for number in range(1, 6):
        talk.send(writer, pub(b"d/1", 1 + number % 2, number))
    back = talk.client("durable", clean=False, expiry_s=NEVER_S)
    talk.send(back, Ack(PacketType.PUBREC, 1), Ack(PacketType.PUBACK, 2))
    talk.cut(back)
    talk.client("durable", b"\xe0\0")


async def long_intervals(talk: Talk) -> None:
    """A session that is to be kept for years, with a will as late, is left and resumed, and ended by a clean start."""
    years_s = 100_000_000
    will = Will(b"w/1", b"gone", 1, False, {}, years_s if talk.version == 5 else 0)
    for _ in range(3):
        talk.cut(talk.client("kept", clean=False, expiry_s=years_s, will=will))
    talk.client("kept", b"\xe0\0")


async def expired_session(talk: Talk) -> None:
    """A session that expires with messages queued; before 5.0 none does, and it is ended by a clean start."""
    talk.client("expires", sub(b"d/#", b"$share/g/d/#"), b"\xe0\0", clean=False, expiry_s=5)
    talk.client("writer", pub(b"d/1", 1, 1), pub(b"d/2", 2, 2), b"\xe0\0")
    talk.turn(5500)
    if talk.version < 5:
        talk.client("expires", b"\xe0\0")


async def takeover(talk: Talk) -> None:
    """A client identifier comes again while it is there, with messages under way."""
    first = talk.client("again", sub(b"t/#"), pub(b"t/1", 1, 1), pub(b"t/2", 2, 2), clean=False, expiry_s=100)
    second = talk.client("again", clean=False, expiry_s=100)
    talk.client("again")
    assert first.is_closing
    assert second.is_closing


async def shared(talk: Talk) -> None:
    """A shared subscription whose members leave with messages unacknowledged, which go to the next one."""
    one = talk.client("one", sub(b"$share/g/s/#"))
    talk.client("two", sub(b"$share/g/s/#"))
    writer = talk.client("writer")
    for number in range(1, 9):
        talk.send(writer, pub(b"s/1", 1 + number % 2, number))
    talk.cut(one)


async def slow_reader(talk: Talk) -> None:
    """A client over its output limit: QoS 0 is dropped, QoS 1 waits; it leaves without having read."""
    reader = talk.client("reader", sub(b"s/#", qos=1))
    writer = talk.client("writer")
    talk.connections.remove(reader)
    for number in range(1, 40):
        talk.send(writer, pub(b"s/0", 0, payload=b"x" * 50_000), pub(b"s/1", 1, number, payload=b"x" * 50_000))
    talk.connections.append(reader)


async def silence(talk: Talk) -> None:
    """Clients that say nothing: before CONNECT, after it, in the middle of a packet."""
    talk.connections.append(talk.broker.hub.connect())
    talk.client("c")
    talk.client("d", b"\x30\x20\0\x01")
    talk.turn(120_000)


async def authentication(talk: Talk) -> None:
    """Enhanced authentication: one that succeeds and is renewed, one that is left in the middle."""
    if talk.version != 5:
        talk.client("c", b"\xe0\0")
        return
    method = {"authentication_method": "toy"}
    client = talk.client("c", **method)
    await talk.wait()
    talk.send(client, Auth(Reason.CONTINUE_AUTHENTICATION, {**method, "authentication_data": b"cba"}))
    await talk.wait()
    assert client.is_open
    talk.send(client, Auth(Reason.RE_AUTHENTICATE, method))
    await talk.wait()
    other = talk.client("d", **method)
    await talk.wait()
    talk.cut(client, other)
    await talk.wait()


CYCLES: tuple[Callable[[Talk], Awaitable[None]], ...] = (
    come_and_go,
    refused,
    other_protocols,
    malformed,
    half_a_packet,
    subscribe,
    publish,
    publish_and_leave,
    new_topics,
    properties,
    retained,
    wills,
    durable_session,
    long_intervals,
    expired_session,
    takeover,
    shared,
    slow_reader,
    silence,
    authentication,
)
