"""`python -m tests.tools.soak.stall --seconds 60`: a worker is stopped (SIGSTOP) for a while, and then goes on.

Clients of the other workers must not feel it, but that a publisher of what is wanted there is answered only when the
worker has been silent for `mesh.silence_s`, once. Its own clients must get everything when it goes on, without coming
anew.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from broker.wire.packets import Ack, Packet, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

STOPPED = 2  # the worker
USUAL_S = 15.0  # how long it is measured what is usual, before and again afterwards
PAUSE_S = 0.002  # between two messages
SLOWER_MAX = 3  # times p99 of what is usual
P99_S = 0.02  # or so much, on a machine that does other things as well


class Subscriber(RawClient):
    """Subscribes at QoS 2, unless its session does already, and acknowledges what comes."""

    def __init__(self, port: int, name: str, topic_filter: bytes, *, keep: bool) -> None:
        super().__init__(port)
        if not self.connect(name, keep=keep).session_present:
            self.send(Subscribe(1, (subscription(topic_filter, 2),)))
            assert isinstance(self.read(), Suback)

    def message(self) -> bytes:
        """Return the payload of the next message, acknowledged."""
        while True:
            packet = self.read()
            assert packet is not None, "the connection ended"
            if isinstance(packet, Publish):
                self.send(Ack(PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC, packet.packet_identifier))
                return packet.payload
            assert isinstance(packet, Ack)
            self.send(Ack(PacketType.PUBCOMP, packet.packet_identifier))


class Publisher(RawClient):
    """Publishes at QoS 1 and 2, and waits for each end."""

    def __init__(self, port: int, name: str, topic: bytes) -> None:
        super().__init__(port)
        self.connect(name, keep=True)
        self.topic = topic
        self.count = 0

    def publish(self) -> bytes:
        """Publish the next message; returns its payload once it is acknowledged."""
        self.count += 1
        qos, payload = 1 + self.count % 2, b"%d" % self.count
        self.send(Publish(self.topic, payload, qos, packet_identifier=1))
        if qos == 2:
            self._expect(PacketType.PUBREC)
            self.send(Ack(PacketType.PUBREL, 1))
        self._expect(PacketType.PUBACK if qos == 1 else PacketType.PUBCOMP)
        return payload

    def _expect(self, packet_type: PacketType) -> None:
        packet: Packet | None = self.read()
        assert packet == Ack(packet_type, 1), packet


def latencies(publisher: Publisher, subscriber: Subscriber, seconds: float) -> Iterator[float]:
    """Publish for so long, one at a time; yield how long each took to come to the subscriber and be acknowledged, s."""
    end_s = time.monotonic() + seconds
    while (begun_s := time.monotonic()) < end_s:
        payload = publisher.publish()
        assert subscriber.message() == payload
        yield time.monotonic() - begun_s
        time.sleep(PAUSE_S)


def once_each(subscriber: Subscriber, payloads: list[bytes], what: str) -> list[str]:
    """Read until the last of these has come; returns what was wrong: only at QoS 1 may one come again."""
    got: list[bytes] = []
    while payloads and (not got or got[-1] != payloads[-1]):
        got.append(subscriber.message())
    first = list(dict.fromkeys(got))
    faults = [] if first == payloads else [f"{what} got {first[:10]}... instead of {payloads[:10]}..."]
    twice = [payload for payload in got if got.count(payload) > 1 and int(payload) % 2]
    return faults + ([f"{what} got {twice[:10]} more than once at QoS 2"] if twice else [])


def stall(
    folder: Path, seconds: float, *, usual_s: float = USUAL_S, messages: int = 200, **settings: str
) -> tuple[list[str], float, float]:
    """Stop a worker for so long. Returns what was wrong, in words, and p99 between the others: usually, and then, s."""
    faults: list[str] = []
    with Workers(folder, **settings) as broker:
        port = broker.port
        (near, near_too), (far,), (here, here_too) = broker.names(0, 2), broker.names(1), broker.names(STOPPED, 2)
        with (
            Publisher(port, near, b"to/others") as bystander,
            Subscriber(port, far, b"to/others", keep=True) as other,
            Publisher(port, near_too, b"to/all") as publisher,
            Subscriber(port, here, b"to/all", keep=True) as durable,
            Subscriber(port, here_too, b"to/all", keep=False) as ephemeral,
        ):
            before_s = list(latencies(bystander, other, usual_s))
            pid = broker.kill_worker(STOPPED, signal.SIGSTOP)
            try:
                begun_s = time.monotonic()
                payloads = [publisher.publish() for _ in range(messages)]
                answered_s = time.monotonic() - begun_s
                slow_s = list(latencies(bystander, other, max(seconds - answered_s, 1.0)))
            finally:
                os.kill(pid, signal.SIGCONT)
            faults += once_each(durable, payloads, "who stays") + once_each(ephemeral, payloads, "who does not stay")
            payloads = [publisher.publish()]
            faults += once_each(durable, payloads, "who stays") + once_each(ephemeral, payloads, "who does not stay")
            after_s = list(latencies(bystander, other, usual_s))
        if broker.events("worker_ended") or broker.events("worker_killed"):
            faults.append("a worker ended")
    before_p99_s, slow_p99_s, after_p99_s = (
        statistics.quantiles(values, n=100)[98] for values in (before_s, slow_s, after_s)
    )
    print(
        f"p99 between the others: {before_p99_s * 1000:.2f} ms before, {slow_p99_s * 1000:.2f} ms while one is "
        f"stopped (longest {max(slow_s) * 1000:.1f} ms), {after_p99_s * 1000:.2f} ms afterwards; "
        f"{messages} messages for it were acknowledged after {answered_s:.1f} s"
    )
    return faults, max(before_p99_s, after_p99_s), slow_p99_s


def main() -> None:
    """Run, and say what came of it; the exit code is 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak.stall", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        faults, usual_p99_s, slow_p99_s = stall(Path(folder), arguments.seconds)
    if slow_p99_s > max(SLOWER_MAX * usual_p99_s, P99_S):
        faults.append(f"p99 rose from {usual_p99_s * 1000:.2f} to {slow_p99_s * 1000:.2f} ms")
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"a worker stopped for {arguments.seconds:g} s: {'FAILED' if faults else 'held'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
