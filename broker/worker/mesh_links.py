"""A worker's links to other workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from broker.logs import get
from broker.worker.placement import Links, router_name
from mesh.mesh import Mesh
from mesh.transport import Transport

if TYPE_CHECKING:
    from broker.config.loader import Config
    from broker.control.controller import Controller
    from broker.storage.worker_log import CommitLog
    from broker.worker.placement import Place
    from router.router import Router

log = get("mesh")

READY_S = 10.0  # for the other workers to say what they want, before clients are let in
READY_POLL_S = 0.005


def endpoint(place: Place, number: int) -> str:
    """Return where a worker's router is bound, for ZeroMQ."""
    return f"ipc://{place.run_dir}/mesh-{number}"


def links_of(place: Place) -> Links:
    """Return the links between the workers of one node."""
    return Links(
        router_name(place.node, place.number),
        endpoint(place, place.number),
        {
            router_name(place.node, number): (endpoint(place, number), None)
            for number in range(place.count)
            if number != place.number
        },
    )


class LinkedWorker(Protocol):
    """What links need of a worker: broker.worker.worker.Worker."""

    config: Config
    router: Router
    controller: Controller
    reactor: Any
    mesh: Any
    store: CommitLog | None

    @property
    def stopping(self) -> bool:
        """Whether it is to end."""


def join(worker: LinkedWorker, links: Links) -> Mesh:
    """Bind a worker's router and connect it to all others, which need not be there yet.

    The worker has recovered, and the reactor is not turning yet. Raises zmq.ZMQError.
    """
    assert worker.store is not None, "a worker of several has a folder"
    incarnation: int = worker.store.log.incarnation
    settings: Any = worker.config.mesh
    transport = Transport(b"%b/%d" % (links.name, incarnation), links.endpoint, keys=links.keys, names=links.nodes)
    mesh = Mesh(
        worker.router,
        transport,
        links.name,
        incarnation,
        dict(links.peers),
        worker.reactor.wake,
        log,
        began_after=worker.store.log.started_after,
        interest_timeout_ms=int(settings.interest_timeout_s * 1000),
        silence_ms=int(settings.silence_s * 1000),
        window_bytes=settings.window_bytes,
        absent_ms=int(settings.absent_peer_age_s * 1000),
    )
    worker.reactor.join_mesh(mesh)
    worker.controller.join_mesh(mesh)
    return mesh


async def ready(worker: LinkedWorker) -> None:
    """Wait until every other worker has said what it wants and knows what is wanted here, READY_S at most.

    A worker that is to end waits for nobody: the others may have ended before it.
    """
    mesh = worker.mesh
    with trio.move_on_after(READY_S):
        while not mesh.ready and not worker.stopping:  # noqa: ASYNC110  (the mesh knows no trio)
            await trio.sleep(READY_POLL_S)
        return
    # Who is away is told when it comes; until then it is owed what it wanted when it was last there.
    log.warning(
        "peers_missing",
        peers=[name.decode() for name, neighbour in mesh.neighbours.items() if neighbour.link.state != "up"],
    )
