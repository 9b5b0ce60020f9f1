"""`python -m tests.tools.bench.login_storm [--clients 10000] [--workers 1]`: all clients log in at once, by passwords.

Three crowds of the same clients: at a broker that asks nobody who he is (plain), at one that has been started a moment
ago and hashes each password with argon2id (cold), and at the same one when all come back (warm). With several workers,
one of these is killed at last, and its clients come back. Meanwhile a pair of clients that is connected already sends a
message every ten milliseconds: what these wait is told beside what they waited before.

Broker, crowd and witness share the machine. Load is bounded: a client that is not let in tries again a second later.
Cold takes 30 ms of a core for each client.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from broker.auth.password_hash import new_hash
from broker.wire.packets import Connect, Publish, Subscribe, Subscription, encode
from tests.support.process import ROOT
from tests.support.raw_client import RawClient
from tests.support.workers import Workers

PASSWORD: Final = b"one password for all of the crowd"
AGAIN_S: Final = 1.0  # until a client that was not let in tries again
PERIOD_S: Final = 0.01  # of the witness
QUIET_S: Final = 8.0  # that the witness looks on before
PHASE_S: Final = 1200.0  # the longest that a crowd may take
TIMES: Final = 3  # that plain and warm are gone through
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Crowd:
    """Clients that log in at once, and stay.

    Args:
        port: of the broker.
        names: client identifiers, which are user names as well.
        has_passwords: whether they give any.

    Attributes:
        open: their sockets, by client identifier, once they are let in.
        refused: how often one was not let in.
    """

    def __init__(self, port: int, names: list[str], *, has_passwords: bool) -> None:
        self._port = port
        self._has_passwords = has_passwords
        self.names = names
        self.open: dict[str, socket.socket] = {}
        self.refused = 0
        self._selector = selectors.DefaultSelector()
        self._later: list[tuple[float, str]] = []

    def log_in(self) -> float:
        """Have all log in that are not; returns the seconds until the last one was."""
        began = time.monotonic()
        for name in self.names:
            if name not in self.open:
                self._begin(name)
        while len(self.open) < len(self.names):
            now = time.monotonic()
            if now - began > PHASE_S:
                sys.exit(f"{len(self.names) - len(self.open)} clients are not let in after {PHASE_S:.0f} s")
            while self._later and self._later[0][0] <= now:
                self._begin(self._later.pop(0)[1])
            for key, _ in self._selector.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                self._go_on(key.fileobj, key.data)
        return time.monotonic() - began

    def _begin(self, name: str) -> None:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", self._port))
        self._selector.register(client, selectors.EVENT_WRITE, name)

    def _go_on(self, client: socket.socket, name: str) -> None:
        try:
            if self._selector.get_key(client).events == selectors.EVENT_WRITE:
                who = {"user_name": name, "password": PASSWORD} if self._has_passwords else {}
                client.send(encode(Connect(4, name.encode(), keep_alive_s=0, **who), 4))  # type: ignore[arg-type]
                self._selector.modify(client, selectors.EVENT_READ, name)
                return
            answer = client.recv(4)
        except OSError:
            answer = b""
        self._selector.unregister(client)
        if answer == b"\x20\x02\0\0":
            self.open[name] = client
        else:
            client.close()
            self.refused += 1
            self._later.append((time.monotonic() + AGAIN_S, name))

    def leave(self) -> None:
        """Have all go, without a word."""
        for client in self.open.values():
            client.close()
        self.open.clear()

    def look_who_is_gone(self) -> int:
        """Forget whose connections the broker has ended; returns how many these are."""
        gone = [name for name, client in self.open.items() if _has_ended(client)]
        for name in gone:
            self.open.pop(name).close()
        return len(gone)


def _has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Witness:
    """A pair of clients of the first worker, in a process of its own; what they wait is in a file."""

    def __init__(self, broker: Workers, folder: Path, *, has_password: bool) -> None:
        self._file = folder / "witness"
        user = "witness" if has_password else ""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.tools.bench.login_storm",
                "--witness",
                str(self._file),
                str(broker.port),
                user,
                *broker.names(0, 2),
            ],
            cwd=ROOT,
        )

    def __enter__(self) -> Witness:
        while not self._file.exists():
            assert self._process.poll() is None, "the witness has ended"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def waits(self, begin: float, end: float) -> Waits:
        """Return what was waited for messages that were sent between two times."""
        rows = [line.split() for line in self._file.read_text().split("\n")[:-1]]
        return Waits([(float(sent), float(waited)) for sent, waited in rows if begin <= float(sent) < end])


class Waits:
    """What was waited for messages, by when they were sent."""

    def __init__(self, rows: list[tuple[float, float]]) -> None:
        self.in_order = sorted(waited for _, waited in rows)
        seconds: dict[int, list[float]] = {}
        for sent, waited in rows:
            seconds.setdefault(int(sent), []).append(waited)
        self._p99_of_seconds = sorted(
            quantile(sorted(waits), 0.99) for waits in seconds.values() if len(waits) > 0.5 / PERIOD_S
        )

    def row(self, name: str) -> dict[str, float]:
        """Return its quantiles, ms; `p99_of_a_second` is that of the second in the middle."""
        return {
            f"{name}_p50_ms": quantile(self.in_order, 0.5),
            f"{name}_p99_ms": quantile(self.in_order, 0.99),
            f"{name}_p99_of_a_second_ms": quantile(self._p99_of_seconds, 0.5),
            f"{name}_longest_ms": quantile(self.in_order, 1.0),
        }


def look_on(file: Path, port: int, user: str, names: list[str]) -> None:
    """Be the witness, by two client identifiers, until it is ended."""
    who = {"user_name": user, "password": PASSWORD} if user else {}
    clients = []
    for name in names:
        client = RawClient(port, 4)
        client.socket.sendall(encode(Connect(4, name.encode(), keep_alive_s=0, **who), 4))  # type: ignore[arg-type]
        client.read()
        clients.append(client)
    sends, hears = clients
    hears.send(Subscribe(1, (Subscription(b"witness", 0),)))
    hears.read()
    frame = encode(Publish(b"witness", b"x" * 64), 4)
    with file.open("w", buffering=1) as rows:
        while True:
            sent = time.monotonic()
            sends.socket.sendall(frame)
            hears.read()
            rows.write(f"{sent:.6f} {(time.monotonic() - sent) * 1000:.3f}\n")
            time.sleep(max(0.0, sent + PERIOD_S - time.monotonic()))


def quantile(waited: list[float], share: float) -> float:
    """Return a quantile of what is in order; 0.0 of nothing."""
    return waited[min(len(waited) - 1, int(len(waited) * share))] if waited else 0.0


def cpu_s(broker: Workers) -> float:
    """Return what CPU the broker has used, with all that it has started, ended processes too."""
    assert broker.process is not None
    return _cpu_of(broker.process.pid) / TICKS


def _cpu_of(pid: int) -> int:
    """Return user and system time of a process, and of all below it, in ticks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return sum(int(one) for one in fields[11:15]) + sum(_cpu_of(int(child)) for child in children)


class Bench:
    """One broker, its crowd and its witness."""

    def __init__(self, broker: Workers, crowd: Crowd, witness: Witness) -> None:
        self._broker, self._crowd, self._witness = broker, crowd, witness
        began = time.monotonic()
        time.sleep(QUIET_S)
        self.quiet = witness.waits(began, began + QUIET_S)

    def storm(self, name: str) -> dict[str, float | str]:
        """Have those log in that are not; returns what that took."""
        coming, refused = len(self._crowd.names) - len(self._crowd.open), self._crowd.refused
        began, cpu = time.monotonic(), cpu_s(self._broker)
        took_s = self._crowd.log_in()
        used_s = cpu_s(self._broker) - cpu
        waits = self._witness.waits(began, began + took_s)
        row: dict[str, float | str] = {
            "what": name, "clients": coming, "s": round(took_s, 2), "cpu_s": round(used_s, 2),
            "tried_again": self._crowd.refused - refused, "messages": len(waits.in_order),
            **self.quiet.row("quiet"), **waits.row("storm"),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        return row


def main() -> None:
    """Go through it, and print a line for each crowd."""
    if sys.argv[1:2] == ["--witness"]:
        look_on(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = [f"device-{number}" for number in range(options.clients)]
    with tempfile.TemporaryDirectory() as folder:
        plain(Path(folder), names, options.workers)
    with tempfile.TemporaryDirectory() as folder:
        by_passwords(Path(folder), names, options.workers)


def plain(folder: Path, names: list[str], workers: int) -> None:
    """The crowd at a broker that asks for no password."""
    with (
        Workers(folder, workers, SHOAL_LOG__LEVEL="info", SHOAL_LOG__CONNECTIONS="false") as broker,
        Witness(broker, folder, has_password=False) as one,
    ):
        crowd = Crowd(broker.port, names, has_passwords=False)
        bench = Bench(broker, crowd, one)
        for _ in range(TIMES):
            bench.storm("plain")
            crowd.leave()


def by_passwords(folder: Path, names: list[str], workers: int) -> None:
    """The crowd at one that hashes: cold, warm, and after a kill of a worker."""
    # One hash for all: it is computed for each all the same, for what is remembered is so by user.
    stored = new_hash(PASSWORD).decode()
    (folder / "users").write_text("".join(f"{name}:{stored}\n" for name in [*names, "witness"]))
    (folder / "shoal.toml").write_text(f'[[authenticator]]\ntype = "password_file"\nfile = "{folder / "users"}"\n')
    broker = Workers(folder, workers, SHOAL_LOG__LEVEL="info", SHOAL_LOG__CONNECTIONS="false")
    broker.options += ("--config", str(folder / "shoal.toml"))
    with broker, Witness(broker, folder, has_password=True) as one:
        crowd = Crowd(broker.port, names, has_passwords=True)
        bench = Bench(broker, crowd, one)
        bench.storm("cold")
        for _ in range(TIMES):
            crowd.leave()
            bench.storm("warm")
        if workers > 1:
            broker.kill_worker(workers - 1)  # the witness's is the first
            while not crowd.look_who_is_gone():
                time.sleep(0.05)
            bench.storm("a worker was killed")


if __name__ == "__main__":
    main()
