"""Keys of session tickets: the same for all workers of a broker, so that a client is taken up again by any of them."""

from __future__ import annotations

import os
from typing import Final

from msgspec import Struct

KEY_BYTES: Final = 80  # name, key of HMAC-SHA-256, key of AES-256-CBC
ROTATE_S: Final = 43_200.0  # for which a key seals tickets; for as long again it opens them


class TicketKeys(Struct, frozen=True):
    """The key that tickets are sealed with, and the one before.

    Attributes:
        current, former: 80 random bytes each; former is None before the first rotation.
    """

    current: bytes
    former: bytes | None = None

    @classmethod
    def new(cls) -> TicketKeys:
        """Return a first key."""
        return cls(os.urandom(KEY_BYTES))

    def rotated(self) -> TicketKeys:
        """Return a new key; tickets of the current one are good for one more period."""
        return TicketKeys(os.urandom(KEY_BYTES), self.current)

    def use(self) -> None:
        """Seal and open with these in this process from now on; it loads OpenSSL."""
        from broker.transport.tls_context import set_ticket_keys

        set_ticket_keys(self.current, self.former)
