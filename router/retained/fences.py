"""Up to where new subscribers have been given what other workers retain, so that nothing older comes behind it.

The index of retained messages may have what a link has yet to bring: the worker was stopped, or the link is busy. Who
subscribes then is given the newest message of a topic, and what the link brings of the time before was published before
the subscription: it goes to those who subscribed earlier.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from router.matching.topic_names import matches
from router.retained.link_waits import Id, Ids, LinkWaits, Reached, lowered

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.receiver import Receiver

ROOM_MIN: Final = 64
NEVER: Final = 1 << 64
NOWHERE: Final[Id] = (0, 0)


class Fences:
    """Of the subscriptions that are younger than what some link has yet to bring.

    It also knows what has come ahead of its record, at QoS 0: if its worker is killed, it has never been.

    Attributes:
        passed: worker -> up to which record of its log its link has brought whatever is wanted here. Only these have a
            link.
        waits: for links.

    Args:
        written: returns up to which record of each other worker's log the index has what was retained.
        record: notes in the log how a fence stands now, where it is a kept session's.
    """

    def __init__(self, written: Callable[[], Reached] = dict,
                 record: Callable[[Receiver, bytes, Ids], None] = lambda *_: None) -> None:  # fmt: skip
        self.passed: Reached = {}
        self.waits = LinkWaits(self.passed, written)
        self._written = written
        self._record = record
        self._heard: dict[int, int] = {}  # worker -> incarnation of it that was heard, the highest
        self._began: dict[int, int] = {}  # worker -> incarnation of it that said after which record it began
        self._kept: Reached = {}  # worker -> record after which its process began: it has lost nothing up to there
        self._early: dict[int, Id] = {}  # worker -> of the newest retained message that came ahead of its record
        self._of: dict[Receiver, dict[bytes, Ids]] = {}
        # Worker -> heap of (record, count, receiver, topic filter), some of which stand no more; its highest record.
        self._ahead: dict[int, list[tuple[int, int, Receiver, bytes]]] = {}
        self._highest: Reached = {}
        self._room: dict[int, int] = {}  # worker -> entries of its heap, above which it is cleared of those
        self._count = 0

    def __len__(self) -> int:
        return len(self._of)

    def put(self, receiver: Receiver, topic_filter: bytes, reached: Reached, *, keep: bool = False) -> None:
        """A new subscription has been given all that these workers have retained up to these records.

        Args:
            keep: it is given that from now on, so a crash of ours must not take the fence away.
        """
        ahead = self._as_heard({
            worker: record for worker, record in reached.items() if record > self.passed.get(worker, record)})
        if not ahead:
            self.take_down(receiver, topic_filter)
            return
        self._put(receiver, topic_filter, ahead)
        if keep:
            self._record(receiver, topic_filter, ahead)

    def restore(self, receiver: Receiver, topic_filter: bytes, numbers: list[Any]) -> None:
        """Put up a fence as the log has it: worker, incarnation and record of each; nothing: it has ended.

        What has been passed since ends when the link says so: what comes until then had come.
        """
        if len(numbers) % 3 or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"a fence at {numbers}")
        ahead = {
            worker: (incarnation, record)
            for worker, incarnation, record in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        }
        self.take_down(receiver, topic_filter)
        if ahead:
            self._put(receiver, topic_filter, ahead)

    def standing(self, receiver: Receiver) -> list[tuple[bytes, Ids]]:
        """Return the fences of a receiver: topic filter, and up to which record of each worker."""
        return list(self._of.get(receiver, {}).items())

    def _put(self, receiver: Receiver, topic_filter: bytes, ahead: Ids) -> None:
        self._of.setdefault(receiver, {})[topic_filter] = ahead
        for worker, (_, record) in ahead.items():
            self._stand(worker, record, receiver, topic_filter)

    def _as_heard(self, reached: Reached) -> Ids:
        return {worker: (self._heard.get(worker, 0), record) for worker, record in reached.items()}

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
        self.waits.brought(worker)
        ahead = self._ahead.get(worker)
        while ahead and ahead[0][0] <= record:
            _, _, receiver, topic_filter = heappop(ahead)
            reached = self._of.get(receiver, {}).get(topic_filter, {})
            if reached.get(worker, (0, NEVER))[1] <= record:  # else it was taken down, or put up anew further ahead
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

    def early(self) -> Ids:
        """Return, by worker, the newest message that has come ahead of its record, if it may be lost yet."""
        sure = self.sure() if self._early else {}
        return {worker: found for worker, found in self._early.items() if found[1] > sure.get(worker, NEVER)}

    def when_sure(self, action: Callable[[], object]) -> None:
        """Call something once all that has come is in a log, but what is of a worker that brings nothing now."""
        self.when_passed({}, action)

    def when_passed(self, reached: Reached, action: Callable[[], object]) -> None:
        """Call something once links have brought all up to these records, too, but those that bring nothing now."""
        self.waits.add(self._as_heard(reached), self.early(), action)

    def restarted(self, worker: int, incarnation: int) -> None:
        """A process of a worker is heard: fences that are put up from here on have the numbers that it gives."""
        self._heard[worker] = incarnation

    def is_new(self, worker: int, incarnation: int) -> bool:
        """Return whether a process of a worker has not said yet after which record of its log it began."""
        return incarnation > self._began.get(worker, 0)

    def began(self, worker: int, incarnation: int, after: int) -> None:
        """A new process of a worker gives the numbers behind this record anew. Cost: O(fences)."""
        self._began[worker] = incarnation
        if worker not in self.passed:
            return
        passed = self.passed[worker] = min(self.passed[worker], after)
        self._kept[worker] = after
        self._early.pop(worker, None)
        for receiver, filters in list(self._of.items()):
            for topic_filter, reached in list(filters.items()):
                if worker not in reached:
                    continue
                before = reached[worker]
                _, record = reached[worker] = lowered(before, incarnation, after)
                if record <= passed:
                    del reached[worker]
                    if not reached:
                        self.take_down(receiver, topic_filter)
                elif record < before[1]:
                    self._stand(worker, record, receiver, topic_filter)
                if record < before[1]:
                    # The numbers behind it say something else now, and another process may begin before ours ends.
                    self._record(receiver, topic_filter, reached)
        self.waits.began(worker, incarnation, after)

    def _stand(self, worker: int, record: int, receiver: Receiver, topic_filter: bytes) -> None:
        self._count += 1
        ahead = self._ahead.setdefault(worker, [])
        heappush(ahead, (record, self._count, receiver, topic_filter))
        if len(ahead) > self._room.get(worker, ROOM_MIN):
            # Who comes and goes while the link stands still leaves nothing for good.
            ahead[:] = [
                (filters[topic_filter][worker][1], number, receiver, topic_filter)
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
            if not any(reached.get(worker, NOWHERE)[1] >= record for reached in filters.values()):
                continue
            if all(
                filters[topic_filter].get(worker, NOWHERE)[1] >= record if topic_filter in filters else False
                for topic_filter, _, _ in tree.subscriptions_of(receiver)
                if not topic_filter.startswith(b"$share/") and matches(topic_filter, topic_name)
            ):
                found.append(receiver)
        return found
