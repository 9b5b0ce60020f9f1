"""A simulated disk: what is not synced is torn, lost, reordered when the power goes; and it fails on demand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from router.log.record_cursor import checked_bytes

SECTOR = 512


class PowerLoss(BaseException):
    """The machine is gone. Nothing in the code under test may catch this."""


@dataclass
class _File:
    """One file: what everybody reads, and what is certain to be there after a loss of power."""

    live: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    # Sectors written and not synced: after a loss of power each is old, new, or torn within.
    dirty: set[int] = field(default_factory=set)
    # Sectors that a failed sync dropped: read as new, and no later sync writes them.
    dropped: set[int] = field(default_factory=set)


class SimulatedDisk:
    """One folder, with the methods of router.log.disk.Disk.

    `fail` is asked before each operation, by its name, and may return an OSError to raise. `steps` counts operations;
    at `power_off_at` the power goes, in the middle of that operation. `capacity` is in bytes over all files.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.capacity: int | None = None
        self.fail: Callable[[str], OSError | None] = lambda operation: None
        self.before_sync: Callable[[], None] = lambda: None
        self.power_off_at: int | None = None
        self.steps = 0
        self._folder: dict[str, _File] = {}
        self._synced_folder: dict[str, _File] = {}
        self._renamed: list[tuple[str, str]] = []
        self._open: dict[int, _File] = {}
        self._next_file = 3

    # What the code under test sees ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        self._end(self._step("names"))
        return sorted(self._folder)

    def create(self, name: str) -> int:
        """Make a new file."""
        torn = self._step("create")
        if name in self._folder:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        self._folder[name] = _File()
        self._end(torn)
        return self._handle(self._folder[name])

    def open(self, name: str, *, writable: bool = False) -> int:
        """Open a file that exists."""
        self._end(self._step("open"))
        if name not in self._folder:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return self._handle(self._folder[name])

    def close(self, file: int) -> None:
        """Close a file."""
        del self._open[file]

    def size(self, file: int) -> int:
        """Return a file's length."""
        return len(self._open[file].live)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Return bytes."""
        self._end(self._step("read"))
        return bytes(self._open[file].live[offset : offset + length])

    def read_records(self, file: int, offset: int, length: int, mark: int) -> tuple[bytes, int]:
        """Return bytes; of the first half it is known which are records."""
        data = self.read(file, offset, length)
        return data, checked_bytes(data[: len(data) // 2], mark)

    def write(self, file: int, data: memoryview | bytes, offset: int) -> None:
        """Write, as far as there is room, and as far as the power lasts."""
        torn = self._step("write")
        content = self._open[file]
        data = bytes(data)
        if torn:
            data = data[: self.random.randrange(len(data) + 1)]
        room = len(data)
        if self.capacity is not None:
            room = max(0, self.capacity - self.used_bytes + len(content.live) - offset)
        piece = data[:room]
        end = offset + len(piece)
        content.live.extend(bytes(max(0, end - len(content.live))))
        content.live[offset:end] = piece
        touched = range(offset // SECTOR, (end + SECTOR - 1) // SECTOR) if piece else range(0)
        content.dirty.update(touched)
        content.dropped.difference_update(touched)
        self._end(torn)
        if room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self, file: int) -> None:
        """Make durable what is dirty; if it fails, as Linux does: the pages count as clean from then on."""
        content = self._open[file]
        self.before_sync()
        try:
            torn = self._step("sync")
        except OSError:
            content.dropped |= content.dirty
            content.dirty.clear()
            raise
        self._end(torn)
        self._persist(content, content.dirty)
        del content.synced[len(content.live) :]
        content.synced.extend(bytes(len(content.live) - len(content.synced)))
        content.dirty.clear()

    def truncate(self, file: int, length: int) -> None:
        """Cut a file; durable when it is synced."""
        torn = self._step("truncate")
        content = self._open[file]
        del content.live[length:]
        content.dirty = {sector for sector in content.dirty if sector * SECTOR < length}
        content.dropped = {sector for sector in content.dropped if sector * SECTOR < length}
        self._end(torn)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file."""
        torn = self._step("rename")
        self._folder[new_name] = self._folder.pop(name)
        self._renamed.append((name, new_name))
        self._end(torn)

    def remove(self, name: str) -> None:
        """Remove a file."""
        torn = self._step("remove")
        if name not in self._folder:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        del self._folder[name]
        self._end(torn)

    def sync_folder(self) -> None:
        """Make durable which names there are."""
        torn = self._step("sync_folder")
        self._end(torn)
        self._synced_folder = dict(self._folder)
        self._renamed.clear()

    # What a test does ------------------------------------------------------------------------------------------------

    def power_loss(self) -> None:
        """The power goes and comes back: each unsynced sector and each unsynced name is as it was, or as it became."""
        names = sorted(self._folder.keys() | self._synced_folder.keys())
        became = {name: self.random.random() < 0.5 for name in names}
        for name, new_name in self._renamed:
            became[new_name] = became.get(name, False)  # a file has one of its names, never none
        self._renamed.clear()
        folder: dict[str, _File] = {}
        for name in names:
            before, after = self._synced_folder.get(name), self._folder.get(name)
            kept = after if became[name] else before
            if kept is not None:
                folder[name] = kept
        for name, content in folder.items():
            folder[name] = self._after_power_loss(content)
        self._folder = folder
        self._synced_folder = dict(folder)
        self._open.clear()
        self.power_off_at = None

    def process_killed(self) -> None:
        """The process dies, the machine goes on: everything that was written is still there."""
        self._open.clear()
        self.power_off_at = None

    @property
    def open_files(self) -> int:
        """How many files are open."""
        return len(self._open)

    @property
    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(content.live) for content in self._folder.values())

    def content(self, name: str) -> bytes:
        """Return what a file holds."""
        return bytes(self._folder[name].live)

    def put(self, name: str, content: bytes) -> None:
        """Make or replace a file, durably, whatever the disk is told to do."""
        self._folder[name] = _File(bytearray(content), bytearray(content))
        self._synced_folder[name] = self._folder[name]

    def wipe(self) -> None:
        """Forget all files: nobody looks at them any more, and memory is short."""
        self._folder.clear()
        self._synced_folder.clear()
        self._open.clear()

    def copy(self) -> SimulatedDisk:
        """Return a disk with the same files, all of them synced."""
        other = SimulatedDisk(self.random.randrange(1 << 30))
        for name, content in self._folder.items():
            other.put(name, bytes(content.live))
        return other

    # -----------------------------------------------------------------------------------------------------------------

    def _handle(self, content: _File) -> int:
        self._next_file += 1
        self._open[self._next_file] = content
        return self._next_file

    def _step(self, operation: str) -> bool:
        """Count an operation; returns whether the power goes during it. Raises what `fail` says."""
        self.steps += 1
        error = self.fail(operation)
        if error is not None:
            raise error
        return self.steps == self.power_off_at

    def _end(self, torn: bool) -> None:
        if torn:
            raise PowerLoss(f"at step {self.steps}")

    def _persist(self, content: _File, sectors: set[int]) -> None:
        for sector in sectors:
            piece = content.live[sector * SECTOR : (sector + 1) * SECTOR]
            end = sector * SECTOR + len(piece)
            content.synced.extend(bytes(max(0, end - len(content.synced))))
            content.synced[sector * SECTOR : end] = piece

    def _after_power_loss(self, content: _File) -> _File:
        after = bytearray(content.synced)
        doubtful = sorted(content.dirty | content.dropped)
        # The length is metadata: it may be ahead of the bytes, which are zero then.
        if len(content.live) > len(after) and self.random.random() < 0.5:
            after.extend(bytes(self.random.randrange(len(content.live) - len(after) + 1)))
        for sector in doubtful:
            start = sector * SECTOR
            new = content.live[start : start + SECTOR]
            fate = self.random.choice(("old", "new", "torn"))
            if fate == "old":
                continue
            if fate == "torn":
                new = new[: self.random.randrange(len(new) + 1)]
            after.extend(bytes(max(0, start + len(new) - len(after))))
            after[start : start + len(new)] = new
        if len(content.live) < len(content.synced) and self.random.random() < 0.5:
            del after[len(content.live) :]
        return _File(bytearray(after), bytearray(after))


def no_space() -> OSError:
    """The error of a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    """The error of a broken disk."""
    return OSError(errno.EIO, os.strerror(errno.EIO))
