"""What is decided on a client, and the CONNECTs that wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from broker.wire.packets import may_carry
from broker.wire.properties import PacketType
from broker.wire.reasons import CloseReason, Reason

STRING_BYTES_MAX = 65_535  # of any string or binary data in a packet (1.5.4, 1.5.6)


class _Identity(Struct, frozen=True):
    identity: str | None = None
    authentication_data: bytes | None = None


class Accepted(_Identity, frozen=True, kw_only=True):
    """The client is who it says.

    Attributes:
        identity: the user name that the ACL is asked about, or None for an anonymous client.
        authentication_data: last data of an enhanced authentication, for the CONNACK or AUTH (4.12); at most 65,535
            bytes.
        groups, superuser, rules: what the ACL hears beside that (broker.auth.principal.Principal).
        expires_at_s: when that ends, and the client's connection with it, Unix seconds; None: never.
    """

    groups: tuple[str, ...] = ()
    superuser: bool = False
    rules: Any = None
    expires_at_s: float | None = None

    def __post_init__(self) -> None:
        data = self.authentication_data
        assert data is None or len(data) <= STRING_BYTES_MAX, len(data)
        if self.rules is not None:
            # Raises TypeError for what the log could not keep.
            msgspec.msgpack.encode(getattr(self.rules, "source", self.rules))


@dataclass(frozen=True, slots=True)
class Refused:
    """The client does not get in.

    Attributes:
        reason: one of CONNACK's, 0x80 or above; a 3.x client gets the nearest return code. Who is refused when it
            authenticates again gets the same in a DISCONNECT, or NOT_AUTHORIZED for a code that DISCONNECT has not.
        text: Reason String for a 5.0 client, "" for none; at most 65,535 bytes, as the next.
        server_reference: another server to use, with USE_ANOTHER_SERVER or SERVER_MOVED (4.11).
        close: the close reason, where it is another than the reason code's own.
    """

    reason: Reason
    text: str = ""
    server_reference: str = ""
    close: CloseReason | None = None

    def __post_init__(self) -> None:
        assert self.reason >= Reason.UNSPECIFIED_ERROR, self.reason
        assert may_carry(PacketType.CONNACK, self.reason), self.reason
        assert len(self.text.encode()) <= STRING_BYTES_MAX, len(self.text)
        assert len(self.server_reference.encode()) <= STRING_BYTES_MAX, len(self.server_reference)

    def properties(self) -> dict[str, Any]:
        """Return what goes along in a CONNACK or DISCONNECT."""
        texts = {"reason_string": self.text, "server_reference": self.server_reference}
        return {name: text for name, text in texts.items() if text}


Outcome = Accepted | Refused
LATE = Refused(
    Reason.SERVER_BUSY, "the login has waited too long; try again later", close=CloseReason.AUTHENTICATION_TIMEOUT
)


class UndecidedError(Exception):
    """Nothing can be said about a client now, in words that it may be told: it is refused with 0x88."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """It is not for this authenticator of a chain to decide: the next one is asked.

    Attributes:
        before_refusal: what is awaited before the client is refused because the others ignore it too, so that the time
            that it takes does not tell who is known; None: nothing.
        refusal: what the client is told then, if its method of authentication is this one's; None: nothing special.
    """

    before_refusal: Callable[[], Awaitable[object]] | None = None
    refusal: Refused | None = None


@dataclass(slots=True)
class Pending:
    """CONNECTs that wait for the authenticator, not for their client; `limit_reached` pauses accepting.

    Args:
        limit: how many may wait.
        on_room: is called when one does not wait any more.

    Attributes:
        is_behind: returns whether so many passwords wait to be hashed that others had better wait outside.
    """

    limit: int
    on_room: Callable[[], None]
    connections: dict[int, Any] = field(default_factory=dict)
    is_behind: Callable[[], bool] = lambda: False

    @property
    def limit_reached(self) -> str | None:
        """Why no more may wait, in a word; None: more may."""
        if len(self.connections) >= self.limit:
            return "pending_connects_max"
        return "passwords_waiting" if self.is_behind() else None

    def add(self, connection: Any) -> None:
        """Count a connection."""
        self.connections[id(connection)] = connection

    def has(self, connection: Any) -> bool:
        """Return whether a connection is counted."""
        return id(connection) in self.connections

    def remove(self, connection: Any) -> None:
        """Count it no more, if it was counted."""
        if self.connections.pop(id(connection), None) is not None:
            self.on_room()
