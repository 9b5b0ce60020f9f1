"""Who an HTTP client is: what the authenticators say of its user name and password, as of a CONNECT's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.admin.pagination import QueryError, Row
from broker.auth.authenticator import Anonymous
from broker.auth.enhanced_auth import Exchange
from broker.auth.outcome import Accepted, Outcome, Pending
from broker.config.authenticator import JwtTable
from broker.transport.facts import Facts
from broker.wire.packets import Connect
from broker.wire.reasons import ClientError, Reason

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView
    from broker.auth.principal import Principal

LOGINS_MAX: Final = 64  # that wait for an authenticator; the HTTP server has no more connections
NAME_BYTES_MAX: Final = 65_535


class Caller:
    """The connection of an HTTP client, as an authenticator sees it: there is nothing to be sent to it."""

    def __init__(self, peer: str | None, listener: int) -> None:
        self.peer = peer
        self.facts: Facts | None = Facts(listener=listener)
        self.principal: Principal | None = None
        self.is_closing = False
        self.packet_bytes_max = 0

    def write_packet(self, frame: bytes) -> None:
        """Send nothing."""

    def unpark(self) -> None:
        """Do nothing."""


_pending: Final = Pending(LOGINS_MAX, lambda: None)


async def log_in(queries: WorkerView, arguments: Row) -> Row:
    """Return who a caller is: `identity`, `groups`, `expires_at_s`. Raises QueryError.

    Args:
        arguments: peer, HOST:PORT or None; user and password; or token, of a client that has no name beside it.
    """
    worker = queries.worker
    handshake = worker.controller.handshake
    if isinstance(handshake.authenticator, Anonymous):
        raise QueryError(403, "no_authenticator", "There is no [[authenticator]]: it is not known who may log in.")
    user, password = arguments.get("user"), arguments.get("password", b"")
    if "token" in arguments:
        # Where the table of tokens wants it; another authenticator is asked for no user of that name.
        by_name = any(
            isinstance(table, JwtTable) and table.token_from != "password" for table in worker.config.authenticator
        )
        password, user = arguments["token"], arguments["token"].decode() if by_name else None
    if len(password) > NAME_BYTES_MAX or len((user or "").encode()) > NAME_BYTES_MAX:
        raise QueryError(400, "bad_login", "A user name or a password is longer than MQTT allows.")
    if _pending.limit_reached:
        raise QueryError(503, "too_many_logins", "Too many wait for an authenticator.", (("Retry-After", "1"),))
    connect = Connect(5, b"", True, 0, None, user, password, {})
    caller = Caller(arguments["peer"], len(worker.entrances))
    outcome = await _outcome(handshake, connect, Exchange(caller, None, None, pending=_pending))
    if not isinstance(outcome, Accepted):
        raise _refusal(outcome)
    if outcome.identity is None:
        raise QueryError(401, "bad_login", "The login has no user name.")
    return {"identity": outcome.identity, "groups": list(outcome.groups), "expires_at_s": outcome.expires_at_s}


async def _outcome(handshake: Any, connect: Connect, exchange: Exchange) -> Outcome | ClientError | None:
    refused = handshake.admission.admit(connect, exchange.peer) if handshake.admission is not None else None
    if refused is not None:
        outcome: Outcome = refused
        return outcome
    deciding = handshake.ask(connect, exchange)
    if not isinstance(deciding, Outcome):
        exchange.begin()
        return await exchange.outcome(deciding)
    return deciding


def _refusal(outcome: Any) -> QueryError:
    """Return what a caller is told whom the authenticators do not let in."""
    reason = getattr(outcome, "reason", Reason.IMPLEMENTATION_SPECIFIC_ERROR)
    if reason == Reason.CONNECTION_RATE_EXCEEDED:
        return QueryError(
            429, "logins_slowed", "After failed logins the next one has to wait.", (("Retry-After", "2"),)
        )
    if reason in (Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY, Reason.IMPLEMENTATION_SPECIFIC_ERROR):
        return QueryError(503, "no_authenticator", "The authenticator cannot decide now.", (("Retry-After", "2"),))
    if reason == Reason.BANNED:
        return QueryError(403, "banned", "This user, or this address, is banned.")
    return QueryError(401, "bad_login", "The user name or the password is wrong.")
