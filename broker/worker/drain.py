"""How a worker's clients are sent away when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from msgspec import Struct

from broker.logs import get

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.config.loader import Config
    from broker.control.controller import Controller
    from broker.reactor.connection import Connection

log = get("worker")

STEP_S: Final = 0.05  # between two groups of clients that are told to go
AT_ONCE_MAX: Final = 256  # clients told between two turns, at any rate


class Drain(Struct, frozen=True, kw_only=True):
    """How a broker, or a worker of it, is to end.

    Attributes:
        wait_s: how long it goes on as before, while load balancers find out that it is not ready.
        clients_per_second: told to go, by this worker; 0: all at once.
        server_reference: where 5.0 clients are sent (0x9C, use another server); None: they are told that the server is
            shutting down (0x8B).
    """

    wait_s: float = 0.0
    clients_per_second: float = 0.0
    server_reference: str | None = None

    @classmethod
    def of(cls, config: Config) -> Drain:
        """Return how the settings have it."""
        shutdown = config.shutdown
        return cls(
            wait_s=shutdown.wait_s,
            clients_per_second=shutdown.clients_per_second,
            server_reference=shutdown.server_reference,
        )

    def shared(self, workers: int) -> Drain:
        """Return the share of one of several workers that do so at the same time."""
        return Drain(
            wait_s=self.wait_s,
            clients_per_second=self.clients_per_second / workers,
            server_reference=self.server_reference,
        )


def drain_asked(config: Config, to: str | None, rate: int | None) -> Drain:
    """Return how an operator wants a broker to end: as the settings have it, but for what was said."""
    drain = Drain.of(config)
    return Drain(
        wait_s=drain.wait_s,
        clients_per_second=drain.clients_per_second if rate is None else rate,
        server_reference=to or drain.server_reference,
    )


async def send_away(connections: Sequence[Connection], controller: Controller, drain: Drain) -> None:
    """Tell clients to go, so many in a second. Those who go by themselves meanwhile are not waited for."""
    if not connections:
        return
    log.info("sending_away", clients=len(connections), to=drain.server_reference)
    per_step = drain.clients_per_second * STEP_S or AT_ONCE_MAX
    due = 0.0
    told = 0
    for connection in connections:
        while told >= due:
            if told:
                await trio.sleep(STEP_S if drain.clients_per_second else 0)
            due += min(per_step, AT_ONCE_MAX)
        if not connection.is_closing:
            controller.shut_down(connection, drain.server_reference)
            told += 1
