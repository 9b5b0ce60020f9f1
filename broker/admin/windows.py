"""What a broker answers over HTTP: its admin socket, and health and metrics where the settings have them."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from broker.admin.unix_socket import BACKLOG, SOCKET_NAME, open_socket
from broker.config.listener import Address, http_address
from broker.config.start_error import StartError
from broker.logs import get
from broker.reactor.listeners import refusal

if TYPE_CHECKING:
    from broker.admin.api import Backend
    from broker.admin.requests import Site
    from broker.config.loader import Config

log = get("admin")


class Window:
    """A listening socket that is answered over HTTP. What answers is loaded when a client asks: few brokers are asked.

    Args:
        load_site: loads what answers; called in a thread, once a client has connected.
        listener: the socket.
        path: of a Unix socket, whose file goes with it.
    """

    def __init__(self, load_site: Callable[[], Site], listener: socket.socket, path: Path | None = None) -> None:
        self._load_site = load_site
        self._listener = listener
        self._path = path

    async def serve(self) -> None:
        """Answer until cancelled."""
        await trio.lowlevel.wait_readable(self._listener)
        # Beside the turns, which go on meanwhile.
        server = await trio.to_thread.run_sync(importlib.import_module, "broker.admin.http_server")
        site = await trio.to_thread.run_sync(self._load_site)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(site.keep_house)
            await server.serve(site, self._listener)

    def close(self) -> None:
        """Close the socket and remove its file."""
        self._listener.close()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def windows_of(config: Config, folder: Path, load_backend: Callable[[], Backend]) -> list[Window]:
    """Open the admin socket of a data folder whose lock is ours, and what the settings have HTTP listen on.

    Raises OSError for the first, StartError for the second.

    Args:
        load_backend: loads whom they ask.
    """

    def admin() -> Site:
        from broker.admin.api import Admin

        return Admin(load_backend())

    def health() -> Site:
        from broker.admin.health import Health

        return Health(load_backend(), config.workers)

    windows = [Window(admin, open_socket(folder), folder / SOCKET_NAME)]
    if config.http.listen:
        try:
            listener = open_http(http_address(config.http.listen))
        except StartError:
            windows[0].close()
            raise
        host, port = listener.getsockname()[:2]
        log.info("http_listening", address=str(Address(host, port, "http")))
        windows.append(Window(health, listener))
    return windows


def open_http(address: Address) -> socket.socket:
    """Return a socket that listens for HTTP. Raises StartError."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise StartError(refusal(address, error)) from error
    return listener
