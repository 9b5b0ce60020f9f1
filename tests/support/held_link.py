"""A router with a link that is in the hands of a test."""

from __future__ import annotations

from typing import Any

import msgpack
import structlog

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.worker.terms import terms
from mesh.base_transport import Carrier, Lane
from mesh.frames import KINDS, VERSION
from mesh.mesh import Mesh
from router.core.message import message
from router.router import Router
from router.sessions.ledger import Ledger

NOW_MS = 1_000_000
EXPIRY = b"\x02\0\0\0\x01"  # a Message Expiry Interval of one second


class Nowhere(Lane):  # type: ignore[misc]
    """What is sent is kept."""

    def __init__(self, sent: list[bytes]) -> None:
        self.sent = sent

    def on_send(self, frame: bytes) -> None:
        self.sent.append(frame)


class Silence(Carrier):  # type: ignore[misc]
    """A transport on which nothing comes by itself."""

    def __init__(self, sent: list[bytes]) -> None:
        self.sent = sent

    def connect(self, key: bytes, endpoint: object, server_key: bytes | None = None) -> Nowhere:
        return Nowhere(self.sent)

    def on_receive(self, handler: Any) -> int:
        return 0

    def on_answer(self, identity: bytes, frame: bytes) -> bool:
        return True


class Linked:
    """A router whose link to its one peer is in the hands of the test.

    Args:
        host: has `router` and `pump`, and a log; None: there is none.

    Attributes:
        wakes: how often the mesh has asked for a turn.
        sent: frames to the peer.
    """

    def __init__(self, host: Any = None) -> None:
        self.router = host.router if host is not None else Router(Ledger())
        self.router.ledger.now_ms, self.router.ledger.now_us = NOW_MS, NOW_MS * 1000
        controller = Controller(Config(), self.router, Anonymous(), AllowAll())
        pump = host.pump if host is not None else Pump(self.router, None)
        self.hub = Hub(self.router, controller, pump, now_ms=NOW_MS, **terms(Config()))
        self.wakes = 0
        self.sent: list[bytes] = []
        self.mesh = self.hub.mesh = Mesh(
            self.router,
            Silence(self.sent),
            b"n/0",
            1,
            {b"n/1": 1},
            self.wake,
            structlog.get_logger(),
            window_bytes=1 << 20,
        )
        controller.join_mesh(self.mesh)
        self.neighbour = self.mesh.neighbours[b"n/1"]
        self.peer, self.link = self.neighbour.peer, self.neighbour.link
        self.now_ms = NOW_MS

    def wake(self) -> None:
        self.wakes += 1

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.router.ledger.now_ms = self.now_ms
        self.router.ledger.now_us = self.now_ms * 1000

    def say(self, kind: str, *numbers: int) -> None:
        """The peer answers."""
        self.link.receive_frame(msgpack.packb([VERSION, KINDS.index(kind), *numbers]))

    def come_up(self) -> None:
        self.say("ack", 0, 0, 0, 0, 5)
        assert self.link.state == "up"

    @property
    def epoch(self) -> int:
        return 1 << 32 | int(self.link.statistics()["epoch"])

    def publish(self, payload: bytes, expires: bool = False, qos: int = 1) -> None:
        self.router.publish_message(
            message(
                b"t",
                payload,
                qos,
                False,
                EXPIRY if expires else b"",
                1 if expires else -1,
                self.now_ms,
                self.now_ms + 1000 if expires else 0,
            )
        )
