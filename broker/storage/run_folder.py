"""The folder with the sockets of a broker's workers, while it runs.

Paths of sockets are limited to 107 bytes, so it lies where paths are short, and not in the data folder. It is found by
the data folder's lock, never by what a file there says: files are copied along with the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.config.start_error import StartError

if TYPE_CHECKING:
    from mesh.node_identity import Node

PREFIX: Final = "shoal-"
BASE_BYTES_MAX: Final = 60
NODE: Final = "node"  # link in it: its text is the identifier of the node
DATA: Final = "data"  # link in it to the data folder
FORMERLY: Final = "run"  # link in the data folder that led here


@contextmanager
def run_folder(folder: Path, lock: int, node: Node) -> Iterator[Path]:
    """Make a folder for sockets of this run, which only this user may enter, and remove it at the end of the block.

    What a killed broker of this data folder left is removed.

    Args:
        folder: the data folder.
        lock: the descriptor that holds its lock: no other broker that runs has this file open.
        node: whose data it is.
    """
    locked = os.fstat(lock)
    key = blake2b(f"{locked.st_dev} {locked.st_ino}".encode(), digest_size=4).hexdigest()
    base = _bases()[0]
    try:
        for left in _made():
            if left.name.startswith(f"{PREFIX}{key}-") and not _is_in_use(left):
                shutil.rmtree(left, ignore_errors=True)
        if (folder / FORMERLY).is_symlink():
            (folder / FORMERLY).unlink()
        made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{key}-", dir=base))
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"No folder for sockets can be made in {base}: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        (made / DATA).symlink_to(folder)
        (made / NODE).symlink_to(node.identifier)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def copies_in_use(run_dir: Path, node: Node) -> list[str]:
    """Return the data folders of other brokers of this user that run on this machine as the same node: copies.

    Args:
        run_dir: our own, as run_folder() made it.
        node: ours.
    """
    found = []
    for other in _made():
        try:
            if other != run_dir and os.readlink(other / NODE) == node.identifier and _is_in_use(other):
                found.append(os.readlink(other / DATA))
        except OSError:
            continue  # it is being made or removed, or is something else's
    return sorted(found)


def _bases() -> list[str]:
    """Return where such folders are; the first is where they are made."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = base and len(os.fsencode(base)) <= BASE_BYTES_MAX and os.access(base, os.W_OK)
    return [base, tempfile.gettempdir()] if usable else [tempfile.gettempdir()]


def _made() -> Iterator[Path]:
    """Yield what may be such a folder, of this user."""
    for base in _bases():
        for path in sorted(Path(base).glob(f"{PREFIX}*")):
            try:
                status = path.lstat()
            except OSError:
                continue
            if path.is_dir() and not path.is_symlink() and status.st_uid == os.getuid():
                yield path


def _is_in_use(path: Path) -> bool:
    """Return whether the broker that made a folder lives."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
