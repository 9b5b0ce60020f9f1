"""One bad client cannot hurt another, nor can a crowd of them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker.wire.packets import Ack, Connect, Publish, Subscribe, decode, encode, next_frame, subscription
from broker.wire.properties import PacketType
from tests.support.certificates import certificates
from tests.support.process import MEASURED, ROOT, BrokerProcess

TIMEOUT_S = 60
PAIRS = 5
GARBAGE, DECLARED = 5000, 1000
GARBAGE_LAYERED, DECLARED_LAYERED = 500, 200  # a handshake costs these clients, in Python, some ms
MEMORY_BYTES_MAX = 128_000_000
IN_TURN = 20  # messages under way per pair


class Pair(threading.Thread):
    """A publisher and a subscriber of QoS 1; what came is in `received`, in order."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__()
        self.port, self.number = port, number
        self.received: list[bytes] = []
        self.subscribed = threading.Event()
        self.start_now = threading.Event()
        self.window = threading.Semaphore(IN_TURN)
        self.stop = threading.Event()
        self.sent = 0

    def run(self) -> None:
        topic = b"good/%d" % self.number
        with (
            socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S) as subscriber,
            socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S) as publisher,
        ):
            subscriber.sendall(
                encode(Connect(4, b"s%d" % self.number), 4) + encode(Subscribe(1, (subscription(topic, 1),)), 4)
            )
            publisher.sendall(encode(Connect(4, b"p%d" % self.number), 4))
            sender = threading.Thread(target=self.publish, args=(publisher, topic))
            sender.start()
            buffer = bytearray()
            while self.received[-1:] != [b"end"] and (data := subscriber.recv(65_536)):
                buffer += data
                while (frame := next_frame(buffer)) is not None:
                    self.take(subscriber, decode(*frame, 4))
            sender.join(TIMEOUT_S)

    def take(self, subscriber: socket.socket, packet: object) -> None:
        if isinstance(packet, Publish):
            self.received.append(packet.payload)
            subscriber.sendall(encode(Ack(PacketType.PUBACK, packet.packet_identifier), 4))
            self.window.release()
        else:
            self.subscribed.set()

    def publish(self, publisher: socket.socket, topic: bytes) -> None:
        self.start_now.wait(TIMEOUT_S)
        while not self.stop.is_set():
            self.window.acquire(timeout=TIMEOUT_S)
            publisher.sendall(encode(Publish(topic, b"%d" % self.sent, 1, False, False, 1 + self.sent % 60_000), 4))
            self.sent += 1
        publisher.sendall(encode(Publish(topic, b"end", 1, False, False, 65_535), 4))
        left = 4 + 4 * (self.sent + 1)
        while left and (data := publisher.recv(left)):
            left -= len(data)


def peak_bytes(process: int) -> int:
    """Return the most memory that a process had so far."""
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]


@pytest.mark.parametrize("over", ["tcp", "tls", "wss"])
def test_bad_clients_all_at_once_cost_the_others_nothing(tmp_path: Path, over: str) -> None:
    """A stuck subscriber, a subscriber to everything, a flapping identifier, garbage, packets declared and not sent."""
    settings = tmp_path / "shoal.toml"
    settings.write_text(
        "[mqtt]\nmax_packet_size_bytes = 268_435_460\n"
        f"[limits]\nmemory_bytes_max = {MEMORY_BYTES_MAX}\n" + listener_of(over),
        encoding="utf-8",
    )
    with BrokerProcess(tmp_path, "--config", str(settings), environment=MEASURED) as broker:
        _attack(broker, over)


def listener_of(over: str) -> str:
    """Return the settings of a listener of a transport, beside the plain one."""
    if over == "tcp":
        return ""
    certificate, key = certificates().server
    tls = f'certfile = "{certificate}"\nkeyfile = "{key}"\n' if over in ("tls", "wss") else ""
    return f'[[listener]]\naddress = "{over}://127.0.0.1:0"\n{tls}'


def _attack(broker: BrokerProcess, over: str) -> None:
    assert broker.process is not None
    garbage, declared = (GARBAGE, DECLARED) if over == "tcp" else (GARBAGE_LAYERED, DECLARED_LAYERED)
    pairs = [Pair(broker.port, number) for number in range(PAIRS)]
    for pair in pairs:
        pair.start()
        assert pair.subscribed.wait(TIMEOUT_S) or pair.is_alive()
    hostile = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.hostile",
            str(broker.ports[over]),
            "--garbage",
            str(garbage),
            "--declared",
            str(declared),
            "--flap",
            "0",
            "--over",
            over,
            "--cafile",
            str(certificates().cafile),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert hostile.stdin is not None
    assert hostile.stdout is not None
    try:
        assert hostile.stdout.readline() == "ready\n"
        for pair in pairs:
            pair.start_now.set()
        assert hostile.stdout.readline() == "garbage done\n"
        for pair in pairs:
            pair.stop.set()
        for pair in pairs:
            pair.join(TIMEOUT_S)
        hostile.stdin.close()
        done = json.loads(hostile.stdout.readline())
        assert hostile.wait(TIMEOUT_S) == 0
    finally:
        for pair in pairs:
            pair.stop.set()
        hostile.kill()
        hostile.wait()
        hostile.stdout.close()
    for pair in pairs:
        assert pair.received == [b"%d" % number for number in range(pair.sent)] + [b"end"]
        assert pair.sent > IN_TURN
    assert peak_bytes(broker.process.pid) < MEMORY_BYTES_MAX
    assert done["declared"] == declared
    assert done["garbage"] == garbage
    assert done["takeovers"] > 0
    assert done["firehose_bytes"] > 0
