"""What is between workers: frames that are on their way, connections that break, processes that nobody hears any more.

As ZeroMQ has it: what a lane holds waits for the peer's process, or for its next one; what had left is lost when the
connection breaks or the receiver dies; of what a dead sender had sent, the beginning may still come, even after the
first frames of its next process. Nothing comes twice, and within a connection nothing overtakes.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from mesh.base_transport import Carrier, Lane
from tests.simulator.machine import Death

STALLED_STEPS = 80  # at most, for a connection that does not move
FRAMES_OF_A_TURN = 256  # that a process takes of what has come, as mesh.transport does


class SimulatedLane(Lane):  # type: ignore[misc]
    """One process's way to one worker."""

    def __init__(self, carrier: SimulatedCarrier, target: int) -> None:
        self.carrier = carrier
        self.target = target
        self.waiting: deque[bytes] = deque()
        self.peer: SimulatedCarrier | None = None  # the process that it is connected to
        self.under_way: deque[bytes] = deque()
        self.answers: deque[bytes] = deque()  # on their way back
        self.stalled_steps = 0

    def on_send(self, frame: bytes) -> None:
        """Take a frame; it leaves when there is a connection."""
        self.carrier.death.at("peer send")
        self.waiting.append(frame)

    def disconnect(self) -> None:
        """The connection breaks, in both directions."""
        self.peer = None
        self.under_way.clear()
        self.answers.clear()


class SimulatedCarrier(Carrier):  # type: ignore[misc]
    """One process's end of everything.

    Attributes:
        inbox: what it finds when it looks: (identity or key, whether it is an answer, frame).
    """

    def __init__(self, network: Network, number: int, name: bytes, incarnation: int, death: Death) -> None:
        self.network = network
        self.number = number
        self.name = name
        self.identity = b"%b/%d" % (name, incarnation)
        self.death = death
        self.lanes: list[SimulatedLane] = []
        self.inbox: deque[tuple[bytes, bool, bytes]] = deque()

    def connect(self, key: bytes, endpoint: object, server_key: bytes | None = None) -> SimulatedLane:
        """Make a lane to a worker, whose number is its endpoint."""
        assert isinstance(endpoint, int)
        self.lanes.append(SimulatedLane(self, endpoint))
        return self.lanes[-1]

    def on_answer(self, identity: bytes, frame: bytes) -> bool:
        """Put an answer on its way, if its receiver is connected."""
        self.death.at("peer answer")
        for lane in self.network.lanes():
            if lane.carrier.identity == identity and lane.peer is self:
                lane.answers.append(frame)
                return True
        return False

    def on_receive(self, handler: Any) -> int:
        """Hand over what has come."""
        count = 0
        while self.inbox and count < FRAMES_OF_A_TURN:
            self.death.at("peer receive")
            handler.take(*self.inbox.popleft())
            count += 1
        return count


class Network:
    """All connections of all workers.

    Args:
        trouble: how likely it is that a connection stalls or breaks; 1 is usual.
    """

    def __init__(self, random: Random, trouble: float) -> None:
        self.random = random
        self.trouble = trouble
        self.processes: dict[int, SimulatedCarrier] = {}
        # (receiver, identity of a dead sender, frames)
        self.late: list[tuple[SimulatedCarrier, bytes, deque[bytes]]] = []
        self.breaks = 0

    def lanes(self) -> list[SimulatedLane]:
        """Return the lanes of all processes that live."""
        return [lane for carrier in self.processes.values() for lane in carrier.lanes]

    def enter(self, carrier: SimulatedCarrier) -> None:
        """A process is there."""
        self.processes[carrier.number] = carrier

    def leave(self, number: int) -> None:
        """A process is gone: what had left it may still come, what was on its way to it is lost."""
        gone = self.processes.pop(number, None)
        if gone is None:
            return
        for lane in gone.lanes:
            if lane.peer is not None and lane.under_way and self.random.random() < 0.5:
                frames = list(lane.under_way)[: self.random.randint(1, len(lane.under_way))]
                self.late.append((lane.peer, gone.identity, deque(frames)))
            lane.disconnect()
        for lane in self.lanes():
            if lane.peer is gone:
                if self.random.random() < 0.5:
                    for _ in range(self.random.randint(0, len(lane.answers))):
                        lane.carrier.inbox.append((gone.name, True, lane.answers.popleft()))
                lane.disconnect()
        self.late = [entry for entry in self.late if entry[0] is not gone]

    def step(self, faults: bool) -> None:
        """Let time pass: something moves, perhaps something breaks."""
        draw = self.random
        for lane in self.lanes():
            peer = lane.peer
            if not faults:
                lane.stalled_steps = 0
            elif lane.stalled_steps:
                lane.stalled_steps -= 1
                continue
            elif draw.random() < 0.001 * self.trouble:
                lane.stalled_steps = draw.randint(1, STALLED_STEPS)
                continue
            if peer is None:
                if lane.target in self.processes and (not faults or draw.random() < 0.3):
                    lane.peer = self.processes[lane.target]
                continue
            if faults and draw.random() < 0.002 * self.trouble:
                self.breaks += 1
                lane.disconnect()
                continue
            lane.under_way += lane.waiting
            lane.waiting.clear()
            self._move(lane.under_way, peer, lane.carrier.identity, False, faults)
            self._move(lane.answers, lane.carrier, peer.name, True, faults)
        for entry in list(self.late):
            receiver, identity, frames = entry
            self._move(frames, receiver, identity, False, faults)
            if not frames:
                self.late.remove(entry)

    def _move(self, frames: deque[bytes], to: SimulatedCarrier, key: bytes, answer: bool, faults: bool) -> None:
        for _ in range(self.random.randint(0, len(frames)) if faults else len(frames)):
            to.inbox.append((key, answer, frames.popleft()))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way."""
        return (
            not self.late
            and not any(carrier.inbox for carrier in self.processes.values())
            and not any(lane.waiting or lane.under_way or lane.answers for lane in self.lanes())
        )
