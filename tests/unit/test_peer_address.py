"""The address of a client, as text, whatever its socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker.config.listener import Listener
from broker.config.loader import Config
from broker.worker.worker import Worker


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "unix://PATH"])
def test_a_client_has_the_address_of_its_socket_as_long_as_that_is_there(address: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    worker = Worker(Config(listen=(), listener=(Listener(address=address.replace("PATH", path)),)))
    worker.listen()
    where = worker.addresses[0]
    with socket.socket(
        socket.AF_UNIX if where.scheme == "unix" else socket.AF_INET6 if ":" in where.host else socket.AF_INET
    ) as client:
        client.connect(path if where.scheme == "unix" else (where.host, where.port))
        worker.reactor.turn_once(False)
        (connection,) = worker.reactor.connections_snapshot()
        name = client.getsockname()
        assert connection.peer == (None if where.scheme == "unix" else f"{name[0]}:{name[1]}")
    worker.reactor.turn_once(True)
    assert connection.is_closing
    worker.close()
    assert connection.peer is None
