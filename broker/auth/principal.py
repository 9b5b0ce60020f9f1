"""Who is asked about when rights are: what is known of one client, from its authentication on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from broker.auth.outcome import Accepted
    from broker.transport.facts import Certificate, Facts

IN_PROCESS: Final = -1  # "listener" of a client in this process


class Principal(Struct, frozen=True):
    """Whom an ACL is asked about. It never changes: a client that authenticates again is another one.

    Attributes:
        user_name: as its authenticator says; None for an anonymous client.
        client_identifier: as it is in force: assigned ones, and those of certificates, too.
        address: the client's host, without its port; None if it is not known, and for a client in this process.
        listener: number of the listener that it came by, in the order of the settings; IN_PROCESS: none.
        certificate: the client's; None without one.
        groups: those that its authenticator says.
        superuser: it may do everything: the ACL is not asked.
        rules: what its authenticator says beside that, of a kind that the ACL knows; None: nothing. Plain data, or
            an object whose attribute `source` is the plain data that it was made of: that is what the log keeps, and
            what a session has after a restart until its client is back.
    """

    user_name: str | None
    client_identifier: bytes
    address: str | None
    listener: int
    certificate: Certificate | None = None
    groups: tuple[str, ...] = ()
    superuser: bool = False
    rules: Any = None

    def encoded(self) -> bytes:
        """Return what the log keeps of it, beside the client identifier (docs/formats.md)."""
        return msgspec.msgpack.encode(
            (
                self.user_name,
                self.address,
                self.listener,
                self.certificate,
                self.groups,
                self.superuser,
                plain_rules(self.rules),
            )
        )


def plain_rules(rules: Any) -> Any:
    """Return rules as plain data: themselves, or what their attribute `source` says that they were made of."""
    return getattr(rules, "source", rules)


def host_of(peer: str | None) -> str | None:
    """Return the host of HOST:PORT; None: it is not known."""
    return None if peer is None else peer.rpartition(":")[0]


def principal_of(peer: str | None, facts: Facts | None, client_identifier: bytes, accepted: Accepted) -> Principal:
    """Return who a client is, since its authenticator has accepted it.

    Args:
        peer: HOST:PORT; None: it is not known.
        facts: what its connection tells of it; None: nothing.
    """
    return Principal(
        accepted.identity,
        client_identifier,
        host_of(peer),
        0 if facts is None else facts.listener,
        None if facts is None else facts.certificate,
        accepted.groups,
        accepted.superuser,
        accepted.rules,
    )
