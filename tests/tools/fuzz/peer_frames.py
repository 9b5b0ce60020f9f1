"""What comes from another router: any bytes are frames, or refused by name, and nothing else is hurt.

An input is frames, each behind two bytes: its length, and in the highest bit whether it is an answer.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import msgpack

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.worker.terms import ledger, terms
from mesh.base_transport import Carrier, Lane
from mesh.frames import KINDS, VERSION, FrameWriter
from mesh.mesh import Mesh
from router.core.message import message
from router.core.varint import encode_varint
from router.forwarding import group_identifier
from router.router import Router
from tests.support.doubles import FakeLog
from tests.tools.fuzz import corpus
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

NOW_MS = 1_000_000
NEVER = 0xFFFFFFFF
PEER, OTHER = b"n/1", b"n/2"
INCARNATION, OURS = 5, 3
GROUP = b"g/a/#"
NUMBERS = (0, 1, 2, 3, 7, 255, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
FILTERS = (*corpus.TOPIC_FILTERS, b"a/#", b"$share/g/a/#", b"$share/g/a/#", b"$share//a", b"$share", b"", b"\0", b"#/a")
ANSWER = 0x8000
LENGTH_MAX = 0x7FFF


def make(draw: random.Random) -> bytes:
    """Return some frames, most of them of the process that the first one is of."""
    frames = [(False, heartbeat(draw))]
    if draw.random() < 0.9:  # the link is up
        frames.append((True, bytes(msgpack.packb([VERSION, KINDS.index("ack"), 0, 0, 0, 0, INCARNATION]))))
    frames += [draw.choice((data, data, interest, interest, other))(draw) for _ in range(draw.randint(1, 6))]
    found = b""
    for is_answer, frame in frames:
        if draw.random() < 0.1:
            frame = mutated(draw, frame, data(draw)[1])
        frame = frame[:LENGTH_MAX]
        found += (len(frame) | ANSWER * is_answer).to_bytes(2, "big") + frame
    return found


def number(draw: random.Random) -> int:
    return draw.choice(NUMBERS) if draw.random() < 0.5 else draw.randint(0, 10)


def epoch(draw: random.Random) -> int:
    return (INCARNATION << 32) + draw.choice((0, 1, 1, 1, 2, 3))


def heartbeat(draw: random.Random) -> bytes:
    return bytes(msgpack.packb([VERSION, KINDS.index("heartbeat"), epoch(draw), 0, number(draw), number(draw), 0]))


def data(draw: random.Random) -> tuple[bool, bytes]:
    """A frame of messages, for groups too."""
    writer = FrameWriter()
    for sequence in range(1, draw.randint(1, 4)):
        ids = b""
        if draw.random() < 0.6:
            ids = b"\x0b" + encode_varint(group_identifier(draw.choice((GROUP, GROUP, b"h/a"))))
            ids += b"".join(b"\0" + encode_varint(draw.randint(1, 300)) for _ in range(draw.choice((0, 1, 3, 48, 50))))
            ids = (mutated(draw, ids) if draw.random() < 0.2 else ids)[:255]
        writer.append(
            message(draw.choice((b"a", b"a/b", b"c")), b"x" * draw.randint(0, 9), draw.choice((0, 1, 2))),
            sequence=draw.choice((sequence, sequence, 0, number(draw))), n=draw.choice((sequence, 0, number(draw))),
            retain=draw.random() < 0.2, ids=ids, publisher_key=number(draw), now_us=0, now_ms=0,
        )  # fmt: skip
    return False, bytes(writer.take(KINDS.index("data"), epoch(draw), draw.choice((0, 0, 0, 1, number(draw)))))


def interest(draw: random.Random) -> tuple[bool, bytes]:
    """What it wants, all of it or changes."""
    odd = (-1, 2**64 - 1, "x", None, b"", 1.5, [], {})
    wishes: list[Any] = []
    for _ in range(draw.randint(0, 4)):
        wish: list[Any] = [
            draw.choice(FILTERS),
            draw.choice((0, 1, 2)),
            draw.random() < 0.5,
            draw.choice((0, 1, 9, 1 << 20)),
        ]
        if draw.random() < 0.05:
            wish[draw.randrange(4)] = draw.choice(odd)
        wishes.append(wish[: draw.choice((1, 4, 4, 4, 4, draw.randint(1, 3)))])
    fields: list[Any] = [INCARNATION, draw.choice((0, 0, 1)), draw.choice((1, 1, 2)), True, draw.random() < 0.9, wishes]
    if draw.random() < 0.1:
        fields[draw.randrange(6)] = draw.choice(odd)
    return False, bytes(msgpack.packb([VERSION, KINDS.index("interest"), *fields]))


def other(draw: random.Random) -> tuple[bool, bytes]:
    """Anything else that there is: answers, gossip, kinds that say nothing."""
    kind = draw.choice(("ack", "gap", "interest_installed", "gossip", "gossip", "hello", "call"))
    fields: list[Any] = [number(draw) for _ in range(draw.randint(0, 7))]
    if kind == "gossip":
        reach = draw.choice((None, [1, 2, 3, 4], [1], "x", [None] * 4, [2**63] * 4))
        fields = [INCARNATION, number(draw), number(draw), reach, draw.choice((None, b"x", "x")), number(draw)]
    elif kind in ("ack", "gap") and fields:
        fields[0] = (OURS << 32) + 1
        fields[-1] = INCARNATION
    if draw.random() < 0.2 and fields:
        fields[draw.randrange(len(fields))] = draw.choice((-1, None, "x", b"", [1], 1.5))
    return draw.random() < 0.7, bytes(msgpack.packb([VERSION, KINDS.index(kind), *fields]))


class Frames(Carrier):  # type: ignore[misc]
    """Brings the input, and forgets what is sent."""

    def __init__(self) -> None:
        self.inbox: list[tuple[bytes, bool, bytes]] = []

    def connect(self, key: bytes, endpoint: object, server_key: bytes | None = None) -> Lane:
        """Return a lane to nobody."""
        return Nowhere()

    def on_answer(self, identity: bytes, frame: bytes) -> bool:
        """Take an answer."""
        return True

    def on_receive(self, handler: Any) -> int:
        """Hand over what there is."""
        frames, self.inbox = self.inbox, []
        for frame in frames:
            handler.take(*frame)
        return len(frames)


class Nowhere(Lane):  # type: ignore[misc]
    """A lane whose end is not there."""

    def on_send(self, frame: bytes) -> None:
        """Take a frame."""


class Complaints:
    """The log of a mesh."""

    def __init__(self) -> None:
        self.bad: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        """Nothing that has to be looked at."""

    def warning(self, event: str, **fields: object) -> None:
        """A frame is none."""
        assert event == "bad_frame", event
        self.bad.append(str(fields["what"]))


def check(data: bytes) -> Hashable:
    """Have a router hear the frames; what is wrong is said, and the router goes on as before."""
    config = Config()
    router: Any = Router(ledger(config), seed=1)
    controller = Controller(config, router, Anonymous(), AllowAll())
    log = FakeLog()
    hub: Any = Hub(router, controller, Pump(router, log), now_ms=NOW_MS, **terms(config))
    carrier, said = Frames(), Complaints()
    mesh: Any = Mesh(router, carrier, b"n/0", OURS, {PEER: 1, OTHER: 2}, lambda: None, said)
    hub.mesh = mesh
    controller.join_mesh(mesh)
    kept, _ = router.open_session(b"kept", False, NEVER)
    for topic_filter in (b"a/#", b"$share/h/#"):
        router.subscribe(kept, topic_filter, 1)
    mesh.forwarding.want(mesh.neighbours[OTHER].peer, b"$share/" + GROUP, 1, True, 1)
    at = 0
    now_ms = NOW_MS
    while at + 2 <= len(data):
        head = int.from_bytes(data[at : at + 2], "big")
        length = head & LENGTH_MAX
        is_answer = bool(head & ANSWER)
        frame = data[at + 2 : at + 2 + length]
        carrier.inbox.append((PEER if is_answer else b"%b/%d" % (PEER, INCARNATION), is_answer, frame))
        at += 2 + length
        now_ms += 100
        hub.run_turn(now_ms)
        log.sync()
        hub.run_turn(now_ms)
    assert all(what.isprintable() for what in said.bad)
    peer = mesh.neighbours[PEER].peer
    assert {name for name, *_ in router.tree.subscriptions_of(kept)} == {b"a/#", b"$share/h/#"}
    router.publish_message(message(b"a/b", b"goes on", 1))
    for _ in range(3):
        hub.run_turn(now_ms)
        log.sync()
    assert kept.owed is not None
    answer = (
        frozenset(what.split(",")[0][:40] for what in said.bad),
        peer.state()["filters"],
        tuple(sorted(router.ledger.dropped())),
        mesh.neighbours[PEER].link.state,
    )
    mesh.close()
    return answer


TARGET = Target("peer_frames", 1200, make, check)
