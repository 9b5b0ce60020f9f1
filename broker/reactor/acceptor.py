"""When to accept from the listening sockets.

The sockets sit in the reactor's epoll, since a wake-up that crosses to trio and back costs a lone client about 100
microseconds; this is their policy.
"""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import trio

from broker.config.listener import Address
from broker.logs import get

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.auth.outcome import Pending
    from broker.reactor.epoll import Reactor
    from broker.reactor.listeners import ListeningSocket
    from broker.transport.listener import Entrance

log = get("acceptor")

ACCEPT_BATCH_MAX = 256
ACCEPT_PAUSE_S = 0.25
# Overload and passing faults (accept(2); ENOSPC is epoll_ctl(2)'s, the limit on watched descriptors): what was
# accepted goes on, new clients wait in the backlog.
ACCEPT_RETRY_ERRNOS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.EPERM,
        errno.ENOSPC,
    }
)


class Acceptor:
    """Accepts while there is room: below the limit on connections and on CONNECTs that wait, and not in trouble.

    Args:
        sockets: listening; they are closed with the acceptor.
        entrances: of the listeners, by their numbers.
        connections_max: at once, beyond which clients wait in the backlog.
        pending: CONNECTs that wait for an authenticator.
    """

    def __init__(
        self,
        reactor: Reactor,
        sockets: Sequence[ListeningSocket],
        entrances: Sequence[Entrance],
        connections_max: int,
        pending: Pending,
    ) -> None:
        self.reactor = reactor
        self.connections_max = connections_max
        self.pending = pending
        self._sockets = {one.socket.fileno(): one for one in sockets}
        self._entrances = {one.socket.fileno(): entrances[one.listener] for one in sockets}
        self.pauses: Counter[str] = Counter()  # how often accepting was paused, by reason
        self._watching = False
        self._closed = False
        self._trouble = trio.Event()

    @property
    def addresses(self) -> list[Address]:
        """Where clients can connect."""
        return [one.address for one in self._sockets.values()]

    def addresses_of(self, listener: int) -> list[Address]:
        """Return where clients can connect to a listener, by its number."""
        return [one.address for one in self._sockets.values() if one.listener == listener]

    def limit(self, connections_max: int) -> None:
        """From now on so many may be connected at once; those that are stay."""
        self.connections_max = connections_max
        self.resume()

    def resume(self) -> None:
        """Accept, if there is room."""
        if not self._watching and not self._closed and self._has_room():
            self._watching = True
            for descriptor in self._sockets:
                self.reactor.watch(descriptor, self.on_acceptable)

    def pause(self, reason: str) -> None:
        """Stop accepting; clients wait in the backlog."""
        if self._watching:
            self._watching = False
            for descriptor in self._sockets:
                self.reactor.unwatch(descriptor)
            self.pauses[reason] += 1
            log.warning("accept_paused", reason=reason)

    def close(self) -> None:
        """Close the listening sockets for good."""
        if self._watching:
            self._watching = False
            for descriptor in self._sockets:
                self.reactor.unwatch(descriptor)
        self._closed = True
        for one in self._sockets.values():
            one.socket.close()
        self._sockets.clear()

    def _has_room(self) -> bool:
        handshakes = self.reactor.pending_handshakes
        handshakes.make_room(self.reactor.now_ms)
        return (
            self.reactor.connection_count < self.connections_max
            and not self.pending.limit_reached
            and handshakes.room > 0
        )

    def on_acceptable(self, descriptor: int) -> None:
        """A listening socket is readable: take a batch, or pause."""
        if not self._watching:
            return
        room = self.connections_max - self.reactor.connection_count
        handshakes = self.reactor.pending_handshakes.room
        pending = self.pending.limit_reached
        if room <= 0 or handshakes == 0 or pending:
            self.pause("connections_max" if room <= 0 else pending or "pending_handshakes_max")
            self._trouble.set()
            return
        try:
            self.reactor.accept_batch(descriptor, min(ACCEPT_BATCH_MAX, room, handshakes), self._entrances[descriptor])
        except OSError as error:
            if error.errno not in ACCEPT_RETRY_ERRNOS:
                raise
            self.pause(errno.errorcode[error.errno])
            self._trouble.set()

    async def watch(self) -> None:
        """Take up accepting again some time after it was paused. Runs until cancelled."""
        while True:
            await self._trouble.wait()
            self._trouble = trio.Event()
            while not self._watching and not self._closed:
                await trio.sleep(ACCEPT_PAUSE_S)
                self.resume()
