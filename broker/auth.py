"""Who a client is: the seams that decide on a CONNECT."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from broker.reasons import Reason

if TYPE_CHECKING:
    from broker.handshake import Exchange
    from broker.packets import Connect


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is who it says.

    Attributes:
        identity: what the ACL is asked about: a user name, or None for an anonymous client.
        authentication_data: last data of an enhanced authentication, for the CONNACK or AUTH (4.12).
    """

    identity: object = None
    authentication_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The client does not get in.

    Attributes:
        reason: 0x80 or above; a 3.x client gets the nearest return code.
        text: Reason String for a 5.0 client, "" for none.
        server_reference: another server to use, with USE_ANOTHER_SERVER or SERVER_MOVED (4.13).
    """

    reason: Reason
    text: str = ""
    server_reference: str = ""


Outcome = Accepted | Refused


class Authenticator(Protocol):
    """Decides who a client is. It may answer at once or return an awaitable, which runs under trio."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        """Decide on a CONNECT, or on a re-authentication (`exchange.again`).

        For enhanced authentication (4.12) the awaitable calls `await exchange.challenge(data)`, which sends AUTH and
        returns the client's answer. What it raises refuses the client with 0x83 and is logged with its traceback.
        """


class Anonymous:
    """Lets everybody in under the user name they give, unchecked."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Accept; refuse enhanced authentication, since no method is known here [MQTT-4.12.0-1]."""
        if exchange.method is not None:
            return Refused(Reason.BAD_AUTHENTICATION_METHOD, f"unknown authentication method {exchange.method}")
        return Accepted(connect.user_name)


class Admission(Protocol):
    """May refuse or redirect a client before it is authenticated."""

    def admit(self, connect: Connect, peer: str | None) -> Refused | None:
        """Return None to go on, or why not. Answers at once: no I/O."""


@dataclass(slots=True)
class Pending:
    """CONNECTs that wait for their authentication; `limit_reached` pauses accepting."""

    limit: int
    connections: dict[int, Any] = field(default_factory=dict)

    @property
    def limit_reached(self) -> bool:
        """Whether no more may wait."""
        return len(self.connections) >= self.limit
