"""What is asked of a connected socket once per connection, by its descriptor."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

NO_SOCKET = -1


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give a descriptor the methods of a socket; it stays open, and no descriptor more is needed for it."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def peer_address(descriptor: int) -> str | None:
    """Return a peer's address as HOST:PORT, None if there is no socket or no peer any more."""
    if descriptor == NO_SOCKET:
        return None
    try:
        with _borrowed(descriptor) as borrowed:
            name = borrowed.getpeername()
            return None if borrowed.family == socket.AF_UNIX else f"{name[0]}:{name[1]}"
    except OSError:
        return None


def watch_peer(descriptor: int, idle_s: int) -> None:
    """Let TCP look after a peer that has no keep alive: probe it after so many seconds of silence; 0 does not.

    Of a Unix socket the system tells at once that its peer is gone.
    """
    if descriptor == NO_SOCKET or idle_s == 0:
        return
    with _borrowed(descriptor) as borrowed:
        if borrowed.family == socket.AF_UNIX:
            return
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle_s // 4))
