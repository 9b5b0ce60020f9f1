"""Looking on: one client's packets as they come and go, and what becomes of what it is delivered.

While nobody looks, a connection and a session pay one comparison for each read, send and delivery. While somebody does,
what is seen within a turn is only copied and put into a bounded queue; it is taken apart later, in trio's time.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from broker.reactor.introspection import aliases_of
from broker.wire.packet_types import Connect
from broker.wire.packets import decode, decode_connect, next_frame
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError
from broker.wire.rendering import packet_fields, text_of, timestamp
from router.core.varint import find_varint
from router.sessions.ledger import DROP_REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.reactor.connection import Connection
    from router.router import Router

ENTRIES_MAX = 20_000  # that wait to be taken
BYTES_MAX = 8_388_608
FRAMES_PER_STEP = 100  # taken apart between two checkpoints: some 3 ms
SECRET_TOPICS = ("$CONTROL/", "$auth/")  # passwords and tokens are published there
UNUSED_S = 15.0  # a look that nobody takes anything from ends


class Seen(NamedTuple):
    """One thing that was seen: whole packets, or an event."""

    time_us: int
    kind: str  # in, out, or the name of an event
    data: bytes  # of in and out
    version: int
    fields: dict[str, Any]


class Look:
    """One onlooker's queue.

    Args:
        client_identifier: whose packets and deliveries it wants.
        packets, decisions: which of the two, or both.
        topic: only deliveries and publishes on this topic; None: all.
    """

    def __init__(self, client_identifier: bytes, packets: bool, decisions: bool, topic: bytes | None = None) -> None:
        self.client_identifier = client_identifier
        self.packets = packets
        self.decisions = decisions
        self.topic = topic
        self.missed = 0
        self.used_s = time.monotonic()
        self._queue: deque[Seen] = deque()
        self._bytes = 0
        self._rest: deque[dict[str, Any]] = deque()
        self._arrived = trio.Event()
        self._aliases: dict[str, dict[int, str]] = {"in": {}, "out": {}}
        self._identifiers: set[int] = set()  # of packets of messages on the topic, sent and not answered

    def know_aliases(self, incoming: dict[int, bytes], outgoing: dict[int, bytes]) -> None:
        """The topic aliases that are in use when the look begins."""
        self._aliases = {
            "in": {alias: text_of(topic) for alias, topic in incoming.items()},
            "out": {alias: text_of(topic) for alias, topic in outgoing.items()},
        }

    def put(self, seen: Seen) -> bool:
        """Take in what was seen; returns whether there was room for it. Called within a turn."""
        if len(self._queue) >= ENTRIES_MAX or self._bytes > BYTES_MAX:
            self.missed += 1
            return False
        self._queue.append(seen)
        self._bytes += len(seen.data)
        self._arrived.set()
        return True

    async def take(self, limit: int, wait_s: float) -> list[dict[str, Any]]:
        """Return the next events, up to `limit`; waits for the first one up to `wait_s`."""
        self.used_s = time.monotonic()
        if not self._rest and not self._queue:
            self._arrived = trio.Event()
            with trio.move_on_after(wait_s):
                await self._arrived.wait()
        while self._queue and len(self._rest) < limit:
            seen = self._queue.popleft()
            self._bytes -= len(seen.data)
            if seen.kind == "connected":
                self.know_aliases({}, {})
            if seen.kind not in ("in", "out"):
                self._rest.append({"time": timestamp(seen.time_us), "event": seen.kind, **seen.fields})
                continue
            frames = bytearray(seen.data)
            for count, event in enumerate(_events_of(seen, frames), 1):
                self._resolve(event)
                if self.topic is None or self._concerns(event):
                    self._rest.append(event)
                if count % FRAMES_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        self.used_s = time.monotonic()
        return [self._rest.popleft() for _ in range(min(limit, len(self._rest)))]

    def _resolve(self, event: dict[str, Any]) -> None:
        """Put the topic into a PUBLISH that only has a topic alias; take the payload out of one that has secrets."""
        if event["packet"] != "PUBLISH":
            return
        alias = event.get("properties", {}).get("topic_alias")
        if alias is not None:
            known = self._aliases[event["direction"]]
            if event["topic"]:
                known[alias] = event["topic"]
            else:
                event["topic"] = known.get(alias, "")
        if event["topic"].startswith(SECRET_TOPICS) or not event["topic"]:
            event.pop("payload_base64", None)
            event["payload"] = "(not shown)"

    def _concerns(self, event: dict[str, Any]) -> bool:
        """Return whether a packet is a message on the topic to the client, or belongs to the exchange of one."""
        identifier = event.get("packet_identifier", 0)
        if event["packet"] == "PUBLISH":
            wanted = event["direction"] == "out" and event["topic"] == text_of(self.topic or b"")
            if event["direction"] == "out" and identifier:
                (self._identifiers.add if wanted else self._identifiers.discard)(identifier)
            return bool(wanted)
        if event["packet"] in ("PUBACK", "PUBREC", "PUBCOMP"):
            return event["direction"] == "in" and identifier in self._identifiers
        return event["packet"] == "PUBREL" and event["direction"] == "out" and identifier in self._identifiers


def _events_of(seen: Seen, frames: bytearray) -> Iterator[dict[str, Any]]:
    """Yield what the packets in some bytes are; what is none ends it."""
    head = {"time": timestamp(seen.time_us), "direction": seen.kind}
    while frames:
        try:
            frame = next_frame(frames)
            if frame is None:
                yield {**head, "packet": "INCOMPLETE", "bytes": len(frames)}
                return
            first, body = frame
            packet = decode_connect(body) if first >> 4 == PacketType.CONNECT else decode(first, body, seen.version)
        except ClientError as error:
            yield {**head, "packet": "MALFORMED", "detail": str(error), "bytes": len(seen.data)}
            return
        yield {**head, "packet": PacketType(first >> 4).name, **packet_fields(packet)}


class Tap:
    """What a connection and its session tell while an operator looks at their client."""

    def __init__(self, client_identifier: bytes, version: int, looks: list[Look], aligned: bool) -> None:
        self.client_identifier = client_identifier
        self.version = version
        self.looks = looks
        self._aligned = aligned  # the next byte sent is the first of a packet
        self._partial = b""  # of a packet that the socket took in pieces

    def received(self, data: bytes) -> None:
        """Whole packets came; the last one may be malformed. Called within a turn."""
        if data:
            self._put("in", data)

    def sent(self, data: bytes, all_of_it: bool) -> None:
        """The socket took bytes; `all_of_it`: nothing waits behind them, so the next ones begin a packet."""
        if self._aligned:
            data = self._partial + data
            self._partial = b""
            if not all_of_it:
                whole = _whole_length(data)
                data, self._partial = data[:whole], data[whole:]
            if data and not self._put("out", data):
                self._aligned = False
                self._partial = b""
        if all_of_it:
            self._aligned = True
            self._partial = b""

    def _put(self, kind: str, data: bytes) -> bool:
        seen = Seen(time.time_ns() // 1000, kind, data, self.version, {})
        taken = True
        for look in self.looks:
            if look.packets:
                taken = look.put(seen) and taken
        return taken

    def event(self, name: str, **fields: Any) -> None:
        """Something happened that is no packet."""
        seen = Seen(time.time_ns() // 1000, name, b"", self.version, fields)
        for look in self.looks:
            look.put(seen)

    # What the session tells -----------------------------------------------------------------------------------------

    def delivered(self, topic: bytes, qos: int, record: int, verdict: str, reasons: list[str]) -> None:
        """A message was delivered to the session, or not: sent, queued, or dropped for a reason."""
        fields: dict[str, Any] = {"topic": text_of(topic), "qos": qos, "outcome": verdict}
        if verdict == "dropped":
            fields["reason"] = reasons[0] if reasons else "unknown"
        if record:
            fields["record"] = record
        self._decision(topic, "delivery", fields)

    def refused_delivery(self, topic: bytes, qos: int, reason: str) -> None:
        """The session had no room for a message."""
        self._decision(topic, "delivery", {"topic": text_of(topic), "qos": qos, "outcome": "dropped", "reason": reason})

    def dropped_waiting(self, reason: str) -> None:
        """A message that had waited was dropped when its turn came."""
        self._decision(None, "delivery", {"outcome": "dropped", "reason": reason, "waited": True})

    def _decision(self, topic: bytes | None, name: str, fields: dict[str, Any]) -> None:
        seen = Seen(time.time_ns() // 1000, name, b"", self.version, fields)
        for look in self.looks:
            if look.decisions and (topic is None or look.topic is None or look.topic == topic):
                look.put(seen)


def _whole_length(data: bytes) -> int:
    """Return how many of the first bytes are whole packets."""
    position = 0
    while position + 2 <= len(data):
        length, at = find_varint(data, position + 1)
        if at <= 0 or at + length > len(data):
            break
        position = at + length
    return position


class Taps:
    """All looks at clients of one worker."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.looks: dict[bytes, list[Look]] = {}
        self._taps: dict[bytes, Tap] = {}

    def look(self, client_identifier: bytes, *, packets: bool, decisions: bool, topic: bytes | None = None) -> Look:
        """Begin to look at a client, connected or not; one that is not is seen when it comes."""
        new = Look(client_identifier, packets, decisions, topic)
        looks = self.looks.setdefault(client_identifier, [])
        looks.append(new)
        session = self.router.sessions.get(client_identifier)
        if session is not None:
            connection = session.connection
            if client_identifier not in self._taps:
                self._taps[client_identifier] = Tap(
                    client_identifier,
                    connection.version if connection is not None else 0,
                    looks,
                    connection is None or connection.pending_bytes == 0,
                )
            tap = self._taps[client_identifier]
            session.watch = tap
            if connection is not None:
                connection.tap = tap
                new.know_aliases(*aliases_of(connection))
        self.router.ledger.refusals = self
        return new

    def end(self, look: Look) -> None:
        """End a look; a client without any other look is no longer tapped."""
        looks = self.looks.get(look.client_identifier, [])
        if look in looks:
            looks.remove(look)
        if looks:
            return
        self.looks.pop(look.client_identifier, None)
        self._taps.pop(look.client_identifier, None)
        session = self.router.sessions.get(look.client_identifier)
        if session is not None:
            session.watch = None
            if session.connection is not None:
                session.connection.tap = None
        if not self.looks:
            self.router.ledger.refusals = None

    def end_unused(self) -> None:
        """End looks from which no caller has taken anything for a while."""
        now_s = time.monotonic()
        for looks in list(self.looks.values()):
            for look in list(looks):
                if now_s - look.used_s > UNUSED_S:
                    self.end(look)

    def has(self, look: Look) -> bool:
        """Return whether a look goes on."""
        return look in self.looks.get(look.client_identifier, ())

    # What the broker tells ------------------------------------------------------------------------------------------

    def opened(self, connection: Connection, connect: Connect) -> None:
        """A client was accepted; its CONNACK has not been written."""
        identifier: bytes = connection.session.client_identifier
        looks = self.looks.get(identifier)
        if looks is None:
            return
        tap = self._taps[identifier] = Tap(identifier, connection.version, looks, True)
        connection.tap = connection.session.watch = tap
        tap.event("connected", address=connection.peer, **packet_fields(connect))

    def ended(self, connection: Connection) -> None:
        """A connection's end was decided. What is still to be sent to it is seen."""
        connection.tap.event("connection_ended", reason=str(connection.close_reason))

    def refused(self, publisher: bytes, topic: bytes, qos: int, reason: int) -> None:
        """A client's publish was refused, so it reached no receiver. Called within a turn."""
        seen = Seen(
            time.time_ns() // 1000,
            "publish_refused",
            b"",
            0,
            {"topic": text_of(topic), "qos": qos, "publisher": text_of(publisher), "reason": DROP_REASONS[reason]},
        )
        for looks in self.looks.values():
            for look in looks:
                if look.decisions and (look.topic is None or look.topic == topic):
                    look.put(seen)
