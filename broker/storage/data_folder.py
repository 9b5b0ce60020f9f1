"""What must be in a data folder for a start to find everything: the files that say where the sessions are."""

from __future__ import annotations

from pathlib import Path

from broker.cli.preflight import SPREAD, StartError, spread_of
from broker.storage.worker_folders import worker_folder, workers_of
from mesh.node_identity import NAME, NodeError, node_of
from router.log.disk import Disk, set_aside
from router.log.segments import NewerVersionError, SegmentError, segment_of
from router.recovery.open_log import snapshot_of

ACCEPT: str = "With --accept-loss the broker starts without what is lost by that."


def log_refusal(where: Path | str, error: SegmentError) -> str:
    """Return in one or two sentences why the data in a folder cannot be used, and what an operator can do."""
    if isinstance(error, NewerVersionError):
        return f"The data in {where} cannot be used: {error}. A newer version of Shoal wrote this: start that one."
    return f"The data in {where} cannot be used: {error}. {ACCEPT}"


def check_folder(folder: Path, accept_loss: bool) -> bool:
    """Raise StartError where a file is missing or damaged that says on which worker a session is.

    With accept_loss what is damaged is set aside. Returns whether the sessions are to be spread anew then, because
    nobody knows where they are. Raises OSError.
    """
    workers = workers_of(folder)
    several = [number for number, path in workers.items() if number and _has_log(path)]
    anew = False
    spread = None
    try:
        spread = spread_of(folder)
    except StartError as error:
        anew = _lose(str(error), accept_loss)
        set_aside(str(folder / SPREAD))
    if not (folder / SPREAD).exists() and several and not anew:
        anew = _lose(f"The file {folder / SPREAD} is missing, and worker-{several[0]} is there.", accept_loss)
    if (folder / NAME).exists():
        try:
            node_of(folder)
        except NodeError as error:
            if error.is_newer:
                raise StartError(f"{error} A newer version of Shoal wrote this: start that one.") from None
            anew = _lose(str(error), accept_loss)
            set_aside(str(folder / NAME))
    elif several or (folder / SPREAD).exists():
        anew = _lose(f"The file {folder / NAME} is missing: where sessions are follows from it.", accept_loss)
    for number in range(spread or 0) if (folder / SPREAD).exists() else ():
        if number not in workers:
            anew = _lose(f"The folder {worker_folder(folder, number)} is missing.", accept_loss) or anew
    return anew


def _has_log(path: Path) -> bool:
    return any(segment_of(name) is not None or snapshot_of(name) is not None for name in Disk(str(path)).names())


def _lose(what: str, accept_loss: bool) -> bool:
    if not accept_loss:
        raise StartError(f"{what} {ACCEPT}")
    return True
