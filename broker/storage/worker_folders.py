"""The folders of the workers' logs in a data folder: what they are called, in one place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

WORKER: Final = re.compile(r"worker-(0|[1-9]\d{0,9})")


def worker_folder(folder: Path, worker: int) -> Path:
    """Return where a worker's log is in a data folder."""
    return folder / f"worker-{worker}"


def workers_of(folder: Path) -> dict[int, Path]:
    """Return the folders of the workers' logs in a data folder, by number, ascending."""
    found = {}
    for path in folder.iterdir():
        name = WORKER.fullmatch(path.name)
        if name is not None and path.is_dir():
            found[int(name[1])] = path
    return dict(sorted(found.items()))
