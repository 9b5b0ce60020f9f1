"""`python -m tests.tools.bench.capacity` measures what clients, subscriptions and messages cost, for docs/capacity.md.

Every figure is the growth of one broker process's resident memory, divided by how many there were; each has a process
of its own. What the kernel holds for a connection is the growth of its slab caches, halved, since both ends are here.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.wire.packets import Connect, Pingreq, Publish, Subscribe, decode, encode, next_frame, subscription
from tests.support.process import BrokerProcess
from tests.tools.bench import probes
from tests.tools.bench.capacity_page import page

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "capacity.md"
FIGURES = DOCUMENT.with_suffix(".json")
CONNECTIONS = 10_000
OTHERS = 100_000  # subscriptions, retained and queued messages
FILTERS_PER_CLIENT = 1000
PAYLOAD = 100  # bytes
AT_ONCE = 500  # clients that connect together
HOUSEKEEPING_S = 12.0  # after which the broker has given back what it does not need
ANSWER_S = 60.0
DURABLE = {"session_expiry_interval": 0xFFFFFFFF}


@dataclass
class Load:
    """A broker process and the clients that hold on to it.

    Attributes:
        clients: their sockets, which keep their connections open.
    """

    broker: BrokerProcess
    clients: list[socket.socket] = field(default_factory=list)

    def connect(
        self,
        count: int,
        version: int = 4,
        prefix: str = "client",
        behind: Callable[[int], bytes] = lambda number: b"",
        clean: bool = True,
        stay: bool = True,
    ) -> list[socket.socket]:
        """Connect clients, each with some packets behind its CONNECT; returns once all are answered.

        Args:
            behind: packets by the number of the client; a PINGREQ is sent after them.
            stay: keep the connections; without, each client says DISCONNECT.
        """
        connected: list[socket.socket] = []
        properties = DURABLE if version == 5 and not clean else {}
        for first in range(0, count, AT_ONCE):
            some = []
            for number in range(first, min(first + AT_ONCE, count)):
                client = socket.create_connection(("127.0.0.1", self.broker.port), ANSWER_S)
                hello = Connect(version, f"{prefix}-{number:06}".encode(), clean, 300, properties=properties)
                client.sendall(encode(hello, version) + behind(number) + encode(Pingreq(), version))
                some.append(client)
            for client in some:
                read_until_ping(client, version)
                if not stay:
                    client.sendall(b"\xe0\0")
                    client.close()
            connected += some if stay else []
        self.clients += connected
        return connected

    def resident_bytes(self) -> int:
        """Return the broker's resident memory, when it has had time to give back what it does not need."""
        time.sleep(HOUSEKEEPING_S)
        assert self.broker.process is not None
        return probes.resident_kib(self.broker.process.pid) * 1024


def packets_until_ping(client: socket.socket, version: int) -> list[tuple[int, bytes]]:
    """Read a client's answers up to PINGRESP; returns them as (first byte, body). RuntimeError if one is a refusal."""
    buffer = bytearray()
    packets: list[tuple[int, bytes]] = []
    while all(first != 0xD0 for first, _ in packets):
        data = client.recv(65_536)
        if not data:
            raise RuntimeError(f"the broker closed a connection: {bytes(buffer[:80])!r}")
        buffer += data
        while (frame := next_frame(buffer)) is not None:
            packets.append(frame)
    for frame in packets:
        reason = getattr(decode(*frame, version), "reason", 0)
        if reason >= 0x80 or (frame[0] == 0x20 and reason):
            raise RuntimeError(f"refused: {decode(*frame, version)}")
    return packets


def read_until_ping(client: socket.socket, version: int) -> int:
    """Read a client's answers up to PINGRESP; returns how many QoS 1 messages were acknowledged on the way."""
    return sum(first == 0x40 for first, _ in packets_until_ping(client, version))


@contextmanager
def load(**settings: str) -> Iterator[Load]:
    """Run a broker that is warm: a few clients came, did everything, and left.

    Args:
        settings: variables of its environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(
            Path(folder), "--log-level", "error", environment={"SHOAL_MQTT__RECEIVE_MAXIMUM": "65535", **settings}
        )
        broker.start()
        running = Load(broker)
        try:
            running.connect(
                AT_ONCE,
                5,
                "warm",
                lambda number: subscribe(5, [b"warm/%d" % number]) + publishes(5, [b"warm/%d" % number], qos=1),
                stay=False,
            )
            yield running
        finally:
            for client in running.clients:
                client.close()
            if broker.process is not None and broker.process.poll() is None:
                broker.stop()
            if broker.process is not None and broker.process.stdout is not None:
                broker.process.stdout.close()


def subscribe(version: int, topic_filters: list[bytes], qos: int = 1) -> bytes:
    """Return SUBSCRIBEs, each with up to 100 topic filters."""
    return b"".join(
        encode(Subscribe(1, tuple(subscription(each, qos) for each in topic_filters[first : first + 100])), version)
        for first in range(0, len(topic_filters), 100)
    )


def publishes(version: int, topics: list[bytes], qos: int, retain: bool = False) -> bytes:
    """Return a PUBLISH for each topic, with different payloads of PAYLOAD bytes."""
    return b"".join(
        encode(
            Publish(topic, f"{number:0{PAYLOAD}}".encode(), qos, retain, False, number % 60_000 + 1 if qos else 0),
            version,
        )
        for number, topic in enumerate(topics)
    )


def connections(version: int, topic: str = "") -> tuple[float, float]:
    """Return bytes per idle connection: of the broker, and of the kernel for the broker's end."""

    def behind(number: int) -> bytes:
        return subscribe(version, [topic.format(number=number).encode()]) if topic else b""

    with load() as running:
        before, slab_before = running.resident_bytes(), slab_bytes()
        running.connect(CONNECTIONS, version, behind=behind)
        after, slab_after = running.resident_bytes(), slab_bytes()
    return (after - before) / CONNECTIONS, (slab_after - slab_before) / CONNECTIONS / 2


def slab_bytes() -> int:
    """Return what the kernel's slab caches hold, for everybody on this machine."""
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("Slab:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Slab in /proc/meminfo")


def offline_sessions() -> float:
    """Return bytes per durable session whose client is away, with one subscription of its own."""
    with load() as running:
        before = running.resident_bytes()
        running.connect(
            CONNECTIONS, 5, behind=lambda number: subscribe(5, [f"one/{number:06}".encode()]), clean=False, stay=False
        )
        return (running.resident_bytes() - before) / CONNECTIONS


def subscriptions(topic_filter: str, per_client: int = FILTERS_PER_CLIENT) -> float:
    """Return bytes per subscription; the filter has {number}, or is the same for all clients."""
    with load() as running:
        clients = running.connect(OTHERS // per_client)
        before = running.resident_bytes()
        for index, client in enumerate(clients):
            first = index * per_client
            client.sendall(
                subscribe(
                    4,
                    [
                        topic_filter.format(number=f"{number:06}").encode()
                        for number in range(first, first + per_client)
                    ],
                )
                + encode(Pingreq(), 4)
            )
            read_until_ping(client, 4)
        return (running.resident_bytes() - before) / OTHERS


def same_subscription() -> float:
    """Return bytes per subscription to one filter that all of many clients have."""
    with load() as running:
        clients = running.connect(CONNECTIONS)
        before = running.resident_bytes()
        for client in clients:
            client.sendall(subscribe(4, [b"all/of/them"]) + encode(Pingreq(), 4))
            read_until_ping(client, 4)
        return (running.resident_bytes() - before) / CONNECTIONS


def send(client: socket.socket, version: int, topics: list[bytes], qos: int, retain: bool) -> None:
    """Publish, a hundred at a time, and wait for the answers."""
    for first in range(0, len(topics), 100):
        client.sendall(publishes(version, topics[first : first + 100], qos, retain) + encode(Pingreq(), version))
        acknowledged = read_until_ping(client, version)
        if qos and acknowledged != len(topics[first : first + 100]):
            raise RuntimeError(f"{acknowledged} of 100 messages were acknowledged")


def retained_messages(**settings: str) -> float:
    """Return bytes per retained message of PAYLOAD bytes, each under a topic of its own."""
    with load(**settings) as running:
        (client,) = running.connect(1)
        before = running.resident_bytes()
        send(client, 4, [f"site/{number % 100:03}/sensor/{number:06}".encode() for number in range(OTHERS)], 1, True)
        return (running.resident_bytes() - before) / OTHERS


def queued_messages(sessions: int, messages: int) -> float:
    """Return bytes per message and session, for messages that wait for all of some durable sessions that are away."""
    with load() as running:
        running.connect(sessions, 5, "away", lambda number: subscribe(5, [b"queue/#"]), clean=False, stay=False)
        (client,) = running.connect(1)
        before = running.resident_bytes()
        send(client, 4, [b"queue/of/messages/01"] * messages, 1, False)
        return (running.resident_bytes() - before) / (sessions * messages)


def idle() -> float:
    """Return the resident bytes of a warm broker that holds nothing."""
    with load() as running:
        return float(running.resident_bytes())


def measure() -> dict[str, float]:
    """Measure everything, in bytes."""
    found: dict[str, float] = {}
    steps: tuple[tuple[str, Callable[[], float | tuple[float, float]]], ...] = (
        ("idle", idle),
        ("connection_3_1_1", lambda: connections(4)),
        ("connection_5_0", lambda: connections(5)),
        ("connection_subscribed", lambda: connections(5, "one/{number:06}")),
        ("session_away", offline_sessions),
        ("subscription_exact", lambda: subscriptions("site/7/sensor/{number}")),
        ("subscription_wildcard", lambda: subscriptions("site/{number}/+/state")),
        ("subscription_same", same_subscription),
        ("retained", lambda: retained_messages(SHOAL_LIMITS__ROUTE_CACHE_MAX="8")),
        ("retained_and_routes", retained_messages),
        ("queued", lambda: queued_messages(10, OTHERS // 10)),
        ("queued_one", lambda: queued_messages(1, 10_000)),
    )
    for name, step in steps:
        result = step()
        if isinstance(result, tuple):
            found[name], found[f"kernel_{name}"] = result
        else:
            found[name] = result
        print(f"  {name}: {found[name]:,.0f} bytes", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, and write the page."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < CONNECTIONS + 500:
        sys.exit(f"{CONNECTIONS} connections need ulimit -n {CONNECTIONS + 500}; the limit on open files is {hard}")
    figures = measure()
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(page(figures, CONNECTIONS, OTHERS, PAYLOAD), encoding="utf-8")
    print(f"written: {os.path.relpath(DOCUMENT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
