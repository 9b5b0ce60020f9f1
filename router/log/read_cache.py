"""What several readers of one log share while it is written: few open files, and one copy of what all of them want."""

from collections import OrderedDict
from typing import Final

from router.log.log_writer import Log
from router.log.remote_log import FollowedLog
from router.log.segments import Header

FILES_MAX: Final = 16
WINDOWS_MAX: Final = 8


class LogWindows:
    """Reads of a log that is being written. A segment that the log removed is gone here too, open or not.

    Args:
        log: whose segments are read.
    """

    def __init__(self, log: Log | FollowedLog) -> None:
        self.log = log
        self.reads = 0  # that went to a file
        self._files: OrderedDict[int, int] = OrderedDict()  # segment -> file
        self._windows: OrderedDict[tuple[int, int, int], tuple[int, bytes]] = OrderedDict()

    @property
    def readable(self) -> int:
        """The number of the newest record that is durable and can be read from its segment."""
        return min(self.log.durable, self.log.written)

    def read(self, header: Header, offset: int, length: int) -> bytes:
        """Return up to `length` bytes of a segment from `offset` on, fewer only at the end of its file.

        Who follows the log wants what the last one wanted: that is read once. Raises FileNotFoundError if the segment
        was removed, OSError.
        """
        if not self.log.headers or header.segment < self.log.headers[0].segment:
            raise FileNotFoundError(header.name)
        readable = self.readable
        key = (header.segment, offset, length)
        known = self._windows.get(key)
        if known is not None and known[0] == readable:
            return known[1]
        data = self.log.disk.read(self._file(header), offset, length)
        self.reads += 1
        self._windows[key] = (readable, data)
        self._windows.move_to_end(key)
        if len(self._windows) > WINDOWS_MAX:
            self._windows.popitem(last=False)
        return data

    def _file(self, header: Header) -> int:
        file = self._files.get(header.segment)
        if file is not None:
            self._files.move_to_end(header.segment)
            return file
        # A file that stays open keeps the room of a segment that was removed.
        oldest = self.log.headers[0].segment
        for segment in [segment for segment in self._files if segment < oldest]:
            self.log.disk.close(self._files.pop(segment))
        file = self._files[header.segment] = self.log.disk.open(header.name)
        if len(self._files) > FILES_MAX:
            self.log.disk.close(self._files.popitem(last=False)[1])
        return file

    def close(self) -> None:
        """Close what is open; it may be used again."""
        for file in self._files.values():
            self.log.disk.close(file)
        self._files.clear()
        self._windows.clear()
