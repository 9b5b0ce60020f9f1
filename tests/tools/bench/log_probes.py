"""What the commit log costs: recovery, sessions that come back, the archive, replay, retained messages, the disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from broker.wire.packets import Connect, Pingreq, Publish, Subscribe, encode, next_frame, subscription
from router.core.message import message
from router.log.disk import Disk
from router.log.log_writer import Log
from router.log.record_buffer import RecordBuffer
from router.log.record_kinds import Record
from router.log.segments import Segments
from tests.tools.bench import probes
from tests.tools.bench.capacity import packets_until_ping, publishes, read_until_ping

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
PORT = 18861
STARTS = 7  # whose median counts: one start differs from the next by half a second
AT_ONCE = 500  # clients that connect together
ANSWER_S = 60.0
ADDRESS_CLIENTS = 2000  # of one address of the loopback network: the search for a free port is short then
LATENCY_ROUNDS = 7
NEVER_COMPACT = {"SHOAL_STORAGE__COMPACT_BYTES": str(1 << 40)}
ARCHIVED = {"SHOAL_ARCHIVE__TOPIC_FILTERS": "sensors/#"}
PAYLOAD = 100  # bytes of what is archived, replayed and retained
EVERYTHING = b"$replay/1970-01-01T00:00:00Z/#"


@dataclass(slots=True)
class Running:
    """A broker process on one core.

    Attributes:
        ready_s: from its start until it accepted a connection.
        ready_cpu_s: the processor time of that.
    """

    pid: int
    counter: Path
    ready_s: float = 0.0
    ready_cpu_s: float = 0.0

    def cpu_s(self) -> float:
        """Return the processor time of all its threads so far, ended ones too."""
        # The clock of another process, clock_getcpuclockid(3): the only figure finer than a hundredth of a second.
        return time.clock_gettime(~self.pid << 3 | 2)

    def syncs(self) -> int:
        """Return its fdatasyncs so far."""
        return int(self.counter.read_text("ascii") or 0)

    def memory_mib(self, kind: str) -> float:
        """Return VmRSS, VmHWM (the most VmRSS ever was), RssAnon or RssFile in MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text("ascii").splitlines():
            if line.startswith(kind + ":"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"no {kind} in /proc/{self.pid}/status")


def serve_command(folder: Path, **settings: str) -> str:
    """Return the command of a broker that counts its fdatasyncs in syncs.txt beside its data; {port} is open."""
    variables = " ".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"env {variables} {sys.executable} -m tests.tools.bench.counting_worker {folder}.syncs serve "
        f"--workers 1 --listen tcp://127.0.0.1:{{port}} --data-dir {folder} --log-level error"
    )


@contextmanager
def serve(folder: Path, cores: Collection[int] = (0,), **settings: str) -> Iterator[Running]:
    """Run a broker on a data folder, on the first core or on others, until the block ends."""
    started = time.perf_counter()
    with probes.broker(serve_command(folder, **settings), PORT, cores) as pid:
        running = Running(pid, Path(f"{folder}.syncs"))
        running.ready_s, running.ready_cpu_s = time.perf_counter() - started, running.cpu_s()
        yield running


def empty(name: str) -> Path:
    """Return a folder below build/bench that has nothing in it."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def client(
    identifier: str, version: int = 4, behind: bytes = b"", clean: bool = True, address: str = "127.0.0.1"
) -> socket.socket:
    """Connect and send CONNECT and what comes behind it, and a PINGREQ; nothing is read yet."""
    properties = {"session_expiry_interval": 0xFFFFFFFF} if version == 5 and not clean else {}
    opened = socket.create_connection(("127.0.0.1", PORT), ANSWER_S, (address, 0))
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.sendall(
        encode(Connect(version, identifier.encode(), clean, 300, properties=properties), version)
        + behind
        + encode(Pingreq(), version)
    )
    return opened


def disk_sync_us(count: int = 400) -> dict[str, float]:
    """Return p50 and p99 of the disk's own fdatasync behind 4 KiB that were appended, 200 of them a second, in us."""
    times = []
    name = BUILD / "sync-probe"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        for number in range(count):
            os.pwrite(file, b"x" * 4096, number * 4096)
            started = time.perf_counter()
            os.fdatasync(file)
            times.append((time.perf_counter() - started) * 1e6)
            time.sleep(0.005)
    finally:
        os.close(file)
        name.unlink()
    return {"p50": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]}


def kinds_in(folder: Path) -> dict[str, int]:
    """Return how many records of each kind the log of a data folder holds."""
    found: dict[str, int] = {}
    record: Record
    for cursor in Segments(Disk(str(folder / "worker-0")), worker=0, rules=1).cursors():
        for record in cursor:
            found[record.kind] = found.get(record.kind, 0) + 1
    return found


# Recovery --------------------------------------------------------------------------------------------------------


@contextmanager
def written_log(folder: Path) -> Iterator[Log]:
    """Give the log of an empty data folder, to write to; what is appended is written by log.commit()."""
    home = folder / "worker-0"
    home.mkdir()
    segments = Segments(Disk(str(home)), worker=0, rules=1)
    segments.repair()
    marks = Random(1)
    log = Log(segments, incarnation=1, make_mark=lambda: marks.getrandbits(32), durability="os")
    (home / "incarnation").write_text("1\n", encoding="ascii")
    yield log
    log.close()


def write_traffic(folder: Path, size: int, sessions: int = 50) -> int:
    """Write QoS 1 messages of 64 bytes to durable sessions, all acknowledged, until the log has a size.

    Returns the bytes of the log.
    """
    with written_log(folder) as log:
        buffer = RecordBuffer(log.appended)
        now_us = int(time.time() * 1e6)
        names = [b"subscriber-%04d" % number for number in range(sessions)]
        for number, name in enumerate(names):
            buffer.add("session", now_us, name, 0xFFFFFFFF)
            buffer.add("subscribe", now_us, name, b"bench/pair/%04d" % number, 1, 0)
        messages = [message(b"bench/pair/%04d" % number, b"x" * 64, 1) for number in range(sessions)]
        delivery = 0
        while log.bytes_written < size:
            for _ in range(100):
                for number in range(sessions):
                    buffer.add_accepted(
                        now_us,
                        buffer.last_number + 1,
                        messages[number],
                        b"publisher-%04d" % number,
                        1 + delivery % 65_535,
                    )
                for name in names:
                    buffer.add_acknowledged(now_us, name, 4, 1 + delivery % 65_535, 0)
                delivery += 1
            log.append(buffer)
            log.commit()
            buffer = RecordBuffer(log.appended)
    return sum(file.stat().st_size for file in (folder / "worker-0").iterdir())


def recovery(size: int) -> dict[str, float]:
    """Return seconds and processor seconds of a start per GB of log, beyond those of an empty start; medians.

    With two cores, one of which reads and checks what the other applies, and with one.
    """
    folder = empty("log-recovery")
    written = write_traffic(folder, size)
    found: dict[str, list[float]] = {"s_per_gb": [], "cpu_s_per_gb": [], "one_core_s_per_gb": []}
    for _ in range(STARTS):
        for name, cores in (("s_per_gb", (0, 1)), ("one_core_s_per_gb", (0,))):
            with serve(empty("log-empty"), cores, **NEVER_COMPACT) as idle:
                pass
            with serve(folder, cores, **NEVER_COMPACT) as running:
                found[name].append((running.ready_s - idle.ready_s) / written * 1e9)
                if len(cores) > 1:
                    found["cpu_s_per_gb"].append((running.ready_cpu_s - idle.ready_cpu_s) / written * 1e9)
    shutil.rmtree(folder)
    return {"bytes": written, **{name: statistics.median(figures) for name, figures in found.items()}}


def come_and_go(running: Running, count: int, behind: Callable[[int], bytes]) -> dict[str, float]:
    """Have durable 5.0 clients connect, get all answers and leave, 500 at a time.

    Returns time, CPU, fdatasyncs, and how many had a session.
    """
    started, cpu_s, syncs, present = time.perf_counter(), running.cpu_s(), running.syncs(), 0
    for first in range(0, count, AT_ONCE):
        some = [
            client(f"client-{number:06}", 5, behind(number), False, f"127.0.1.{1 + number // ADDRESS_CLIENTS}")
            for number in range(first, min(first + AT_ONCE, count))
        ]
        for one in some:
            present += packets_until_ping(one, 5)[0][1][0]
            one.sendall(b"\xe0\0")
            one.close()
    return {
        "s": time.perf_counter() - started,
        "cpu_s": running.cpu_s() - cpu_s,
        "syncs": running.syncs() - syncs,
        "present": present,
    }


def sessions(count: int) -> dict[str, dict[str, float]]:
    """Return what it takes to make durable sessions with a subscription, to restart, and to have all of them back."""
    folder = empty("log-sessions")
    settings = {"SHOAL_LIMITS__CONNECTS_PER_SECOND_MAX": "0", **NEVER_COMPACT}
    with serve(folder, **settings) as running:
        made = come_and_go(
            running, count, lambda number: encode(Subscribe(1, (subscription(b"one/%06d" % number, 1),)), 5)
        )
    with serve(folder, **settings) as running:
        restart = {"s": running.ready_s, "cpu_s": running.ready_cpu_s, "syncs": running.syncs()}
        storm = come_and_go(running, count, lambda number: b"")
    kinds = kinds_in(folder)
    if kinds.get("session", 0) < 2 * count or kinds.get("subscribe", 0) != count:
        raise RuntimeError(f"the sessions were not durable: {kinds}")
    return {"made": made, "restart": restart, "storm": storm}


def restart_of_all(size: int, session_count: int, retained_count: int) -> dict[str, float]:
    """Return what a start takes behind kill -9, with a log of a size, durable sessions and retained messages.

    Every session must be there behind it, and the last retained message of every thousand.
    """
    folder = empty("log-all")
    write_traffic(folder, size)
    settings = {"SHOAL_LIMITS__CONNECTS_PER_SECOND_MAX": "0", "SHOAL_MQTT__RECEIVE_MAXIMUM": "65535", **NEVER_COMPACT}
    with serve(folder, **settings) as running:
        come_and_go(
            running, session_count, lambda number: encode(Subscribe(1, (subscription(b"one/%06d" % number, 1),)), 5)
        )
        store_retained(retained_count)
        os.kill(running.pid, signal.SIGKILL)
    written = sum(file.stat().st_size for file in (folder / "worker-0").iterdir())
    with serve(folder, **settings) as running:
        found = {
            "bytes": written,
            "sessions": session_count,
            "retained": retained_count,
            "s": running.ready_s,
            "cpu_s": running.ready_cpu_s,
            "mib": running.memory_mib("VmRSS"),
        }
        asked = [b"site/%d/sensor/%06d" % (number % 10, number) for number in range(999, retained_count, 1000)]
        reader = client("reader", 4, encode(Subscribe(1, tuple(subscription(topic, 0) for topic in asked)), 4))
        buffer, came = bytearray(), 0
        while came < len(asked) and (data := reader.recv(65_536)):
            buffer += data
            while (frame := next_frame(buffer)) is not None:
                came += frame[0] & 0xF0 == 0x30
        present = come_and_go(running, session_count, lambda number: b"")["present"]
    if (came, present) != (len(asked), session_count):
        raise RuntimeError(f"{present} of {session_count} sessions are there, {came} of {len(asked)} retained messages")
    shutil.rmtree(folder)
    return found


# The archive and replay --------------------------------------------------------------------------------------------


def archive_us(count: int, rounds: int) -> dict[str, float]:
    """Return processor time per QoS 0 message that nobody wants, without and with the archive, in us."""
    batch = b"".join(encode(Publish(b"sensors/%d" % (number % 100), b"x" * PAYLOAD), 4) for number in range(1000))
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        for name, settings in (("without", {}), ("with", ARCHIVED)):
            with serve(empty("log-archive"), **settings, **NEVER_COMPACT) as running:
                publisher = client("publisher")
                read_until_ping(publisher, 4)
                before = running.cpu_s()
                for number in range(count // 1000):
                    publisher.sendall(batch)
                    if number % 2:
                        time.sleep(0.005)  # so that a disk keeps up with what is a tenth of a GB a second
                publisher.sendall(encode(Pingreq(), 4))
                read_until_ping(publisher, 4)
                time.sleep(1)  # for the log's thread to be done
                times[name].append((running.cpu_s() - before) / count * 1e6)
                publisher.close()
    return {name: statistics.median(found) for name, found in times.items()}


def replay(count: int) -> dict[str, float]:
    """Return ms until the first of stored messages comes to a client, and how many come in a second."""
    folder = empty("log-replay")
    with written_log(folder) as log:
        messages = [message(b"sensors/%d/temperature" % number, b"x" * PAYLOAD, 1) for number in range(1000)]
        start_us = int(time.time() * 1e6) - count * 100
        for first in range(0, count, 1000):
            buffer = RecordBuffer(log.appended)
            for number in range(first, min(first + 1000, count)):
                buffer.add_accepted(
                    start_us + number * 100,
                    buffer.last_number + 1,
                    messages[number % 1000],
                    b"pump",
                    1 + number % 65_535,
                )
            log.append(buffer)
            log.commit()
    firsts = []
    ask = encode(Subscribe(1, (subscription(EVERYTHING, 0),)), 4)
    one = len(encode(Publish(b"sensors/500/temperature", b"x" * PAYLOAD), 4))
    with serve(folder, **ARCHIVED, **NEVER_COMPACT) as running:
        for _ in range(5):
            reader = client("reader")
            read_until_ping(reader, 4)
            started = time.perf_counter()
            reader.sendall(ask)
            got = 0
            while got < 5 + one:  # SUBACK and the first message
                got += len(reader.recv(5 + one))
            firsts.append((time.perf_counter() - started) * 1e3)
            reader.close()
        reader = client("reader")
        read_until_ping(reader, 4)
        started, before, got = time.perf_counter(), running.cpu_s(), 0
        reader.sendall(ask)
        # The topic names of a thousand sensors differ by two digits at most, so this ends short of all of them.
        while got < count * (one - 2):
            got += len(reader.recv(1 << 20))
        seconds, cpu_s = time.perf_counter() - started, running.cpu_s() - before
        reader.close()
    shutil.rmtree(folder)
    return {"first_ms": statistics.median(firsts), "per_s": got / one / seconds, "cpu_us": cpu_s / (got / one) * 1e6}


# Retained messages -------------------------------------------------------------------------------------------------


def retained(count: int, mqload: Path) -> dict[str, float]:
    """Return what it costs to store retained messages of 100 bytes, and to read them."""
    folder = empty("log-retained")
    with serve(folder, SHOAL_MQTT__RECEIVE_MAXIMUM="65535", **NEVER_COMPACT) as running:
        started, before = time.perf_counter(), running.cpu_s()
        store_retained(count)
        found = {"stored_s": time.perf_counter() - started}
        time.sleep(5)  # for the index's thread to be done: what it lags behind by differs
        found["stored_us"] = (running.cpu_s() - before) / count * 1e6
        reader = client("reader")
        read_until_ping(reader, 4)
        before = running.cpu_s()
        for number in range(300):
            topic_filter = (b"none/%d/#", b"site/+/none/%d", b"+/none/%d/#")[number % 3] % number
            reader.sendall(encode(Subscribe(1, (subscription(topic_filter, 0),)), 4) + encode(Pingreq(), 4))
            read_until_ping(reader, 4)
        found["none_ms"] = (running.cpu_s() - before) / 300 * 1e3
        firsts = []
        for _ in range(5):
            reader = client("reader")
            read_until_ping(reader, 4)
            started = time.perf_counter()
            reader.sendall(encode(Subscribe(1, (subscription(b"site/3/#", 0),)), 4))
            while len(reader.recv(4096)) <= 5:  # SUBACK alone
                pass
            firsts.append((time.perf_counter() - started) * 1e3)
            reader.close()
        found["first_ms"] = statistics.median(firsts)
        alone, beside = [], []
        for _ in range(LATENCY_ROUNDS):
            alone.append(rate_p99_us(mqload))
            with resubscribing():
                beside.append(rate_p99_us(mqload))
        found |= {
            "live_p99_us": statistics.median(alone),
            "beside_p99_us": statistics.median(beside),
            "p99_ratio": statistics.median(late / usual for late, usual in zip(beside, alone, strict=True)),
            "mib": running.memory_mib("VmHWM"),
            "anonymous_mib": running.memory_mib("RssAnon"),
        }
    shutil.rmtree(folder)
    return found


def store_retained(count: int) -> None:
    """Publish so many retained messages of 100 bytes at QoS 1, each to a topic of its own."""
    publisher = client("publisher")
    read_until_ping(publisher, 4)
    for first in range(0, count, 1000):
        topics = [b"site/%d/sensor/%06d" % (number % 10, number) for number in range(first, first + 1000)]
        publisher.sendall(publishes(4, topics, 1, True))
        left = 4 * len(topics)  # PUBACKs
        while left:
            got = len(publisher.recv(left))
            if not got:
                raise RuntimeError("the broker closed the publisher's connection")
            left -= got
    publisher.close()


def rate_p99_us(mqload: Path) -> float:
    """Return the 99th percentile of what a generator on the second core sees at 5,000 msg/s of QoS 1, in us.

    It sleeps between messages, so that it is not late because who reads beside it on its core had to have its turn.
    """
    run = subprocess.run(
        [mqload, "rate", "-p", str(PORT), "-q", "1", "--rate", "5000", "--seconds", "3", "--cpu", "1", "--no-spin"],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(run.stdout)["p99_us"])


@contextmanager
def resubscribing() -> Iterator[None]:
    """Have a client ask for a tenth of the retained messages again and again until the block ends."""
    over = threading.Event()

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        reader = client("again")
        reader.settimeout(0.2)
        ask = encode(Subscribe(1, (subscription(b"site/3/#", 0),)), 4)
        reader.sendall(ask)
        while not over.is_set():
            try:
                if not reader.recv(1 << 20):
                    raise RuntimeError("the broker closed the connection of who asks for retained messages")
            except TimeoutError:
                reader.sendall(ask)
        reader.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
