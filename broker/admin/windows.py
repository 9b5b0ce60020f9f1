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
    from broker.admin.backend import Backend
    from broker.admin.http_tls import HttpTls
    from broker.admin.requests import Site
    from broker.config.loader import Config

log = get("admin")


class Window:
    """A listening socket that is answered over HTTP. What answers is loaded when a client asks: few brokers are asked.

    Args:
        load_site: loads what answers; called in a thread, once a client has connected.
        listener: the socket.
        tls: what puts TLS around connections; None: they have none.
        at_once: it is loaded at the start, because it remembers something.
        path: of a Unix socket, whose file goes with it.
    """

    def __init__(
        self,
        load_site: Callable[[], Site],
        listener: socket.socket,
        tls: HttpTls | None = None,
        at_once: bool = False,
        path: Path | None = None,
    ) -> None:
        self._at_once = at_once
        self._load_site = load_site
        self._listener = listener
        self._tls = tls
        self._path = path

    async def serve(self) -> None:
        """Answer until cancelled."""
        if not self._at_once:
            await trio.lowlevel.wait_readable(self._listener)
        # Beside the turns, which go on meanwhile.
        server = await trio.to_thread.run_sync(importlib.import_module, "broker.admin.http_server")
        site = await trio.to_thread.run_sync(self._load_site)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(site.keep_house)
            await server.serve(site, self._listener, None if self._tls is None else self._tls.secure)

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

    def public() -> Site:
        from broker.admin.public_site import PublicSite

        return PublicSite(load_backend(), config)

    windows = [Window(admin, open_socket(folder), path=folder / SOCKET_NAME)]
    if config.http.listen:
        try:
            tls = _tls_of(config)
            listener = open_http(http_address(config.http.listen))
        except StartError:
            windows[0].close()
            raise
        host, port = listener.getsockname()[:2]
        address = Address(host, port, "http" if tls is None else "https")
        log.info("http_listening", address=str(address))
        if tls is None and not address.is_loopback and config.http.is_asked_by_users:
            log.warning("http_passwords_in_the_clear", address=str(address))
        windows.append(Window(public, listener, tls, at_once=config.http.is_asked_by_users))
    return windows


def _tls_of(config: Config) -> HttpTls | None:
    if not config.http.certfile:
        return None
    # Here, so that a broker without it loads no TLS.
    from broker.admin.http_tls import HttpTls

    return HttpTls(config.http.certfile, config.http.keyfile)


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
