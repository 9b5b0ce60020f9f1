"""What a turn does for connections with TLS, turned by hand: what it sends together, and to whom it says goodbye."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from broker.config.loader import Config
from broker.wire.packets import Connect, Disconnect, encode
from broker.worker.worker import Worker
from tests.support.certificates import certificates

CONNACK = b"\x20\2\0\0"
DATA_SEGMENTS_IN = 152  # offset in struct tcp_info (linux/tcp.h)


class Client:
    """A client's end of TLS on a socket, whose handshake goes on when its broker turns."""

    def __init__(self, broker: Worker) -> None:
        self._broker = broker
        assert broker.acceptor is not None
        self.socket = socket.create_connection(("127.0.0.1", broker.acceptor.addresses[0].port))
        self.socket.setblocking(False)
        clients.append(self)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = certificates().client_context().wrap_bio(self._in, self._out, server_hostname="localhost")

    def turn(self) -> None:
        """Send what TLS has to say, have the broker turn, and take what came."""
        self.socket.sendall(self._out.read())
        self._broker.reactor.turn_once(False)
        with contextlib.suppress(BlockingIOError):
            self._in.write(self.socket.recv(65_536))

    def close(self) -> None:
        """Send what TLS has to say, and close the socket without a word more."""
        self.socket.sendall(self._out.read())
        self.socket.close()

    def shake_hands(self) -> None:
        """Finish the handshake; what the client says last in it has not been sent."""
        while True:
            try:
                return self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.turn()

    def say(self, data: bytes) -> None:
        """Say something with what is sent next."""
        self._tls.write(data)

    def hear(self) -> bytes:
        """Return what the broker has said; b"" when it has said in TLS's words that it says no more."""
        while True:
            try:
                return self._tls.read()
            except ssl.SSLWantReadError:
                self.turn()

    def segments(self) -> int:
        """Return how many segments with data have come."""
        information = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found: int = struct.unpack_from("I", information, DATA_SEGMENTS_IN)[0]
        return found


clients: list[Client] = []


@pytest.fixture
def broker() -> Iterator[Worker]:
    worker = Worker(Config(listen=(), listener=(certificates().listener(),)))
    worker.listen()
    clients.clear()
    yield worker
    worker.close()
    for client in clients:
        client.socket.close()


def connected(broker: Worker) -> Client:
    """Return a client that has its CONNACK."""
    client = Client(broker)
    client.shake_hands()
    client.say(encode(Connect(4, b"c", keep_alive_s=60), 4))
    assert client.hear() == CONNACK
    return client


def test_the_end_of_a_handshake_and_the_connack_are_sent_together(broker: Worker) -> None:
    client = Client(broker)
    client.shake_hands()
    before = client.segments()
    client.say(encode(Connect(4, b"c", keep_alive_s=60), 4))
    assert client.hear() == CONNACK
    assert client.segments() == before + 1, "the ticket goes with it"
    client.close()


def test_a_client_that_waits_after_its_disconnect_hears_the_end_in_the_words_of_tls(broker: Worker) -> None:
    client = connected(broker)
    client.say(encode(Disconnect(), 4))
    assert client.hear() == b""
    client.close()


def test_a_client_that_is_gone_after_its_disconnect_is_told_nothing(broker: Worker) -> None:
    # Nobody hears a goodbye to a connection that has been closed without one, and it costs as much as the CONNACK.
    client = connected(broker)
    client.say(encode(Disconnect(), 4))
    client.close()
    sent = broker.counters()["bytes_out"]
    broker.reactor.turn_once(False)
    assert broker.counters()["bytes_out"] == sent
    assert broker.reactor.connection_count == 0
