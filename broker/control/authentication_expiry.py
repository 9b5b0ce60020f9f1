"""When authentications end, and the connections of their clients with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.reactor.connection import Connection

LOOK_S: Final = 60.0  # between two looks at the clock, which may be set meanwhile


class AuthenticationExpiry:
    """Has the timing wheel look whether an authentication has ended: a silent client's, too.

    Args:
        clock_s: Unix seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self.clock_s = clock_s

    def begin(self, connection: Connection, expires_at_s: float | None) -> None:
        """From now on an open connection's authentication ends at a time, Unix seconds; None: never."""
        if expires_at_s is None:
            connection.expire_at(0.0, 0.0)
        else:
            self._look_later(connection, expires_at_s)

    def has_come(self, connection: Connection) -> bool:
        """Return whether a connection's authentication has ended; if not, that is looked at again later."""
        if self.clock_s() >= connection.expires_at_s:
            return True
        self._look_later(connection, connection.expires_at_s)
        return False

    def _look_later(self, connection: Connection, expires_at_s: float) -> None:
        left_s = expires_at_s - self.clock_s()
        connection.expire_at(expires_at_s, min(max(left_s, 0.0), LOOK_S))
