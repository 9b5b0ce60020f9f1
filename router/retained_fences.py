"""Up to where new subscribers have been given what other workers retain, so that nothing older comes behind it.

The index of retained messages may have what a link has yet to bring: the worker was stopped, or the link is busy. Who
subscribes then is given the newest message of a topic, and what the link brings of the time before was published before
the subscription: it goes to those who subscribed earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.topics import matches

if TYPE_CHECKING:
    from router.receiver import Receiver

Reached = dict[int, int]  # worker -> number of a record of its log


class Fences:
    """Of the subscriptions that are younger than what some link has yet to bring.

    Attributes:
        passed: worker -> up to which record of its log its link has brought whatever is wanted here. Only these have a
            link.
    """

    def __init__(self) -> None:
        self.passed: Reached = {}
        self._of: dict[Receiver, dict[bytes, Reached]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def put(self, receiver: Receiver, topic_filter: bytes, reached: Reached) -> None:
        """A new subscription has been given all that these workers have retained up to these records."""
        ahead = {worker: record for worker, record in reached.items() if record > self.passed.get(worker, record)}
        if ahead:
            self._of.setdefault(receiver, {})[topic_filter] = ahead
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
        """The link of a worker has brought all up to a record."""
        if record <= self.passed.get(worker, record):
            return
        self.passed[worker] = record
        self._limit(worker, record, lambda reached: 0 if reached <= record else reached)

    def began(self, worker: int, after: int) -> None:
        """A worker gives the numbers behind this record anew."""
        if worker in self.passed:
            self.passed[worker] = min(self.passed[worker], after)
            self._limit(worker, after, lambda reached: min(reached, after))

    def _limit(self, worker: int, record: int, change: Any) -> None:
        for receiver, filters in list(self._of.items()):
            for topic_filter, reached in list(filters.items()):
                if worker in reached:
                    reached[worker] = change(reached[worker])
                    if not reached[worker]:
                        del reached[worker]
                if not reached:
                    del filters[topic_filter]
            if not filters:
                del self._of[receiver]

    def behind(self, worker: int, record: int, topic_name: bytes, tree: Any) -> list[Receiver]:
        """Return the receivers that a message of a worker's log is not for: it is older than what they were given."""
        found: list[Receiver] = []
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
