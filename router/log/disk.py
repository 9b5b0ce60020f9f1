"""The files of one folder, as the log uses them: the only place in the router that touches the operating system.

Everything may raise OSError. A simulated disk with the same methods stands in for it in tests.
"""

import contextlib
import errno
import fcntl
import os
from typing import Final, Protocol

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: OSError) -> bool:
    """Return whether the error says that there is no room, and so may go away by itself."""
    return error.errno in FULL_ERRNOS


class Storage(Protocol):
    """What the log needs of a disk. Files are named within one folder; a file is an int, to be given to close()."""

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        ...

    def create(self, name: str) -> int:
        """Make a new file, which must not exist, for reading and writing."""
        ...

    def open(self, name: str, *, writable: bool = False) -> int:
        """Open a file that exists."""
        ...

    def close(self, file: int) -> None:
        """Close a file. What was not synced may still be lost."""
        ...

    def size(self, file: int) -> int:
        """Return a file's length in bytes."""
        ...

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`: fewer only at the file's end."""
        ...

    def read_records(self, file: int, offset: int, length: int, mark: int) -> tuple[bytes, int]:
        """Return read(), and of how many bytes at the beginning it is known that they are whole records with this mark.

        Their check sums are right then. Who reads a segment to its end says so by reading with this.
        """
        ...

    def write(self, file: int, data: memoryview | bytes, offset: int) -> None:
        """Write all of `data` at `offset`. After an error, any part of it may have been written."""
        ...

    def sync(self, file: int) -> None:
        """Make the file's bytes and length durable (fdatasync). After an error it cannot be known which are."""
        ...

    def truncate(self, file: int, length: int) -> None:
        """Cut a file to `length` bytes."""
        ...

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file; a file of the new name is replaced."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    def sync_folder(self) -> None:
        """Make durable which files there are and what they are called."""
        ...


class Disk:
    """A folder of the file system, which must exist.

    Args:
        folder: its path.
        file_mode: of files that are made. The folder keeps others out; an operator who opens it to a group, for Spark
            say, lets it read the log.
    """

    def __init__(self, folder: str, file_mode: int = 0o640) -> None:
        self.folder = folder
        self.file_mode = file_mode

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        with os.scandir(self.folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def create(self, name: str) -> int:
        """Make a new file, which must not exist, for reading and writing."""
        return os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self.file_mode)

    def open(self, name: str, *, writable: bool = False) -> int:
        """Open a file that exists."""
        return os.open(self._path(name), (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def close(self, file: int) -> None:
        """Close a file. What was not synced may still be lost."""
        os.close(file)

    def size(self, file: int) -> int:
        """Return a file's length in bytes."""
        return os.fstat(file).st_size

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`: fewer only at the file's end."""
        pieces = []
        while length > 0:
            piece = os.pread(file, length, offset)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_records(self, file: int, offset: int, length: int, mark: int) -> tuple[bytes, int]:
        """Return read(), and 0: nothing is known of it."""
        return self.read(file, offset, length), 0

    def write(self, file: int, data: memoryview | bytes, offset: int) -> None:
        """Write all of `data` at `offset`. After an error, any part of it may have been written."""
        with memoryview(data) as view:
            done = os.pwrite(file, view, offset)
            while done < len(view):
                with view[done:] as rest:
                    done += os.pwrite(file, rest, offset + done)

    def sync(self, file: int) -> None:
        """Make the file's bytes and length durable (fdatasync). After an error it cannot be known which are."""
        os.fdatasync(file)

    def truncate(self, file: int, length: int) -> None:
        """Cut a file to `length` bytes."""
        os.ftruncate(file, length)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file; a file of the new name is replaced."""
        os.rename(self._path(name), self._path(new_name))

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self._path(name))

    def sync_folder(self) -> None:
        """Make durable which files there are and what they are called."""
        sync_folder(self.folder)


def make_folder(path: str) -> None:
    """Make a folder, if there is none, so that it is there after a loss of power."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    sync_folder(os.path.dirname(path) or ".")


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make durable which files are in a folder and what they are called."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_file(folder: str | os.PathLike[str], name: str, data: bytes, mode: int = 0o666) -> None:
    """Make a file of a folder be this, durably: a reader finds all that it was before, or all of this."""
    path = os.path.join(folder, name)
    beside = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)  # of one that did not come to its end
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)
    sync_folder(folder)


def set_aside(path: str) -> str:
    """Rename a file or a folder to the first name of `path.bad-1`, `path.bad-2` ... that is free, and return that."""
    number = 1
    while os.path.lexists(f"{path}.bad-{number}"):
        number += 1
    os.rename(path, f"{path}.bad-{number}")
    sync_folder(os.path.dirname(path) or ".")
    return f"{path}.bad-{number}"


class FileLock:
    """A lock between processes on a file or a folder (flock), free again when its holder ends, however it does.

    Args:
        path: of a folder, or of a file, which is made if there is none.

    Raises OSError.
    """

    def __init__(self, path: str, *, is_folder: bool = False) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT
        self._file = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def take(self) -> None:
        """Have it alone; waits for that."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def try_to_take(self) -> bool:
        """Have it alone, unless another process has it; returns whether it is ours."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Have it together with other processes; waits for one that has it alone."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def free(self) -> None:
        """Have it no longer."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def say(self, words: str, *, anew: bool) -> None:
        """Add words to the file, or have it hold nothing else."""
        if anew:
            os.ftruncate(self._file, 0)
        os.pwrite(self._file, words.encode(), os.fstat(self._file).st_size)

    def said(self) -> str:
        """Return what say() has written, with its caller's name."""
        return os.pread(self._file, 1 << 16, 0).decode("ascii", "replace")

    def close(self) -> None:
        """Free it for ever; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def make_private(path: str) -> None:
    """Let only its owner read a file or a folder, if there is one."""
    try:
        os.chmod(path, 0o700 if os.path.isdir(path) else 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return


def open_whole(path: str) -> tuple[int, int]:
    """Open a file that will be read whole, in any order; returns the file, for close_file(), and its length."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
    return file, os.fstat(file).st_size


def close_file(file: int) -> None:
    """Close what open_whole() opened."""
    os.close(file)


def exists(path: str) -> bool:
    """Return whether there is a file or a folder of that path."""
    return os.path.exists(path)
