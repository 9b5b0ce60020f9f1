"""What stands before and behind the authenticators: delays after failures, and bans of who they find a client to be."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import trio

from broker.auth.addresses import subscriber_of
from broker.auth.login_delays import LoginDelays
from broker.auth.outcome import Accepted, Outcome, Refused
from broker.logs import get
from broker.wire.reasons import Reason
from broker.wire.rendering import shown_name

if TYPE_CHECKING:
    from broker.auth.authenticator import Authenticator
    from broker.auth.bans import Bans
    from broker.auth.enhanced_auth import Exchange
    from broker.wire.packets import Connect

log = get("logins")

FAILURES: Final = frozenset({Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED})
SHOWN_MAX: Final = 200  # characters of a name that its client has chosen
TOO_SOON: Final = Refused(Reason.CONNECTION_RATE_EXCEEDED, "after failed logins the next one has to wait")


class LoginGuard:
    """An Authenticator around another one.

    Who has to wait is refused with 0x9F (3.x: server unavailable) before any password is hashed. Where a whole network
    has to wait, what the other one accepts at once is still let in: a login that was verified before, a certificate.

    Args:
        inner: the other one.
        bans: who is kept out whatever it has proved.
        delay_max_s: the longest delay after failures, seconds; 0: none.
    """

    def __init__(self, inner: Authenticator, bans: Bans, delay_max_s: float) -> None:
        self._inner = inner
        self._bans = bans
        self._delays = LoginDelays(delay_max_s) if delay_max_s else None

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        """Decide as the other one does, unless the client has to wait or is banned."""
        if self._delays is None or exchange.again:
            outcome = self._inner.authenticate(connect, exchange)
            if not isinstance(outcome, Accepted) and isinstance(outcome, Awaitable):
                return self._decided_late(outcome, connect, exchange, None)
            return self._unless_banned(outcome, connect, exchange)
        now_s = time.monotonic()
        network = subscriber_of(exchange.peer)
        user = connect.user_name if connect.user_name is not None else connect.client_identifier.decode()
        if self._delays.of_user(network, user, now_s) > 0:
            return TOO_SOON
        outcome = self._inner.authenticate(connect, exchange)
        if isinstance(outcome, Accepted) or not isinstance(outcome, Awaitable):
            return self._decided(outcome, connect, exchange, (network, user))
        if self._delays.of_network(network, now_s) > 0:
            return _not_asked(outcome)
        return self._decided_late(outcome, connect, exchange, (network, user))

    async def _decided_late(
        self, deciding: Awaitable[Outcome], connect: Connect, exchange: Exchange, key: tuple[str, str] | None
    ) -> Outcome:
        return self._decided(await deciding, connect, exchange, key)

    def _decided(self, outcome: Outcome, connect: Connect, exchange: Exchange, key: tuple[str, str] | None) -> Outcome:
        if key is not None and self._delays is not None:
            if isinstance(outcome, Accepted):
                self._delays.succeeded(*key)
            elif (
                isinstance(outcome, Refused)
                and outcome.reason in FAILURES
                and self._delays.failed(*key, time.monotonic())
            ):
                log.warning("logins_slowed", address=key[0] or "unknown", user=shown_name(key[1])[:SHOWN_MAX])
        return self._unless_banned(outcome, connect, exchange)

    def _unless_banned(self, outcome: Outcome, connect: Connect, exchange: Exchange) -> Outcome:
        """Return an outcome, unless it names a client that is banned: perhaps since its CONNECT came."""
        if not isinstance(outcome, Accepted):
            return outcome
        return self._bans.refusal(connect.client_identifier, outcome.identity, exchange.peer) or outcome


async def _not_asked(deciding: Awaitable[Outcome]) -> Outcome:
    """Refuse a client about whom no decision is wanted; what would decide ends where it would have waited."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await deciding
    return TOO_SOON
