"""Which password a client has to have, by the clients that there are."""

from __future__ import annotations

from typing import Final, Literal

from broker.auth.dynamic_security.state import State

UNKNOWN: Final = "unknown"  # no client of this name: another authenticator may know it
REFUSED: Final = "refused"  # whatever password it has

Answer = bytes | Literal["unknown", "refused"]


def hash_wanted(state: State, user: str, client_identifier: str) -> Answer:
    """Return the hash that the password of a login has to fit, or whether it is refused without one.

    Refused are who is disabled, who has no password, and who comes by another client identifier than its own.
    """
    client = state.clients.get(user)
    if client is None:
        return UNKNOWN
    if client.disabled or client.hashed is None or client.client_identifier not in (None, client_identifier):
        return REFUSED
    return client.hashed.encode()
