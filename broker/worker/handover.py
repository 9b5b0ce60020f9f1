"""A client that came to another worker than its home is passed on to it, socket and all.

Each worker has a SOCK_SEQPACKET socket in the run folder, to which the others connect. Those who came in one turn are
one message: of each client when its time to CONNECT began (monotonic ms), what is known of it, and the bytes that came;
their sockets go along as SCM_RIGHTS, in the same order. Who has more than MESSAGE_BYTES_MAX is alone in a message, and
the rest follows in messages of its own. The home goes on as if it had accepted and read itself.

A client whose bytes go through TLS or WebSocket stays with these where it came: what goes along is one end of a pair of
sockets, and the worker that has the client relays between that pair and its layers.

A home that is restarting, or has not taken what it was sent so far, is waited for: the client stays here, its CONNECT
undecided, until `processes.home_wait_ms` are over. What a home had been sent and not looked at when it crashed is lost
as what it had accepted itself is: those clients see their connections end.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from broker.logs import get
from broker.worker.handover_channel import (
    CLIENTS_PER_MESSAGE,
    DESCRIPTOR_BYTES,
    HEADER,
    MESSAGE_BYTES_MAX,
    Way,
    client_identifier_of,
    facts_from,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.control.connect import Handshake
    from broker.reactor.connection import Connection
    from broker.reactor.epoll import Reactor
    from mesh.placement import Homes

log = get("handover")

BACKLOG = 1024
RIGHTS_SIZE = socket.CMSG_LEN(CLIENTS_PER_MESSAGE * DESCRIPTOR_BYTES)


class Handover:
    """Passes clients on to their homes, and takes in those that are at home here.

    Args:
        reactor, handshake: the worker's.
        homes: of the node.
        number: the worker's.
        run_dir: where the workers' sockets are.
        home_wait_ms: how long a client waits for a home that is away.
        tcp_keepalive_s: silence after which TCP probes a client that is served by its home through this worker.

    Attributes:
        handed_over: clients that were sent to their homes.
        taken_in: clients that came from other workers.
        given_up: clients that were told that their home is unavailable.
    """

    def __init__(
        self,
        reactor: Reactor,
        handshake: Handshake,
        homes: Homes,
        number: int,
        run_dir: Path,
        home_wait_ms: int,
        tcp_keepalive_s: int,
    ) -> None:
        self.reactor = reactor
        self.handshake = handshake
        self.homes = homes
        self.number = number
        self.home_wait_s = home_wait_ms / 1000
        self.tcp_keepalive_s = tcp_keepalive_s
        self.handed_over = self.taken_in = self.given_up = 0
        paths = [str(run_dir / f"worker-{worker}.handover") for worker in range(homes.count)]
        self._path = paths[number]
        self._ways = [Way(self, path) for path in paths]
        self._listener: socket.socket | None = None
        self._others: dict[int, Arrivals] = {}
        self._buffer = memoryview(bytearray(HEADER.size + MESSAGE_BYTES_MAX))
        self._paused = False

    # Clients that leave ---------------------------------------------------------------------------------------------

    def sends_home(self, connection: Connection, body: bytes, client_identifier: bytes | None = None) -> bool:
        """Send the client of a CONNECT to its home. Returns False if that is here, or it names no client.

        Args:
            client_identifier: what its certificate says; None: what the CONNECT says counts.
        """
        if connection.came_home:
            return False
        identifier = client_identifier or client_identifier_of(body)
        if not identifier:
            return False
        home = self.homes.home_of(identifier)
        if home == self.number:
            return False
        self._ways[home].send(connection)
        return True

    def is_at_home(self, client_identifier: bytes) -> bool:
        """Return whether a client identifier lives here."""
        return self.homes.home_of(client_identifier) == self.number

    def give_up(self, connection: Connection) -> None:
        """Tell a client that its home is unavailable."""
        self.given_up += 1
        self.handshake.refuse_unavailable(connection)

    # Clients that come ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Let the other workers in. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(self._path)
        self._listener.listen(BACKLOG)
        self.reactor.watch(self._listener.fileno(), self._on_worker)

    def resume(self) -> None:
        """Take clients in again."""
        if self._paused:
            self._paused = False
            for descriptor in self._others:
                self.reactor.watch(descriptor, self._on_arrivals)

    def close(self) -> None:
        """Hang up on all workers, and take no client in any more. Clients that wait for their home are still there."""
        if self._listener is not None:
            self.reactor.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for descriptor in list(self._others):
            self._forget(descriptor)
        for way in self._ways:
            way.close()

    def _on_worker(self, descriptor: int) -> None:
        assert self._listener is not None
        try:
            other, _ = self._listener.accept()
        except OSError as error:
            log.warning("worker_not_let_in", what=str(error))
            return
        other.setblocking(False)
        self._others[other.fileno()] = Arrivals(other)
        if not self._paused:
            self.reactor.watch(other.fileno(), self._on_arrivals)

    def _on_arrivals(self, descriptor: int) -> None:
        """Another worker has sent something: take in one message. If there is more, the next turn is told."""
        if self.handshake.pending.limit_reached:
            # Whoever comes waits with the one that accepted it.
            self._paused = True
            for watched in self._others:
                self.reactor.unwatch(watched)
            return
        arrivals = self._others[descriptor]
        try:
            length, ancillary, _, _ = arrivals.socket.recvmsg_into([self._buffer], RIGHTS_SIZE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("worker_hung_up", what=str(error))
            length, ancillary = 0, []
        if length == 0:
            self._forget(descriptor)
            return
        for client, accepted_ms, facts, data in arrivals.take(bytes(self._buffer[:length]), ancillary):
            self._take_in(client, accepted_ms, facts, data)

    def _take_in(self, client: int, accepted_ms: int, facts: bytes, data: bytes) -> None:
        """A client that is at home here has come as a whole."""
        if client < 0:
            log.warning("client_lost", what="its socket did not come along: too many files are open")
            return
        try:
            connection = self.reactor.adopt(client, accepted_ms)
        except OSError as error:
            log.warning("client_lost", what=str(error))
            return
        self.taken_in += 1
        connection.came_home = True
        connection.facts = facts_from(facts)
        connection.feed_bytes(data)

    def _forget(self, descriptor: int) -> None:
        if not self._paused:
            self.reactor.unwatch(descriptor)
        self._others.pop(descriptor).close()


class Arrivals:
    """What comes from one other worker: of a client whose bytes come in pieces, what has come so far."""

    def __init__(self, other: socket.socket) -> None:
        self.socket = other
        self._client = -1
        self._accepted_ms = self._facts_length = 0
        self._missing = 0
        self._pieces: list[bytes] = []

    def take(self, message: bytes, ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes, bytes]]:
        """Take a message. Returns the clients that have come whole: socket (-1: lost), accepted_ms, facts and bytes."""
        if self._missing:
            self._pieces.append(message)
            self._missing -= len(message)
            if self._missing:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
            client, self._client = self._client, -1
            return [(client, self._accepted_ms, data[: self._facts_length], data[self._facts_length :])]
        descriptors: Iterator[int] = iter(())
        for _, _, rights in ancillary:
            # What the system has no more room for is not there, and it begins with the first.
            descriptors = iter(memoryview(rights[: len(rights) // DESCRIPTOR_BYTES * DESCRIPTOR_BYTES]).cast("i"))
        clients = []
        start = 0
        while start < len(message):
            accepted_ms, facts_length, length = HEADER.unpack_from(message, start)
            start += HEADER.size
            length += facts_length
            client = next(descriptors, -1)
            data = message[start : start + length]
            start += length
            if len(data) == length:
                clients.append((client, accepted_ms, data[:facts_length], data[facts_length:]))
            else:
                self._client, self._accepted_ms, self._facts_length = client, accepted_ms, facts_length
                self._pieces = [data]
                self._missing = length - len(data)
        return clients

    def close(self) -> None:
        """Hang up; a client of which the end did not come is closed."""
        self.socket.close()
        if self._client >= 0:
            os.close(self._client)
            self._client = -1
