"""A TCP relay in front of a broker, to cut a client's connection as a bad network does: without DISCONNECT."""

from __future__ import annotations

import socket
import threading


class Relay:
    """Passes connections on to a port of the loopback interface until `cut`; then all of them end, and no more come."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = False
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            sockets, self._sockets = self._sockets, []
        for each in (self._listener, *sockets):
            try:
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it, which close alone does not
            except OSError:
                pass
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
                broker = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    client.close()
                    broker.close()
                    return
                self._sockets += (client, broker)
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
