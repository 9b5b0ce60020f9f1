"""The admin socket in the data folder: opened, reached however long its path is, and served once a client asks."""

from __future__ import annotations

import importlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from broker.admin.api import Backend

SOCKET_NAME: Final = "admin.sock"
BACKLOG: Final = 512  # who asks first waits while the server is loaded


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Give a path by which a socket can be bound or reached however long its own is (108 bytes are the limit)."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def open_socket(folder: Path) -> socket.socket:
    """Return the listening admin socket of a data folder whose lock is ours; a dead broker's is replaced.

    Nobody but the owner can connect, at any moment. Raises OSError.
    """
    path = folder / SOCKET_NAME
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(path) as short:
            listener.bind(short)
            os.chmod(path, 0o600)  # before anybody can connect: nobody listens yet
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class Window:
    """The admin socket of a broker, opened and answered by a backend. Raises OSError if it cannot be opened.

    Args:
        load_backend: loads whom it asks; called in a thread, once a client has connected.
        folder: the data folder, whose lock is ours.
    """

    def __init__(self, load_backend: Callable[[], Backend], folder: Path) -> None:
        self._load_backend = load_backend
        self._path = folder / SOCKET_NAME
        self._listener = open_socket(folder)

    async def serve(self) -> None:
        """Answer until cancelled. What answers is loaded when a client asks: few brokers are ever asked."""
        await trio.lowlevel.wait_readable(self._listener)
        # Beside the turns, which go on meanwhile.
        server = await trio.to_thread.run_sync(importlib.import_module, "broker.admin.http_server")
        backend = await trio.to_thread.run_sync(self._load_backend)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.keep_house)
            await server.serve(backend, self._listener)

    def close(self) -> None:
        """Close the socket and remove its file."""
        self._listener.close()
        with suppress(OSError):
            self._path.unlink()
