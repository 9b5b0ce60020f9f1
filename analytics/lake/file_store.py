"""Files wherever a lake may be: a folder of this machine, or (lake.hadoop) whatever else Spark can write to."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from router.log.disk import FileLock, sync_folder

_AT_FDCWD: Final = -100  # of <fcntl.h>: paths are as they are
_RENAME_EXCHANGE: Final = 2  # of <linux/fs.h>
# A file system without hard links says one of these.
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


class Entry(NamedTuple):
    """A file or a folder; `size` in bytes."""

    name: str
    size: int
    is_folder: bool


class Files(ABC):
    """What is below one folder, by names relative to it."""

    root: str

    def uri(self, name: str) -> str:
        """Return a name as Spark's readers and writers take it."""
        return f"{self.root}/{name}"

    def path(self, name: str) -> str:
        """Return a name as this process opens it: of a folder of this machine only."""
        raise NotImplementedError(f"{self.root} is no folder of this machine")

    def new_path(self, name: str) -> str:
        """Return path() of a file that is going to be written, in a folder that is made if need be."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def lock(self, name: str) -> FileLock | None:
        """Return a lock that dies with its holder, taken; None if another process has it, or there are none here."""
        return None

    has_locks = False

    @abstractmethod
    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is none."""

    @abstractmethod
    def read(self, name: str) -> str:
        """Return a file's text."""

    @abstractmethod
    def write(self, name: str, text: str) -> bool:
        """Write a file that appears as a whole or not at all; False if there is one of this name."""

    @abstractmethod
    def rename(self, name: str, new_name: str) -> None:
        """Rename a file that is complete, into a folder that is made if need be. Raises FileExistsError."""

    def exchange(self, folder: str, other: str) -> bool:
        """Have two folders change their names at one moment; False where that cannot be."""
        return False

    def link(self, name: str, new_name: str) -> bool:
        """Give a file another name, too, in a folder that is made if need be; False where that cannot be."""
        return False

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""


class LocalFiles(Files):
    """A folder of this machine. What a file that was written or renamed is made of is durable first.

    Errors are OSError.
    """

    has_locks = True

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.root = f"file:{self.folder}"

    def path(self, name: str) -> str:
        """Return where a file is, or would be."""
        return os.path.join(self.folder, name) if name else self.folder

    def lock(self, name: str) -> FileLock | None:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = FileLock(path)
        if lock.try_to_take():
            return lock
        lock.close()
        return None

    def entries(self, folder: str) -> list[Entry]:
        found = []
        try:
            with os.scandir(self.path(folder)) as listed:
                for each in listed:
                    # Hadoop puts checksums beside what Spark writes.
                    if not (each.name.startswith(".") and each.name.endswith(".crc")):
                        is_folder = each.is_dir()
                        found.append(Entry(each.name, 0 if is_folder else each.stat().st_size, is_folder))
        except FileNotFoundError:
            return []
        return sorted(found)

    def read(self, name: str) -> str:
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def write(self, name: str, text: str) -> bool:
        path = self.path(name)
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        # Its name is nobody else's: two writers must not write the same file before one of them loses.
        unfinished = f"{path}.{uuid.uuid4().hex[:8]}.new"
        with open(unfinished, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A rename would replace what somebody else has written since; a link never does.
            os.link(unfinished, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS or os.path.exists(path):
                raise
            os.rename(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
        sync_folder(folder)
        return True

    def rename(self, name: str, new_name: str) -> None:
        path, new_path = self.path(name), self.path(new_name)
        os.makedirs(os.path.dirname(new_path), exist_ok=True)
        if os.path.exists(new_path):
            raise FileExistsError(errno.EEXIST, "there is a file of this name", new_path)
        # A state that names it must not outlive what is in it.
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(path, new_path)
        sync_folder(os.path.dirname(new_path))

    def link(self, name: str, new_name: str) -> bool:
        new_path = self.path(new_name)
        os.makedirs(os.path.dirname(new_path), exist_ok=True)
        try:
            os.link(self.path(name), new_path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        return True

    def exchange(self, folder: str, other: str) -> bool:
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            return False
        one, two = os.fsencode(self.path(folder)), os.fsencode(self.path(other))
        if rename(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE):
            return False
        for each in (folder, other):
            sync_folder(os.path.dirname(self.path(each)))
        return True

    def remove(self, name: str) -> None:
        path = self.path(name)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
            return
        folder, base = os.path.split(path)
        for each in (path, os.path.join(folder, f".{base}.crc")):
            try:
                os.unlink(each)
            except FileNotFoundError:
                continue
