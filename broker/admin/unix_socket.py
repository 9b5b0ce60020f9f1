"""The admin socket in the data folder: opened, and reached however long its path is."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
