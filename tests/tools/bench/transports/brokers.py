"""The brokers that are measured, each with every way in, and the load on them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.certificates import Certificates
from tests.tools.bench.transports.rows import (
    ANY_CORES,
    AT_HOME,
    CLIENTS,
    ELSEWHERE,
    FLOOR,
    MOSQUITTO,
    OWN_CORES,
    SHOAL,
    TCP,
    TLS,
    UNIX,
    WAYS,
    WEBSOCKET,
    Load,
)

ROOT = Path(__file__).resolve().parents[4]
HERE = Path(__file__).resolve().parent
PLACING = HERE.parent / "placing"
WRAPPED = ("socket", "bind", "connect", "accept4", "send", "recv", "close")
READY_S = 30
LOAD_S = 300
MOSQUITTO_SETTINGS = """user root
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 1000
max_queued_messages 0
sys_interval 0
log_dest none
"""


class Tools:
    """Floor and load generator that speak every way in, and the certificate that all brokers have.

    Args:
        sources: where yardstick.c and mqload.c are.
        folder: for what is built and written; its path is short enough for that of a Unix socket.
    """

    def __init__(self, sources: Path, folder: Path) -> None:
        self.folder = folder
        self._certificates = Certificates()
        self.certificate, self.key = self._certificates.server
        wrapping = "-Wl," + ",".join(f"--wrap={name}" for name in WRAPPED)
        for name in ("yardstick", "mqload"):
            subprocess.run(
                [
                    "cc",
                    "-O2",
                    "-pthread",
                    wrapping,
                    "-o",
                    folder / name,
                    sources / f"{name}.c",
                    HERE / "ways.c",
                    "-l:libssl.so.3",
                    "-l:libcrypto.so.3",
                ],
                check=True,
            )

    def new_folder(self) -> Path:
        """Return an empty folder, of one broker."""
        return Path(tempfile.mkdtemp(dir=self.folder))


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker.

    Attributes:
        pids: of its processes; by way in, where each way has processes of its own.
        addresses: by way in, a port or the path of a Unix socket.
        data_dir: of Shoal.
    """

    pids: Mapping[str, tuple[int, ...]]
    addresses: Mapping[str, str]
    data_dir: Path | None = None


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def process(command: list[str], environment: Mapping[str, str], cores: tuple[int, ...]) -> Iterator[int]:
    """Run a program on some cores until the block ends."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    ) as running:
        try:
            yield running.pid
        finally:
            running.terminate()
            running.wait(READY_S)


def wait_for(address: str) -> None:
    """Wait until somebody listens on a port or a Unix socket. OSError if nobody does in time."""
    end = time.monotonic() + READY_S
    while True:
        try:
            with socket.socket(socket.AF_INET if address.isdecimal() else socket.AF_UNIX) as client:
                client.connect(("127.0.0.1", int(address)) if address.isdecimal() else address)
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextmanager
def floor(tools: Tools, releases: bool) -> Iterator[Broker]:
    """Run the floor, one process for each way in. It holds OpenSSL's buffers, unless it `releases` them."""
    addresses = dict(zip((TCP, TLS, WEBSOCKET), map(str, free_ports(3)), strict=True))
    addresses[UNIX] = str(tools.new_folder() / "s")
    with ExitStack() as running:
        pids = {}
        for way in WAYS:
            environment = {"WAY": way_of(way, addresses[way]), "WAY_CERT": tools.certificate, "WAY_KEY": tools.key}
            if releases:
                environment["WAY_RELEASE"] = "1"
            port = addresses[way] if way != UNIX else "1"  # some number: the path counts
            pids[way] = (running.enter_context(process([str(tools.folder / "yardstick"), port], environment, (0,))),)
        for address in addresses.values():
            wait_for(address)
        yield Broker(pids, addresses)


@contextmanager
def mosquitto(tools: Tools) -> Iterator[Broker]:
    """Run Debian's mosquitto with plain TCP and TLS."""
    tcp, tls = free_ports(2)
    file = tools.new_folder() / "mosquitto.conf"
    file.write_text(
        f"listener {tcp} 127.0.0.1\nlistener {tls} 127.0.0.1\ncertfile {tools.certificate}\n"
        f"keyfile {tools.key}\n{MOSQUITTO_SETTINGS}",
        encoding="utf-8",
    )
    with process([shutil.which("mosquitto") or "mosquitto", "-c", str(file)], {}, (0,)) as pid:
        addresses = {TCP: str(tcp), TLS: str(tls)}
        for address in addresses.values():
            wait_for(address)
        yield Broker(dict.fromkeys(addresses, (pid,)), addresses)


@contextmanager
def shoal(tools: Tools, name: str) -> Iterator[Broker]:
    """Run Shoal of this tree: of one worker on a core, or of two as AT_HOME and ELSEWHERE say."""
    ports = free_ports(3)
    folder = tools.new_folder()
    addresses = dict(zip((TCP, TLS, WEBSOCKET), map(str, ports), strict=True))
    addresses[UNIX] = str(folder / "s")
    workers = 1 if name == SHOAL else 2
    place = {AT_HOME: "here", ELSEWHERE: "there"}.get(name)
    environment = {"PYTHONPATH": os.pathsep.join((str(PLACING), str(ROOT)))}
    if place:
        environment["BENCH_PLACES"] = json.dumps({"p": place, "s": place})
    (folder / "shoal.toml").write_text(
        f"""
workers = {workers}
listen = ["tcp://127.0.0.1:{ports[0]}", "ws://127.0.0.1:{ports[2]}", "unix://{addresses[UNIX]}"]
data_dir = "{folder}/data"
[limits]
connects_per_second_max = 0
[[listener]]
address = "tls://127.0.0.1:{ports[1]}"
certfile = "{tools.certificate}"
keyfile = "{tools.key}"
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "broker.cli.main", "serve", "--config", str(folder / "shoal.toml")]
    with process(command, environment, (0,) if workers == 1 else (0, 1)):
        for address in addresses.values():
            wait_for(address)
        pids = tuple(int(row["pid"]) for row in workers_of(folder / "data", workers))
        yield Broker(dict.fromkeys(WAYS, pids), addresses, folder / "data")


def workers_of(data_dir: Path, count: int) -> list[dict[str, Any]]:
    """Ask a broker for its workers and their counters, until all of them are ready."""
    end = time.monotonic() + READY_S
    while True:
        answer = subprocess.run(
            [sys.executable, "-m", "broker.cli.main", "admin", "--data-dir", data_dir, "workers", "--json"],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        rows: list[dict[str, Any]] = json.loads(answer.stdout)["rows"] if answer.returncode == 0 else []
        if len(rows) == count and all(row.get("ready") for row in rows):
            return rows
        if time.monotonic() > end:
            raise TimeoutError(f"{len(rows)} workers of {count}: {answer.stderr}")
        time.sleep(0.1)


def check_places(name: str, broker: Broker) -> None:
    """Raise RuntimeError if the clients of PAIRS were not where the broker's name says."""
    if name in (AT_HOME, ELSEWHERE):
        assert broker.data_dir is not None
        moved = sum(int(row["clients_handed_over"]) for row in workers_of(broker.data_dir, 2))
        if moved != (CLIENTS if name == ELSEWHERE else 0):
            raise RuntimeError(f"{name}: {moved} of {CLIENTS} clients were handed over")


def running(tools: Tools, name: str, holds: bool) -> Any:
    """Return a context manager that runs a broker by its name in the rows.

    Args:
        holds: its memory is measured, with many connections.
    """
    if name == FLOOR:
        return floor(tools, holds)
    return mosquitto(tools) if name == MOSQUITTO else shoal(tools, name)


def way_of(way: str, address: str) -> str:
    """Return a way in as ways.c has it in its environment."""
    return f"unix:{address}" if way == UNIX else way


def put_load(tools: Tools, broker: Broker, load: Load, more: tuple[str, ...]) -> dict[str, Any]:
    """Run the load generator on a broker; returns what it says, which has "ok": False where a check failed.

    Args:
        more: arguments: how long, or how many.
    """
    address = broker.addresses[load.way]
    environment = {**os.environ, "WAY": way_of(load.way, address)}
    if load.resumed:
        environment["WAY_RESUME"] = "1"
    cpu = () if load.cores == ANY_CORES else ("--cpu", "1" if load.cores == OWN_CORES else "0")
    done = subprocess.run(
        [
            tools.folder / "mqload",
            *load.arguments,
            *more,
            *cpu,
            "-p",
            address if load.way != UNIX else "1",
            "--cpu-pids",
            ",".join(map(str, broker.pids[load.way])),
        ],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=LOAD_S,
    )
    try:
        said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"ok": False, "reason": done.stderr.strip()[-60:] or f"exit status {done.returncode}"}
    return said
