"""What a service manager such as systemd is told (sd_notify(3)): ready, reloading, ending, and that we are alive."""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

SERVING: Final = "Serving clients"
ENDING: Final = "Sending clients away"
SEND_S: Final = 1.0  # that a message may wait for room in the manager's queue
MICROSECONDS: Final = 1_000_000


class ServiceManager:
    """A socket that a service manager reads, or none.

    Args:
        path: of the socket; @ before it stands for a name without a file. None: there is no service manager.
        watchdog_s: it ends us if it hears nothing for so long; 0: it does not.
    """

    def __init__(self, path: str | None, watchdog_s: float = 0.0) -> None:
        self._address = None if path is None else "\0" + path[1:] if path.startswith("@") else path
        self._watchdog_s = watchdog_s
        self._is_ready = trio.Event()

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> ServiceManager:
        """Return the one that the environment names, and take it out of there: it is not that of our children."""
        path = environ.pop("NOTIFY_SOCKET", None)
        pid, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "0")
        is_ours = pid in ("", str(os.getpid())) and microseconds.isdecimal()
        known = path is not None and path[:1] in ("/", "@")
        return cls(path if known else None, int(microseconds) / MICROSECONDS if known and is_ours else 0.0)

    def ready(self, status: str) -> None:
        """Clients can connect."""
        self._tell("READY=1", f"STATUS={status}", within_s=SEND_S)
        self._is_ready.set()

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._tell("STOPPING=1", f"STATUS={status}", within_s=SEND_S)

    @contextmanager
    def reloading(self, status: str) -> Iterator[None]:
        """Within the block settings and files are read again; `status` holds behind it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell(
            "RELOADING=1", f"MONOTONIC_USEC={now_us}", "STATUS=Reading settings and files again", within_s=SEND_S
        )
        try:
            yield
        finally:
            self.ready(status)

    async def keep_alive(self) -> None:
        """Say that we are alive, as often as is asked for, from ready() on until cancelled."""
        await self._is_ready.wait()
        while self._watchdog_s:
            self._tell("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / 2)

    def _tell(self, *lines: str, within_s: float = 0.0) -> None:
        if self._address is None:
            return
        # A manager that is gone, or does not read, is no reason to end. Its queue has few places: what is said once
        # waits for one a while, a sign of life does not.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(within_s)
            sender.sendto("\n".join(lines).encode(), self._address)
