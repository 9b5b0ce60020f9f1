"""Which clients are connected: descriptions of them, and watchers that hear of their coming and going."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from broker.wire.reasons import CloseReason

if TYPE_CHECKING:
    from broker.auth.principal import Principal
    from broker.reactor.connection import Connection
    from broker.transport.facts import Facts


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A connected client, as it was when it was described.

    Attributes:
        client_identifier: of the network client; of a client in this process, the name it was given.
        version: protocol level, 3 for 3.1, 4 for 3.1.1, 5 for 5.0; None for a client in this process.
        address: the peer's, "host:port"; None if it is not known, and for a client in this process.
        principal: who it is to the ACL; None for a trusted one in this process.
        connected_s: seconds since it was accepted.
        session_expiry_interval_s: how long its session outlives its connection; 0 not at all, 4,294,967,295 for ever.
        subscriptions: how many it has.
        counters: messages_in, messages_out, messages_dropped, and of a network client bytes_in, bytes_out.
        facts: what its connection tells of it: certificate, TLS, listener; None: plain TCP by the first listener, and
            for a client in this process.
    """

    client_identifier: str
    version: int | None
    address: str | None
    principal: Principal | None
    connected_s: float
    session_expiry_interval_s: int
    subscriptions: int
    counters: dict[str, int]
    facts: Facts | None = None

    @property
    def in_process(self) -> bool:
        """Whether it is a client in this process."""
        return self.version is None


@dataclass(frozen=True, slots=True)
class Connected:
    """A client was accepted."""

    client: ClientInfo


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A client that was accepted is gone.

    Attributes:
        reason: the one close reason of its connection, the same as in the log.
        in_process: whether it was a client in this process.
    """

    client_identifier: str
    reason: CloseReason
    in_process: bool = False


Event = Connected | Disconnected


def describe(connection: Connection, now_ms: int) -> ClientInfo:
    """Return what there is to say about an open connection. Costs a getpeername."""
    session = connection.session
    return ClientInfo(
        session.client_identifier.decode(),
        connection.version,
        connection.peer,
        connection.principal,
        (now_ms - connection.opened_ms) / 1000,
        session.expiry_interval_s,
        session.subscription_count,
        connection.counters(),
        connection.facts,
    )


class Watch:
    """One watcher's events, oldest first: iterate over it, inside of its `async with` block.

    At most `events_max` events wait; then the oldest is dropped and counted in `dropped`. The iteration ends when the
    broker has ended and no event waits.
    """

    def __init__(self, presence: Presence, events_max: int) -> None:
        if events_max < 1:
            raise ValueError(f"events_max is 1 or more, not {events_max}")
        self.dropped = 0
        self._presence = presence
        self._events: deque[Event] = deque()
        self._events_max = events_max
        self._waiting = trio.lowlevel.ParkingLot()
        self._ended = False

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._presence.watches.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self in self._presence.watches:
            self._presence.watches.remove(self)
        self._events.clear()
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            await self._waiting.park()
        return self._events.popleft()

    def put(self, event: Event) -> bool:
        """Take an event for the watcher; returns whether another one was dropped for it. May be called in a turn."""
        full = len(self._events) >= self._events_max
        if full:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        if self._waiting:
            self._waiting.unpark_all()
        return full

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._waiting.unpark_all()


class Presence:
    """All watchers of one worker. With none, a client's coming and going costs a look at an empty list.

    Attributes:
        watches: whoever listens now.
        dropped: events that found a watcher's queue full.
    """

    def __init__(self) -> None:
        self.watches: list[Watch] = []
        self.dropped = 0

    def opened(self, connection: Connection, now_ms: int) -> None:
        """A network client was accepted. Called in a turn: nothing of the watcher's runs here."""
        self.tell(Connected(describe(connection, now_ms)))

    def ended(self, connection: Connection) -> None:
        """A network client that had been accepted is gone. Called in a turn, while it still has its session."""
        self.tell(Disconnected(connection.session.client_identifier.decode(), connection.close_reason))

    def tell(self, event: Event) -> None:
        """Give an event to all watchers."""
        for watch in self.watches:
            self.dropped += watch.put(event)

    def end(self) -> None:
        """The broker has ended."""
        for watch in self.watches:
            watch.end()
        self.watches.clear()
