"""Client programs: their output read by a thread, line by line."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any

from tests.clients.drivers.base import ANSWER_TIMEOUT_S


class Program:
    """A running program; `line` is called with each line of its standard output and error, in threads."""

    def __init__(self, command: list[str], line: Callable[[bytes], None], **arguments: Any) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **arguments
        )
        self.line = line
        self.threads = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.line(line)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end(self, signal_number: int | None = None) -> None:
        """Send it a signal, or close its standard input, and wait for its end."""
        if self.process.poll() is None and signal_number is not None:
            self.process.send_signal(signal_number)
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.wait(ANSWER_TIMEOUT_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        for thread in self.threads:
            thread.join(ANSWER_TIMEOUT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Announcements:
    """Lines that a test waits for."""

    def __init__(self) -> None:
        self.lines: queue.Queue[bytes] = queue.Queue()

    def wait_for(self, part: bytes) -> bytes:
        """Return the next line with this part in it; queue.Empty if none comes."""
        while part not in (line := self.lines.get(timeout=ANSWER_TIMEOUT_S)):
            pass
        return line
