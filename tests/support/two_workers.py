"""Two workers of the simulator, moved step by step, and their clients."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from broker.config.loader import Config, Limits, Mqtt
from broker.wire.packets import Ack, Connack, Connect, Publish, Suback, decode, encode, next_frame
from broker.wire.properties import PacketType
from tests.simulator.index import SharedEnvironment
from tests.simulator.network import Network
from tests.simulator.worker import SILENCE_MS, Worker

TICK_MS = 250


class Script:
    """What workers of the simulator need of a world in which nothing happens by itself.

    Args:
        environment: of an index of retained messages that both use; None: each retains for itself.
    """

    def __init__(self, environment: SharedEnvironment | None = None) -> None:
        self.seed = self.steps = 0
        self.count = 2
        self.now_ms = 1_000_000
        self.random = Random(0)
        self.config = Config(mqtt=Mqtt(), limits=Limits(connect_timeout_s=10_000))
        self.network = Network(self.random, 1.0)
        self.environment = environment
        self.rights = self.rights_of_several = None
        self.workers: list[Any] = [Worker(self, number) for number in range(2)]  # type: ignore[arg-type]
        for worker in self.workers:
            worker.machine.durability, worker.machine.has_follower = "fsync", False
            worker.boot()
        self.until(lambda: all(worker.is_ready for worker in self.workers))

    def while_syncing(self, worker: Worker) -> None:
        """Nothing happens meanwhile."""

    def work(self, *workers: Any) -> None:
        """Turns of these, and their logs become durable."""
        for worker in workers:
            worker.turn()
            worker.machine.commit()
            worker.turn()

    def until(self, condition: Callable[[], bool]) -> None:
        """Let everything move until something holds."""
        for _ in range(500):
            if condition():
                return
            self.now_ms += TICK_MS
            self.network.step(False)
            self.work(*self.workers)
        raise AssertionError("it never comes to that")

    def lane(self, start: int) -> Any:
        """Return the way from one worker to the other."""
        (lane,) = (lane for lane in self.network.lanes() if lane.carrier.number == start)
        return lane

    def break_connection(self, start: int) -> None:
        """What a worker has sent so far is lost on its way; what it sends later waits."""
        lane = self.lane(start)
        lane.waiting.clear()
        lane.disconnect()

    def fall_silent(self, worker: Any) -> None:
        """Time passes for one worker alone, until it does not hear the other any more."""
        for _ in range(SILENCE_MS // TICK_MS + 1):
            self.now_ms += TICK_MS
            self.work(worker)
        assert link_of(worker).state == "silent"


def link_of(worker: Any) -> Any:
    (neighbour,) = worker.mesh.neighbours.values()
    return neighbour.link


class Client:
    """A client of one worker; packets in, packets out."""

    def __init__(self, script: Script, worker: Any, name: str, *, keep: bool = False) -> None:
        self.script = script
        self.connection = worker.hub.connect()
        self._buffer = bytearray()
        self.got: list[bytes] = []
        self.acknowledged: list[tuple[PacketType, int]] = []
        self.subscribed = False
        self.send(Connect(5, name.encode(), not keep, 0, None, None, None, {"session_expiry_interval": 1000 * keep}))

    def send(self, *packets: Any) -> None:
        self.connection.feed_bytes(b"".join(encode(packet, 5) for packet in packets))

    def read(self) -> None:
        """Take what has come, and acknowledge deliveries."""
        self._buffer += self.connection.take_output()
        while (frame := next_frame(self._buffer)) is not None:
            packet = decode(*frame, 5)
            if isinstance(packet, Publish):
                self.got.append(packet.payload)
                if packet.qos:
                    answer = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
                    self.send(Ack(answer, packet.packet_identifier))
            elif isinstance(packet, Ack) and packet.type == PacketType.PUBREL:
                self.send(Ack(PacketType.PUBCOMP, packet.packet_identifier))
            elif isinstance(packet, Ack):
                self.acknowledged.append((packet.type, packet.packet_identifier))
            else:
                assert isinstance(packet, Connack | Suback)
                self.subscribed |= isinstance(packet, Suback)
