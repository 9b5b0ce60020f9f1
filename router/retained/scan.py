"""Reading what a topic filter matches of the retained messages, in slices, beside the threads that write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from router.core.message import Message
from router.retained.keys import KeyFilter, is_cut, key_of
from router.retained.link_waits import NOWHERE, Id, Ids, is_reached
from router.retained.values import decode, id_of, is_tombstone, name_in, origin_of, stamp_of

NEVER: Final[Id] = (1 << 64, 1 << 64)
STEPS_PER_MESSAGE: Final = 2  # topics that a slice looks at, for each message it may return
STEPS_MIN: Final = 16
SLICE_BYTES_MAX: Final = 1 << 20
TOPICS_PER_LEAF: Final = 8  # of LMDB's tree: half of what a page takes of short messages, and more than of long ones


class Index(Protocol):
    """What a scan needs of the index that it reads, router.retained.lmdb_index.RetainedIndex, which says it of each."""

    worker: int
    is_shared: bool
    reached: Callable[[], Ids]

    @property
    def has_changes(self) -> bool:
        """Whether change() may have something for any key."""

    @property
    def topics(self) -> Any:
        """The database of messages, for read()."""

    def look(self) -> int:
        """Take notice of what other workers have written, and return the highest stamp that is known of."""

    def written(self) -> Ids:
        """Return up to which record of each other worker's log LMDB has what was retained, as it was seen last."""

    def tables(self) -> list[tuple[dict[bytes, bytes], list[bytes], int]]:
        """Return what is not in LMDB yet, the older table first: values by key, the keys, how many of them count."""

    def change(self, key: bytes) -> bytes | None:
        """Return the value of a key that is not in LMDB yet, or is just being written."""

    def newest(self, key: bytes) -> bytes | None:
        """Return the value of a key, which may be a tombstone."""

    def newest_written(self, key: bytes) -> bytes | None:
        """Return the same, but for what other workers have forwarded ahead of its record."""

    def read(self, reading: Callable[[Any], Any]) -> Any:
        """Call something with a read transaction, and return what it returned."""

    def touched(self, pages: int) -> None:
        """Take notice, in what read() calls, that so many pages of messages were read."""

    def note_damage(self) -> None:
        """Take notice of a value that is damaged."""


class RetainedScan:
    """The messages that a topic filter matches, read in slices.

    What is not in LMDB yet when the scan begins comes first, in the order in which its topics were published; the
    others follow in the order of their topic names, level by level, bytewise. No topic comes twice. What has changed
    since the scan began is left out: it comes live to whoever subscribed before. So are expired messages.

    Made by RetainedIndex.scan().

    Attributes:
        done: there is nothing more.
        is_exact: the filter has no wildcard: one slice, of one look-up, is all.
        on_bound: called with up to which record of each other worker's log it gives what LMDB has: when it begins
            again, and at a look() that lets it give more.
        is_standing: it is for a subscription that was there before, and has what links have yet to bring live.
        early: by worker, the newest message that had come ahead of its record when the scan was made, for a new
            subscription: for what is up to there and was not sure at the last look() it gives what LMDB has, and what
            is behind it came live.
        sure: returns up to which record of other workers' logs nothing can be lost any more.
    """

    __slots__ = ("_bytes_left", "_early", "_filter", "_forwarded", "_from", "_index", "_newer", "_older",
                 "_own_stamp_us", "_position", "_reached", "_stamp_us", "_sure", "_tables", "_written", "done", "early",
                 "is_exact", "is_standing", "on_bound", "sure")  # fmt: skip

    def __init__(self, index: Index, topic_filter: bytes) -> None:
        self.done = self.is_standing = False
        self.on_bound: Callable[[Ids], None] = lambda reached: None
        self.early: Ids = {}
        self.sure: Callable[[], Ids] = dict
        self.is_exact = b"+" not in topic_filter and b"#" not in topic_filter
        self._index = index
        self._filter: KeyFilter | bytes = key_of(topic_filter) if self.is_exact else KeyFilter(topic_filter)
        self._own_stamp_us = index.look()  # what is newer has come live: of this worker
        self.begin()

    def begin(self, reached: Ids | None = None) -> None:
        """Begin now, nothing having been read: what other workers publish comes live from here on.

        That it does takes some time after a new subscription; what this worker publishes came live since the scan was
        made.

        Args:
            reached: up to where links have brought what other workers published; what is beyond has yet to come.
        """
        index = self._index
        self._stamp_us = index.look()
        self._sure = self.sure()
        self._reached = (index.reached() | self._sure if reached is None else reached) if index.is_shared else {}
        self._early = {
            worker: found for worker, found in self.early.items() if found > self._reached.get(worker, NEVER)
        }
        self._written = index.written() if index.is_shared else {}
        self.on_bound(self._written)
        self._tables = index.tables()  # those that are gone through yet
        self._older, self._newer, *self._forwarded = (changes for changes, _, _ in self._tables)
        self._position = 0  # in the first table
        self._from: bytes = b"" if isinstance(self._filter, bytes) else self._filter.first  # where to go on in LMDB
        self._bytes_left = 0  # of the slice that is being read

    @property
    def is_early(self) -> bool:
        """Whether something had come ahead of its record when the scan began."""
        return bool(self._early)

    def look(self) -> None:
        """Take notice of what cannot be lost any more, before anything is read: that is given, too."""
        if self._early:
            index = self._index
            index.look()
            self._sure, written = self.sure(), index.written()
            for worker, found in self._early.items():
                has = min(found, written.get(worker, NOWHERE))
                self._written[worker] = max(self._written.get(worker, NOWHERE), has)
            self.on_bound(self._written)

    def next_slice(
        self, limit: int, now_us: int = 0, now_ms: int = 0, bytes_max: int = SLICE_BYTES_MAX
    ) -> list[Message]:
        """Return the next messages, owned and new; `done` tells whether these were the last.

        There may be none although there are more: a slice also ends when it has looked at many topics in vain. Cost:
        2 to 3 µs for each message, 4 for each jump over topics that do not match.

        Args:
            limit: messages to return at most, 1 or more.
            now_us, now_ms: the same moment, since 1970 and monotonic.
            bytes_max: the slice ends with the message that reaches it.
        """
        found: list[Message] = []
        self._bytes_left = bytes_max
        if isinstance(self._filter, bytes):
            value = self._newest(self._filter)
            if value is not None and not is_tombstone(value):
                self._take(found, value, now_us, now_ms)
            self.done = True
            return found
        steps = self._read_tables(found, limit, max(limit * STEPS_PER_MESSAGE, STEPS_MIN), now_us, now_ms)
        if not self._tables and len(found) < limit and steps > 0 and self._bytes_left > 0:
            self._index.read(lambda transaction: self._read_leaves(transaction, found, limit, steps, now_us, now_ms))
        return found

    def _read_tables(self, found: list[Message], limit: int, steps: int, now_us: int, now_ms: int) -> int:
        """Go through the changes there were at the start; returns how many steps are left."""
        assert not isinstance(self._filter, bytes)
        while self._tables and len(found) < limit and steps > 0 and self._bytes_left > 0:
            changes, keys, length = self._tables[0]
            if self._position == length:
                del self._tables[0]
                self._position = 0
                continue
            key = keys[self._position]
            self._position += 1
            steps -= 1
            if changes is not self._tables[-1][0] and any(key in later for later, _, _ in self._tables[1:]):
                continue  # it comes with the others there, or has changed since
            name = key if not is_cut(key) else name_in(changes[key])
            if self._filter.target(name) is name:
                value = self._newest(key)
                if value is not None and not is_tombstone(value):
                    self._take(found, value, now_us, now_ms)
        return steps

    def _read_leaves(
        self, transaction: Any, found: list[Message], limit: int, steps: int, now_us: int, now_ms: int
    ) -> None:
        """Go on through LMDB, and give back pages of it."""
        cursor = transaction.cursor(db=self._index.topics)
        left = self._read_topics(cursor, found, limit, steps, now_us, now_ms)
        self._index.touched(1 + (steps - left) // TOPICS_PER_LEAF)

    def _read_topics(self, cursor: Any, found: list[Message], limit: int, steps: int, now_us: int, now_ms: int) -> int:
        """Read on with a cursor; returns how many steps are left."""
        assert not isinstance(self._filter, bytes)
        target_of = self._filter.target
        change_of, older, newer = self._index.change, self._older, self._newer
        forwarded = self._forwarded
        # Nothing is added to a table while a slice is read.
        all_written = not (older or newer or forwarded or self._index.has_changes)
        key_at, next_one, take = cursor.key, cursor.next, self._take
        more = cursor.set_range(self._from) if self._from else cursor.first()
        while more:
            key = key_at()
            if steps <= 0 or len(found) >= limit or self._bytes_left <= 0:
                self._from = key
                return steps
            steps -= 1
            name = key if not is_cut(key) else name_in(cursor.value())
            target = target_of(name)
            if target is name:
                if all_written or not (
                    key in older
                    or key in newer
                    or change_of(key) is not None
                    or any(key in changes for changes in forwarded)
                ):
                    take(found, cursor.value(), now_us, now_ms)
                more = next_one()
            elif name is not key:
                # Names that are cut to the same prefix are in no order: the next one may match.
                more = cursor.next()
            elif not target:
                break
            else:
                more = cursor.next()
                if more and cursor.key() < target:
                    more = cursor.set_range(target)
        self.done = True
        return steps

    def _take(self, found: list[Message], value: bytes, now_us: int, now_ms: int) -> None:
        """Append a message to what was found, unless it is newer than the scan, expired or damaged."""
        if not self._is_older(value):
            return
        message = decode(value, now_us, now_ms)
        if message is None:
            self._index.note_damage()
        elif not 0 < message.expires_at_ms < now_ms:
            found.append(message)
            self._bytes_left -= len(value)

    def is_current(self, message: Message) -> bool:
        """Return whether a message of a slice is its topic's still: what came after the scan began also came live."""
        index = self._index
        if index.look() == self._own_stamp_us:
            return True
        value = self._newest(key_of(message.topic_name))
        return value is not None and not is_tombstone(value) and self._is_older(value)

    def _newest(self, key: bytes) -> bytes | None:
        """Return the value of a key, but what came before the scan and may be lost."""
        value = self._index.newest(key)
        if (
            self._early
            and value is not None
            and self._is_early(value)
            and (id_of(value) > self._sure.get(origin_of(value), NEVER))
        ):
            return self._index.newest_written(key)
        return value

    def _is_early(self, value: bytes) -> bool:
        origin = origin_of(value)
        return origin in self._early and id_of(value) <= self._early[origin]

    def _is_older(self, value: bytes) -> bool:
        """Return whether a message was there before what came live to the subscriber."""
        origin = origin_of(value)
        if origin == self._index.worker:
            return bool(stamp_of(value) <= self._own_stamp_us)
        # By its record, too: the clocks of two workers are not that exact.
        return bool(stamp_of(value) <= self._stamp_us) and (
            is_reached(id_of(value), self._reached.get(origin, NEVER))
            or (
                # What LMDB gets after the last look is not fenced off: it comes live.
                self._is_early(value) and id_of(value) <= self._sure.get(origin, NEVER)
            )
        )
