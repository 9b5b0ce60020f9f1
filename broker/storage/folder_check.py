"""What must be in a data folder for a start to find everything: what says where the sessions are, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker.config.start_error import StartError
from broker.storage.data_folder import SPREAD, spread_of
from broker.storage.worker_folders import worker_folder, workers_of
from mesh.node_identity import NAME, Node, NodeError, make_node, read_node
from router.log.disk import Disk, set_aside
from router.log.record_kinds import FORMAT_VERSION
from router.log.segments import FOREIGN, NewerVersionError, SegmentError, read_header, segment_of, snapshot_of

ACCEPT: str = "With --accept-loss the broker starts without what is lost by that."


def log_refusal(where: Path | str, error: SegmentError) -> str:
    """Return in one or two sentences why the data in a folder cannot be used, and what an operator can do."""
    if isinstance(error, NewerVersionError):
        return f"The data in {where} cannot be used: {error}. A newer version of Shoal wrote this: start that one."
    return f"The data in {where} cannot be used: {error}. {ACCEPT}"


def check_folder(folder: Path, accept_loss: bool = False) -> bool:
    """Raise StartError where a file is missing, damaged or another broker's that says where sessions are, or whose.

    With accept_loss such a file is set aside, and a node that is lost is made anew. Segments and snapshots of another
    broker are left to who opens them, who puts them aside then. Returns whether the sessions are to be spread anew,
    because nobody knows where they are. Raises OSError.
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
    is_spread = bool(several) or (folder / SPREAD).exists()
    if _check_node(folder, accept_loss, is_spread=is_spread):
        anew = anew or is_spread
    for number in range(spread or 0) if (folder / SPREAD).exists() else ():
        if number not in workers:
            anew = _lose(f"The folder {worker_folder(folder, number)} is missing.", accept_loss) or anew
    return anew


def problem_of(folder: Path) -> list[str]:
    """Return what check_folder() would refuse, if anything, without a full stop; nothing is changed. Raises OSError."""
    try:
        check_folder(folder)
    except StartError as error:
        return [str(error).removesuffix(ACCEPT).rstrip(" .")]
    return []


def _check_node(folder: Path, accept_loss: bool, *, is_spread: bool) -> bool:
    """Look whether the file `node` is there, and is that of all logs; returns whether it is lost, and made anew."""
    owners: dict[int, list[Path]] = {}
    for path, owner in _owned(folder):
        owners.setdefault(owner, []).append(path)
    node: Node | None = None
    try:
        node = read_node(folder)
    except NodeError as error:
        if error.is_newer:
            raise StartError(f"{error} A newer version of Shoal wrote this: start that one.") from None
        _lose(str(error), accept_loss)
        set_aside(str(folder / NAME))
    else:
        if node is None:
            if not owners and not is_spread:
                return False  # with one worker, earlier versions had none
            _lose(
                f"The file {folder / NAME} is missing: where sessions are, and whose they are, follows from it.",
                accept_loss,
            )
        elif owners and node.owner not in owners and not _index_is_of(folder, node):
            _lose(f"The file {folder / NAME} {FOREIGN}: no log here is of its.", accept_loss)
            set_aside(str(folder / NAME))
            node = None
    if node is not None:
        for owner, paths in owners.items():
            if owner != node.owner:
                _lose(f"The file {paths[0]} {FOREIGN}.", accept_loss)
        return False
    # Whose most of the files are: the others are put aside by who opens the logs.
    make_node(folder, max(owners, key=lambda owner: len(owners[owner]), default=0))
    return True


def _index_is_of(folder: Path, node: Node) -> bool:
    """Return whether the retained messages are of a node: where no log is, that tells which ones were exchanged."""
    # Here, because it takes lmdb along.
    from broker.storage.retained_copies import owner_of_index

    return owner_of_index(folder) == node.owner


def _owned(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the segments and snapshots that say whose they are, and what they say. Cost: a read of 4 KiB for each."""
    for path in workers_of(folder).values():
        disk = Disk(str(path))
        for name in disk.names():
            header = read_header(disk, name) if segment_of(name) is not None or snapshot_of(name) is not None else None
            if header is not None and header.owner and header.version <= FORMAT_VERSION:
                yield path / name, header.owner


def _has_log(path: Path) -> bool:
    return any(segment_of(name) is not None or snapshot_of(name) is not None for name in Disk(str(path)).names())


def _lose(what: str, accept_loss: bool) -> bool:
    if not accept_loss:
        raise StartError(f"{what} {ACCEPT}")
    return True
