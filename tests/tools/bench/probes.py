"""Measurements that the yardstick does not make: a lone connect, a lone publish beside a busy thread, an idle worker,
memory, latency beside bad clients."""

from __future__ import annotations

import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

LONE_CONNECTS = 300
LONE_PUBLISHES = 500
ROUNDS_OF_CLIENTS = 10
CLIENTS = 10_000
ALIVE_S = 20
LATENCY_ROUNDS = 9
NO_BROKER_PORT = 18863
ENDLESS = "1000000"


@contextmanager
def broker(command: str, port: int, cores: Collection[int] = (0,)) -> Iterator[int]:
    """Run a broker pinned to cores until the block ends; gives its process id. RuntimeError if its port is taken."""
    with socket.socket() as other:
        if other.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(f"something listens on port {port}: it would be measured instead of {command}")
    process = subprocess.Popen(
        shlex.split(command.replace("{port}", str(port))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        end = time.monotonic() + ALIVE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.005)
        yield process.pid
    finally:
        process.terminate()
        process.wait(ALIVE_S)


def resident_kib(pid: int) -> int:
    """Return a process's resident memory in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def connect_packet(identifier: str) -> bytes:
    """Return a clean 3.1.1 CONNECT."""
    name = identifier.encode()
    body = b"\0\x04MQTT\x04\x02\x01\x2c" + len(name).to_bytes(2, "big") + name
    return bytes((0x10, len(body))) + body


def lone_connect_p99_us(command: str, port: int) -> float:
    """Return the 99th percentile of connect plus CONNACK, one at a time with pauses, in microseconds."""
    times = []
    with broker(command, port):
        time.sleep(1)
        for number in range(LONE_CONNECTS):
            time.sleep(0.005)
            started = time.perf_counter()
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.sendall(connect_packet(f"lone{number}"))
                answer = client.recv(4)
                times.append((time.perf_counter() - started) * 1e6)
                if answer != b"\x20\x02\0\0":
                    raise RuntimeError(f"CONNACK {answer.hex()}")
                client.sendall(b"\xe0\0")
    return statistics.quantiles(times, n=100)[98]


def lone_publish_p99_us(command: str, port: int) -> float:
    """Return the 99th percentile of a publish until it is delivered to its own client, one at a time, in us."""
    times = []
    publish = b"\x30\x04\0\x01tx"
    # A core more, so that what is measured is the wait for the interpreter and not the one for the core.
    with broker(command, port, (0, 1)), socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(ALIVE_S)
        client.sendall(connect_packet("lone") + b"\x82\x06\0\x01\0\x01t\0")
        answer = b""
        while len(answer) < 9:
            answer += client.recv(9 - len(answer))
        if answer != b"\x20\x02\0\0\x90\x03\0\x01\0":
            raise RuntimeError(f"CONNACK and SUBACK {answer.hex()}")
        for _ in range(LONE_PUBLISHES):
            time.sleep(0.005)
            started = time.perf_counter()
            client.sendall(publish)
            delivered = client.recv(100)
            times.append((time.perf_counter() - started) * 1e6)
            if delivered != publish:
                raise RuntimeError(f"delivered {delivered.hex()}")
    return statistics.quantiles(times, n=100)[98]


def idle_worker_mib(command: str, port: int) -> float:
    """Return the resident memory of a worker without clients, in MiB."""
    with broker(command, port) as pid:
        time.sleep(2)
        return resident_kib(pid) / 1024


def memory_after_clients(command: str, port: int) -> list[float]:
    """Return resident MiB after each of ten times 10,000 clients that connected, subscribed, published and left."""
    after = []
    with broker(command, port) as pid:
        for turn in range(ROUNDS_OF_CLIENTS):
            clients = []
            for number in range(CLIENTS):
                client = socket.create_connection(("127.0.0.1", port))
                topic = f"memory/{turn}/{number}".encode()
                text = len(topic).to_bytes(2, "big") + topic
                client.sendall(
                    connect_packet(f"m{number}")
                    + bytes((0x82, len(text) + 3))
                    + b"\0\x01"
                    + text
                    + b"\x01"
                    + bytes((0x32, len(text) + 2 + 16))
                    + text
                    + b"\0\x02"
                    + b"x" * 16
                )
                clients.append(client)
            for client in clients:
                client.settimeout(ALIVE_S)
                expected = 4 + 5 + 4 + 2 + len(text) + 2 + 16
                got = 0
                while got < expected - 8:  # topics differ by a few digits
                    got += len(client.recv(4096))
                client.sendall(b"\xe0\0")
                client.close()
            time.sleep(6)  # one round of the broker's housekeeping
            after.append(resident_kib(pid) / 1024)
            print(f"  after {turn + 1} x {CLIENTS} clients: {after[-1]:.1f} MiB", file=sys.stderr)
    return after


def p99_beside_bad_clients_us(command: str, port: int, mqload: Path) -> tuple[list[float], list[float]]:
    """Return the 99th percentile of latency at 5,000 msg/s of QoS 1 while bad clients attack, for each round, us.

    They are those of tests.support.hostile, with lowest priority on the load generator's core. First they attack what
    is no broker, then the broker: what is more in the second is what they cost there, and not on the generator's core.
    """

    def p99_us() -> float:
        run = subprocess.run(
            [mqload, "rate", "-p", str(port), "-q", "1", "--rate", "5000", "--seconds", "3", "--cpu", "1", "--no-spin"],
            check=True,
            capture_output=True,
            text=True,
        )
        return float(json.loads(run.stdout)["p99_us"])

    elsewhere, beside = [], []
    for _ in range(LATENCY_ROUNDS):
        with broker(command, port), at_lowest_priority("tests.support.no_broker", NO_BROKER_PORT):
            time.sleep(1)
            for attacked, found in ((NO_BROKER_PORT, elsewhere), (port, beside)):
                with at_lowest_priority("tests.support.hostile", attacked, "--garbage", ENDLESS):
                    found.append(p99_us())
    return elsewhere, beside


@contextmanager
def at_lowest_priority(module: str, port: int, *arguments: str) -> Iterator[None]:
    """Run a module with a port, on the load generator's core, from when it says that it is ready to the block's end."""

    def place() -> None:
        os.nice(19)
        os.sched_setaffinity(0, {1})

    with subprocess.Popen(
        [sys.executable, "-m", module, str(port), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=place,
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{module} did not begin")
            yield
        finally:
            process.terminate()
            process.communicate()
