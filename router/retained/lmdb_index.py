"""Retained messages on disk: the newest per topic name, in an LMDB environment whose truth is the commit log.

What a turn stores or clears is a *change*, kept in memory until the log has it durable and a thread has written it to
LMDB; nobody waits for either. Reading sees the changes first, then LMDB.

All workers of a node share the environment. What another one has stored is seen when it is in LMDB, or when it has come
over a link (forwarded()), whichever is first. With one worker nothing is looked at for that.
"""

from collections.abc import Callable
from typing import Any, Final

import lmdb

from router.core.message import Message
from router.retained.keys import key_of
from router.retained.link_waits import Ids
from router.retained.lmdb_environment import DAMAGE, RetainedEnvironment
from router.retained.pending_changes import PendingChanges
from router.retained.scan import RetainedScan
from router.retained.unapplied_remote import Forwarded
from router.retained.values import (
    DUE_MESSAGE,
    cleared,
    decode,
    due_key,
    encode,
    is_newer,
    is_tombstone,
    newest_of,
    size_of,
    stamp_of,
    tombstone,
)

MAP_SIZE: Final = 1 << 30
TOMBSTONE_S: Final = 3600
TOMBSTONES_MAX: Final = 1_000_000
RETRY_S: Final = 0.5
APPLY_CHANGES: Final = 8192  # of recovery, gathered before they are written
NOTHING: Final[Ids] = {}


class RetainedIndex(PendingChanges):
    """The retained message of every topic name that has one.

    One worker's Router calls it. Each of several workers has one of these. How changes get to LMDB, with `trouble`,
    `failure` and the counters of that, is of router.retained.pending_changes. now_us and now_ms are the same moment,
    since 1970 and monotonic; they tell when a message expires.

    Args:
        folder: of the LMDB environment; its parent must exist.
        worker, incarnation: whose records these are.
        workers: of the node, that use the folder at once.
        map_size: bytes of address space to begin with; grows by itself.
        tombstone_s: how long it is remembered that a topic was cleared, in case something older arrives.
        tombstones_max: of more than that the oldest are forgotten early.
        retry_s: how long to wait after an error of the disk before trying again.
        open_environment: returns the environment, which others may use at once.
        opening: node, logs, accept_loss of router.retained.lmdb_environment.RetainedEnvironment.

    Raises OSError if the folder cannot be used, SegmentError (of router.log.segments) if something is lost. A damaged
    one is set aside and made anew, and `report` says so.
    """

    def __init__(
        self,
        folder: str,
        *,
        worker: int = 0,
        workers: int = 1,
        incarnation: int = 0,
        map_size: int = MAP_SIZE,
        tombstone_s: int = TOMBSTONE_S,
        tombstones_max: int = TOMBSTONES_MAX,
        retry_s: float = RETRY_S,
        open_environment: Callable[..., RetainedEnvironment] = RetainedEnvironment,
        **opening: Any,
    ) -> None:
        environment = open_environment(folder, map_size, worker=worker, **opening)
        super().__init__(environment, worker, incarnation, tombstone_s, tombstones_max, retry_s)
        self.report = environment.report  # what was found damaged at the start, in one sentence
        self.damaged_values = 0  # passed over, because their check sum was wrong
        self.is_shared = workers > 1
        self._forwarded = Forwarded(worker)
        self.written, self.reached = self._forwarded.written, self._forwarded.reached
        self._forget_from_us = 0  # no tombstone goes before: a worker that recovers may have what it keeps out

    # For the Router -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Messages held, expired ones that are not purged yet included; without what other workers have not written."""
        self.look()
        with self._lock:
            # Less than none where another worker, too, has cleared what we are to clear.
            return max(self._count + self._back.count + self._front.count, 0)

    @property
    def size_bytes(self) -> int:
        """Topic, properties and payload bytes held; without what other workers have not written."""
        self.look()
        with self._lock:
            return max(self._size + self._back.size + self._front.size, 0)

    @property
    def is_damaged(self) -> bool:
        """Whether any worker has found the environment damaged: all are to end, and the first to start mends it."""
        return self._environment.is_marked_damaged()

    def look(self) -> int:
        """Take notice of what other workers have written, and return the highest stamp that is known of.

        What gets a higher one from then on wins over all that was in LMDB. Cost: nothing with one worker, else 1 µs,
        or 5 if they have written.
        """
        if self.is_shared:
            self.read(self._look)
        return self.last_stamp_us

    def _look(self, transaction: "lmdb.Transaction[bytes]") -> None:
        seen = self._forwarded.look(transaction, self._environment.meta)
        if seen is not None:
            with self._lock:
                self._count, self._size, stamp_us = seen
                self.last_stamp_us = max(self.last_stamp_us, stamp_us)

    def forwarded(self, message: Message, *, stamp_us: int, origin: int, incarnation: int, record: int,
                  sure: Ids = NOTHING) -> None:  # fmt: skip
        """Take notice of a retained message that has come from another worker, before any receiver here gets it.

        It is that worker who stores it, perhaps later; until then it is what readers here find. Messages of one origin
        come in the order of their numbers, but those of QoS 0 come ahead of them. More than 2 x 32,768 are not
        remembered: until they are in LMDB, a new subscriber gets what was there before.

        Args:
            message: owned; an empty payload clears its topic.
            stamp_us: its stamp, or any later time of its origin's clock.
            origin, incarnation, record: its id.
            sure: by worker, up to which record its log is synced, as which of its processes has it.
        """
        self.look()
        self.last_stamp_us = max(self.last_stamp_us, stamp_us)
        self._forwarded.add(message, stamp_us, origin, incarnation, record, sure)

    def began(self, origin: int, incarnation: int, after: int) -> None:
        """Forget what came from another worker and was lost with its process; the next one began after this record."""
        self.look()
        self._forwarded.began(origin, incarnation, after)

    def store(self, message: Message, *, stamp_us: int, record: int, now_ms: int = 0) -> bool:
        """Keep a message in place of its topic's older one; True if the topic had none [MQTT-3.3.1-5].

        What has an older stamp than the topic's message or tombstone is passed over. Never waits for a disk that
        writes; what it must read of LMDB may have to be read from the disk.

        Args:
            message: owned, its payload not empty.
            stamp_us: of the hybrid logical clock; the time of its record.
            record: number of its record in the log; they come in ascending order.
            now_ms: the monotonic time that stamp_us is, for the message's expiry.
        """
        value = encode(message, stamp_us, now_ms, record, self.worker, self.incarnation)
        return self._add(key_of(message.topic_name), value, record) == (True, False)

    def clear(self, topic_name: bytes, *, stamp_us: int, record: int) -> bool:
        """Forget a topic's message, and remember for a while that it was cleared; True if there was one."""
        key = key_of(topic_name)
        value = tombstone(key, stamp_us, record, self.worker, self.incarnation)
        return self._add(key, value, record) == (True, True)

    def apply(self, record: int, topic_name: bytes, message: Message | None, *, stamp_us: int, now_ms: int = 0) -> bool:
        """Store or clear (None) what a record of the log said, in recovery; True if it was not known yet.

        All records are durable then, so this waits for LMDB now and then, and its thread need not run.
        """
        if record <= self.applied:
            return False
        if message is None:
            self.clear(topic_name, stamp_us=stamp_us, record=record)
        else:
            self.store(message, stamp_us=stamp_us, record=record, now_ms=now_ms)
        if len(self._front.keys) >= APPLY_CHANGES:
            while self.commit(record):
                pass
        return True

    def message_of(self, topic_name: bytes, now_us: int = 0, now_ms: int = 0) -> Message | None:
        """Return a topic's message, a new object each time, or None."""
        value = self.newest(key_of(topic_name))
        if value is None or is_tombstone(value):
            return None
        found = decode(value, now_us, now_ms)
        if found is None:
            self.note_damage()
        return found

    def size_of(self, topic_name: bytes) -> int:
        """Return what a topic's message counts for in size_bytes; 0 if there is none."""
        value = self.newest(key_of(topic_name))
        return int(size_of(value)) if value is not None else 0

    def is_brought(self, key: bytes) -> bool:
        """Return whether another worker has forwarded a value of a key, and LMDB has it not."""
        self.look()
        return self._forwarded.get(key) is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing matches anything: there is no message, and none is on its way here from another worker."""
        return self.count == 0 and not self._forwarded.tables()

    def scan(self, topic_filter: bytes) -> RetainedScan:
        """Return what reads the messages that a topic filter matches. Raises ValueError if it is malformed."""
        return RetainedScan(self, topic_filter)

    def match(self, topic_filter: bytes, now_us: int = 0, now_ms: int = 0) -> list[Message]:
        """Return all that a scan would, at once."""
        scan = self.scan(topic_filter)
        found: list[Message] = []
        while not scan.done:
            found += scan.next_slice(1024, now_us, now_ms)
        return found

    def purge_expired(self, now_us: int, limit: int) -> int:
        """Remove messages that have expired, the earliest first, and return how many.

        Those that are not in LMDB yet come later. Also has the thread forget old tombstones. Of several workers the
        first one does this for all. Cost: what has expired.

        Args:
            limit: messages to look at, 1 or more.
        """
        if limit < 1:
            raise ValueError(f"limit is 1 or more, not {limit}")
        if self.is_shared:
            if self.worker:
                return 0
            self._forget_from_us = self._forget_from_us or now_us + self._tombstone_us
        # A message is expired when a whole millisecond has passed.
        end = due_key(DUE_MESSAGE, now_us - 999)
        expired: list[tuple[bytes, bytes]] = []

        def find(transaction: "lmdb.Transaction[bytes]") -> None:
            cursor = transaction.cursor(db=self._environment.due)
            more = cursor.first()
            for _ in range(limit):
                if not more or cursor.key() >= end:
                    break
                key = cursor.value()
                if self.change(key) is None:
                    value = transaction.get(key, None, self.topics)
                    assert value is not None, key
                    expired.append((key, value))
                more = cursor.next()
            self.touched(len(expired))

        self.read(find)
        removed = sum(self._add(key, cleared(key, value))[0] for key, value in expired)
        if now_us >= self._forget_from_us:
            with self._lock:
                self._forget_before_us = max(self._forget_before_us, now_us - self._tombstone_us)
                self._wake.notify_all()
        return removed

    # What there is --------------------------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether change() may have something for any key."""
        # In this order, as in change().
        return bool(self._front.changes) or bool(self._back.changes) or self.is_shared

    def change(self, key: bytes) -> bytes | None:
        """Return the value of a key that is not in LMDB yet, or is just being written."""
        change = self._own_change(key)
        return newest_of(change, self._forwarded.get(key)) if self.is_shared else change

    def _own_change(self, key: bytes) -> bytes | None:
        # In this order: the thread makes the front table the back one.
        return self._front.changes.get(key) or self._back.changes.get(key)

    def newest(self, key: bytes) -> bytes | None:
        """Return the value of a key, which may be a tombstone."""
        return self._newest(key, self._forwarded.get)

    def newest_written(self, key: bytes) -> bytes | None:
        """Return the same, but for what other workers have forwarded ahead of its record."""
        return self._newest(key, self._forwarded.sure)

    def _newest(self, key: bytes, forwarded: Callable[[bytes], bytes | None]) -> bytes | None:
        change = self._own_change(key)
        if change is not None and not self.is_shared:
            return change
        environment = self._environment
        # Not through read(): this is once for every retained PUBLISH.
        with environment.lock:
            transaction = environment.read()
            try:
                if self.is_shared:
                    # What another worker has written is judged by the stamp that it has there, not by when it came.
                    self._look(transaction)
                found = environment.value_of(transaction, key)
                environment.touched(1)
            except DAMAGE:
                environment.mark_damaged()
                raise
            finally:
                transaction.abort()
        newest: bytes | None = newest_of(found, change)
        return newest_of(newest, forwarded(key)) if self.is_shared else newest

    @property
    def topics(self) -> Any:
        """The database of messages, for read()."""
        return self._environment.topics

    def note_damage(self) -> None:
        """Take notice of a value that is damaged, so that the next start makes the index anew."""
        self.damaged_values += 1
        self._environment.mark_damaged()

    def touched(self, pages: int) -> None:
        """Take notice, in what read() calls, that so many pages of messages were read."""
        self._environment.touched(pages)

    def tables(self) -> list[tuple[dict[bytes, bytes], list[bytes], int]]:
        """Return what is not in LMDB yet, the older table first: values by key, the keys, how many of them count.

        Behind them what other workers have forwarded, if there is anything.

        More keys may follow, and values be replaced by newer ones; none goes.
        """
        with self._lock:
            own = [(table.changes, table.keys, len(table.keys)) for table in (self._back, self._front)]
        return own + self._forwarded.tables()

    def _add(self, key: bytes, value: bytes, record: int = 0) -> tuple[bool, bool]:
        """Add a change; returns whether it counts, and whether there was a message before.

        Args:
            record: its number in our log; 0 for what follows from the message that is there, and has its stamp.
        """
        older = self.newest(key)
        had_message = older is not None and not is_tombstone(older)
        # What follows from a message gives way to what has come since that was read.
        counts = (older is None or is_newer(value, older)) if record else bool(older and not is_newer(older, value))
        with self._lock:
            front = self._front
            if record:
                front.last, front.incarnation = record, self.incarnation
                self.last_stamp_us = max(self.last_stamp_us, stamp_of(value))
            if counts:
                if key not in front.changes:
                    front.keys.append(key)
                front.changes[key] = value
                front.count += (not is_tombstone(value)) - had_message
                front.size += size_of(value) - (size_of(older) if had_message else 0)
        return counts, had_message
