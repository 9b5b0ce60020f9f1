"""What waits until links have brought so much."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

Id = tuple[int, int]  # number of a record as a process has it, behind that one's incarnation
Ids = dict[int, Id]  # worker -> a record of its log
UNKNOWN: Final = 0  # incarnation: those of processes count from 1
NOWHERE: Final[Id] = (UNKNOWN, 0)


class Wait:
    """What is done, and when.

    Attributes:
        number: they are done in this order.
        reached: what links are to bring.
        early: what links are to bring, or the index to have.
        action: what is done then.
    """

    __slots__ = ("action", "early", "number", "reached")

    def __init__(self, number: int, reached: Ids, early: Ids, action: Callable[[], object]) -> None:
        self.number = number
        self.reached = reached
        self.early = early
        self.action = action


class Shelf:
    """What waits for one thing of each worker; each wait is on one shelf at most, where it lacks something.

    Attributes:
        heaps: worker -> (record, number of the wait, wait); none is empty.
    """

    def __init__(self) -> None:
        self.heaps: dict[int, list[tuple[Id, int, Wait]]] = {}

    def put(self, worker: int, record: Id, wait: Wait) -> None:
        """It lacks this record of a worker. Cost: O(log waits)."""
        heappush(self.heaps.setdefault(worker, []), (record, wait.number, wait))

    def take(self, worker: int, record: Id | None = None) -> list[Wait]:
        """Take what lacks no more than this record, or all that is for a worker. Cost: O(log waits) for each."""
        heap = self.heaps.get(worker)
        found = []
        while heap and (record is None or heap[0][0] <= record):
            found.append(heappop(heap)[2])
        if not heap:
            self.heaps.pop(worker, None)
        return found


class LinkWaits:
    """Waits for links and, where a message came ahead of its record, for the index.

    What is behind the others in number lacks all that they lack, so they are done in their order.

    Args:
        passed: worker -> up to which record of its log its link has brought whatever is wanted here; the caller's.
        written: returns up to which record of each other worker's log the index has what was retained.

    A process that is not heard yet has passed nothing, whatever numbers its worker had before.
    """

    def __init__(self, passed: Ids, written: Callable[[], Ids]) -> None:
        self.passed = passed
        self.away: set[int] = set()  # workers of which nothing is heard
        self._written = written
        self._count = 0
        self._for_link: Final = Shelf()
        self._for_either: Final = Shelf()

    @property
    def waits_for_index(self) -> bool:
        """Whether look() is to be called now and then."""
        return bool(self._for_either.heaps)

    def add(self, reached: Ids, early: Ids, action: Callable[[], object]) -> None:
        """Call something when it lacks nothing, which may be now.

        `reached` follows what is heard of new processes.
        """
        self._count += 1
        self._settle([Wait(self._count, reached, early, action)])

    def brought(self, worker: int) -> None:
        """The link of a worker has got further. Cost: that of what may be done now."""
        if not self._for_link.heaps and not self._for_either.heaps:
            return
        record = self.passed[worker]
        self._settle(self._for_link.take(worker, record) + self._for_either.take(worker, record))

    def look(self) -> None:
        """The index may have got further."""
        written = self._written()
        shelf = self._for_either
        self._settle(
            [wait for worker in list(shelf.heaps) for wait in shelf.take(worker, written.get(worker, NOWHERE))]
        )

    def hears(self, worker: int, is_up: bool) -> None:
        """A worker is there, or nothing is heard of it: what waits does not wait for that one."""
        if is_up:
            self.away.discard(worker)
        else:
            self.away.add(worker)
            self._settle(self._for_link.take(worker) + self._for_either.take(worker))

    def began(self, worker: int, incarnation: int, after: int) -> None:
        """A worker's process gives the numbers behind this record anew. Cost: O(waits)."""
        shelves = (self._for_link, self._for_either)
        found = [wait for shelf in shelves for other in list(shelf.heaps) for wait in shelf.take(other)]
        for wait in found:
            wait.early.pop(worker, None)  # it is in the log, or lost
            if worker in wait.reached:
                wait.reached[worker] = lowered(wait.reached[worker], incarnation, after)
        self._settle(found)

    def _settle(self, found: list[Wait]) -> None:
        """Do what lacks nothing any more, and put the others where they lack something."""
        if not found:
            return
        found.sort(key=lambda wait: wait.number)
        written = self._written() if any(wait.early for wait in found) else {}
        for wait in found:
            if not self._is_put(wait, written):
                wait.action()

    def _is_put(self, wait: Wait, written: Ids) -> bool:
        for worker, record in wait.reached.items():
            if worker not in self.away and record > self.passed.get(worker, record):
                self._for_link.put(worker, record, wait)
                return True
        for worker, record in wait.early.items():
            if worker not in self.away and record > max(self.passed.get(worker, record), written.get(worker, NOWHERE)):
                self._for_either.put(worker, record, wait)
                return True
        return False


def lowered(found: Id, incarnation: int, after: int) -> Id:
    """Return a record as it counts for a process of its worker; a later one gives the numbers behind `after` anew."""
    return found if found[0] >= incarnation else (incarnation, min(found[1], after))


def covers(reached: Id, found: Id) -> bool:
    """Return whether what is told up to one record has another one, of the same worker, or knows that it is lost.

    What a process says later than its first record has all that its log kept of those before.
    """
    return found[0] < reached[0] or found[1] <= reached[1]


def is_reached(found: Id, reached: Id) -> bool:
    """Return whether a record is there that some log or LMDB has; of an earlier process it may be on its way, too."""
    return found[1] <= reached[1] and (found[0] <= reached[0] or reached[0] == UNKNOWN)
