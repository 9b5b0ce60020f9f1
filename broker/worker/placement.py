"""Where a worker stands among the workers of its node, and what it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from broker.config.schema import Config
from broker.transport.tickets import TicketKeys
from mesh.node_identity import Node


def router_name(node: Node, number: int) -> bytes:
    """Return the name of a worker of a node among routers, "node/worker": the same over its restarts."""
    return f"{node.identifier}/{number}".encode()


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker of several knows of itself and the others before it has read its log.

    Attributes:
        number: its own, 0..count-1; it keeps it across restarts.
        count: workers of the node.
        node: the node's name and secret.
        run_dir: folder of the workers' sockets, which only this user may enter; its path is short enough for them.
        verified_logins: descriptor of the memory that they share for those; None: no passwords are hashed.
    """

    number: int
    count: int
    node: Node
    run_dir: Path
    verified_logins: int | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """What a worker's router needs to find the others, to be found, and to know who they are.

    Attributes:
        name: its own, "node/worker".
        endpoint: where it is bound, ipc://PATH or tcp://ADDRESS:PORT.
        peers: every other router: name -> (endpoint, public key of its node; None without keys).
        keys: the CURVE key pair of our node, (public, secret), each of 40 bytes of Z85; None: links are in the clear,
            as between workers of one machine, where the folder of the sockets keeps others out.
        nodes: with keys, the node that each public key belongs to, our own too where a peer is of our node.
    """

    name: bytes
    endpoint: str
    peers: Mapping[bytes, tuple[str, bytes | None]]
    keys: tuple[bytes, bytes] | None = None
    nodes: Mapping[bytes, bytes] = field(default_factory=dict)


class Start(Struct, frozen=True, kw_only=True):
    """What the supervisor tells a worker before anything else, as JSON.

    Attributes:
        config: checked settings.
        folder: the broker's data folder.
        accept_loss: go on without what is missing, foreign or newer in it.
        number, count, node, run_dir, verified_logins: as of Place.
        ticket_keys: of TLS sessions; None: no listener speaks TLS.
        listeners: its bound sockets: descriptor, number of the listener, scheme.
    """

    config: Config
    folder: str
    accept_loss: bool
    number: int
    count: int
    node: Node
    run_dir: str
    listeners: list[tuple[int, int, str]]
    verified_logins: int | None = None
    ticket_keys: TicketKeys | None = None

    @property
    def folder_path(self) -> Path:
        """The data folder."""
        return Path(self.folder)

    @property
    def place(self) -> Place:
        """Where the worker stands."""
        return Place(self.number, self.count, self.node, Path(self.run_dir), self.verified_logins)
