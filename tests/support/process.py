"""A real broker in a process of its own, for tests that talk to it over TCP."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
# For a broker whose resident memory is measured: a sanitizer, if one is preloaded, keeps back 256 MB of what is freed
# unless it is told otherwise. Without one, nobody reads this.
MEASURED = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=1".lstrip(":")}
_ADDRESS = re.compile(r"tcp://127\.0\.0\.1:(\d+)")
_ADDRESSES = re.compile(r"(\w+)://127\.0\.0\.1:(\d+)")


class BrokerProcess:
    """`shoal serve` on a free port of the loopback interface, with one worker unless the options say otherwise.

    As a context manager it is started, and stopped at the end of the block; one that the block leaves by an exception
    is killed, and one that the block has ended is left at that. `port` is known once `start` has returned, and so are
    `ports`, by transport, of what the options add, and `addresses`, in the order of the settings; `errors` is the file
    that standard error goes to.
    """

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.options = options
        self.environment = environment or {}
        self.errors = folder / "stderr.log"
        self.port = 0
        self.ports: dict[str, int] = {}
        self.addresses: list[tuple[str, int]] = []
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            if error is None:
                self.stop()
            else:
                self.kill()

    @property
    def log(self) -> Path:
        """The file that log lines go to."""
        return Path(self.environment.get("SHOAL_LOG__FILE", self.errors))

    def events(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the log's lines about an event, with these values; a line that is being written is none yet."""
        whole = self.log.read_text(encoding="utf-8").split("\n")[:-1]
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return [
            line
            for line in lines
            if line["event"] == event and all(line.get(name) == value for name, value in fields.items())
        ]

    def command(self) -> list[str]:
        """Return the command that runs it."""
        workers = [] if "--workers" in self.options else ["--workers", "1"]
        return [
            sys.executable,
            "-m",
            "broker.cli.main",
            "serve",
            "--listen",
            "tcp://127.0.0.1:0",
            "--data-dir",
            str(self.folder / "data"),
            *workers,
            *self.options,
        ]

    def start(self) -> None:
        """Start it, and wait until it says that it is ready; an AssertionError has what it wrote instead."""
        self.launch()
        self.port = self._wait_until_ready()

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env={**inherited, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def _wait_until_ready(self) -> int:
        # The banner on standard output comes after the listening sockets are open, and has the port that was free.
        assert self.process is not None
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + START_TIMEOUT_S
        text = ""
        while (found := _ADDRESS.search(text)) is None or "ready" not in text or not text.endswith("\n"):
            readable = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(descriptor, 65536) if readable else b""
            if not data:
                self.kill()
                raise AssertionError(f"the broker did not start: {text}\n{self.errors.read_text()}")
            text += data.decode()
        line = next(line for line in text.splitlines() if _ADDRESS.search(line))
        self.addresses = [(scheme, int(port)) for scheme, port in _ADDRESSES.findall(line)]
        self.ports = dict(self.addresses)
        return int(found[1])

    def stop(self) -> str:
        """End it as a service manager does; return what it wrote to standard output. It must end with exit code 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            output = self.process.communicate(timeout=STOP_TIMEOUT_S)[0].decode()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker did not end on SIGTERM: {self.errors.read_text()}") from None
        assert self.process.returncode == 0, (self.process.returncode, self.errors.read_text())
        return output

    def kill(self) -> None:
        """End it without any chance to tidy up."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()
