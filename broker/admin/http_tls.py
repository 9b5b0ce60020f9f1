"""TLS of the HTTP endpoint: certificates that are read again once they have changed."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence

import trio

from broker.config.start_error import StartError
from broker.logs import get

log = get("admin")


class HttpTls:
    """Puts TLS around connections, with the certificates that the files have now.

    Args:
        certfile, keyfile: PEM, in the same order.

    Raises StartError: they cannot be used.
    """

    def __init__(self, certfile: Sequence[str], keyfile: Sequence[str]) -> None:
        self._files = tuple(zip(certfile, keyfile, strict=True))
        self._read = self._state()
        try:
            self._context = self._context_anew()
        except OSError as error:  # ssl.SSLError is one
            raise StartError(f"http: The certificates cannot be used: {_what(error)}.") from error

    def secure(self, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
        """Return a connection with TLS around it; the files are looked at before, which costs microseconds."""
        state = self._state()
        if state != self._read:
            self._read = state
            try:
                self._context = self._context_anew()
                log.info("http_certificates_read")
            except OSError as error:
                log.warning("http_certificates_unusable", what=_what(error))
        return trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)

    def _context_anew(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for certificate, key in self._files:
            context.load_cert_chain(certificate, key)
        return context

    def _state(self) -> list[tuple[int, int, int] | None]:
        """Return what changes when a file does."""
        found: list[tuple[int, int, int] | None] = []
        for file in (name for pair in self._files for name in pair):
            try:
                status = os.stat(file)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


def _what(error: OSError) -> str:
    """Return what is wrong with files, in words."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror}"
