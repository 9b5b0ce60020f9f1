"""Asking a running broker: a client of its admin socket, for the commands `shoal admin` and `shoal top`."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from broker.admin.unix_socket import SOCKET_NAME, short_path

Row = dict[str, Any]

TIMEOUT_S: Final = 35.0  # that the broker may take for an answer
PAGE_ROWS: Final = 1000
POLL_S: Final = 0.2  # between two looks whether something is done


class AdminError(Exception):
    """Why there is no answer, in one sentence; `status` is 0 if there is no broker to give one."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_path(self._path) as short:
            self.sock.connect(short)


class AdminClient:
    """A connection to the admin socket of a broker, opened when it is first needed.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = _Connection(path)

    @classmethod
    def of(cls, folder: Path) -> AdminClient:
        """Return a client of the broker that has this data folder."""
        return cls(folder / SOCKET_NAME)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, method: str, path: str, arguments: Row | None = None, body: Row | None = None) -> Row:
        """Return the answer to a request. Raises AdminError."""
        with self._response(method, path, arguments, body) as response:
            return self._decoded(response)

    def until_gone(self) -> None:
        """Wait until the broker has ended."""
        while True:
            self.close()
            try:
                self._connection.connect()
            except (FileNotFoundError, ConnectionRefusedError):
                return
            time.sleep(POLL_S)

    def until_done(self, path: str) -> Row:
        """Ask again and again until what was begun there does not run any more; return the last answer."""
        while (answer := self.ask("GET", path))["running"]:
            time.sleep(POLL_S)
        return answer

    def _response(self, method: str, path: str, arguments: Row | None, body: Row | None) -> http.client.HTTPResponse:
        given = {name: _text(value) for name, value in (arguments or {}).items() if value is not None}
        target = path + ("?" + urlencode(given, quote_via=quote) if given else "")
        for attempt in (1, 2):
            try:
                self._connection.request(method, target, None if body is None else json.dumps(body))
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                # One that had been idle for long; nothing of the request has been dealt with.
                self._connection.close()
                if attempt == 2:
                    raise AdminError("The broker closed the connection without an answer.") from error
            except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
                raise AdminError(
                    f"No broker is running with the data folder {self.path.parent}: there is no answer at "
                    f"{self.path.name}."
                ) from None
            except PermissionError:
                raise AdminError(f"The socket {self.path} belongs to another user.") from None
            except TimeoutError:
                raise AdminError(f"The broker has not answered within {TIMEOUT_S:.0f} s.") from None
            except OSError as error:
                raise AdminError(f"The socket {self.path} cannot be used: {error.strerror or error}.") from None
        raise AssertionError("not reached")

    def _decoded(self, response: http.client.HTTPResponse) -> Row:
        answer: Row = json.loads(response.read())
        if response.status >= 400 and "error" in answer:
            raise AdminError(answer["error"]["text"], response.status)
        return answer

    def pages(self, path: str, arguments: Row | None = None, limit: int | None = None) -> Iterator[Row]:
        """Yield the pages of a listing, with `limit` rows at most in all. Raises AdminError."""
        cursor = None
        left = limit
        while left is None or left > 0:
            wanted = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
            page = self.ask("GET", path, {**(arguments or {}), "limit": wanted, "cursor": cursor})
            yield page
            cursor = page["cursor"]
            left = None if left is None else left - len(page["rows"])
            if cursor is None:
                return

    def lines(self, path: str, arguments: Row | None = None) -> Iterator[Row]:
        """Yield the objects of an answer that goes on until the broker ends. Raises AdminError."""
        with self._response("GET", path, arguments, None) as response:
            if response.status >= 400:
                self._decoded(response)
            while line := self._line(response):
                yield json.loads(line)

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.readline()
        except (OSError, http.client.HTTPException):
            return b""  # the broker has gone


def client_path(client: str, what: str = "") -> str:
    """Return the path of a client, or of something of it."""
    return f"/clients/{quote(client, safe='')}" + (f"/{what}" if what else "")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
