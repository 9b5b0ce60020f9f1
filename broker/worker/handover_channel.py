"""The way from one worker to another, on which clients are sent home; worker.handover says what travels on it."""

from __future__ import annotations

import array
import errno
import socket
import struct
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from broker.reactor.peer_socket import watch_peer
from broker.transport.facts import Facts
from router.core.varint import find_varint

if TYPE_CHECKING:
    from broker.control.connect import Handshake
    from broker.reactor.connection import Connection

# Of a client: when its time to CONNECT began, monotonic ms; how many bytes say what is known of it (Facts as JSON, 0:
# nothing); how many bytes of it follow those.
HEADER = struct.Struct("<qII")
MESSAGE_BYTES_MAX = 65_536  # of clients that share a message; of what follows of one that has more
CLIENTS_PER_MESSAGE = 64  # at most; the system takes 253 descriptors
WAITING_MAX = 10_000  # clients that wait for one home; more are told that it is unavailable
RETRY_S = 0.05  # between two looks whether a home is back
DESCRIPTOR_BYTES = array.array("i").itemsize
VERSIONS = {
    b"\0\x04MQTT\x04": 4,
    b"\0\x04MQTT\x05": 5,
    b"\0\x04MQTT\x84": 4,
    b"\0\x06MQIsdp\x03": 3,
    b"\0\x06MQIsdp\x83": 3,
}  # with the bit that says that it is a bridge, too
GONE_ERRNOS = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNREFUSED})
# The home does not take more now: its queue is full, or too many sockets are under way (unix(7)).
BUSY_ERRNOS = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})


def client_identifier_of(body: bytes) -> bytes:
    """Return the client identifier of a CONNECT, b"" if it has none or is not well-formed up to there.

    Nothing else is checked: whoever decides on the CONNECT does. Cost: about a microsecond.
    """
    version = VERSIONS.get(body[:7]) or VERSIONS.get(body[:9])
    position = 12 if version == 3 else 10
    if version is None:
        return b""
    if version == 5:
        length, position = find_varint(body, position)
        if position <= 0:
            return b""
        position += length
    start = position + 2
    end = start + int.from_bytes(body[position:start], "big")
    return body[start:end] if end <= len(body) else b""


def facts_of(connection: Connection) -> bytes:
    """Return what the home of a client has to know of its connection, for facts_from(); b"" if there is nothing."""
    facts = connection.facts
    if facts is None or (facts.listener == 0 and not connection.is_layered and facts.address is None):
        return b""
    return msgspec.json.encode(facts)


def facts_from(data: bytes) -> Facts | None:
    """Return what facts_of() has encoded."""
    return msgspec.json.decode(data, type=Facts) if data else None


class Sender(Protocol):
    """What a way needs of whose it is: broker.worker.handover.Handover."""

    reactor: Any
    handshake: Handshake
    home_wait_s: float
    tcp_keepalive_s: int
    handed_over: int

    def give_up(self, connection: Connection) -> None:
        """Tell a client that its home is unavailable."""


class Way:
    """The way to one home: clients that are sent there, and that wait for it. Those of a turn travel together."""

    def __init__(self, handover: Sender, path: str) -> None:
        self.handover = handover
        self.path = path
        self._socket: socket.socket | None = None
        self._leaving: list[Connection] = []  # in this turn
        self._rest: deque[bytes] = deque()  # of the client sent last
        self._waiting: deque[tuple[Connection, float]] = deque()  # and until when (trio's clock)
        self._catching_up = False

    def send(self, connection: Connection) -> None:
        """Send a client home before the turn ends, or when its home takes it."""
        if not self._leaving:
            self.handover.reactor.after_control.append(self._leave)
        self._leaving.append(connection)

    def _leave(self) -> None:
        """All CONNECTs of the turn have been looked at: send the clients that live there."""
        leaving = [connection for connection in self._leaving if connection.is_connecting]
        self._leaving.clear()
        sent = 0
        if not self._waiting:
            while sent < len(leaving) and (more := self._sent(leaving[sent : sent + CLIENTS_PER_MESSAGE])):
                sent += more
        for connection in leaving[sent:]:
            if len(self._waiting) >= WAITING_MAX:
                self.handover.give_up(connection)
                continue
            self._waiting.append((connection, trio.current_time() + self.handover.home_wait_s))
            connection.wait_for_answer()
            self._begin_to_catch_up()

    def _begin_to_catch_up(self) -> None:
        if not self._catching_up:
            assert self.handover.handshake.spawn is not None, "clients are accepted while the worker serves"
            self._catching_up = True
            self.handover.handshake.spawn(self._catch_up)

    async def _catch_up(self) -> None:
        """Send the waiting clients as their home takes them; one that waited too long hears that it is unavailable."""
        left = -1
        try:
            while self._flush():
                stuck = left == len(self._waiting) + len(self._rest)
                left = len(self._waiting) + len(self._rest)
                if stuck or self._socket is None:
                    await trio.sleep(RETRY_S)
                else:
                    with trio.move_on_after(RETRY_S):
                        await trio.lowlevel.wait_writable(self._socket)
        finally:
            self._catching_up = False

    def _flush(self) -> bool:
        """Send what can be sent. Returns whether anything is left."""
        self._send_rest()
        now_s = trio.current_time()
        while self._waiting:
            connection, until_s = self._waiting[0]
            if not connection.is_connecting:  # it left, or was sent home
                self._waiting.popleft()
            elif now_s >= until_s:
                self.handover.give_up(connection)
            elif not self._sent(
                [waiting for waiting, _ in islice(self._waiting, CLIENTS_PER_MESSAGE) if waiting.is_connecting]
            ):
                return True
        return bool(self._rest)

    def _sent(self, connections: Sequence[Connection]) -> int:
        """Send the first of some clients to their home if that takes them now, and let go of them here.

        Returns how many that were: as many as fit into a message, and one at least, or none.
        """
        if self._rest:
            return 0
        reactor = self.handover.reactor
        pieces: list[bytes] = []
        descriptors = array.array("i")
        room = MESSAGE_BYTES_MAX
        relays: dict[int, tuple[socket.socket, socket.socket]] = {}
        for connection in connections:
            descriptor, accepted_ms, data = reactor.packed(connection)
            facts = facts_of(connection)
            room -= HEADER.size + len(facts) + len(data)
            if room < 0 and descriptors:
                break
            if connection.is_layered:
                ours, theirs = relays[len(descriptors)] = socket.socketpair(
                    socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
                )
                descriptor = theirs.fileno()
            descriptors.append(descriptor)
            pieces += HEADER.pack(accepted_ms, len(facts), len(data)), facts + data
        rest = pieces[-1][MESSAGE_BYTES_MAX:]  # empty unless it is alone
        if rest:
            pieces[-1] = pieces[-1][:MESSAGE_BYTES_MAX]
        sent = self._transmitted(pieces, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        for ours, theirs in relays.values():
            theirs.close()
            if not sent:
                ours.close()
        if not sent:
            return 0
        for index, connection in enumerate(connections[: len(descriptors)]):
            if index in relays:
                watch_peer(connection.fd, self.handover.tcp_keepalive_s)  # nothing here has a keep alive
                reactor.relay(connection, relays[index][0].detach())
            else:
                reactor.release(connection)
        self.handover.handed_over += len(descriptors)
        if rest:
            self._rest.extend(
                rest[start : start + MESSAGE_BYTES_MAX] for start in range(0, len(rest), MESSAGE_BYTES_MAX)
            )
            self._send_rest()
            if self._rest:
                self._begin_to_catch_up()
        return len(descriptors)

    def _send_rest(self) -> None:
        while self._rest and self._transmitted([self._rest[0]], []):
            if self._rest:  # a home that went away has emptied it
                self._rest.popleft()

    def _transmitted(self, pieces: list[bytes], rights: list[tuple[int, int, Any]]) -> bool:
        """Send one message if its home takes it now. A worker that was restarted is connected to anew."""
        for _ in range(2):
            if self._socket is None and not self._connect():
                return False
            assert self._socket is not None
            try:
                self._socket.sendmsg(pieces, rights)
            except OSError as error:
                if error.errno in GONE_ERRNOS:
                    self.close()
                    if not rights:
                        return True  # the rest of a client that is gone with its home
                    continue
                if error.errno not in BUSY_ERRNOS:
                    raise
                return False
            return True
        return False

    def _connect(self) -> bool:
        way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            way.connect(self.path)
        except OSError:
            # Nobody is there, or its backlog is full.
            way.close()
            return False
        self._socket = way
        return True

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._rest.clear()
