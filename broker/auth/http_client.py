"""A client of HTTP/1.1 for what decides on clients elsewhere: connections that are kept, and a time for everything."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import h11
import trio

READ_BYTES: Final = 65_536
KEPT_S: Final = 30.0  # for which a connection that nobody uses is kept: less than servers do


class HttpError(Exception):
    """No answer, in words that hold nothing of what was asked."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server has answered.

    Attributes:
        status: 200..599.
        headers: by their names in lower case; of several of a name the last.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(slots=True)
class _Connection:
    stream: trio.abc.Stream
    parser: h11.Connection
    idle_since_s: float = 0.0


class _GoneError(Exception):
    """A connection that was kept is gone, and nothing has been answered on it: another one may be tried."""


class HttpClient:
    """Asks one URL.

    Args:
        url: http:// or https://; what is asked has its path, unless `ask` says otherwise.
        timeout_s: for one answer, from the wait for a connection to the last byte.
        connections_max: at once; who asks beyond that waits.
        answer_bytes_max: of a body; a longer one is an error.
        cafile: certificates that sign the server's, PEM; None: those of the system.

    Raises OSError, ssl.SSLError: the certificates cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        connections_max: int = 8,
        answer_bytes_max: int = 1 << 20,
        cafile: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        assert parts.scheme in ("http", "https"), parts.scheme
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._name = parts.netloc.rpartition("@")[2]
        self._timeout_s = timeout_s
        self._answer_bytes_max = answer_bytes_max
        self._places = trio.CapacityLimiter(connections_max)
        self._kept: list[_Connection] = []
        self._context = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None

    async def ask(
        self, method: str = "GET", body: bytes = b"", headers: Sequence[tuple[str, str]] = (), target: str | None = None
    ) -> HttpAnswer:
        """Ask, and return what is answered, whatever its status. Raises HttpError."""
        request = h11.Request(
            method=method,
            target=target or self._target,
            headers=[
                ("Host", self._name),
                ("User-Agent", "shoal"),
                *headers,
                *([("Content-Length", str(len(body)))] if body or method != "GET" else []),
            ],
        )
        with trio.move_on_after(self._timeout_s):
            async with self._places:
                return await self._ask(request, body)
        raise HttpError(f"no answer within {self._timeout_s:g} s")

    async def aclose(self) -> None:
        """Close the connections that are kept, though the caller be cancelled."""
        with trio.CancelScope(shield=True):
            while self._kept:
                await trio.aclose_forcefully(self._kept.pop().stream)

    async def _ask(self, request: h11.Request, body: bytes) -> HttpAnswer:
        while self._kept:
            connection = self._kept.pop()
            if trio.current_time() - connection.idle_since_s > KEPT_S:
                await trio.aclose_forcefully(connection.stream)
                continue
            try:
                return await self._on(connection, request, body, kept=True)
            except _GoneError:
                continue
        try:
            connection = await self._connect()
        except (OSError, trio.BrokenResourceError, ssl.SSLError) as error:
            raise HttpError(f"no connection to {self._host} port {self._port}: {_words_of(error)}") from None
        return await self._on(connection, request, body, kept=False)

    async def _connect(self) -> _Connection:
        stream: trio.abc.Stream = await trio.open_tcp_stream(self._host, self._port)
        if self._context is not None:
            secure = trio.SSLStream(stream, self._context, server_hostname=self._host, https_compatible=True)
            try:
                await secure.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            stream = secure
        return _Connection(stream, h11.Connection(h11.CLIENT))

    async def _on(self, connection: _Connection, request: h11.Request, body: bytes, kept: bool) -> HttpAnswer:
        """Ask on a connection, which is kept or closed behind it."""
        parser, stream = connection.parser, connection.stream
        answered = False
        try:
            await stream.send_all(
                b"".join(
                    data
                    for event in (request, *((h11.Data(data=body),) if body else ()), h11.EndOfMessage())
                    if (data := parser.send(event)) is not None
                )
            )
            status, headers, parts, size = 0, {}, [], 0
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    data = await stream.receive_some(READ_BYTES)
                    answered = answered or bool(data)
                    parser.receive_data(bytes(data))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                    size += len(event.data)
                    if size > self._answer_bytes_max:
                        raise HttpError(f"an answer of more than {self._answer_bytes_max} bytes")
                elif isinstance(event, h11.EndOfMessage):
                    break
                elif isinstance(event, h11.ConnectionClosed):
                    raise h11.RemoteProtocolError("closed before the answer")
        except (h11.ProtocolError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            await trio.aclose_forcefully(stream)
            if kept and not answered:
                raise _GoneError from None
            raise HttpError(f"the connection was lost, or it speaks no HTTP: {_words_of(error)}") from None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        if parser.our_state is h11.DONE and parser.their_state is h11.DONE:
            parser.start_next_cycle()
            connection.idle_since_s = trio.current_time()
            self._kept.append(connection)
        else:
            await trio.aclose_forcefully(stream)
        return HttpAnswer(status, headers, b"".join(parts))


def _words_of(error: BaseException) -> str:
    """Return what went wrong; of a group, which trio raises when no address answers, the first reason."""
    while isinstance(error, BaseExceptionGroup) or (error.__cause__ is not None and isinstance(error, OSError)):
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__  # type: ignore[assignment]
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, h11.ProtocolError) else type(error).__name__
