"""Places in a log: from where to read on to come to a record, or to a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from router.log.segments import RECORDS_AT, Header, Position, Segments

if TYPE_CHECKING:
    from router.log.disk import Storage


class Reach(NamedTuple):
    """How far a log can be read, and in which segments.

    Args:
        readable: the number of the newest record that is durable and written.
        oldest, newest: the first and the last segment; 0 while there is none.
        mark: the newest segment's. A segment that was begun in vain is begun anew under its number, with another mark.
    """

    readable: int
    oldest: int
    newest: int
    mark: int


class Places:
    """The segments of one log, and where in them something is.

    Args:
        disk: the folder that they are in.
        worker: whose log it is.
        rules: as of Segments.

    Attributes:
        headers: of all segments there are, in order.
    """

    def __init__(self, disk: Storage, worker: int, rules: int) -> None:
        self.disk = disk
        self.worker = worker
        self.rules = rules
        self.headers: list[Header] = []
        self._indexes: dict[int, list[list[int]]] = {}  # segment -> what its seal says, or will say

    def locate(self, number: int) -> Position | None:
        """Return a place at or shortly before a record, from which to read on; None if its segment is gone.

        Cost: two bisections, and one read of a file the first time for a segment of an earlier run. At most 64 KiB or
        one batch of records lie between the place and the record; in a segment that was never sealed, all of it.
        """
        headers = self.headers
        at = bisect_right(headers, number, key=lambda header: header.first_number) - 1
        return self._place(headers[at], number, 0) if at >= 0 else None

    def locate_time(self, time_us: int) -> Position | None:
        """Return a place at or shortly before the first record of this time or later; None of an empty log.

        Times are those of the clock as it was; where it was set back, the last such place is returned. Cost: as of
        locate(), and one step for each segment that is younger.
        """
        headers = self.headers
        for header in reversed(headers):
            if header.created_us < time_us:
                return self._place(header, time_us, 2)
        return Position(headers[0].segment, RECORDS_AT, headers[0].first_number) if headers else None

    def _place(self, header: Header, value: int, column: int) -> Position:
        index = self._index_of(header)
        # Not the entry that has just this time: records of the same time may lie before it.
        place = (bisect_right if column == 0 else bisect_left)(index, value, key=lambda entry: entry[column]) - 1
        if place < 0:
            return Position(header.segment, RECORDS_AT, header.first_number)
        return Position(header.segment, index[place][1], index[place][0])

    def _index_of(self, header: Header) -> list[list[int]]:
        index = self._indexes.get(header.segment)
        if index is None:
            seal = self.reader().seal(header)
            index = self._indexes[header.segment] = seal["index"] if seal else []
        return index

    def reader(self) -> Segments:
        """Return what reads this log from any position on; records after `durable` are not to be relied on."""
        return Segments(self.disk, worker=self.worker, rules=self.rules, headers=self.headers)
