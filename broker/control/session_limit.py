"""How many sessions there may be, on one worker or on all of a broker together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sized

    from broker.reactor.shared_counts import Places


class SessionLimit:
    """How many sessions there may be, on this worker or on all workers of a broker together.

    With others, each worker writes how many it has where all see it: before it has one more, and some time after it has
    fewer. So they never have more than the maximum, and a client may be refused whose place has just become free. What
    a worker wrote stays when it is killed, for its sessions are there when it is back.

    Args:
        sessions: the router's, by client identifier.
        maximum: of all workers together.

    Attributes:
        maximum: likewise; it may change.
    """

    __slots__ = ("_places", "_sessions", "maximum")

    def __init__(self, sessions: Sized, maximum: int) -> None:
        self._sessions = sessions
        self.maximum = maximum
        self._places: Places | None = None

    def share(self, places: Places) -> None:
        """Let the other workers know from now on; to be called when sessions have been recovered.

        Until then they see what an earlier process wrote: its sessions, which are on their way back.

        Args:
            places: where all see it.
        """
        self._places = places
        self.tell()

    @property
    def is_reached(self) -> bool:
        """Whether there may be no more."""
        self.tell()
        count = len(self._sessions) if self._places is None else self._places.total()
        return count >= self.maximum

    def take(self) -> bool:
        """Return whether there may be one more, which comes into being at once."""
        if self._places is None:
            return len(self._sessions) < self.maximum
        self._places.set(len(self._sessions) + 1)
        if self._places.total() <= self.maximum:
            return True
        self.tell()
        return False

    def tell(self) -> None:
        """Let the other workers know how many there are here."""
        if self._places is not None:
            self._places.set(len(self._sessions))
