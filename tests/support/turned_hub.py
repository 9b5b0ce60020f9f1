"""A hub without sockets that turns when a test says so, and its clients: what one turn does, and what it leaves."""

from __future__ import annotations

from typing import Any

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config, Limits, Mqtt
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.packets import Connack, Connect, Packet, decode, encode, next_frame
from broker.worker.terms import ledger, terms
from router.retained.lmdb_index import RetainedIndex
from router.router import Router
from tests.support.doubles import FakeLog

NOW_MS = 1_000_000


class TurnedHub:
    """Hub, controller and router; nothing moves between two calls of turn().

    Args:
        log: what is recorded goes there; None: nothing is.
        index: retained messages; None: they are in memory.
        limits: of [limits] in the settings.
    """

    def __init__(
        self, log: FakeLog | None = None, index: RetainedIndex | None = None, mqtt: Mqtt | None = None, **limits: Any
    ) -> None:
        self.config = Config(limits=Limits(**limits), mqtt=mqtt or Mqtt())
        self.log = log
        self.router: Any = Router(
            ledger(self.config),
            seed=1,
            routes_max=self.config.limits.route_cache_max,
            routes_bytes_max=self.config.limits.route_cache_bytes_max,
            index=index,
        )
        self.controller = Controller(self.config, self.router, Anonymous(), AllowAll())
        self.hub: Any = Hub(self.router, self.controller, Pump(self.router, log), now_ms=NOW_MS, **terms(self.config))
        self.now_ms = NOW_MS

    def turn(self, times: int = 1, passed_ms: int = 0) -> None:
        """Turn so often; what was recorded before is durable at the end of each."""
        for _ in range(times):
            self.now_ms += passed_ms
            self.hub.run_turn(self.now_ms)
            if self.log is not None:
                self.log.sync()

    def connect(self, name: bytes, version: int = 5, **fields: Any) -> TurnedClient:
        """Return a client that has its CONNACK."""
        client = TurnedClient(self, version)
        client.send(Connect(version, name, **fields))
        self.turn(3)
        (first,) = client.packets()
        assert isinstance(first, Connack), first
        assert first.reason == 0, first
        return client


class TurnedClient:
    """One end of a connection."""

    def __init__(self, broker: TurnedHub, version: int) -> None:
        self.version = version
        self.connection = broker.hub.connect()
        self._output = bytearray()

    def send(self, *packets: Packet) -> None:
        """Hand packets to the broker, in one piece."""
        self.connection.feed_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def packets(self) -> list[Packet]:
        """Return what has come since the last look."""
        self._output += self.connection.take_output()
        found = []
        while (frame := next_frame(self._output)) is not None:
            found.append(decode(*frame, self.version))
        return found
