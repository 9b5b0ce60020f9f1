"""What a service manager is told, and the unit for systemd."""

from __future__ import annotations

import queue
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.main import main
from tests.support.process import ROOT, BrokerProcess
from tests.support.workers import Workers

TIMEOUT_S = 20
MESSAGES_MAX = 500  # signs of life, at ten in a second
UNIT = ROOT / "deploy/shoal.service"


class Manager:
    """Hears what a service tells."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.messages: queue.Queue[dict[str, str]] = queue.Queue()
        threading.Thread(target=self._hear, daemon=True).start()  # its socket's queue has few places

    def _hear(self) -> None:
        while lines := self.socket.recv(4096).decode().splitlines():
            self.messages.put(dict(line.split("=", 1) for line in lines))
        self.socket.close()

    def end(self) -> None:
        """Hear no more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self.socket.getsockname())

    def told(self, what: str) -> dict[str, str]:
        """Return the next message that says this; others are passed over."""
        for _ in range(MESSAGES_MAX):
            message = self.messages.get(timeout=TIMEOUT_S)
            if what in message:
                return message
        raise AssertionError(f"{what} is not told")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path / "notify")
    yield found
    found.end()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_manager_is_told_how_it_goes(tmp_path: Path, manager: Manager, workers: int) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    broker = Workers(tmp_path, workers, **environment) if workers > 1 else BrokerProcess(
        tmp_path, environment=environment
    )  # fmt: skip
    with broker:
        assert broker.process is not None
        assert manager.told("READY") == {"READY": "1", "STATUS": "Serving clients"}
        for _ in range(2):
            assert manager.told("WATCHDOG") == {"WATCHDOG": "1"}
        broker.process.send_signal(signal.SIGHUP)
        assert set(manager.told("RELOADING")) == {"RELOADING", "MONOTONIC_USEC", "STATUS"}
        assert manager.told("READY")["STATUS"] == "Serving clients"
        if isinstance(broker, Workers):  # what they would say is not what the broker has to say
            for pid in broker.pids():
                assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
        broker.stop()
        assert manager.told("STOPPING")["STATUS"] == "Sending clients away"


def test_a_service_manager_that_is_gone_disturbs_nothing(tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "much", "WATCHDOG_PID": "1"}
    with BrokerProcess(tmp_path, environment=environment) as broker:
        assert broker.stop()


def test_the_unit_names_commands_that_there_are() -> None:
    commands = re.findall(r"^Exec\w+=/usr/bin/shoal (.*)$", UNIT.read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        names = [word for word in command.split() if not word.startswith(("-", "/", "$"))]
        found = main
        for name in names:
            found = found.get_command(None, name)  # type: ignore[arg-type, assignment]
            assert found is not None, command


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "shoal.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/shoal", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout  # an exposure of 2.0 of 10 at most
