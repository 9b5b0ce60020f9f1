"""The lines of the log that say who came and who went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.logs import Late, get, leaves_out
from broker.wire.reasons import BY_CLIENT, LOST, CloseReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config.loader import Config
    from broker.reactor.connection import Connection
    from broker.wire.reasons import ClientError

log = get("connections")

# Ends that are a client's everyday business.
QUIET_ENDS: Final = frozenset({CloseReason.CLIENT_DISCONNECT})
VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class ConnectionLines:
    """Writes a line when a client is let in, and one when its connection ends.

    Args:
        config: checked settings; `log.connections` false: clients that come, and that go with a DISCONNECT, have none.
    """

    def __init__(self, config: Config) -> None:
        self._says_all = config.log.connections
        self._schemes = [str(listener.address).partition("://")[0] for listener in config.listeners]

    def connected(self, connection: Connection, keep_alive_s: int, present: bool) -> None:
        """A client has its CONNACK."""
        if not self._says_all or leaves_out("client_connected"):
            return
        facts, principal = connection.facts, connection.principal
        log.info(
            "client_connected",
            client=Late(client_of, connection),
            address=Late(_address, connection),
            user=principal.user_name if principal is not None else None,
            version=VERSIONS[connection.version],
            transport=self._schemes[0 if facts is None else facts.listener],
            keep_alive_s=keep_alive_s,
            session="resumed" if present else "new",
        )

    def ended(self, connection: Connection, error: ClientError | None, now_ms: int) -> None:
        """A connection's end was decided.

        Args:
            error: what its client did wrong; None: nothing.
            now_ms: monotonic.
        """
        reason, has_session = connection.close_reason, connection.session is not None
        is_quiet = error is None and reason in QUIET_ENDS and not (has_session and self._says_all)
        if error is None and not has_session and reason in LOST and connection.is_silent:
            # Health checks come every second or two.
            log.debug("connection_ended", client=Late(client_of, connection), address=connection.peer, reason=reason)
            return
        if is_quiet or leaves_out("connection_ended"):
            return
        why: dict[str, Any] = {"reason": reason}
        if error is not None:
            why |= {"clause": error.clause, "detail": error.detail}
        if not has_session:
            # It has an address alone, which fail2ban looks for: a client identifier may look like one.
            log.info(
                "connection_ended", client=Late(client_of, connection), address=connection.peer or "unknown", **why
            )
        else:
            if connection.paused_by and reason not in BY_CLIENT:
                why["paused_by"] = connection.paused_by
            log.info(
                "connection_ended",
                client=Late(client_of, connection),
                **why,
                duration_s=(now_ms - connection.opened_ms) / 1000,
                **{name: Late(count, connection) for name, count in COUNTED.items()},
            )


def client_of(connection: Connection) -> str:
    """Return whose a connection is, for a log line: the client identifier, or the address before that is known."""
    if connection.session is not None:
        identifier: bytes = connection.session.client_identifier
        return identifier.decode("utf-8", "replace")
    return connection.peer or "unknown"


def _address(connection: Connection) -> str:
    return connection.peer or "unknown"


def _counter(name: str) -> Callable[[Connection], int]:
    def count(connection: Connection) -> int:
        value: int = connection.counters()[name]
        return value

    return count


COUNTED: Final = {
    name: _counter(name) for name in ("messages_in", "messages_out", "bytes_in", "bytes_out", "messages_dropped")
}
