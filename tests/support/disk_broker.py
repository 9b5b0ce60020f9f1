"""A broker in memory on a simulated disk, and its clients."""

from __future__ import annotations

from broker.auth.acl import Acl, AllowAll
from broker.auth.authenticator import Anonymous, Authenticator
from broker.config.loader import Config, Limits
from broker.control.controller import Controller
from broker.reactor.turn import Hub
from broker.wire.packets import Ack, Connect, Publish, Will, decode, encode, next_frame
from broker.wire.properties import PacketType
from broker.worker.terms import ledger, terms
from router.log.log_writer import Durability
from router.recovery.open_log import begin, start_deadlines
from router.router import Router
from tests.simulator.machine import Machine
from tests.support.disk import SimulatedDisk

NOW_MS = 1_000_000


class Broker:
    """A broker in memory on a simulated disk."""

    def __init__(
        self,
        disk: SimulatedDisk,
        incarnation: int = 1,
        durability: Durability = "fsync",
        authenticator: Authenticator | None = None,
        acl: Acl | None = None,
    ) -> None:
        self.machine = Machine.quiet(disk, incarnation)
        self.machine.durability = durability
        config = Config(limits=Limits(connect_timeout_s=10_000))
        self.router = Router(ledger(config))
        controller = Controller(config, self.router, authenticator or Anonymous(), acl or AllowAll())
        pump, opened = self.machine.start(self.router, controller, NOW_MS)
        self.hub = Hub(self.router, controller, pump, now_ms=NOW_MS, **terms(config))
        begin(self.router, opened)
        controller.judge_all(0)
        start_deadlines(self.router, opened)

    def turn(self) -> None:
        """A turn, what it has recorded made durable, and another one in which that leaves."""
        self.hub.run_turn(NOW_MS)
        while self.machine.log.commit():
            self.hub.run_turn(NOW_MS)

    def connect(self, name: bytes, will: Will | None = None, user_name: str | None = None) -> Client:
        """Connect a client with a durable session."""
        return Client(self, name, will, user_name)


class Client:
    """A client of 3.1.1 that answers what it is sent."""

    def __init__(self, broker: Broker, name: bytes, will: Will | None, user_name: str | None = None) -> None:
        self.broker = broker
        self.connection = broker.hub.connect()
        self.got: list[bytes] = []
        self.say(Connect(4, name, False, 0, will, user_name))

    def say(self, packet: object) -> list[object]:
        """Send a packet, and return what comes; deliveries are answered, and are in `got`."""
        self.connection.feed_bytes(encode(packet, 4))  # type: ignore[arg-type]
        came: list[object] = []
        while True:
            self.broker.turn()
            output = bytearray(self.connection.take_output())
            if not output:
                return came
            while (frame := next_frame(output)) is not None:
                packet = decode(*frame, 4)
                came.append(packet)
                if isinstance(packet, Publish):
                    self.got.append(packet.payload)
                    answer = Ack(PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC, packet.packet_identifier)
                elif isinstance(packet, Ack) and packet.type == PacketType.PUBREL:
                    answer = Ack(PacketType.PUBCOMP, packet.packet_identifier)
                elif isinstance(packet, Ack) and packet.type == PacketType.PUBREC:
                    answer = Ack(PacketType.PUBREL, packet.packet_identifier)
                else:
                    continue
                self.connection.feed_bytes(encode(answer, 4))
