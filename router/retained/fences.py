"""Up to where new subscribers have been given what other workers retain, so that nothing older comes behind it.

The index of retained messages may have what a link has yet to bring: the worker was stopped, or the link is busy. Who
subscribes then is given the newest message of a topic, and what the link brings of the time before was published before
the subscription: it goes to those who subscribed earlier.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from router.matching.topic_names import matches
from router.retained.link_waits import NOWHERE, Id, Ids, LinkWaits, covers, lowered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.core.receiver import Receiver

ROOM_MIN: Final = 64
NEVER: Final[Id] = (1 << 64, 0)
PASSED_MAX: Final = 500  # fences that are passed and taken down at a time: about 1 ms
LOWERED_MAX: Final = 500  # fences that are lowered to where a new process began: about 1 ms
LEVELS_MAX: Final = 5  # of a topic name whose filters are looked up, at most 95


class Fences:
    """Of the subscriptions that are younger than what some link has yet to bring.

    It also knows what has come ahead of its record, at QoS 0: if its worker is killed, it has never been.

    Attributes:
        passed: worker -> up to which record of its log its link has brought whatever is wanted here, and the process
            of it that has said so. Only these have a link.
        waits: for links.

    Args:
        written: returns up to which record of each other worker's log the index has what was retained.
        record: notes in the log how a fence stands now, where it is a kept session's.
    """

    def __init__(self, written: Callable[[], Ids] = dict,
                 record: Callable[[Receiver, bytes, Ids], None] = lambda *_: None) -> None:  # fmt: skip
        self.passed: Ids = {}
        self.waits = LinkWaits(self.passed, written)
        self._written = written
        self._record = record
        self._began: dict[int, int] = {}  # worker -> incarnation of it that said after which record it began
        self._kept: Ids = {}  # worker -> record after which its process began: it has lost nothing up to there
        self._early: dict[int, Id] = {}  # worker -> of the newest retained message that came ahead of its record
        self._of: dict[Receiver, dict[bytes, Ids]] = {}
        # Worker -> heap of (record, count, receiver, topic filter), some of which stand no more.
        self._ahead: dict[int, list[tuple[Id, int, Receiver, bytes]]] = {}
        self._highest: Ids = {}  # worker -> what none of these is ahead of: by incarnation and by number
        self._room: dict[int, int] = {}  # worker -> entries of its heap, above which it is cleared of those
        # Worker -> its processes that began while fences are lowered: incarnation, and after which record; in order.
        self._starts: dict[int, list[Id]] = {}
        self._unlowered: dict[int, list[tuple[Id, int, Receiver, bytes]]] = {}  # entries that were in its heap then
        self._count = 0

    def __len__(self) -> int:
        return len(self._of)

    def put(self, receiver: Receiver, topic_filter: bytes, reached: Ids, *, keep: bool = False) -> None:
        """A new subscription has been given all that these workers have retained up to these records.

        A process that is not heard yet, and of which the index has something, has passed nothing.

        Args:
            keep: it is given that from now on, so a crash of ours must not take the fence away.
        """
        ahead = {worker: record for worker, record in reached.items() if record > self.passed.get(worker, record)}
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
        return [
            (topic_filter, {worker: self._lowered(worker, record) for worker, record in reached.items()})
            for topic_filter, reached in self._of.get(receiver, {}).items()
        ]

    def _put(self, receiver: Receiver, topic_filter: bytes, ahead: Ids) -> None:
        self._of.setdefault(receiver, {})[topic_filter] = ahead
        for worker, record in ahead.items():
            self._stand(worker, record, receiver, topic_filter)

    def take_down(self, receiver: Receiver, topic_filter: bytes) -> None:
        """A subscription is not what it was: whatever comes is for it, or it has ended."""
        filters = self._of.get(receiver)
        if filters is not None and filters.pop(topic_filter, None) is not None and not filters:
            del self._of[receiver]

    def forget(self, receiver: Receiver) -> None:
        """A receiver has no subscriptions any more."""
        self._of.pop(receiver, None)

    def brought(self, worker: int, record: int) -> None:
        """The link of a worker has brought all up to a record.

        Cost: O(log fences) for each that is passed, and some at a time: the others go when this is called again, as it
        is with every heartbeat. Nothing comes any more that is behind them.
        """
        if worker not in self.passed:
            return
        incarnation, before = self.passed[worker]
        if record > before:
            self.passed[worker] = incarnation, record
            self.waits.brought(worker)
        ahead = self._ahead.get(worker)
        passed = self.passed[worker]
        for _ in range(PASSED_MAX):
            if not ahead or ahead[0][0] > passed:
                break
            _, _, receiver, topic_filter = heappop(ahead)
            reached = self._of.get(receiver, {}).get(topic_filter, {})
            # Else it was taken down, or put up anew further ahead.
            if self._lowered(worker, reached.get(worker, NEVER)) <= passed:
                del reached[worker]
                if not reached:
                    self.take_down(receiver, topic_filter)
        if not ahead:
            self._ahead.pop(worker, None)
            if worker not in self._unlowered:
                self._highest.pop(worker, None)

    def came_early(self, worker: int, incarnation: int, record: int) -> None:
        """A retained message has come at QoS 0, which does not wait for its record."""
        self._early[worker] = incarnation, record

    def sure(self) -> Ids:
        """Return, for each worker with a link, up to which record nothing that it has retained can be lost any more."""
        written = self._written()
        return {
            worker: max(record, self._kept.get(worker, NOWHERE), written.get(worker, NOWHERE))
            for worker, record in self.passed.items()
        }

    def early(self) -> Ids:
        """Return, by worker, the newest message that has come ahead of its record, if it may be lost yet."""
        sure = self.sure() if self._early else {}
        return {worker: found for worker, found in self._early.items() if found > sure.get(worker, NEVER)}

    def when_sure(self, action: Callable[[], object]) -> None:
        """Call something once all that has come is in a log, but what is of a worker that brings nothing now."""
        self.when_passed({}, action)

    def when_passed(self, reached: Ids, action: Callable[[], object]) -> None:
        """Call something once links have brought all up to these records, too, but those that bring nothing now.

        `reached` is lowered where a worker gives numbers anew meanwhile.
        """
        self.waits.add(reached, self.early(), action)

    def is_new(self, worker: int, incarnation: int) -> bool:
        """Return whether a process of a worker has not said yet after which record of its log it began."""
        return incarnation > self._began.get(worker, 0)

    def began(self, worker: int, incarnation: int, after: int) -> None:
        """A new process of a worker gives the numbers behind this record anew.

        All fences count as lowered from here on. Where they stand is written down some at a time: see go_on().
        """
        self._began[worker] = incarnation
        if worker not in self.passed:
            return
        self.passed[worker] = lowered(self.passed[worker], incarnation, after)
        self._kept[worker] = incarnation, after
        self._early.pop(worker, None)
        ahead = self._ahead.pop(worker, None)
        if ahead or worker in self._unlowered:
            self._starts.setdefault(worker, []).append((incarnation, after))
            self._unlowered.setdefault(worker, []).extend(ahead or ())
            self._lower_some(worker)
        self.waits.began(worker, incarnation, after)

    @property
    def has_more(self) -> bool:
        """Whether go_on() is to be called, in a turn soon."""
        return bool(self._unlowered)

    def go_on(self) -> None:
        """Write down where some more fences stand, of a worker that has come with a new process."""
        self._lower_some(next(iter(self._unlowered)))

    def _lower_some(self, worker: int) -> None:
        unlowered, passed = self._unlowered[worker], self.passed[worker]
        for _ in range(min(LOWERED_MAX, len(unlowered))):
            before, _, receiver, topic_filter = unlowered.pop()
            reached = self._of.get(receiver, {}).get(topic_filter, {})
            if reached.get(worker) != before:
                continue  # it was taken down, or put up anew
            record = reached[worker] = self._lowered(worker, before)
            if record <= passed:
                del reached[worker]
                if not reached:
                    self.take_down(receiver, topic_filter)
            else:
                self._stand(worker, record, receiver, topic_filter)
            if record[1] < before[1]:
                # The numbers behind it say something else now, and another process may begin before ours ends.
                self._record(receiver, topic_filter, reached)
        if not unlowered:
            del self._unlowered[worker], self._starts[worker]

    def _lowered(self, worker: int, record: Id) -> Id:
        """Return where a fence stands by now."""
        for incarnation, after in self._starts.get(worker, ()):
            record = lowered(record, incarnation, after)
        return record

    def _stand(self, worker: int, record: Id, receiver: Receiver, topic_filter: bytes) -> None:
        self._count += 1
        ahead = self._ahead.setdefault(worker, [])
        heappush(ahead, (record, self._count, receiver, topic_filter))
        if len(ahead) > self._room.get(worker, ROOM_MIN):
            # Who comes and goes while the link stands still leaves nothing for good.
            ahead[:] = [
                (self._lowered(worker, filters[topic_filter][worker]), number, receiver, topic_filter)
                for number, (receiver, filters) in enumerate(self._of.items())
                for topic_filter in filters
                if worker in filters[topic_filter]
            ]
            heapify(ahead)
            self._room[worker] = max(ROOM_MIN, 2 * len(ahead))
        incarnation, number = self._highest.get(worker, NOWHERE)
        self._highest[worker] = max(incarnation, record[0]), max(number, record[1])

    def behind(
        self, worker: int, record: Id, topic_name: bytes, receivers: Iterable[Receiver], tree: Any
    ) -> list[Receiver]:
        """Return the receivers that a message of a worker's log is not for: it is older than what they were given.

        Args:
            record: its number, as the process has it that sent it.
            topic_name: its own.
            receivers: of all that it is for.
            tree: their subscriptions.

        Cost: O(receivers), and 15 µs for each that has such a fence.
        """
        found: list[Receiver] = []
        if not covers(self._highest.get(worker, NOWHERE), record):
            return found
        candidates = filters_of(topic_name) if topic_name.count(b"/") < LEVELS_MAX else None
        for receiver in receivers:
            filters = self._of.get(receiver)
            if filters is not None and all(
                topic_filter in filters
                and covers(self._lowered(worker, filters[topic_filter].get(worker, NOWHERE)), record)
                for topic_filter in _matching(receiver, topic_name, tree, candidates)
            ):
                found.append(receiver)
        return found


def _matching(receiver: Receiver, topic_name: bytes, tree: Any, candidates: list[bytes] | None) -> Iterator[bytes]:
    """Yield the topic filters by which a receiver is subscribed to a topic, but for shared subscriptions."""
    if candidates is not None:
        return (topic_filter for topic_filter in candidates if tree.options_of(receiver, topic_filter) >= 0)
    return (
        topic_filter
        for topic_filter, _, _ in tree.subscriptions_of(receiver)
        if not topic_filter.startswith(b"$share/") and matches(topic_filter, topic_name)
    )


def filters_of(topic_name: bytes) -> list[bytes]:
    """Return all topic filters that match a topic name: three for each power of two that its levels are, or fewer."""
    found: list[bytes] = []
    beginnings = [b""]
    for index, level in enumerate(topic_name.split(b"/")):
        # A leading wildcard does not reach into $SYS and friends [MQTT-4.7.2-1].
        is_literal = index == 0 and level.startswith(b"$")
        if not is_literal:
            found += [beginning + b"#" for beginning in beginnings]
        names = (level,) if is_literal else (level, b"+")
        beginnings = [b"%b%b/" % (beginning, name) for beginning in beginnings for name in names]
    found += [beginning[:-1] for beginning in beginnings]
    return found + [beginning + b"#" for beginning in beginnings]
