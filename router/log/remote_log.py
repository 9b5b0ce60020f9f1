"""Another worker's log, read in its folder while that worker writes it: as far as it is known to be durable.

Nothing here asks the worker; whoever hears from it says how far its log has come. What is known without that is in the
files: a segment is begun when all before it is durable.
"""

from __future__ import annotations

from typing import Final

from router.log.disk import Storage
from router.log.reader import RULES_MAX
from router.log.record_kinds import FORMAT_VERSION
from router.log.segment_index import Places, Reach
from router.log.segments import Header, read_header, segment_of

NUMBER_MAX: Final = 2**64 - 1


class FollowedLog(Places):
    """The log in another worker's folder. What LogWindows and LogTail need of a log.

    Args:
        disk: the folder, which need not exist yet.
        worker: whose it is.

    Attributes:
        durable, written: the number of the newest record that may be read.
        appended: a place beyond it is none of this log. Without knowing, every place may be one.
        is_behind: catch_up() has something to do.
    """

    def __init__(self, disk: Storage, worker: int) -> None:
        super().__init__(disk, worker, RULES_MAX)
        self.durable = 0
        self.appended = NUMBER_MAX
        self.is_behind = True
        self._told: Reach | None = None
        self._seen: tuple[int, int, int] | None = None  # segments and mark, when the folder was looked at

    @property
    def written(self) -> int:
        """As `durable`: what is not written is not known to be durable."""
        return self.durable

    def told(self, reach: Reach) -> None:
        """Its worker says how far it has come."""
        self._told = reach
        self.is_behind = True

    def lost(self) -> None:
        """Its worker says nothing now: what its log has beyond what is known is for later."""
        self.appended = NUMBER_MAX
        self._seen = None
        self.is_behind = True

    def catch_up(self) -> None:
        """Look at the files, if there are others than before, and count what was told. Raises OSError.

        Cost: 1 microsecond; after a segment was begun or removed, some 50 and 30 for each new segment.
        """
        told = self._told
        if told is None or self._seen != told[1:]:
            self._look()
            self._seen = told[1:] if told is not None else None
        if self.headers:
            self.durable = max(self.durable, self.headers[-1].first_number - 1)
        if told is not None:
            self.durable = max(self.durable, told.readable)
            self.appended = self.durable
        self._told = None
        self.is_behind = False

    def finish(self) -> None:
        """Take the log for one that no worker writes any more: all of it may be read. Raises OSError."""
        self._look()
        if self.headers:
            reader = self.reader()
            for cursor in reader.segment_cursors(len(self.headers) - 1):
                while cursor.step():
                    pass
            self.durable = self.appended = reader.last_number
        self.is_behind = False

    def _look(self) -> None:
        known = {header.segment: header for header in self.headers}
        newest = self.headers[-1].segment if self.headers else 0
        found = []
        try:
            names = self.disk.names()
        except FileNotFoundError:
            names = []  # a worker that has never been there
        for name in names:
            segment = segment_of(name)
            if segment is None:
                continue
            header = known.get(segment)
            if header is None or segment == newest:
                # The newest one may have been begun anew: then what we knew of it is wrong.
                read = self._read(name, segment)
                header = header if read == header else read
            if header is not None:
                found.append(header)
        found.sort(key=lambda header: header.segment)
        self.headers = found
        there = {header.segment for header in found}
        self._indexes = {segment: index for segment, index in self._indexes.items() if segment in there}

    def _read(self, name: str, segment: int) -> Header | None:
        """Return a segment's header; None of what is none of this log's, or is gone, or not finished being made."""
        try:
            header = read_header(self.disk, name)
        except FileNotFoundError:
            return None
        if header is None or header.version > FORMAT_VERSION:
            return None
        return header if (header.worker, header.segment) == (self.worker, segment) else None

    def _index_of(self, header: Header) -> list[list[int]]:
        if header is self.headers[-1]:
            self._indexes.pop(header.segment, None)  # it may be sealed by now
        return super()._index_of(header)
