"""Who a client is: the seams that decide on a CONNECT."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.auth.outcome import Accepted, Outcome, Refused
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.wire.packets import Connect


_NOBODY = Accepted()


class Authenticator(Protocol):
    """Decides who a client is. It may answer at once or return an awaitable, which runs under trio."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        """Decide on a CONNECT, or on a re-authentication (`exchange.again`).

        For enhanced authentication (4.12) the awaitable calls `await exchange.challenge(data)`, which sends AUTH and
        returns the client's answer. It is cancelled if its client leaves. What is raised here or there refuses the
        client with 0x83 and is logged with its traceback.
        """


class Anonymous:
    """Lets every client in under the user name that it gives, unchecked."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Accept; refuse enhanced authentication, since no method is known here [MQTT-4.12.0-1]."""
        if exchange.method is not None:
            return Refused(Reason.BAD_AUTHENTICATION_METHOD, "no authentication method is known here")
        return _NOBODY if connect.user_name is None else Accepted(connect.user_name)


class Admission(Protocol):
    """May refuse or redirect a client before it is authenticated."""

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Return None to go on, or why not. Answers at once: no I/O. What it raises refuses, as in Authenticator."""


class Admissions:
    """Several, asked one after the other: the first that refuses a client decides."""

    def __init__(self, asked: Sequence[Admission]) -> None:
        self._asked = tuple(asked)

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Return why not; None if all of them let the client go on."""
        for admission in self._asked:
            refused = admission.admit(connect, peer)
            if refused is not None:
                return refused
        return None
