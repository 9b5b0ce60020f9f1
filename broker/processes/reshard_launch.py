"""Having the sessions of a data folder spread over another number of workers, by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from broker.config.loader import Config
from broker.config.start_error import StartError
from broker.storage.data_folder import spread_of
from broker.worker.placement import Start
from mesh.node_identity import Node


def spread_over(count: int, config: Config, folder: Path, node: Node, accept_loss: bool) -> None:
    """Have processes.reshard_main spread the sessions over `count` workers, whether or not that was begun before.

    Raises StartError with what it said last and what can be done, OSError.
    """
    start = Start(
        config=config,
        folder=str(folder),
        accept_loss=accept_loss,
        number=0,
        count=count,
        node=node,
        run_dir="",
        listeners=[],
    )
    package = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "broker.processes.reshard_main"],
        input=msgspec.json.encode(start),
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        lines, _, last = said.strip().rpartition("\n")
        sys.stderr.write(lines + "\n" if lines else "")
        spread = spread_of(folder) or 0
        raise StartError(
            f"The sessions cannot be spread over {count} workers: {last} "
            + (
                f"Nothing has moved: --workers {spread} starts the broker with as many as before."
                if spread > 0
                else "The next start goes on from here, with any number of --workers."
            )
        )
    sys.stderr.write(said)
