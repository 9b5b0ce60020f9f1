"""CONNECTs by a few client identifiers at once, with all flags, on a broker whose records become durable late.

An input is a script of steps, four bytes each; any bytes are a script. Beside the broker runs a model of what the
standard says of sessions and wills (3.1.2.4, 3.1.2.5, 3.1.4, 4.1): one holder for each client identifier, whether its
CONNACK has left or waits for a record. After every turn both have the same sessions and have published the same wills.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

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
from router.log.record_cursor import Cursor
from router.recovery.apply import Recovery
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.doubles import FakeLog
from tests.tools.fuzz.target import Target

CONNECT, CUT, DISCONNECT, TURN, SYNC, WAIT, KICK, CRASH = range(8)  # what a step does
WEIGHTS = (10, 2, 3, 6, 5, 1, 1, 1)
STEP_BYTES = 4
CLIENTS = 6
IDENTIFIERS = (b"a", b"b", b"c")
VERSIONS = (3, 4, 5, 5)
EXPIRIES_S = (0, 0, 5, 600)
WILL_DELAYS_S = (0, 0, 3, 60)
WILL_TOPIC = b"will"
NEVER_S = 0xFFFFFFFF
START_MS = 1_000_000
CONFIG = Config(limits=Limits(connect_timeout_s=3600, connects_per_second_max=0))


def make(draw: random.Random) -> bytes:
    """Return a script."""
    script = bytearray()
    for _ in range(draw.randint(3, 40)):
        what = draw.choices(range(8), WEIGHTS)[0]
        script += bytes((what, draw.randrange(CLIENTS), draw.randrange(256), draw.randrange(256)))
    return bytes(script)


def steps(script: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield what to do, the number of the client, and two bytes of flags."""
    for offset in range(0, len(script) - STEP_BYTES + 1, STEP_BYTES):
        what, client, first, second = script[offset : offset + STEP_BYTES]
        yield what % 8, client % CLIENTS, first, second


@dataclass
class Kept:
    """What the standard remembers of one client identifier."""

    expiry_s: int
    holder: Client | None = None
    will: bytes | None = None
    delay_s: int = 0
    will_due_ms: int = 0
    ends_ms: int = 0


@dataclass(eq=False)
class Client:
    """One connection, what was sent on it, and what the model expects of it."""

    connection: Any
    version: int
    identifier: bytes
    buffer: bytearray = field(default_factory=bytearray)
    received: list[Packet] = field(default_factory=list)
    present: bool | None = None  # what its CONNACK has to say; None: its CONNECT has not been dealt with
    taken_over: bool = False
    left: bool = False  # it went, or was sent away: what it hears before does not matter

    def read(self) -> None:
        """Take what came."""
        self.buffer += self.connection.take_output()
        while (frame := next_frame(self.buffer)) is not None:
            self.received.append(decode(*frame, self.version))


class Model:
    """Sessions and wills as the standard has them, one event after the other."""

    def __init__(self) -> None:
        self.kept: dict[bytes, Kept] = {}
        self.published: list[bytes] = []

    def connect(self, client: Client, clean: bool, expiry_s: int, will: tuple[bytes, int] | None, now_ms: int) -> None:
        """A CONNECT is accepted."""
        kept = self.kept.get(client.identifier)
        if kept is not None and kept.holder is not None:
            kept.holder.taken_over = True
            self.leave(kept.holder, now_ms)
        if clean and client.identifier in self.kept:
            self.end(client.identifier)
        client.present = client.identifier in self.kept
        kept = self.kept.setdefault(client.identifier, Kept(expiry_s))
        kept.holder, kept.expiry_s = client, expiry_s
        kept.will, kept.delay_s = will if will is not None else (None, 0)
        kept.will_due_ms = kept.ends_ms = 0

    def leave(self, client: Client, now_ms: int) -> None:
        """The connection that holds a session is gone."""
        kept = self.kept[client.identifier]
        assert kept.holder is client
        kept.holder = None
        if kept.expiry_s == 0:
            self.end(client.identifier)
            return
        kept.will_due_ms = now_ms + kept.delay_s * 1000
        kept.ends_ms = 0 if kept.expiry_s == NEVER_S else now_ms + kept.expiry_s * 1000
        self.pass_time(now_ms)

    def end(self, identifier: bytes) -> None:
        """A session is over, and with it the delay of its will [MQTT-3.1.2-8]."""
        self.publish(self.kept.pop(identifier))

    def publish(self, kept: Kept) -> None:
        """Publish a will, if there is one."""
        if kept.will is not None:
            self.published.append(kept.will)
            kept.will = None

    def pass_time(self, now_ms: int) -> None:
        """Let fall due what is due."""
        for identifier, kept in list(self.kept.items()):
            if kept.holder is None and kept.will is not None and kept.will_due_ms <= now_ms:
                self.publish(kept)
            if kept.holder is None and kept.ends_ms and kept.ends_ms <= now_ms:
                self.end(identifier)

    def holds(self, client: Client) -> bool:
        """Return whether a client identifier is a connection's."""
        kept = self.kept.get(client.identifier)
        return kept is not None and kept.holder is client


class Run:
    """One script at work."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.log = FakeLog()
        self.router = Router(ledger(CONFIG), seed=1)
        self.controller = Controller(CONFIG, self.router, Anonymous(), AllowAll())
        self.hub = Hub(self.router, self.controller, Pump(self.router, self.log), now_ms=self.now_ms, **terms(CONFIG))
        self.model = Model()
        self.clients: list[Client | None] = [None] * CLIENTS
        self.all: list[Client] = []
        self.fed: list[tuple[Client, Any]] = []  # what the next turn deals with, in order
        self.wills = 0
        self.did: Counter[str] = Counter()
        self.witness = Client(self.hub.connect(), 4, b"witness")
        self.witness.connection.feed_bytes(encode(Connect(4, b"witness"), 4))
        self.hub.run_turn(self.now_ms)
        self.witness.connection.feed_bytes(encode(Subscribe(1, (subscription(WILL_TOPIC, 0),)), 4))
        self.hub.run_turn(self.now_ms)

    def run(self, script: bytes) -> Hashable:
        """Play the script; then all is durable, everybody has been answered, and leaves."""
        for what, number, first, second in steps(script):
            self.play(what, number, first, second)
        self.turn()
        self.sync(1.0)
        self.look_at_answers()
        for client in self.all:
            if self.model.holds(client):
                self.cut(client)
        self.turn()
        self.sync(1.0)
        for identifier in list(self.model.kept):
            self.model.end(identifier)
            self.router.end_session(self.router.sessions[identifier])
        self.turn()
        self.sync(1.0)
        self.look()
        assert len(self.router.effects) == 0
        assert self.router.deadline_count == 0
        assert list(self.router.sessions) == [b"witness"]
        return frozenset(self.did), frozenset(self.controller.ends)

    def play(self, what: int, number: int, first: int, second: int) -> None:
        """Do one step."""
        client = self.clients[number]
        if what == CONNECT:
            self.connect(number, first, second)
        elif what == CUT and client is not None and not client.connection.is_closing:
            self.cut(client)
        elif what == DISCONNECT and client is not None and client.connection.is_open and not client.left:
            self.disconnect(client, first, second)
        elif what == TURN:
            self.turn()
        elif what == SYNC:
            self.sync((first + 1) / 256 if second % 2 else 1.0)
        elif what == WAIT:
            self.turn()
            self.now_ms += (first + 1) * (20 if second % 2 else 500)
            self.turn()
        elif what == KICK:
            self.kick(IDENTIFIERS[first % len(IDENTIFIERS)], bool(second % 2))
        elif what == CRASH:
            self.look_at_log()

    def connect(self, number: int, first: int, second: int) -> None:
        """A client comes, on a connection of its own; the one of its number goes on as it likes."""
        version = VERSIONS[first % 4]
        identifier = IDENTIFIERS[first // 4 % len(IDENTIFIERS)]
        clean = bool(first & 0x80)
        asked_s = EXPIRIES_S[second % 4]
        delay_s = WILL_DELAYS_S[second // 4 % 4] if version == 5 else 0
        will = None
        if second & 0x40:
            self.wills += 1
            will = Will(WILL_TOPIC, b"%d" % self.wills, second // 16 % 3, False, {}, delay_s)
        client = Client(self.hub.connect(), version, identifier)
        self.clients[number] = client
        self.all.append(client)
        properties = {"session_expiry_interval": asked_s} if version == 5 and asked_s else {}
        packet = Connect(version, identifier, clean, 0, will, None, None, properties)
        client.connection.feed_bytes(encode(packet, version))
        self.fed.append((client, packet))

    def cut(self, client: Client) -> None:
        """A connection breaks. A DISCONNECT that has come discards the will, dealt with or not [MQTT-3.14.4-3]."""
        client.connection.close(CloseReason.CONNECTION_LOST)
        client.left = True
        self.hear(client)
        self.fed = [(other, packet) for other, packet in self.fed if other is not client]
        if self.model.holds(client):
            self.model.leave(client, self.now_ms)

    def hear(self, client: Client) -> None:
        """A connection ends by what others do: a DISCONNECT that has come, dealt with or not, discards the will."""
        if self.model.holds(client) and any(
            isinstance(packet, Disconnect) and packet.reason == Reason.SUCCESS
            for other, packet in self.fed
            if other is client
        ):
            self.model.kept[client.identifier].will = None

    def disconnect(self, client: Client, first: int, second: int) -> None:
        """A client takes its leave, with its will or without, perhaps with another expiry interval."""
        packet = Disconnect()
        if client.version == 5:
            properties = {"session_expiry_interval": EXPIRIES_S[second % 4]} if second & 0x80 else {}
            packet = Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE if first % 2 else Reason.SUCCESS, properties)
        client.left = True
        client.connection.feed_bytes(encode(packet, client.version))
        self.fed.append((client, packet))

    def kick(self, identifier: bytes, with_session: bool) -> None:
        """An administrator sends a client away, or ends its session."""
        self.turn()
        session = self.router.sessions.get(identifier)
        if session is None:
            return
        kept = self.model.kept[identifier]
        holder = kept.holder
        assert self.controller.send_away(session, with_session) == (holder is not None)
        if with_session:
            kept.expiry_s = 0
        if holder is not None:
            holder.left = True
            self.model.leave(holder, self.now_ms)
        elif with_session:
            self.model.end(identifier)
        self.did["kicked"] += 1
        self.turn()

    def turn(self) -> None:
        """Everything that came is dealt with; records become durable later."""
        self.hub.run_turn(self.now_ms)
        self.model.pass_time(self.now_ms)
        for client, packet in self.fed:
            if isinstance(packet, Connect):
                expiry_s = packet.properties.get("session_expiry_interval", 0)
                if packet.version < 5:
                    expiry_s = 0 if packet.clean_start else NEVER_S
                will = (packet.will.payload, packet.will.delay_interval_s) if packet.will is not None else None
                kept = self.model.kept.get(client.identifier)
                if kept is not None and kept.holder is not None:
                    self.hear(kept.holder)
                self.model.connect(client, packet.clean_start, expiry_s, will, self.now_ms)
            elif self.model.holds(client):
                self.model_disconnect(client, packet)
        self.fed.clear()
        self.look()

    def model_disconnect(self, client: Client, packet: Disconnect) -> None:
        """What a DISCONNECT means (3.14)."""
        kept = self.model.kept[client.identifier]
        expiry_s = packet.properties.get("session_expiry_interval")
        if not (expiry_s and kept.expiry_s == 0):  # else an error of the client's: its will stays
            if expiry_s is not None:
                kept.expiry_s = expiry_s
            if packet.reason == Reason.SUCCESS:
                kept.will = None
        self.model.leave(client, self.now_ms)

    def sync(self, share: float) -> None:
        """Of what is not durable, a share becomes so; then what rests on it leaves."""
        self.hub.run_turn(self.now_ms)
        self.log.durable += int((self.log.appended - self.log.durable) * share)
        self.turn()
        self.turn()

    def look(self) -> None:
        """Compare broker and model."""
        router, model = self.router, self.model
        kept = {identifier: kept.expiry_s for identifier, kept in model.kept.items()}
        assert {session.client_identifier: session.expiry_interval_s for session in router.sessions.values()} == {
            **kept,
            b"witness": 0,
        }
        opened = [client for client in self.all if client.connection.is_open]
        handshake = self.controller.handshake
        assert handshake.open_connections == len(opened) + len(handshake.openings) + 1
        for client in opened:
            session = router.sessions[client.identifier]
            assert session.connection is client.connection, client.identifier
            assert client.connection.session is session, client.identifier
            assert client.left or model.holds(client), client.identifier
        for identifier, one in model.kept.items():
            will = router.sessions[identifier].will
            assert (None if will is None else will.payload) == one.will, identifier
        for client in (self.witness, *self.all):
            client.read()
        wills = [packet.payload for packet in self.witness.received if isinstance(packet, Publish)]
        assert sorted(wills) == sorted(model.published)
        assert router.deadline_count <= len(router.sessions)

    def look_at_answers(self) -> None:
        """All is durable: everybody whose CONNECT was dealt with and who stayed has been told."""
        for client in self.all:
            if client.left or client.present is None:
                continue
            welcome = Connack(client.present and client.version > 3, Reason.SUCCESS)
            assert client.received, (client.identifier, "was not answered")
            answer = client.received[0]
            assert isinstance(answer, Connack)
            assert (answer.session_present, answer.reason) == (welcome.session_present, welcome.reason)
            if client.taken_over:
                self.did["taken over"] += 1
                assert client.connection.close_reason == CloseReason.TAKEN_OVER
                assert [packet.reason for packet in client.received[1:] if isinstance(packet, Disconnect)] == (
                    [Reason.SESSION_TAKEN_OVER] if client.version == 5 else []
                )
            else:
                assert client.connection.is_open, client.connection.close_reason
                assert self.model.holds(client), client.identifier
            self.did[f"present {client.present}"] += 1

    def look_at_log(self) -> None:
        """What a start would make of what is durable now has to be what the clients were told."""
        self.turn()
        recovered = Router(Ledger(), seed=1)
        recovery = Recovery(recovered, lambda _, *fields: fields, self.now_ms * 1000, self.now_ms)
        for before, data in self.log.batches:
            if before < self.log.durable:
                recovery.feed(Cursor(data, 0, FakeLog.MARK, before, self.log.durable + 1))
        for identifier, kept in self.model.kept.items():
            session = recovered.sessions.get(identifier)
            if kept.holder is None or not kept.holder.connection.is_open or kept.holder.left:
                continue
            if kept.expiry_s or kept.will is not None:
                assert session is not None, (identifier, "was told of a session that a start would not find")
                assert session.expiry_interval_s == kept.expiry_s, identifier
                assert (session.will[1] if session.will else None) == kept.will, identifier
            else:
                assert session is None or session.expiry_interval_s == 0, (
                    identifier,
                    "was told that its session is gone, and a start would find it",
                )
        self.did["recovered"] += 1


def check(script: bytes) -> Hashable:
    """Play a script; AssertionError, or whatever comes out of the broker, if a promise is broken."""
    return Run().run(script)


TARGET = Target("openings", 500, make, check)
