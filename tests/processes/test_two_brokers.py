"""Two brokers on one machine, linked as between machines: links, interest, custody, and who is let in."""

from __future__ import annotations

import itertools
import queue
import selectors
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
import pytest
import zmq
from paho.mqtt.enums import CallbackAPIVersion
from zmq.utils.monitor import recv_monitor_message

from broker.wire.packet_types import Will
from broker.wire.packets import (
    Ack,
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from tests.support.client_session import ClientSession
from tests.support.linked_brokers import LinkedBroker, LinkedBrokers
from tests.support.raw_client import TIMEOUT_S, RawClient, wait_until

RETAIN_AS_PUBLISHED = 0x08
names = (f"client-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedBrokers]:
    with LinkedBrokers(tmp_path_factory.mktemp("brokers")) as linked:
        yield linked


@pytest.fixture(params=["there", "back"])
def ends(request: pytest.FixtureRequest, brokers: LinkedBrokers) -> tuple[LinkedBroker, LinkedBroker]:
    """Where is published, and where is subscribed."""
    return (brokers.one, brokers.other) if request.param == "there" else (brokers.other, brokers.one)


class Paho:
    """A client of Eclipse Paho with a thread of its own; what comes lies in `got` as (QoS, payload)."""

    def __init__(self, broker: LinkedBroker, version: int = paho.MQTTv5) -> None:
        self.got: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._happened: queue.Queue[str] = queue.Queue()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=next(names), protocol=version)
        self.client.on_connect = lambda *_: self._happened.put("connected")
        self.client.on_subscribe = lambda *_: self._happened.put("subscribed")
        self.client.on_message = lambda _client, _data, message: self.got.put((message.qos, message.payload))
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()

    def __enter__(self) -> Self:
        assert self._happened.get(timeout=TIMEOUT_S) == "connected"
        return self

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        assert self._happened.get(timeout=TIMEOUT_S) == "subscribed"

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        self.client.publish(topic, payload, qos).wait_for_publish(TIMEOUT_S)

    def take(self, count: int) -> list[tuple[int, bytes]]:
        return [self.got.get(timeout=TIMEOUT_S) for _ in range(count)]

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def subscribed(broker: LinkedBroker, topic_filter: bytes, options: int, *, keep: bool = False) -> RawClient:
    """Return a client that has subscribed."""
    client = RawClient(broker.port)
    client.connect(next(names), keep=keep)
    client.send(Subscribe(1, (subscription(topic_filter, options),)))
    assert isinstance(client.read(), Suback)
    return client


def connected(broker: LinkedBroker) -> RawClient:
    client = RawClient(broker.port)
    client.connect(next(names))
    return client


def published(client: RawClient, message: Publish) -> None:
    """Publish at QoS 1, and wait until the broker has acknowledged it."""
    client.send(message)
    assert client.read() == Ack(PacketType.PUBACK, message.packet_identifier)


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_messages_of_every_qos_cross_in_order(ends: tuple[LinkedBroker, LinkedBroker], version: int) -> None:
    here, there = ends
    with Paho(there, version) as subscriber, Paho(here, version) as publisher:
        subscriber.subscribe(f"every/{version}/+", 2)
        for number in range(60):
            publisher.publish(f"every/{version}/{number % 3}", b"%d" % number, number % 3)
        got = subscriber.take(60)
        for qos in range(3):
            assert [payload for level, payload in got if level == qos] == [b"%d" % n for n in range(qos, 60, 3)]


def test_a_suback_waits_until_the_other_broker_knows_what_is_wanted(brokers: LinkedBrokers) -> None:
    one, other = brokers.one, brokers.other
    with connected(other) as publisher, connected(one) as subscriber:
        other.send_signal(signal.SIGSTOP)
        try:
            subscriber.send(Subscribe(1, (subscription(b"wait/+", 1),)))
            for _ in range(2):  # turns that come after the one with the SUBSCRIBE
                with connected(one) as bystander:
                    bystander.send(Pingreq())
                    assert isinstance(bystander.read(), Pingresp)
            subscriber.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                subscriber.socket.recv(1)
            subscriber.socket.settimeout(TIMEOUT_S)
        finally:
            other.send_signal(signal.SIGCONT)
        assert isinstance(subscriber.read(), Suback)
        published(publisher, Publish(b"wait/1", b"x", 1, packet_identifier=1))
        packet = subscriber.read()
        assert isinstance(packet, Publish)
        assert packet.payload == b"x"


def test_what_is_wanted_no_more_is_not_forwarded_any_more(tmp_path: Path) -> None:
    with (
        LinkedBrokers(tmp_path) as brokers,
        connected(brokers.other) as publisher,
        subscribed(brokers.one, b"no/more", 1) as subscriber,
    ):
        other = brokers.other
        assert other.link["filters"] == 2  # one is for what the workers keep for one another
        published(publisher, Publish(b"no/more", b"wanted", 1, packet_identifier=1))
        packet = subscriber.read()
        assert isinstance(packet, Publish)
        subscriber.send(Ack(PacketType.PUBACK, packet.packet_identifier), Unsubscribe(2, (b"no/more",)))
        assert isinstance(subscriber.read(), Unsuback)
        wait_until(lambda: other.link["filters"] == 1, "the other broker still believes that it is wanted")
        forwarded = other.link["messages_out"]
        publisher.send(Publish(b"no/more", b"unwanted", 1, packet_identifier=2))
        assert publisher.read() == Ack(PacketType.PUBACK, 2, Reason.NO_MATCHING_SUBSCRIBERS)
        assert other.link["messages_out"] == forwarded


def test_a_shared_group_with_members_on_both_gets_each_message_once(ends: tuple[LinkedBroker, LinkedBroker]) -> None:
    here, there = ends
    with Paho(here) as near, Paho(there) as far, Paho(here) as publisher:
        far.got = near.got = both = queue.Queue()
        took: Counter[str] = Counter()

        def on_message(client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
            took["near" if client is near.client else "far"] += 1
            both.put((message.qos, message.payload))

        near.client.on_message = far.client.on_message = on_message
        for member in (near, far):
            member.subscribe("$share/group/shared/#", 2)
        for number in range(40):
            publisher.publish("shared/topic", b"%d" % number, number % 3)
        assert sorted(near.take(40)) == sorted((number % 3, b"%d" % number) for number in range(40))
        assert both.empty()
        assert set(took) == {"near", "far"}


def test_retain_expiry_and_identifiers_cross_as_a_subscriber_asks_for_them(
    ends: tuple[LinkedBroker, LinkedBroker],
) -> None:
    here, there = ends
    topic = next(names).encode()  # another one each time, since it stays retained
    with (
        connected(here) as publisher,
        subscribed(there, topic, 1) as plain,
        subscribed(there, topic, 1 | RETAIN_AS_PUBLISHED) as asking,
    ):
        published(
            publisher,
            Publish(
                topic,
                b"kept",
                1,
                True,
                packet_identifier=1,
                properties={
                    "message_expiry_interval": 1000,
                    "user_property": [("a", "b")],
                    "correlation_data": b"\0\1",
                },
            ),
        )
        for client, retain in ((plain, False), (asking, True)):
            packet = client.read()
            assert isinstance(packet, Publish)
            assert (packet.payload, packet.qos, packet.retain) == (b"kept", 1, retain)
            assert 0 < packet.properties["message_expiry_interval"] <= 1000
            assert packet.properties["user_property"] == [("a", "b")]
            assert packet.properties["correlation_data"] == b"\0\1"


def test_a_will_crosses(ends: tuple[LinkedBroker, LinkedBroker]) -> None:
    here, there = ends
    with subscribed(there, b"will/+", 2) as watcher, RawClient(here.port) as client:
        client.socket.sendall(encode(Connect(5, next(names).encode(), True, 0, Will(b"will/x", b"gone", 1)), 5))
        assert isinstance(client.read(), Connack)
        client.socket.close()
        packet = watcher.read()
        assert isinstance(packet, Publish)
        assert (packet.topic, packet.payload, packet.qos) == (b"will/x", b"gone", 1)


class Driven:
    """A client session with a connection that may break, and what came in it: (topic, payload)."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, bytes]] = []
        self.acknowledged: list[bytes] = []
        self.session = ClientSession(
            next(names),
            5,
            on_message=lambda topic, payload, *_: self.got.append((topic, payload)),
            on_acknowledged=self.acknowledged.append,
        )
        self._socket: socket.socket | None = None

    def connect(self, broker: LinkedBroker) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S)
        self.session.start()
        self.until(lambda: self.session.connected)

    def until(self, condition: Any) -> None:
        """Exchange bytes until something holds, or the connection breaks."""
        assert self._socket is not None
        deadline_s = time.monotonic() + 2 * TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not condition():
                assert time.monotonic() < deadline_s, (len(self.got), len(self.acknowledged))
                try:
                    if self.session.output:
                        self._socket.sendall(bytes(self.session.output))
                        self.session.output.clear()
                    # A little at a time, so that a condition is looked at although more comes and comes.
                    data = self._socket.recv(4096) if selector.select(0.05) else None
                except ConnectionError:
                    data = b""
                if data == b"":
                    self.close()
                    return
                if data:
                    self.session.feed(data)

    def close(self) -> None:
        assert self._socket is not None
        self._socket.close()


@pytest.mark.parametrize("here", ["one", "other"])
def test_what_is_accepted_for_a_broker_that_is_killed_comes_when_it_is_back_in_order(tmp_path: Path, here: str) -> None:
    # Proves: [MQTT-4.6.0-5]
    count = 600
    with LinkedBrokers(tmp_path, silence_s=1.0) as brokers:
        alive, killed = (brokers.one, brokers.other) if here == "one" else (brokers.other, brokers.one)
        publisher, subscriber = Driven(), Driven()
        subscriber.connect(killed)
        subscriber.session.subscribe("kept/#", 2)
        subscriber.until(lambda: subscriber.session.subscribed)
        reading = threading.Thread(target=subscriber.until, args=(lambda: False,))
        reading.start()
        publisher.connect(alive)
        for number in range(count):
            payload = b"%d" % number
            publisher.session.publish(b"kept/%d" % (number % 2), payload, 1 + number % 2, tag=payload)
            publisher.until(lambda number=number: len(publisher.acknowledged) >= number - 20)
            if number == count // 3:
                killed.kill()  # while some is on its way, and some is not acknowledged
        publisher.until(lambda: len(publisher.acknowledged) == count)
        reading.join()
        assert len(subscriber.got) < count
        killed.begin(alive)
        killed.wait()
        subscriber.connect(killed)
        assert subscriber.session.session_present
        subscriber.until(lambda: len({payload for _, payload in subscriber.got}) == count)
        for topic, qos in ((b"kept/0", 1), (b"kept/1", 2)):
            got = [int(payload) for at, payload in subscriber.got if at == topic]
            first = list(dict.fromkeys(got))
            assert first == list(range(qos - 1, count, 2)), f"QoS {qos}"
            assert qos == 1 or got == first, "QoS 2 came twice"
        for client in (publisher, subscriber):
            client.close()


def test_what_expires_while_a_broker_is_away_is_not_delivered(tmp_path: Path) -> None:
    with LinkedBrokers(tmp_path, silence_s=1.0) as brokers:
        here, away = brokers.one, brokers.other
        name = next(names)
        with RawClient(away.port) as subscriber:
            subscriber.connect(name, keep=True)
            subscriber.send(Subscribe(1, (subscription(b"late", 1),)))
            assert isinstance(subscriber.read(), Suback)
        away.kill()
        with connected(here) as publisher:
            published(
                publisher, Publish(b"late", b"short", 1, packet_identifier=1, properties={"message_expiry_interval": 1})
            )
            expired_s = time.monotonic() + 1.0
            published(publisher, Publish(b"late", b"long", 1, packet_identifier=2))
            wait_until(lambda: time.monotonic() > expired_s, "time stands still")
            away.begin(here)
            away.wait()
            with RawClient(away.port) as subscriber:
                assert subscriber.connect(name, keep=True).session_present
                packet = subscriber.read()
                assert isinstance(packet, Publish)
                assert packet.payload == b"long"


def test_whose_key_is_not_known_is_not_let_in_and_disturbs_nobody(brokers: LinkedBrokers) -> None:
    one, other = brokers.one, brokers.other
    before = {broker: broker.link for broker in (one, other)}
    host, _, port = one.endpoint.removeprefix("tcp://").rpartition(":")
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger, context.socket(zmq.DEALER) as open_one:
        for intruder in (stranger, open_one):
            intruder.linger = 0
            intruder.routing_id = other.name + b"/99"  # it says that it is the other broker, begun anew
        stranger.curve_publickey, stranger.curve_secretkey, stranger.curve_serverkey = public, secret, one.keys[0]
        with open_one.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL) as monitor:
            for intruder in (stranger, open_one):
                intruder.connect(one.endpoint)
                for _ in range(100):
                    intruder.send(b"\x95\x01\x01\x00\x00\x00" + bytes(60), zmq.DONTWAIT)
            assert monitor.poll(TIMEOUT_S * 1000), "who has no key at all is let in"
            recv_monitor_message(monitor)
            open_one.disable_monitor()
        wait_until(lambda: one.link["refused"] > before[one]["refused"], "nobody is refused")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(2000))
            try:
                while raw.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        for here, there in ((one, other), (other, one)):
            with subscribed(there, b"still", 1) as subscriber, connected(here) as publisher:
                published(publisher, Publish(b"still", b"here", 1, packet_identifier=1))
                packet = subscriber.read()
                assert isinstance(packet, Publish)
                assert packet.payload == b"here"
    for broker in (one, other):
        for unchanged in ("state", "epoch", "peer_incarnation", "rewinds", "errors", "bad_frames", "impostors"):
            assert broker.link[unchanged] == before[broker][unchanged], unchanged
