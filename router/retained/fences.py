"""Up to where new subscribers have been given what other workers retain, so that nothing older comes behind it.

The index of retained messages may have what a link has yet to bring: the worker was stopped, or the link is busy. Who
subscribes then is given the newest message of a topic, and what the link brings of the time before was published before
the subscription: it goes to those who subscribed earlier.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from router.matching.topic_names import matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.receiver import Receiver

ROOM_MIN: Final = 64
NEVER: Final = 1 << 64
Reached = dict[int, int]  # worker -> number of a record of its log
Id = tuple[int, int]  # incarnation and number of a record


class Fences:
    """Of the subscriptions that are younger than what some link has yet to bring.

    It also knows what has come ahead of its record, at QoS 0: if its worker is killed, it has never been.

    Attributes:
        passed: worker -> up to which record of its log its link has brought whatever is wanted here. Only these have a
            link.

    Args:
        written: returns up to which record of each other worker's log the index has what was retained.
    """

    def __init__(self, written: Callable[[], Reached] = dict) -> None:
        self.passed: Reached = {}
        self._written = written
        self._kept: Reached = {}  # worker -> record after which its process began: it has lost nothing up to there
        self._early: dict[int, Id] = {}  # worker -> of the newest retained message that came ahead of its record
        self._of: dict[Receiver, dict[bytes, Reached]] = {}
        # Worker -> heap of (record, count, receiver, topic filter), some of which stand no more; its highest record.
        self._ahead: dict[int, list[tuple[int, int, Receiver, bytes]]] = {}
        self._highest: Reached = {}
        # Worker -> (receiver, topic filter) of those that were put up before its present process was heard.
        self._older: dict[int, set[tuple[Receiver, bytes]]] = {}
        self._room: dict[int, int] = {}  # worker -> entries of its heap, above which it is cleared of those
        self._count = 0
        self.away: set[int] = set()  # workers of which nothing is heard
        # What links are to bring; what links are to bring, or the index to have; what is done then.
        self._waiting: list[tuple[Reached, Reached, Callable[[], object]]] = []
        self.waits_for_index = False  # and look() is to be called now and then

    def __len__(self) -> int:
        return len(self._of)

    def put(self, receiver: Receiver, topic_filter: bytes, reached: Reached) -> None:
        """A new subscription has been given all that these workers have retained up to these records."""
        ahead = {worker: record for worker, record in reached.items() if record > self.passed.get(worker, record)}
        for older in self._older.values():
            older.discard((receiver, topic_filter))
        if ahead:
            self._of.setdefault(receiver, {})[topic_filter] = ahead
            for worker, record in ahead.items():
                self._stand(worker, record, receiver, topic_filter)
        else:
            self.take_down(receiver, topic_filter)

    def take_down(self, receiver: Receiver, topic_filter: bytes) -> None:
        """A subscription is not what it was: whatever comes is for it, or it has ended."""
        filters = self._of.get(receiver)
        if filters is not None and filters.pop(topic_filter, None) is not None and not filters:
            del self._of[receiver]

    def forget(self, receiver: Receiver) -> None:
        """A receiver has no subscriptions any more."""
        self._of.pop(receiver, None)

    def brought(self, worker: int, record: int) -> None:
        """The link of a worker has brought all up to a record. Cost: O(log fences) for each that is passed, at once."""
        if record <= self.passed.get(worker, record):
            return
        self.passed[worker] = record
        if self._waiting:
            self._call_waiting()
        ahead = self._ahead.get(worker)
        while ahead and ahead[0][0] <= record:
            _, _, receiver, topic_filter = heappop(ahead)
            reached = self._of.get(receiver, {}).get(topic_filter, {})
            if reached.get(worker, record + 1) <= record:  # else it was taken down, or put up anew further ahead
                del reached[worker]
                if not reached:
                    self.take_down(receiver, topic_filter)
        if not ahead:
            self._ahead.pop(worker, None)
            self._highest.pop(worker, None)

    def came_early(self, worker: int, incarnation: int, record: int) -> None:
        """A retained message has come at QoS 0, which does not wait for its record."""
        self._early[worker] = incarnation, record

    def sure(self) -> Reached:
        """Return, for each worker with a link, up to which record nothing that it has retained can be lost any more."""
        written = self._written()
        return {
            worker: max(record, self._kept.get(worker, 0), written.get(worker, 0))
            for worker, record in self.passed.items()
        }

    def early(self) -> dict[int, Id]:
        """Return, by worker, the newest message that has come ahead of its record, if it may be lost yet."""
        sure = self.sure() if self._early else {}
        return {worker: found for worker, found in self._early.items() if found[1] > sure.get(worker, NEVER)}

    def when_sure(self, action: Callable[[], object]) -> None:
        """Call something once all that has come is in a log, but what is of a worker that brings nothing now."""
        self.when_passed({}, action)

    def when_passed(self, reached: Reached, action: Callable[[], object]) -> None:
        """Call something once links have brought all up to these records, too, but those that bring nothing now."""
        early = {worker: record for worker, (_, record) in self.early().items()}
        if self._is_there(reached, early, self._written() if early else {}):
            action()
        else:
            self._waiting.append((dict(reached), early, action))
            self.waits_for_index |= bool(early)

    def look(self) -> None:
        """The index may have got further."""
        self._call_waiting()

    def _is_there(self, reached: Reached, early: Reached, written: Reached) -> bool:
        return all(
            worker in self.away or record <= self.passed.get(worker, record) for worker, record in reached.items()
        ) and all(
            worker in self.away or record <= max(self.passed.get(worker, record), written.get(worker, 0))
            for worker, record in early.items()
        )

    def hears(self, worker: int, is_up: bool) -> None:
        """A worker is there, or nothing is heard of it: what waits does not wait for that one."""
        (self.away.discard if is_up else self.away.add)(worker)
        if self._waiting:
            self._call_waiting()

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        written = self._written() if self.waits_for_index else {}
        self.waits_for_index = False
        for reached, early, action in waiting:
            if self._is_there(reached, early, written):
                action()
            else:
                self._waiting.append((reached, early, action))
                self.waits_for_index |= bool(early)

    def restarted(self, worker: int) -> None:
        """A new process of a worker is heard: fences that are put up from here on have the numbers that it gives."""
        self._older[worker] = {
            (receiver, topic_filter)
            for receiver, filters in self._of.items()
            for topic_filter, reached in filters.items()
            if worker in reached
        }

    def began(self, worker: int, after: int) -> None:
        """A worker's process, which was heard before, gives the numbers behind this record anew."""
        older = self._older.pop(worker, set())
        if worker not in self.passed:
            return
        self.passed[worker] = min(self.passed[worker], after)
        self._kept[worker] = after
        self._early.pop(worker, None)
        for reached, early, _ in self._waiting:
            early.pop(worker, None)  # it is in the log, or lost
            if reached.get(worker, 0) > after:
                reached[worker] = after
        for receiver, filters in list(self._of.items()):
            for topic_filter, reached in list(filters.items()):
                if reached.get(worker, 0) > after and (receiver, topic_filter) in older:
                    reached[worker] = after
                    self._stand(worker, after, receiver, topic_filter)
                if reached.get(worker, NEVER) <= self.passed[worker]:
                    del reached[worker]
                    if not reached:
                        self.take_down(receiver, topic_filter)
        if self._waiting:
            self._call_waiting()

    def _stand(self, worker: int, record: int, receiver: Receiver, topic_filter: bytes) -> None:
        self._count += 1
        ahead = self._ahead.setdefault(worker, [])
        heappush(ahead, (record, self._count, receiver, topic_filter))
        if len(ahead) > self._room.get(worker, ROOM_MIN):
            # Who comes and goes while the link stands still leaves nothing for good.
            ahead[:] = [
                (filters[topic_filter][worker], number, receiver, topic_filter)
                for number, (receiver, filters) in enumerate(self._of.items())
                for topic_filter in filters
                if worker in filters[topic_filter]
            ]
            heapify(ahead)
            self._room[worker] = max(ROOM_MIN, 2 * len(ahead))
        self._highest[worker] = max(self._highest.get(worker, 0), record)

    def behind(self, worker: int, record: int, topic_name: bytes, tree: Any) -> list[Receiver]:
        """Return the receivers that a message of a worker's log is not for: it is older than what they were given."""
        found: list[Receiver] = []
        if record > self._highest.get(worker, 0):
            return found
        for receiver, filters in self._of.items():
            if not any(reached.get(worker, 0) >= record for reached in filters.values()):
                continue
            if all(
                filters[topic_filter].get(worker, 0) >= record if topic_filter in filters else False
                for topic_filter, _, _ in tree.subscriptions_of(receiver)
                if not topic_filter.startswith(b"$share/") and matches(topic_filter, topic_name)
            ):
                found.append(receiver)
        return found
