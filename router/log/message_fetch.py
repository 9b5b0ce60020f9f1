"""Messages read back from the log: what waits in a queue is the number of its record."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from router.log.record_cursor import Cursor
from router.log.segments import BAD, SHORT, Header, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.message import Message
    from router.log.disk import Storage

WINDOW_BYTES: Final = 131_072
PLACE: Final = struct.Struct("<QQ")


class Stored:
    """The messages of a snapshot, by the number of their record.

    Args:
        disk: the folder that the snapshot is in.
        header: the snapshot's.
        name: of its file.
        places: pairs of (record number, offset), ascending, as `snapshot_end` has them.
    """

    def __init__(self, disk: Storage, header: Header, name: str, places: bytes) -> None:
        pairs = array("Q", places)
        self.disk = disk
        self.header = header
        self.name = name
        self.numbers = pairs[::2]
        self.offsets = pairs[1::2]

    @classmethod
    def at(cls, disk: Storage, name: str, end_offset: int) -> Stored:
        """Return those of a snapshot whose `snapshot_end` begins there. Raises ValueError if it does not, OSError."""
        file = disk.open(name)
        try:
            header = Header.decode(disk.read(file, 0, 64))
            data = disk.read(file, end_offset, disk.size(file) - end_offset)
        finally:
            disk.close(file)
        cursor = Cursor(data, end_offset, header.mark if header else 0, int.from_bytes(data[12:16], "little") - 1)
        if header is None or not cursor.step() or cursor.kind_name() != "snapshot_end":
            raise ValueError(f"{name} has no end at {end_offset}")
        return cls(disk, header, name, cursor.fields()["places"])

    @property
    def last_number(self) -> int:
        """The highest record whose message it has, 0 if it has none."""
        return self.numbers[-1] if self.numbers else 0

    def cursor(self, number: int) -> Cursor | None:
        """Return a cursor that stands at a record's message, None if the snapshot has none. Raises OSError."""
        index = bisect_left(self.numbers, number)
        if index == len(self.numbers) or self.numbers[index] != number:
            return None
        offset = self.offsets[index]
        file = self.disk.open(self.name)
        try:
            length = int.from_bytes(self.disk.read(file, offset, 4), "little")
            data = self.disk.read(file, offset, length)
        finally:
            self.disk.close(file)
        # It is not read in its order here, so the number that comes before it is what the record says.
        before = int.from_bytes(data[12:16], "little") - 1
        cursor = Cursor(data, offset, self.header.mark, before)
        return cursor if cursor.step() else None


class Bodies:
    """Reads messages of a log by the numbers of their records; those that follow one another cost one read for many.

    Args:
        disk: the log's folder.
        locate: returns a place at or shortly before a record, None if its segment is gone.
        headers: returns the headers of the segments that there are.
    """

    def __init__(
        self, disk: Storage, locate: Callable[[int], Position | None], headers: Callable[[], list[Header]]
    ) -> None:
        self.disk = disk
        self.stored: Stored | None = None
        self.reads = 0
        self._locate = locate
        self._headers = headers
        self._cursor: Cursor | None = None
        self._segment = 0

    def fetch(self, number: int, now_us: int, now_ms: int) -> Message:
        """Return the message of a record.

        Args:
            now_us, now_ms: the same moment, since 1970 and monotonic, for its expiry.

        Raises:
            LookupError: it is not in the log any more, or its bytes are damaged.
            OSError: it cannot be read now.
        """
        message = self._step_to(number, now_us, now_ms)
        if message is None and self.stored is not None:
            cursor = self.stored.cursor(number)
            message = cursor.message(now_us, now_ms) if cursor is not None else None
        if message is None:
            message = self._read_from(number, now_us, now_ms)
        if message is None:
            raise LookupError(f"record {number} is not in the log")
        return message

    def _step_to(self, number: int, now_us: int, now_ms: int) -> Message | None:
        """Walk on in the window that is there, if the record may be in it."""
        cursor = self._cursor
        if cursor is None or cursor.number >= number:
            return None
        while cursor.step():
            if cursor.number == number:
                return cursor.message(now_us, now_ms)
            if cursor.number > number:
                break
        return None

    def _read_from(self, number: int, now_us: int, now_ms: int) -> Message | None:
        """Read windows from the record's place on."""
        place = self._locate(number)
        header = next((header for header in self._headers() if place and header.segment == place.segment), None)
        if place is None or header is None:
            return None
        try:
            file = self.disk.open(header.name)
        except FileNotFoundError:
            return None  # removed just now
        try:
            size = self.disk.size(file)
            offset, before, window = place.offset, place.number - 1, WINDOW_BYTES
            while True:
                self.reads += 1
                data = self.disk.read(file, offset, min(window, size - offset))
                self._cursor = cursor = Cursor(data, offset, header.mark, before)
                message = self._step_to(number, now_us, now_ms)
                if message is not None:
                    return message
                whole = offset + len(data) >= size
                if cursor.status == BAD or (cursor.status == SHORT and whole):
                    # Damage is passed over, as it is when the log is recovered.
                    found = cursor.find(cursor.offset)
                    if found >= 0:
                        cursor.resume(found)
                        offset, before, window = offset + found, cursor.number, WINDOW_BYTES
                        continue
                if whole or cursor.number >= number:
                    self._cursor = None
                    return None
                if cursor.offset == 0:
                    window = max(window * 2, cursor.needed())  # one record that is larger
                else:
                    offset, before, window = offset + cursor.offset, cursor.number, WINDOW_BYTES
        finally:
            self.disk.close(file)
