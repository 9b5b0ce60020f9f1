"""What the bare link between two workers costs: CPU per message, at both ends, ZeroMQ's threads included.

    python -m tests.tools.bench.mesh_link [--messages N] [--size BYTES]

Two processes over ipc://, each with a router, a link and a transport and no more. The sender publishes
so many messages a turn; a turn is one frame. What the receiver does with a message is nothing.
"""

from __future__ import annotations

import argparse
import json
import operator
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from mesh.base_transport import FrameHandler
from mesh.link import LinkOwner, PeerLink
from mesh.transport import Transport
from router.core.message import message
from router.router import Router
from router.sessions.ledger import Ledger

EXPIRY_NEVER = 0xFFFFFFFF
TICK_S = 0.25
LOOK_EVERY = 64  # turns of the sender between two looks at what came, as long as there is credit


class End(LinkOwner):  # type: ignore[misc]
    """One of the two processes."""

    on_message = operator.is_  # the least that can be called: the link counts by itself

    def __init__(self, folder: str, ours: int, theirs: int) -> None:
        self.router = Router(Ledger())
        session, _ = self.router.open_session(b"peer", True, EXPIRY_NEVER)
        self.router.subscribe(session, b"#", 1)
        self.transport = Transport(b"node/%d/1" % ours, f"ipc://{folder}/{ours}")
        self.link = PeerLink(b"node/%d" % theirs, self, session, 1)
        self.channel = self.transport.connect(self.link.peer, f"ipc://{folder}/{theirs}")
        self.peer_identity = self.link.peer + b"/1"
        self.handler = Handler(self.link)
        self.epoll = select.epoll()
        for fd in self.transport.fds:
            self.epoll.register(fd, select.EPOLLIN)
        self.next_tick = 0.0

    def on_send(self, link: PeerLink, frame: bytes) -> None:
        self.transport.send_frame(self.channel, frame)

    def on_answer(self, link: PeerLink, frame: bytes) -> None:
        self.transport.answer_frame(self.peer_identity, frame)

    def turn(self, block: bool) -> None:
        """Take what has come, say what is to be said; wait for something if asked to."""
        pending = self.transport.is_pending()
        readable = [] if pending else self.epoll.poll(TICK_S if block else 0)
        for fd, _ in readable:
            self.transport.mark_readable(fd)
        if pending or readable:
            self.transport.receive_frames(self.handler)
        now = time.monotonic()
        if now >= self.next_tick:
            self.next_tick = now + TICK_S
            self.router.ledger.now_ms = int(now * 1000)
            self.router.ledger.now_us = time.time_ns() // 1000
            self.link.advance(self.router.ledger.now_ms)
        self.link.end_turn()

    def close(self) -> None:
        self.epoll.close()
        self.transport.close()


class Handler(FrameHandler):  # type: ignore[misc]
    """Frames go to the only link there is."""

    def __init__(self, link: PeerLink) -> None:
        self.link = link

    def on_frame(self, identity: bytes, answer: bool, frame: bytes) -> None:
        self.link.receive_frame(frame)


def receive(folder: str) -> None:
    """Be the receiver: for each line "messages" on stdin, take so many and print the CPU seconds of it."""
    end = End(folder, 2, 1)
    end.epoll.register(sys.stdin.fileno(), select.EPOLLIN)
    wanted = 0
    start = 0.0
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            wanted = end.link.messages_in + int(line)
            print("ready", flush=True)
            start = time.process_time()
        end.turn(True)
        if wanted and end.link.messages_in >= wanted:
            print(time.process_time() - start, flush=True)
            wanted = 0
    end.close()


def measure(folder: str, messages: int, size: int, runs: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Send `messages` for each (name, QoS, messages a turn)."""
    receiver = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.bench.mesh_link", "--receive", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdin is not None
    assert receiver.stdout is not None
    end = End(folder, 1, 2)
    found = []
    for name, qos, per_turn in runs:
        count = messages if per_turn > 1 else max(messages // 5, 1)
        receiver.stdin.write(f"{count}\n")
        receiver.stdin.flush()
        receiver.stdout.readline()
        while end.link.state != "up" or end.link.outstanding:
            end.turn(True)
        sent_message = message(b"bench/topic", b"x" * size, qos)
        frames, started, cpu = end.link.frames_out, time.monotonic(), time.process_time()
        sent = turns = 0
        while sent < count:
            if not end.link.has_credit:
                end.turn(True)
                continue
            for _ in range(min(per_turn, count - sent)):
                end.router.publish_message(sent_message)
            sent += per_turn
            turns += 1
            if turns % LOOK_EVERY == 0:
                end.turn(False)
            else:
                end.link.end_turn()
        while end.link.outstanding:
            end.turn(True)
        cpu, passed = time.process_time() - cpu, time.monotonic() - started
        theirs = float(receiver.stdout.readline())
        found.append(
            {
                "run": name,
                "messages": count,
                "frames": end.link.frames_out - frames,
                "sender_us": round(cpu / count * 1e6, 3),
                "receiver_us": round(theirs / count * 1e6, 3),
                "messages_per_s": round(count / passed),
                "rewinds": end.link.rewinds,
            }
        )
    receiver.stdin.close()
    receiver.wait()
    end.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each run; a fifth where each is a frame")
    parser.add_argument("--size", type=int, default=64, help="of a payload, bytes")
    parser.add_argument("--receive", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        receive(arguments.receive)
        return
    with tempfile.TemporaryDirectory(prefix="mesh-") as folder:
        for row in measure(
            folder,
            arguments.messages,
            arguments.size,
            [
                ("QoS 0, 100 a turn", 0, 100),
                ("QoS 1, 100 a turn", 1, 100),
                ("QoS 0, 10 a turn", 0, 10),
                ("QoS 0, each a frame", 0, 1),
                ("QoS 1, each a frame", 1, 1),
            ],
        ):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
