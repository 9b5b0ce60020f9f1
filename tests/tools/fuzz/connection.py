"""The whole connection: several clients at one hub without sockets, each sending what it likes, and two witnesses.

An input is a script. Its first byte chooses the settings; then come steps of one byte (what to do and which client),
a length in two bytes, and that many bytes. Any bytes are a script.
"""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator

import trio
import trio.testing

from broker.config.loader import Config
from broker.config.loader import load as load_config
from broker.control.controller import OTHER_PROTOCOLS
from broker.wire.output_buffer import chunk_counts
from broker.wire.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    decode,
    encode,
    next_frame,
    subscription,
)
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError, CloseReason
from router.core.message import message
from tests.support.conversation import MemoryBroker
from tests.support.doubles import FakeLog, QuickAuthenticator, SlowAuthenticator
from tests.tools.fuzz import corpus
from tests.tools.fuzz.mutate import mutated, mutated_packet
from tests.tools.fuzz.target import Target

CLIENTS = 4
FEED, CUT, OPEN, WAIT = range(4)  # what a step does
WITNESS_TOPIC = b"witness/4f1c"
WITNESS_FILTER = subscription(WITNESS_TOPIC, 1)
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {
        "limits.connections_max": "4",
        "limits.connect_bytes_max": "256",
        "mqtt.max_packet_size_bytes": "1024",
        "mqtt.receive_maximum": "2",
        "mqtt.topic_alias_maximum": "2",
        "mqtt.topic_alias_maximum_out": "2",
        "mqtt.inflight_max": "2",
        "mqtt.queue_messages_max": "3",
        "mqtt.queue_bytes_max": "1024",
        "limits.subscriptions_per_client_max": "3",
        "limits.topic_levels_max": "4",
        "limits.topic_bytes_max": "64",
        "limits.retained_messages_max": "3",
        "limits.retained_bytes_max": "2000",
        "limits.pending_bytes_max": "1024",
        "limits.output_buffer_bytes_max": "4096",
        "limits.route_cache_max": "8",
        "limits.control_packet_bytes_max": "512",
        "limits.wildcard_levels_max": "2",
    },
    {
        "mqtt.maximum_qos": "1",
        "mqtt.retain_available": "false",
        "mqtt.wildcard_subscriptions_available": "false",
        "mqtt.subscription_identifiers_available": "false",
        "mqtt.shared_subscriptions_available": "false",
        "mqtt.empty_client_identifier": "false",
        "mqtt.keep_alive_max_s": "65535",
        "mqtt.session_expiry_interval_max_s": "20",
        "mqtt.response_information": "r/{client_identifier}",
    },
    {
        "mqtt.queue_qos0": "true",
        "mqtt.shared_subscription_strategy": "hash_topic",
        "limits.packet_timeout_s": "2",
        "limits.messages_per_second_max": "50",
        "mqtt.inflight_max": "1",
    },
)
CONFIGS: tuple[Config, ...] = tuple(
    load_config(None, {f"SHOAL_{key.upper().replace('.', '__')}": value for key, value in settings.items()}, {})
    for settings in SETTINGS
)
# In which configuration turns are short: work and bytes of a connection's share, control packets in a turn, and how
# many turns it takes until everything has happened.
SHORT_TURNS: dict[int, tuple[int, int, int, int]] = {1: (1, 20, 2, 48)}
# Each configuration alone; behind a log; and with an authenticator that waits.
KINDS = ("plain", "logged", "slow")

OTHER_DOLLAR = re.compile(rb"\$(?!SYS/|share/)")
SENT_BY_SERVER = (Connack, Publish, Ack, Suback, Unsuback, Pingresp, Disconnect, Auth)


def make(draw: random.Random) -> bytes:
    """Return a script: clients that connect and send packets, most of them valid."""
    script = bytearray((draw.randrange(len(CONFIGS) * len(KINDS)),))
    versions: dict[int, int] = {}
    before = b"\xc0\0"
    for _ in range(draw.randint(1, 14)):
        client = draw.randrange(CLIENTS)
        what = draw.random()
        if client not in versions or what < 0.08:
            version = versions[client] = draw.choice(corpus.VERSIONS)
            hello = corpus.connect(draw, version)
            if version == 5 and draw.random() < 0.05:
                hello = corpus.odd(draw, PacketType.CONNECT)
            elif draw.random() < 0.1:
                hello = mutated_packet(draw, hello, before)
            script += _step(OPEN, client, b"") + _step(FEED, client, hello)
        elif what < 0.12:
            script += _step(CUT, client, b"")
        elif what < 0.2:
            script += _step(WAIT, client, draw.choice((b"\x00\x01", b"\x00\x40", b"\x10\x00", b"\xff\xff")))
        else:
            data = bytearray()
            for _ in range(draw.randint(1, 5)):
                is_odd = versions[client] == 5 and draw.random() < 0.05
                packet = corpus.odd(draw) if is_odd else corpus.from_client(draw, versions[client])
                data += mutated_packet(draw, packet, before) if draw.random() < 0.12 else packet
                before = packet
            middle = draw.randrange(len(data) + 1) if draw.random() < 0.2 else 0
            script += _step(FEED, client, bytes(data[:middle])) if middle else b""
            script += _step(FEED, client, bytes(data[middle:]))
    return mutated(draw, bytes(script)) if draw.random() < 0.05 else bytes(script)


def _step(what: int, client: int, data: bytes) -> bytes:
    return bytes((what << 2 | client,)) + len(data[:0xFFFF]).to_bytes(2, "big") + data[:0xFFFF]


def steps(script: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield what to do, the number of the client, and the bytes; the last step may be cut short."""
    offset = 1
    while offset < len(script):
        length = int.from_bytes(script[offset + 1 : offset + 3], "big")
        yield script[offset] >> 2 & 3, script[offset] & 3, script[offset + 3 : offset + 3 + length]
        offset += 3 + length


class Watched:
    """One connection, and what it was sent so far: every byte of it must be a packet that a server may send now."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.connection = broker.hub.connect()
        self.buffer = bytearray()
        self.received: list[Packet] = []

    def look(self) -> None:
        """Read what came, and check that the connection is in order."""
        connection = self.connection
        reason = connection.close_reason
        if connection.is_closing:
            assert isinstance(reason, CloseReason), reason
            assert reason is not CloseReason.INTERNAL_ERROR
        data = connection.take_output()
        if reason in OTHER_PROTOCOLS:
            assert data in (b"", OTHER_PROTOCOLS[reason]), data
            assert not self.received
            return
        self.buffer += data
        while self.buffer:
            before = len(self.buffer)
            frame = next_frame(self.buffer)
            assert frame is not None, ("half a packet", bytes(self.buffer))
            self.take(*frame, before - len(self.buffer))

    def take(self, first: int, body: bytes, size: int) -> None:
        """Check one packet that the broker sent."""
        connection = self.connection
        packet = self.decoded(first, body)
        assert isinstance(packet, SENT_BY_SERVER), packet
        assert size <= connection.packet_bytes_max, (size, connection.packet_bytes_max)
        assert not self.received or not isinstance(self.received[-1], Disconnect), (packet, "behind DISCONNECT")
        assert connection.version == 5 or not isinstance(packet, (Disconnect, Auth)), packet
        welcome = any(isinstance(older, Connack) for older in self.received)
        assert welcome != isinstance(packet, Connack) or (isinstance(packet, Auth) and not welcome), (
            packet,
            self.received,
        )
        self.received.append(packet)

    def decoded(self, first: int, body: bytes) -> Packet:
        """Return a packet; a CONNACK that refuses a CONNECT of unknown form may be of either form."""
        versions = (self.connection.version,) if self.connection.version else (4, 5)
        for version in versions:
            try:
                return decode(first, body, version)
            except ClientError as error:
                problem = error
        raise AssertionError(f"the broker sent {first:02x} {body.hex()}") from problem


class Run:
    """One script at work."""

    def __init__(self, script: bytes, nursery: trio.Nursery) -> None:
        number = script[0] if script else 0
        self.config = CONFIGS[number % len(CONFIGS)]
        kind = KINDS[number // len(CONFIGS) % len(KINDS)]
        self.script = script
        self.nursery = nursery
        self.broker = MemoryBroker(
            self.config,
            nursery,
            FakeLog() if kind == "logged" else None,
            None,
            SlowAuthenticator() if kind == "slow" else QuickAuthenticator(),
        )
        self.turns = 3
        if number % len(CONFIGS) in SHORT_TURNS:
            share, share_bytes, control, self.turns = SHORT_TURNS[number % len(CONFIGS)]
            self.broker.hub.bound_turns(share=share, share_bytes=share_bytes, control=control)
        self.all: list[Watched] = []
        self.clients: dict[int, Watched] = {}

    async def run(self) -> Hashable:
        """Play the script between two words of the witnesses; then everybody leaves, and nothing is left."""
        chunks = chunk_counts()["in_use"]
        publisher, subscriber = self.connect(), self.connect()
        publisher.connection.feed_bytes(encode(Connect(4, b"witness 1", keep_alive_s=65_535), 4))
        subscriber.connection.feed_bytes(
            encode(Connect(4, b"witness 2", keep_alive_s=65_535), 4) + encode(Subscribe(1, (WITNESS_FILTER,)), 4)
        )
        await self.turn()
        for what, client, data in steps(self.script):
            self.play(what, client, data)
            await self.turn()
            self.look()
        publisher.connection.feed_bytes(encode(Publish(WITNESS_TOPIC, b"still here", 1, False, False, 7), 4))
        await self.turn()
        self.look()
        assert publisher.received == [Connack(False, 0), Ack(PacketType.PUBACK, 7)], publisher.received
        assert [type(packet) for packet in subscriber.received] == [Connack, Suback, Publish], subscriber.received
        delivered = subscriber.received[-1]
        assert isinstance(delivered, Publish)
        assert (delivered.topic, delivered.payload, delivered.qos) == (WITNESS_TOPIC, b"still here", 1)
        answer = self.answer()
        await self.leave()
        assert chunk_counts()["in_use"] == chunks
        return answer

    def answer(self) -> Hashable:
        """What this script was good for: the ends, the kinds of packets sent, the drops."""
        return (
            frozenset(self.broker.controller.ends),
            frozenset(self.broker.router.ledger.dropped()),
            frozenset(
                (type(packet).__name__, int(getattr(packet, "reason", 0)))
                for watched in self.all
                for packet in watched.received
            ),
        )

    def connect(self) -> Watched:
        """Open one more connection."""
        watched = Watched(self.broker)
        self.all.append(watched)
        return watched

    def play(self, what: int, client: int, data: bytes) -> None:
        """Do one step."""
        if what == WAIT:
            self.broker.now_ms += int.from_bytes(data[:2], "big") * 10
        elif what == OPEN:
            self.clients[client] = self.connect()
        elif what == CUT:
            if client in self.clients:
                self.clients[client].connection.close(CloseReason.CONNECTION_LOST)
        else:
            if client not in self.clients:
                self.clients[client] = self.connect()
            if not self.clients[client].connection.is_closing:
                self.clients[client].connection.feed_bytes(data)

    async def turn(self) -> None:
        """Let everything happen that needs no time."""
        broker = self.broker
        for _ in range(self.turns):
            broker.hub.run_turn(broker.now_ms)
            if self.nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()
            if broker.log is not None:
                broker.log.sync()
        broker.hub.run_turn(broker.now_ms)

    def look(self) -> None:
        """Check every connection, and that the counts of controller, router and sessions say the same."""
        for watched in self.all:
            watched.look()
        router, limits, mqtt = self.broker.router, self.config.limits, self.config.mqtt
        sessions = router.sessions.values()
        opened = sum(watched.connection.is_open for watched in self.all)
        assert self.broker.controller.handshake.open_connections == opened <= limits.connections_max, opened
        assert len(sessions) <= len(self.all)
        assert router.tree.subscription_count == sum(session.entry_count for session in sessions)
        assert all(session.entry_count <= limits.subscriptions_per_client_max for session in sessions)
        assert router.retained.count <= limits.retained_messages_max
        assert router.retained.size_bytes <= limits.retained_bytes_max
        assert router.ledger.queued_messages <= len(sessions) * mqtt.queue_messages_max

    async def leave(self) -> None:
        """Everybody goes, sessions end, retained messages are removed: then nothing may be left."""
        broker = self.broker
        router, handshake = broker.router, broker.controller.handshake
        for watched in self.all:
            watched.connection.close(CloseReason.CONNECTION_LOST)
        await self.turn()
        await self.turn()
        for watched in self.all:
            watched.connection.take_output()
        assert broker.hub.connection_count == 0
        assert sum(broker.controller.ends.values()) == len(self.all)
        assert (handshake.open_connections, handshake.pending.connections, handshake.exchanges) == (0, {}, {})
        for session in list(router.sessions.values()):
            router.end_session(session)
        await self.turn()
        assert len(router.effects) == 0
        assert router.sessions == {}
        assert (router.tree.subscription_count, router.tree.group_count, router.tree.node_count) == (0, 0, 0)
        assert router.ledger.queued_messages == 0
        for kept in router.retained.match(b"#") + router.retained.match(b"$SYS/#"):
            router.publish_message(message(kept.topic_name, b"", 0, True))
        await self.turn()
        # What lies below another $ level than $SYS cannot be listed.
        if OTHER_DOLLAR.search(self.script) is None:
            assert (router.retained.count, router.retained.size_bytes, router.retained.node_count) == (0, 0, 0)
        assert not self.nursery.child_tasks


def check(script: bytes) -> Hashable:
    """Play a script; AssertionError, or whatever comes out of the broker, if a promise is broken."""
    outcomes: list[Hashable | Exception] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            try:
                outcomes.append(await Run(script, nursery).run())
            except Exception as error:
                outcomes.append(error)
                nursery.cancel_scope.cancel()

    trio.run(main)
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


TARGET = Target("connection", 400, make, check)
