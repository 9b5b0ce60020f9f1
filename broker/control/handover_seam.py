"""Where a CONNECT leaves for another worker: the seam that the worker fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.reactor.connection import Connection


class Handover(Protocol):
    """What passes clients on to the workers that they are at home on: broker.worker.handover.Handover."""

    handed_over: int
    taken_in: int

    def sends_home(self, connection: Connection, body: bytes, client_identifier: bytes | None) -> bool:
        """Send the client of a CONNECT to its home. Returns False if that is here, or it names no client.

        Args:
            client_identifier: what its certificate says; None: what the CONNECT says counts.
        """

    def is_at_home(self, client_identifier: bytes) -> bool:
        """Return whether a client identifier lives here."""
