"""Two routers' ends of a link, joined by queues that may lose what is in them, and that can be killed."""

from __future__ import annotations

from collections import deque
from typing import Any

from mesh.frames import FrameReader
from mesh.link import LinkOwner, PeerLink
from router.core.message import message
from router.router import Router
from router.sessions.ledger import Ledger

EXPIRY_NEVER = 0xFFFFFFFF
WINDOW_BYTES = 1 << 20
START_US = 1_760_000_000_000_000


class Disk:
    """What outlives the process of one end."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.accepted = 0  # QoS 1 messages so far; each one's payload is its number, from 1
        self.acknowledged = 0  # so many of them the other end answers for
        self.received: list[int] = []  # QoS 1 messages of the other end, as they were synced
        self.heard = 0  # incarnation of the other end


class End(LinkOwner):  # type: ignore[misc]
    """One process: a router whose only client is the peer."""

    def __init__(self, disk: Disk, now_ms: int, **terms: int) -> None:
        self.disk = disk
        disk.incarnation += 1
        self.ledger = Ledger()
        self.router = Router(self.ledger)
        self.set_time(now_ms)
        self.session, _ = self.router.open_session(b"\0peer", True, EXPIRY_NEVER)
        self.router.subscribe(self.session, b"#", 1)
        self.link = PeerLink(b"node/1", self, self.session, disk.incarnation, peer_incarnation=disk.heard, **terms)
        self.to_peer: deque[bytes] = deque()
        self.answers: deque[bytes] = deque()
        self.taken: list[tuple[int, int]] = []  # (QoS, number), everything this process was given
        self.unsynced: list[int] = []
        self.unsettled: list[tuple[int, int, int]] = []
        self.changes: list[tuple[str, str]] = []
        self.incarnations: list[int] = []
        self.began_at: list[tuple[int, int]] = []  # (incarnation, record), as the other end said
        self.acknowledged_until = 0
        # Delivery numbers of this process begin at 0, with what the disk still owes.
        self.first = disk.acknowledged + 1
        for number in range(self.first, disk.accepted + 1):
            self.hand_over(number, 1)

    def set_time(self, now_ms: int) -> None:
        """Both clocks, at once."""
        self.ledger.now_ms = now_ms
        self.ledger.now_us = START_US + now_ms * 1000

    def hand_over(self, number: int, qos: int, size: int = 0) -> None:
        """Publish to the peer; the payload is the number, filled up to a size."""
        self.router.publish_message(message(b"t", b"%d" % number + b" " * size, qos, now_ms=self.ledger.now_ms))

    def publish(self, size: int = 0) -> None:
        """Accept a QoS 1 message."""
        self.disk.accepted += 1
        self.hand_over(self.disk.accepted, 1, size)

    def turn(self, now_ms: int) -> None:
        """A turn ends at a time; its tick, too."""
        self.set_time(now_ms)
        self.link.advance(now_ms)
        self.link.end_turn()

    def sync(self) -> None:
        """What was taken is safe."""
        self.disk.received += self.unsynced
        self.unsynced.clear()
        for settled in self.unsettled:
            self.link.settle(*settled)
        self.unsettled.clear()

    def on_send(self, link: PeerLink, frame: bytes) -> None:
        self.to_peer.append(frame)

    def on_answer(self, link: PeerLink, frame: bytes) -> None:
        self.answers.append(frame)

    def on_message(self, link: PeerLink, entry: FrameReader) -> None:
        number, qos = int(entry.message.body), entry.message.quality_of_service
        self.taken.append((qos, number))
        if qos:
            self.unsynced.append(number)

    def on_taken(self, link: PeerLink, epoch: int, index: int, sequence: int) -> None:
        self.unsettled.append((epoch, index, sequence))

    def on_acknowledged(self, link: PeerLink, end: int) -> None:
        assert end > self.acknowledged_until, (end, self.acknowledged_until)
        self.acknowledged_until = end
        self.disk.acknowledged = self.first - 1 + end
        link.free_deliveries(end)

    def changed(self, link: PeerLink, before: str) -> None:
        self.changes.append((before, link.state))
        assert self.session.connected == (link.state == "up")

    def began(self, link: PeerLink, after: int) -> None:
        self.began_at.append((link.peer_incarnation, after))

    def restarted(self, link: PeerLink, incarnation: int) -> None:
        self.incarnations.append(incarnation)
        self.disk.heard = incarnation


class Pair:
    """Both ends, and what is between them."""

    def __init__(self, **terms: int) -> None:
        self.now_ms = 1000
        self.terms = terms
        self.disks = [Disk(), Disk()]
        self.ends = [End(disk, self.now_ms, **terms) for disk in self.disks]

    def carry(self, side: int, answers: bool, count: int = 1 << 30) -> int:
        """Bring frames of one side, or its answers, to the other, at most so many; returns how many."""
        queue = self.ends[side].answers if answers else self.ends[side].to_peer
        carried = 0
        while queue and carried < count:
            assert self.ends[1 - side].link.receive_frame(queue.popleft())
            carried += 1
        return carried

    def lose(self, side: int, answers: bool, count: int) -> None:
        """A connection breaks: what the kernel had, the oldest, is lost; what still waited goes by the next one."""
        queue = self.ends[side].answers if answers else self.ends[side].to_peer
        for _ in range(min(count, len(queue))):
            queue.popleft()

    def kill(self, side: int) -> None:
        """End a process and start the next. What waits at the other side for the old one reaches the new one."""
        self.ends[side] = End(self.disks[side], self.now_ms, **self.terms)
        self.ends[1 - side].answers.clear()  # they name a process that is no more

    def turn(self, side: int, pass_ms: int = 0) -> None:
        """A turn of one side."""
        self.now_ms += pass_ms
        self.ends[side].turn(self.now_ms)

    def run(self, turns: int = 1, pass_ms: int = 250) -> None:
        """Turns of both, with nothing lost."""
        for _ in range(turns):
            self.now_ms += pass_ms
            for side in (0, 1):
                self.turn(side)
            for side in (0, 1):
                self.carry(side, False)
                self.ends[1 - side].sync()
                self.ends[1 - side].turn(self.now_ms)
                self.carry(1 - side, True)

    def statistics(self, side: int) -> dict[str, Any]:
        """The link's."""
        found: dict[str, Any] = self.ends[side].link.statistics()
        return found
