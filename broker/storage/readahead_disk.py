"""The disk that a log is recovered from: the next window is read while one is applied."""

from __future__ import annotations

import threading

from broker.storage.readahead_thread import AheadReader
from router.log.disk import Disk
from router.log.record_cursor import checked_bytes


class ReadAheadDisk(Disk):
    """A folder of the file system, whose records are read and checked a window ahead by a thread.

    The thread is started by the first window that is not a file's last. Not for several threads, until stop() has made
    it a disk as any other.

    Args:
        folder: its path.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._reader: AheadReader | None = None
        self._thread: threading.Thread | None = None
        self._begun: tuple[int, int, int] | None = None  # file, offset, mark
        self._stopped = False

    def read_records(self, file: int, offset: int, length: int, mark: int) -> tuple[bytes, int]:
        """Return read(), and how many of its bytes are whole records with this mark; begin to read what follows."""
        if self._stopped:
            return super().read_records(file, offset, length, mark)
        data, checked = b"", -1
        if self._begun == (file, offset, mark):
            data, checked = self._end()
        else:
            self._forget()
        if checked < 0 or len(data) > length:
            data = self.read(file, offset, length)
            checked = checked_bytes(data, mark)
        following = offset + checked
        left = self.size(file) - following if checked else 0
        if left > 0:
            self._begin(file, following, min(length, left), mark)
        return data, checked

    def _begin(self, file: int, offset: int, length: int, mark: int) -> None:
        if self._reader is None:
            self._reader = AheadReader()
            self._thread = threading.Thread(target=self._reader.run, name="read-ahead", daemon=True)
            self._thread.start()
        self._reader.begin(file, offset, length, mark)
        self._begun = (file, offset, mark)

    def _end(self) -> tuple[bytes, int]:
        assert self._reader is not None
        self._begun = None
        found: tuple[bytes, int] = self._reader.end()
        return found

    def _forget(self) -> None:
        """What was read ahead is not wanted. What is wrong with it shows when a reader wants it."""
        if self._begun is not None:
            try:
                self._end()
            except OSError:
                pass

    def close(self, file: int) -> None:
        """Close a file. What was not synced may still be lost."""
        if self._begun is not None and self._begun[0] == file:
            self._forget()
        super().close(file)

    def stop(self) -> None:
        """Read ahead no more: end the thread."""
        self._stopped = True
        self._forget()
        if self._reader is not None and self._thread is not None:
            self._reader.stop()
            self._thread.join()
        self._reader = self._thread = None
