"""The logs of a data folder, to be read in stretches by any process: what there is, from where to where.

Nothing here writes. A broker may be writing and removing files meanwhile. What is read is made durable first, so nobody
learns of a message that a loss of power takes back.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from analytics.source.decoder import LAST, STRETCH, count_accepted
from router.log.disk import Disk
from router.log.reader import RULES_MAX, file_size, open_segments
from router.log.record_kinds import RecordError
from router.log.record_scan import TIME_MAX, TIME_MIN
from router.log.segments import RECORDS_AT, Header, Position, Segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analytics.source.decoder import Decoder

NUMBER_MAX: Final = 2**64 - 1
_WORKER = re.compile(r"worker-(0|[1-9]\d*)")


class LogError(Exception):
    """What cannot be read: a sentence with the segment's file and the place in it."""


class Place(NamedTuple):
    """How far one log has been read: up to a record, which lies before byte `position` of a segment.

    The record is found by (incarnation, number), which never comes again; segment and position only help to find it.
    """

    incarnation: int = 0
    number: int = 0
    segment: int = 0
    position: int = 0


BEGINNING: Final = Place()


class End(NamedTuple):
    """Where a log ended when a reader looked: so many bytes of a segment, all of them durable."""

    segment: int
    size: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of one segment.

    Args:
        folder: the worker's.
        header: of the segment.
        limit: the number of the first record of the next segment: what stands here from there on does not count;
            0 if nothing limits it.
        position: where to begin, bytes; the record there has the number `number`.
        end: where to end, bytes.
        after: records up to this number are passed over.
        last: the last record that is wanted; NUMBER_MAX if it is not known.
    """

    folder: str
    header: Header
    limit: int
    position: int
    number: int
    end: int
    after: int
    last: int

    @property
    def size(self) -> int:
        """How many bytes there are to be read, at most."""
        return max(0, self.end - self.position)

    @property
    def headers(self) -> list[Header]:
        """The segment's header, and one that stands for the next segment's, of which only its first number counts."""
        header = self.header
        if not self.limit:
            return [header]
        return [header, Header(header.worker, header.incarnation, 0, header.segment + 1, self.limit, 0, header.rules)]


class _Clipped(Disk):
    """A folder in which every file ends at a certain byte, if not before: what comes behind is for a later read."""

    def __init__(self, folder: str, end: int) -> None:
        super().__init__(folder)
        self.end = end

    def size(self, file: int) -> int:
        return min(super().size(file), self.end)


def worker_folders(folder: str) -> dict[int, str]:
    """Return the folders of the logs in a data folder, by worker. Raises LogError."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise LogError(f"{folder} cannot be read: {error.strerror}{_who(error)}") from error
    found = {int(name[1]): os.path.join(folder, name[0]) for name in map(_WORKER.fullmatch, names) if name}
    if not found:
        raise LogError(f"{folder} is no data folder of Shoal: there is no folder worker-0 in it")
    return dict(sorted(found.items()))


def _who(error: OSError) -> str:
    """Return which user may not read, where that is what is wrong: Spark often runs as another one than the broker."""
    if not isinstance(error, PermissionError):
        return ""
    return (
        f". Spark runs as user {os.geteuid()} here: let a group that it is in read the data folder and its folders (see"
        " docs/analytics.md, Another user)"
    )


def node_of(folder: str) -> str | None:
    """Return the name of the node that a data folder belongs to; None if it cannot be read."""
    try:
        with open(os.path.join(folder, "node"), encoding="utf-8") as file:
            return str(json.load(file)["identifier"])
    except (OSError, ValueError, KeyError):
        return None


class WorkerLog:
    """One worker's log as it is now. Cost: a look at each segment's header.

    Args:
        fail_on_loss: raise LogError where messages are missing; otherwise go on behind the hole.

    Raises LogError.
    """

    def __init__(self, folder: str, worker: int, *, fail_on_loss: bool = True) -> None:
        self.folder = folder
        self.worker = worker
        self.fail_on_loss = fail_on_loss
        self.disk = Disk(folder)
        try:
            self.segments = open_segments(self.disk, worker)
        except OSError as error:
            raise LogError(f"the log in {folder} cannot be read: {error.strerror}{_who(error)}") from error
        self.headers = self.segments.headers

    def end(self) -> End | None:
        """Return where the log ends now, with everything before it durable; None if it has no segment yet."""
        if not self.headers:
            return None
        header = self.headers[-1]
        path = os.path.join(self.folder, header.name)
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(file).st_size
                # What has been written may still be lost with the power, and its number be given again.
                os.fdatasync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise LogError(f"{path} cannot be read: {error.strerror}{_who(error)}") from error
        return End(header.segment, size)

    def all_of(
        self, end: End, since_us: int = TIME_MIN, until_us: int = TIME_MAX, behind: Place = BEGINNING
    ) -> list[Stretch]:
        """Return a stretch for each segment that may have messages of a time, from a place on."""
        if self.fail_on_loss:
            self._check_holes(behind.segment)
        first, position, number = self._index_behind(behind)
        found = []
        for index, header in enumerate(self.headers):
            if index < first or header.segment > end.segment or self._is_outside(header, since_us, until_us):
                continue
            if index > first:
                position, number = RECORDS_AT, header.first_number
            clip = end.size if header.segment == end.segment else None
            after = behind.number if header.incarnation == behind.incarnation else 0
            found.append(self._stretch(index, position, number, end=clip, after=after))
        return found

    def _is_outside(self, header: Header, since_us: int, until_us: int) -> bool:
        if since_us == TIME_MIN and until_us == TIME_MAX:
            return False
        try:
            seal = self.segments.seal(header)
        except (RecordError, OSError):
            return False
        return seal is not None and (seal["last_us"] < since_us or seal["first_us"] >= until_us)

    def _stretch(
        self, index: int, position: int, number: int, *, end: int | None = None, after: int = 0, last: int = NUMBER_MAX
    ) -> Stretch:
        header = self.headers[index]
        limit = self.headers[index + 1].first_number if index + 1 < len(self.headers) else 0
        if end is None:
            try:
                end = file_size(self.disk, header.name)
            except OSError as error:
                raise LogError(
                    f"{os.path.join(self.folder, header.name)}: {error.strerror} (at byte {position})"
                ) from error
        return Stretch(self.folder, header, limit, position, number, end, after, last)

    def _check_holes(self, segment: int) -> None:
        """Raise LogError if a segment from this one on is missing or is none."""
        for damage in self.segments.damages:
            if not damage.torn and damage.length == 0 and damage.file >= f"segment-{segment:012d}.log":
                raise LogError(f"{os.path.join(self.folder, damage.file)}: {damage.what} (at byte {damage.offset})")

    # From a place on ------------------------------------------------------------------------------------------------

    def _index_behind(self, place: Place) -> tuple[int, int, int]:
        """Return which segment has what comes behind a place, where in it, and the number of the record there."""
        for index, header in enumerate(self.headers):
            if (header.incarnation, header.segment) == (place.incarnation, place.segment):
                return index, place.position, place.number + 1
        for index, header in enumerate(self.headers):
            following = self.headers[index + 1] if index + 1 < len(self.headers) else None
            if header.incarnation < place.incarnation or (
                header.incarnation == place.incarnation
                and following is not None
                and following.incarnation == place.incarnation
                and following.first_number <= place.number + 1
            ):
                continue
            missing = header.first_number - place.number - 1
            if place.number and missing > 0 and self.fail_on_loss:
                raise LogError(
                    f"{os.path.join(self.folder, header.name)} begins with record {header.first_number}, and what was"
                    f" read last is record {place.number} (segment {place.segment}, byte {place.position}): {missing}"
                    " records have been removed before they were read. With failOnDataLoss=false reading goes on"
                )
            return index, RECORDS_AT, header.first_number
        return len(self.headers), 0, 0

    def walk(self, place: Place, end: End, most: int) -> tuple[Place, int]:
        """Return the place that is `most` messages behind another one, or as many as there are, and how many that is.

        Cost: reads everything in between. Raises LogError.
        """
        index, position, number = self._index_behind(place)
        if self.fail_on_loss and place.number:
            self._check_holes(place.segment)
        found = 0
        while index < len(self.headers) and self.headers[index].segment <= end.segment and found < most:
            header = self.headers[index]
            clip = end.size if header.segment == end.segment else 2**62
            headers = self.headers[index : index + 2]
            segments = Segments(_Clipped(self.folder, clip), worker=self.worker, rules=RULES_MAX, headers=headers)
            skip = place.number if header.incarnation == place.incarnation else 0
            for cursor in self._cursors(segments, header, position, number):
                if skip > cursor.number:
                    # Written again into this segment, after a sync that failed: those were counted.
                    while cursor.number < skip and cursor.step():
                        pass
                found += count_accepted(cursor, most - found)
                if cursor.number > skip:
                    place = Place(header.incarnation, cursor.number, header.segment, cursor.base + cursor.offset)
                if found == most:
                    break
            self._check(segments, header, number)
            index += 1
            if index < len(self.headers):
                position, number = RECORDS_AT, self.headers[index].first_number
        return place, found

    def _cursors(self, segments: Segments, header: Header, position: int, number: int) -> Iterator[Any]:
        try:
            yield from segments.segment_cursors(0, Position(header.segment, position, number))
        except FileNotFoundError:
            if self.fail_on_loss:
                raise LogError(_removed(self.folder, header, position, number)) from None

    def _check(self, segments: Segments, header: Header, number: int) -> None:
        for damage in segments.damages:
            if self.fail_on_loss and damage.missing and damage.first_missing >= number:
                raise LogError(f"{os.path.join(self.folder, header.name)}: {damage}")

    def stretches(self, start: Place, end: Place) -> list[Stretch]:
        """Return the stretches between two places."""
        found: list[Stretch] = []
        if (start.incarnation, start.number) >= (end.incarnation, end.number):
            return found
        index, position, number = self._index_behind(start)
        for at in range(index, len(self.headers)):
            header = self.headers[at]
            if (header.incarnation, header.first_number) > (end.incarnation, end.number):
                break
            same = header.incarnation == end.incarnation
            ends_here = same and header.segment == end.segment
            after = start.number if header.incarnation == start.incarnation else 0
            last = end.number if same else NUMBER_MAX
            found.append(
                self._stretch(at, position, number, end=end.position if ends_here else None, after=after, last=last)
            )
            if at + 1 < len(self.headers):
                position, number = RECORDS_AT, self.headers[at + 1].first_number
        return found


def _removed(folder: str, header: Header, position: int, number: int) -> str:
    return (
        f"{os.path.join(folder, header.name)} was removed before it was read, from record {number} on (at byte"
        f" {position}). The broker keeps what its archive's retention says; with failOnDataLoss=false reading goes on"
    )


def decode(
    stretch: Stretch, decoder: Decoder, *, fail_on_loss: bool, rows_max: int, bytes_max: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (columns, rows) for the messages of a stretch; what is left when it ends is still in the decoder.

    Raises LogError, which names the segment and the byte.
    """
    path = os.path.join(stretch.folder, stretch.header.name)
    worker = stretch.header.worker
    segments = Segments(clipped(stretch), worker=worker, rules=RULES_MAX, headers=stretch.headers)
    start = Position(stretch.header.segment, stretch.position, stretch.number)
    number, at = stretch.number - 1, stretch.position
    try:
        for cursor in segments.segment_cursors(0, start):
            while True:
                fed = decoder.feed(cursor, stretch.header.incarnation, stretch.after, stretch.last, rows_max, bytes_max)
                number, at = cursor.number, cursor.base + cursor.offset
                if fed in (STRETCH, LAST):
                    break
                rows = decoder.rows
                yield decoder.take(), rows
            if fed == LAST:
                break
    except FileNotFoundError:
        if fail_on_loss:
            raise LogError(_removed(stretch.folder, stretch.header, stretch.position, stretch.number)) from None
    except ValueError as error:
        raise LogError(f"{path}: {error}") from None
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror} (at byte {at}){_who(error)}") from error
    if not fail_on_loss:
        return
    for damage in segments.damages:
        if damage.missing:
            raise LogError(f"{os.path.join(stretch.folder, damage.file)}: {damage}")
    wanted = min(stretch.last, stretch.limit - 1 if stretch.limit else NUMBER_MAX)
    if wanted != NUMBER_MAX and number < wanted:
        raise LogError(f"{path} ends with record {number} at byte {at}, and there was one of number {wanted}")


def clipped(stretch: Stretch) -> Disk:
    """Return the folder of a stretch, in which its segment ends where the stretch does."""
    return _Clipped(stretch.folder, stretch.end)


def size_of(folder: str) -> int:
    """Return how many bytes the segments in a data folder have."""
    return sum(path.stat().st_size for path in Path(folder).glob("worker-*/segment-*.log"))
