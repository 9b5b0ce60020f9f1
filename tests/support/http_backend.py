"""A real HTTP server in a thread, which does as a test says: answers, stalls, dies, lies, comes back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Asked:
    """One request that came."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Backend:
    """What it does.

    Attributes:
        answer: makes the answer to a request; None: it says nothing, for as long as `stalled` is not set.
        asked: what came, in order.
        raw: bytes that are sent instead of an HTTP answer; the connection is closed then.
    """

    answer: Callable[[Asked], Answer | None]
    asked: list[Asked] = field(default_factory=list)
    raw: bytes | None = None
    port: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/login?a=b"

    def cut(self) -> None:
        """Cut all connections, as a server does with those that nobody uses, and a machine that dies."""
        while self.sockets:
            try:
                self.sockets.pop().shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


@contextmanager
def running(backend: Backend, port: int = 0) -> Iterator[Backend]:
    """Run it; at the end all its connections are cut, as when its machine dies."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            backend.sockets.append(self.request)

        def do_POST(self) -> None:
            """Answer."""
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(
                self.path, {name.lower(): value for name, value in self.headers.items()}, body, self.client_address[1]
            )
            backend.asked.append(asked)
            if backend.raw is not None:
                self.wfile.write(backend.raw)
                self.close_connection = True
                return
            answer = backend.answer(asked)
            if answer is None:
                backend.stalled.wait(30)
                self.close_connection = True
                return
            status, headers, said = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST  # noqa: N815  (the names are the library's)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", port), Handler)
    backend.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield backend
    finally:
        backend.stalled.set()
        server.shutdown()
        thread.join()
        server.server_close()
        backend.cut()
