"""`python -m tests.tools.soak.hostile_packets`: packets that are much work, beside a witness whose waits are judged.

The witness sends a PINGREQ and a PUBLISH of QoS 1 to itself, one at a time, and waits for each answer. Meanwhile others
send, one kind after another, what has once stopped a worker. Said for each kind: the witness's median and longest wait,
and the broker's longest turn; the longest wait of all is judged.

Who attacks, the witness, the broker and whatever else runs share the machine's cores. How long broker and witness were
ready and had no core is what Linux counts for them (/proc/PID/task/TID/schedstat), and what a host took from a virtual
machine (/proc/stat, in hundredths of a second); that part of a wait is said apart from the rest, and only the rest is
judged. What is usual is measured first, with nobody else there.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from broker.wire.packets import Ack, Pingreq, Pingresp, Publish, Suback, Subscribe, Unsubscribe, encode, subscription
from broker.wire.properties import PacketType
from router.core.varint import encode_varint
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient

LONGEST_MS = 10.0  # that the witness may wait, beyond what is usual
PAUSE_S = 0.001  # between two words of the witness
USUAL_S = 3.0
READERS = 1000
RETAINED = 1000

PROCESSES = multiprocessing.get_context("spawn")


class Over(Protocol):
    """What tells those who attack, here or in another process, that it is over."""

    def is_set(self) -> bool: ...

    def wait(self) -> object: ...


Attack = Callable[[int, Over], None]


def alternating(count: int, levels: int) -> tuple[bytes, ...]:
    """Return filters made of `a` and `+`, all of which a topic name of `a` matches as far as they can tell."""
    return tuple(
        b"/".join((b"a", b"+")[number >> bit & 1] if bit < 14 else b"a" for bit in range(levels))
        for number in range(count)
    )


def again(port: int, over: Over, packet: bytes) -> None:
    """Send a packet, read for a while, and come anew, until it is over."""
    for number in itertools.count():
        if over.is_set():
            return
        with RawClient(port) as client:
            client.connect(f"again {number}")
            client.socket.settimeout(0.5)
            try:
                client.socket.sendall(packet)
                while not over.is_set() and client.socket.recv(1 << 20):
                    pass
            except OSError:
                pass


def retained_many_times(port: int, over: Over) -> None:
    """One SUBSCRIBE of # as often as fits, beside retained messages."""
    with RawClient(port) as client:
        client.connect("retains")
        for number in range(RETAINED):
            client.send(Publish(b"kept/%d" % number, b"x" * 100, 1, True, packet_identifier=1))
            client.read()
    again(port, over, encode(Subscribe(1, (subscription(b"#"),) * 130_000), 5))


def distinct_filters(port: int, over: Over) -> None:
    """One SUBSCRIBE of filters that are all different, and their UNSUBSCRIBE."""
    names = [b"d/%d" % number for number in range(45_000)]
    again(
        port,
        over,
        encode(Subscribe(1, tuple(subscription(name) for name in names)), 5) + encode(Unsubscribe(2, tuple(names)), 5),
    )


def user_properties(port: int, over: Over) -> None:
    """SUBSCRIBEs of user properties."""
    block = b"\x26\0\0\0\0" * 100_000
    body = b"\0\1" + encode_varint(len(block)) + block + b"\0\1t\0"
    again(port, over, b"\x82" + encode_varint(len(body)) + body)


def user_properties_in_connect(port: int, over: Over) -> None:
    """CONNECTs of user properties, from whoever."""
    block = b"\x26\0\0\0\0" * 13_000
    body = b"\0\4MQTT\5\2\0\0" + encode_varint(len(block)) + block + b"\0\4many"
    packet = b"\x10" + encode_varint(len(body)) + body
    while not over.is_set():
        with RawClient(port) as client:
            try:
                client.socket.sendall(packet)
                client.socket.recv(100)
            except OSError:
                pass


def deep_filters(port: int, over: Over) -> None:
    """Filters of as many + as are taken, and messages on new topics."""
    with RawClient(port) as client, RawClient(port) as publisher:
        client.connect("deep")
        for number, levels in enumerate((127, 14), 1):
            for at in range(0, 10_000, 1000):
                client.send(
                    Subscribe(number, tuple(subscription(each) for each in alternating(10_000, levels)[at : at + 1000]))
                )
                while not isinstance(client.read(), Suback):
                    pass
        publisher.connect("publishes")
        client.socket.settimeout(0.01)
        for number in itertools.count():
            if over.is_set():
                return
            publisher.socket.sendall(
                b"".join(encode(Publish(b"a/" * 13 + b"x%d" % (100 * number + each), b""), 5) for each in range(100))
            )
            try:
                while client.socket.recv(1 << 20):
                    pass
            except TimeoutError:
                pass


def to_many_readers(port: int, over: Over) -> None:
    """Tiny messages of QoS 0 to a thousand readers, who read."""
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(port)) for _ in range(READERS)]
        for number, client in enumerate(clients):
            client.connect(f"reader {number}")
            client.send(Subscribe(1, (subscription(b"many"),)))
            client.read()

        def read() -> None:
            for client in itertools.cycle(clients):
                if over.is_set():
                    return
                client.socket.setblocking(False)
                try:
                    client.socket.recv(1 << 20)
                except OSError:
                    pass

        reading = threading.Thread(target=read)
        reading.start()
        with RawClient(port) as publisher:
            publisher.connect("floods")
            flood = encode(Publish(b"many", b""), 5) * 1000
            publisher.socket.settimeout(0.5)
            while not over.is_set():
                try:
                    publisher.socket.sendall(flood)
                except TimeoutError:
                    break  # half of it may have gone: this one says no more
        over.wait()
        reading.join()


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        retained_many_times,
        distinct_filters,
        user_properties,
        user_properties_in_connect,
        deep_filters,
        to_many_readers,
    )
}


class Wait(NamedTuple):
    """How long an answer took, ms, in all and less the time in which broker or witness had no core."""

    all_ms: float
    own_ms: float


def without_core_ms(threads: Iterable[tuple[int, int]]) -> float:
    """Return how long these threads, (process, thread), were ready and did not run, and what the host took."""
    stolen = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    counted = [Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split() for process, thread in threads]
    return 1000 / os.sysconf("SC_CLK_TCK") * stolen + sum(int(ready_ns) for _, ready_ns, _ in counted) / 1e6


def waits(client: RawClient, broker_process: int, seconds: float) -> Iterator[Wait]:
    """Have the witness say something and wait for the answer, for so long; yield how long each took."""
    threads = ((broker_process, broker_process), (os.getpid(), threading.get_native_id()))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        without_ms = without_core_ms(threads)
        begun_s = time.monotonic()
        client.send(Pingreq())
        answer = client.read()
        assert answer == Pingresp(), answer
        client.send(Publish(b"witness", b"x", 1, packet_identifier=1))
        acknowledged = arrived = False
        while not (acknowledged and arrived):
            packet = client.read()
            if isinstance(packet, Publish):
                arrived = True
                client.send(Ack(PacketType.PUBACK, packet.packet_identifier))
            else:
                assert isinstance(packet, Ack), packet
                acknowledged = True
        all_ms = 1000 * (time.monotonic() - begun_s)
        yield Wait(all_ms, max(all_ms - (without_core_ms(threads) - without_ms), 0.0))
        time.sleep(PAUSE_S)


def said(found: list[Wait]) -> str:
    """Return the median and the longest of some waits, and the longest of what no other process is to blame for."""
    alls = [wait.all_ms for wait in found]
    return (
        f"{statistics.median(alls):.2f} ms (median), {max(alls):.1f} (longest of {len(alls)}), "
        f"{max(wait.own_ms for wait in found):.1f} (longest with a core)"
    )


def attacked(folder: Path, name: str, seconds: float) -> tuple[float, float]:
    """Run one attack on a broker of its own. Returns the longest wait with a core before and during it, ms."""
    with BrokerProcess(folder, environment={"SHOAL_LOG__LEVEL": "debug"}) as broker, RawClient(broker.port) as witness:
        assert broker.process is not None
        witness.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        witness.connect("witness")
        witness.send(Subscribe(1, (subscription(b"witness", 1),)))
        witness.read()
        usual = list(waits(witness, broker.process.pid, USUAL_S))
        # In a process of their own: who attacks must not hold the interpreter that the witness waits for.
        over = PROCESSES.Event()
        attacking = PROCESSES.Process(target=ATTACKS[name], args=(broker.port, over))
        attacking.start()
        try:
            found = list(waits(witness, broker.process.pid, seconds))
        finally:
            over.set()
            attacking.join()
            assert attacking.exitcode == 0, attacking.exitcode
        slow = broker.events("slow_turn")
    print(f"{name}: the witness waited {said(found)}; usually {said(usual)}; {len(slow)} turns above 10 ms", flush=True)
    if slow:
        worst = max(slow, key=lambda event: event["turn_us"])
        print("  the longest, in us:", {key: value for key, value in worst.items() if key.endswith("_us")})
    return max(wait.own_ms for wait in usual), max(wait.own_ms for wait in found)


def main() -> None:
    """Run, and say what came of it; the exit code is 0 if nobody waited too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak.hostile_packets", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack")
    parser.add_argument("--longest-ms", type=float, default=LONGEST_MS)
    parser.add_argument("attacks", nargs="*", choices=[*ATTACKS, []])
    arguments = parser.parse_args()
    failed = []
    for name in arguments.attacks or ATTACKS:
        with tempfile.TemporaryDirectory() as folder:
            usual_ms, longest_ms = attacked(Path(folder), name, arguments.seconds)
        if longest_ms > usual_ms + arguments.longest_ms:
            failed.append(name)
    print(f"hostile packets: {'FAILED: ' + ', '.join(failed) if failed else 'held'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
