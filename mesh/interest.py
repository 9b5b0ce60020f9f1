"""What the receivers of one router want, summed up for its peers: by topic filter, not by client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from router.matching.topic_names import is_sys

if TYPE_CHECKING:
    from router.core.receiver import Receiver

LINGER_MS: Final = 5000  # how long peers go on sending what nobody wants any more
TAKEN_MAX: Final = 1000  # filters that are told of at a time: some 1.5 ms
SHARED: Final = b"$share/"
REPLAY: Final = b"$replay/"
QOS: Final = 0x03  # of subscription options
NONE: Final = -1
NOBODY: Final = [0] * 7  # what is counted of a filter that nobody wants


class Wish(NamedTuple):
    """How a topic filter is wanted by a router.

    Attributes:
        qos: the highest that a receiver was granted.
        durable: a session wants it at QoS 1 or 2 that outlives its connection.
        online: of a shared subscription, its members that have a connection; else 0.
    """

    qos: int
    durable: bool
    online: int


class Interest:
    """Counts what is wanted here, and collects what has changed of it for peers.

    A filter that nobody wants any more is told so only after LINGER_MS: a client that comes back at once costs nothing,
    and messages under way are not refused. A shared subscription does not linger: a router that is picked and has no
    member left would take messages from the members elsewhere.

    Attributes:
        version: of what take() has told of; rises by one with each.
        changed: filters about which take() may have something to tell, in the order in which they changed first;
            always the same dict.
        taken: how many of these take() has looked at.
    """

    def __init__(self) -> None:
        self.version = self.taken = 0
        # Topic filter -> how many want it with [QoS 0, 1, 2 while connected, QoS 0, 1, 2 for longer], members online.
        self._counts: dict[bytes, list[int]] = {}
        self._told: dict[bytes, Wish] = {}
        self.changed: dict[bytes, None] = {}
        self._lingering: dict[bytes, int] = {}  # filter -> monotonic ms at which it is let go of

    def changes(self, topic_filter: bytes, receiver: Receiver, before: int, after: int) -> None:
        """A receiver's subscription options for a filter have changed; -1 is no subscription."""
        self._count(topic_filter, receiver.durable, receiver.is_online, before, after)

    def durability_changes(self, receiver: Receiver, subscriptions: Iterable[tuple[bytes, int, int]]) -> None:
        """A session that was durable will not be, or the other way round; these are its subscriptions."""
        before, after = (3, 0) if receiver.durable else (0, 3)
        for topic_filter, options, _ in subscriptions:
            counts = self._counts.get(topic_filter)
            if counts is not None:  # else each router answers for it itself
                qos = options & QOS
                counts[before + qos] -= 1
                counts[after + qos] += 1
                assert counts[before + qos] >= 0, (topic_filter, counts)
                self.changed[topic_filter] = None

    def ends(self, receiver: Receiver, subscriptions: Iterable[tuple[bytes, int, int]]) -> None:
        """A receiver leaves with all its subscriptions."""
        at = 3 if receiver.durable else 0
        online = receiver.is_online
        for topic_filter, options, _ in subscriptions:
            counts = self._counts.get(topic_filter)
            if counts is not None:
                counts[at + (options & QOS)] -= 1
                if online and topic_filter.startswith(SHARED):
                    counts[6] -= 1
                assert counts[at + (options & QOS)] >= 0, (topic_filter, counts)
                if counts == NOBODY:
                    del self._counts[topic_filter]
                self.changed[topic_filter] = None

    def ended(self, topic_filter: bytes, options: int, durable: bool) -> None:
        """One subscription of a receiver that has left has ended, not a shared one."""
        counts = self._counts.get(topic_filter)
        if counts is not None:
            at = (3 if durable else 0) + (options & QOS)
            counts[at] -= 1
            assert counts[at] >= 0, (topic_filter, counts)
            if counts == NOBODY:
                del self._counts[topic_filter]
            self.changed[topic_filter] = None

    def connection_changes(self, online: bool, subscriptions: Iterable[tuple[bytes, int, int]]) -> None:
        """A session has got a connection or lost it; these are its shared subscriptions, or more."""
        for topic_filter, _, _ in subscriptions:
            counts = self._counts.get(topic_filter) if topic_filter.startswith(SHARED) else None
            if counts is not None:
                counts[6] += 1 if online else -1
                self.changed[topic_filter] = None

    def _count(self, topic_filter: bytes, durable: bool, online: bool, before: int, after: int) -> None:
        if topic_filter.startswith(REPLAY) or is_sys(topic_filter):
            return  # each router answers for these itself
        counts = self._counts.get(topic_filter)
        if counts is None:
            counts = self._counts[topic_filter] = NOBODY.copy()
        at = 3 if durable else 0
        shared = topic_filter.startswith(SHARED)
        if before != NONE:
            counts[at + (before & QOS)] -= 1
            counts[6] -= shared and online
        if after != NONE:
            counts[at + (after & QOS)] += 1
            counts[6] += shared and online
        assert min(counts) >= 0, (topic_filter, counts)
        if counts == NOBODY:
            del self._counts[topic_filter]
        self.changed[topic_filter] = None

    def wish(self, topic_filter: bytes) -> Wish | None:
        """Return how a filter is wanted now, None if no receiver wants it."""
        counts = self._counts.get(topic_filter)
        if counts is None:
            return None
        _, one, two, _, one_kept, two_kept, online = counts
        return Wish(2 if two or two_kept else 1 if one or one_kept else 0, bool(one_kept or two_kept), online)

    def take(self, now_ms: int) -> list[tuple[bytes, Wish | None]]:
        """Return what has changed, None for a filter that is wanted no more; `version` rises if there is anything.

        Of TAKEN_MAX filters at a time, at a microsecond for each: as long as it is due() there is more. What had
        changed when an offset() was asked for has been told when `taken` is there.
        """
        found: list[tuple[bytes, Wish | None]] = []
        some = list(islice(self.changed, TAKEN_MAX))
        for topic_filter in some:
            del self.changed[topic_filter]
            wish = self.wish(topic_filter)
            told = self._told.get(topic_filter)
            if wish is not None:
                self._lingering.pop(topic_filter, None)
                if wish != told:
                    self._told[topic_filter] = wish
                    found.append((topic_filter, wish))
            elif told is not None and topic_filter.startswith(SHARED):
                del self._told[topic_filter]
                found.append((topic_filter, None))
            elif told is not None:
                self._lingering.setdefault(topic_filter, now_ms + LINGER_MS)
        self.taken += len(some)
        if not self.changed:
            self.changed.clear()  # gives back the room of what was deleted
        # In the order of their times, and none that is wanted again.
        for topic_filter, until_ms in (
            () if self.changed else list(islice(self._lingering.items(), TAKEN_MAX - len(some)))
        ):
            if until_ms > now_ms:
                break
            del self._lingering[topic_filter], self._told[topic_filter]
            found.append((topic_filter, None))
        if found:
            self.version += 1
        return found

    def offset(self) -> int:
        """Return how far `taken` will have come when all that has changed so far has been told."""
        return self.taken + len(self.changed)

    def due(self, now_ms: int) -> bool:
        """Return whether take() would find anything."""
        if self.changed:
            return True
        first = next(iter(self._lingering.values()), None)
        return first is not None and first <= now_ms

    def told(self) -> Iterator[tuple[bytes, Wish]]:
        """Yield everything that `version` stands for; nothing may change meanwhile."""
        yield from self._told.items()

    def __len__(self) -> int:
        """Number of filters that peers have been told of."""
        return len(self._told)
