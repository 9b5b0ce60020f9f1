"""What the answers of the admin socket need of a worker, and of the questions that it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from broker.admin.pagination import Listings, Row
    from broker.config.loader import Address, Config
    from broker.control.controller import Controller
    from broker.control.inprocess_client import InProcess
    from broker.transport.listener import Entrance
    from router.router import Router
    from router.sessions.session import Session


class AskedWorker(Protocol):
    """A worker: broker.worker.worker.Worker.

    Attributes:
        reactor: broker.reactor.epoll.Reactor.
        mesh: mesh.mesh.Mesh; None where it is the only worker.
        store: broker.storage.worker_log.CommitLog; None without a data folder.
        entrances: of the listeners, in the order of the settings.
        reload: broker.worker.reload.Reload.
        bans: broker.auth.bans.Bans.
        dynamic_security: broker.control.dynamic_security.DynamicSecurity; None: the settings have none.
    """

    config: Config
    router: Router
    controller: Controller
    in_process: InProcess
    reactor: Any
    mesh: Any
    store: Any
    entrances: list[Entrance]
    reload: Any
    bans: Any
    dynamic_security: Any

    @property
    def addresses(self) -> list[Address]:
        """Where clients can connect."""

    def addresses_of(self, listener: int) -> list[Address]:
        """Return where clients can connect to a listener, by its number."""

    @property
    def ready(self) -> bool:
        """Whether clients are let in."""

    def change(self, config: Config) -> None:
        """Go by other settings from now on."""

    async def rights_in_force(self) -> None:
        """Wait until what the ACL says now holds for all that is subscribed and queued."""

    def metrics(self) -> Any:
        """Return broker.telemetry.metrics.Metrics."""

    def stop(self) -> None:
        """Begin an orderly end."""


class WorkerView(Protocol):
    """The questions of one worker, as the modules see them that answer some: broker.admin.worker_queries.Queries."""

    worker: AskedWorker
    number: int
    listings: Listings

    @property
    def router(self) -> Router:
        """The worker's."""

    def session_of(self, arguments: Row) -> Session:
        """Return the session of the client that a question names. Raises QueryError."""

    def name_of(self, receiver: Any) -> Row:
        """Return what a receiver is, and its name."""
