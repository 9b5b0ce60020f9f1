"""One worker as its supervisor sees it."""

from __future__ import annotations

import os
from collections import Counter, deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    import subprocess

    from broker.processes.control_channel import ControlChannel
    from broker.reactor.listeners import ListeningSocket


class Slot:
    """A worker's number and what belongs to it, whichever process runs it now.

    Attributes:
        number: 0 or more.
        listeners: its sockets, one for each address.
        state: "starting", "joined", "listening", "away" between two processes, or "ended".
        pid: of its process, 0 while it is away.
        incarnation: of its last process that joined, 0 before.
        channel: to its process.
        restarts: so far.
        totals: what its processes did that ended in an orderly way.
    """

    def __init__(self, number: int, listeners: list[ListeningSocket]) -> None:
        self.number = number
        self.listeners = listeners
        self.state = "away"
        self.pid = self.incarnation = self.restarts = 0
        self.channel: ControlChannel | None = None
        self.totals: Counter[str] = Counter()
        self.process: subprocess.Popen[bytes] | None = None
        self.joined = self.exited = self.sent_away = trio.Event()
        self.is_replaced = False  # its process ends to make place for another one
        self.listened_s = 0.0  # since when its process listens (trio's clock), 0: not yet
        self.reason = ""  # why its process could not boot
        self.boot_failures = 0  # in a row
        self.row = 0  # restarts in a row
        self.ends_s: deque[float] = deque()  # of its processes, lately

    def send_signal(self, number: int) -> None:
        """Send its process a signal, if there is one."""
        if self.pid:
            os.kill(self.pid, number)  # not reaped before we say so: the number cannot be another's
