"""Where a worker stands among the workers of its node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mesh.node import Node


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker of several knows of itself and the others before it has read its log.

    Attributes:
        number: its own, 0..count-1; it keeps it across restarts.
        count: workers of the node.
        node: the node's name and secret.
        run_dir: folder of the workers' sockets, which only this user may enter; its path is short enough for them.
    """

    number: int
    count: int
    node: Node
    run_dir: Path
