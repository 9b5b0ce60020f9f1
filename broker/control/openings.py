"""Who holds a client identifier between the acceptance of its CONNECT and the record that the CONNACK waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.wire.packets import Disconnect, encode
from broker.wire.reasons import CloseReason, Reason

if TYPE_CHECKING:
    from broker.reactor.connection import Connection
    from broker.wire.packets import Connect
    from router.sessions.session import Session


@dataclass(slots=True, eq=False)
class Opening:
    """An accepted CONNECT whose CONNACK waits for a record.

    Attributes:
        session: opened for it, without a connection.
        present: whether it was there before.
        keep_alive_s: in force.
        properties: of the CONNACK.
        expires_at_s: when the client's authentication ends, Unix seconds; None: never.
    """

    connection: Connection
    connect: Connect
    session: Session
    present: bool
    keep_alive_s: int
    properties: dict[str, Any]
    expires_at_s: float | None


class Openings:
    """The openings that hold their sessions, at most one for each.

    To everybody else such a session is its connection's as if that were open: whoever comes by its client identifier
    takes it over, and the connection's end is what detaches it. An opening that is not here any more has lost its
    session, whatever became of that.
    """

    def __init__(self) -> None:
        self._by_identifier: dict[bytes, Opening] = {}
        self._by_connection: dict[Connection, Opening] = {}

    def __len__(self) -> int:
        return len(self._by_identifier)

    def begin(self, opening: Opening) -> None:
        """From here on the session is this opening's; no other one and no open connection has it."""
        identifier = opening.session.client_identifier
        assert identifier not in self._by_identifier, identifier
        assert opening.session.connection is None, identifier
        self._by_identifier[identifier] = self._by_connection[opening.connection] = opening

    def of(self, session: Session) -> Opening | None:
        """Return the opening that holds a session, None if none does."""
        opening = self._by_identifier.get(session.client_identifier)
        assert opening is None or opening.session is session, session.client_identifier
        return opening

    def holds(self, opening: Opening) -> bool:
        """Return whether a session is still this one's."""
        return self._by_connection.get(opening.connection) is opening

    def end(self, connection: Connection) -> Opening | None:
        """Forget the opening of a connection, None if it has none: it is open, or loses the session."""
        opening = self._by_connection.pop(connection, None)
        if opening is not None:
            del self._by_identifier[opening.session.client_identifier]
        return opening


def dismiss(connection: Connection) -> None:
    """End a connection whose client has come again."""
    if connection.version == 5:
        connection.write_packet(encode(Disconnect(Reason.SESSION_TAKEN_OVER), 5))
    connection.close(CloseReason.TAKEN_OVER)
