"""Connections whose layers are not open yet: TLS handshakes, WebSocket requests and proxy headers under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.wire.reasons import CloseReason

if TYPE_CHECKING:
    from broker.reactor.connection import Connection

SILENT_MS: Final = 2000  # a client that is on its way says something in this time, however busy the worker is


class PendingHandshakes:
    """Bounds them: when there are too many, accepting pauses, and those go that say nothing.

    Clients that all come back at once wait in the backlog, so, and none that is on its way is sent away for another;
    a client that opens connections and says nothing keeps the others out for two seconds at most.

    Args:
        limit: how many there may be.

    Attributes:
        waiting: by their layers, in the order in which they came. The layers take themselves out, once they are open or
            closed; those that were ended linger, and do not count.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting: dict[Any, Connection] = {}

    @property
    def room(self) -> int:
        """How many more may come now."""
        return max(self.limit - len(self.waiting), 0)

    def make_room(self, now_ms: int) -> None:
        """End those that have been silent, if there are too many. Cost: some 0.1 µs for each there is.

        Args:
            now_ms: monotonic.
        """
        if self.room:
            return
        for layers, connection in list(self.waiting.items()):
            if now_ms - connection.heard_ms >= SILENT_MS:
                del self.waiting[layers]
                connection.close(CloseReason.PENDING_HANDSHAKES_MAX)
