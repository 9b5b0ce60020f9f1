"""Retained messages on disk: the newest per topic name, in an LMDB environment whose truth is the commit log.

What a turn stores or clears is a *change*, kept in memory until the log has it durable and a thread has written it to
LMDB; nobody waits for either. Reading sees the changes first, then LMDB.

Changes gather in one table while the table before it is written. A table is written when all its records are durable,
and with its last piece LMDB learns up to which record it has seen the log, so what a crash takes is applied again from
there. Applying a record twice changes nothing: the newest stamp wins.
"""

import struct
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import lmdb
from router.cursor import Cursor
from router.message import Message
from router.records import RecordBuffer

from router.retained_environment import APPLIED, APPLIED_KEY, DAMAGE, TOTALS, TOTALS_KEY, RetainedEnvironment, totals
from router.retained_keys import KEY_BYTES_MAX, KeyFilter, is_cut, key_of

MAP_SIZE: Final = 1 << 30
TOMBSTONE_S: Final = 3600
TOMBSTONES_MAX: Final = 1_000_000
RETRY_S: Final = 0.5
PIECE_CHANGES: Final = 4096  # written and synced at a time: what LMDB keeps in memory for them stays small
BREATH_CHANGES: Final = 48  # of the thread between two pauses: about half a millisecond
BREATH_S: Final = 0.0002
FORGET_MAX: Final = 256  # tombstones removed along with a piece
APPLY_CHANGES: Final = 8192  # of recovery, gathered before they are written
STEPS_PER_MESSAGE: Final = 4  # keys that a slice looks at, for each message it may return
STEPS_MIN: Final = 256

# A value is one whole `accepted` record, its mark 0, and behind it origin and incarnation: its id is theirs and n.
_TRAILER: Final = struct.Struct("<II")
_STAMP_AND_NUMBER: Final = struct.Struct("<qBQ")  # at _STAMP_AT: time, kind, n
_STAMP_AT: Final = 16
_FLAGS_AT: Final = 43
_EXPIRES_AT: Final = 44
_EXPIRES: Final = struct.Struct("<q")
_FLAG_EXPIRES: Final = 8
_EXPIRES_BYTES: Final = 12
_FIXED_BYTES: Final = 25 + 19 + _TRAILER.size
_TOMBSTONE: Final = struct.Struct("<qIIQ")  # stamp, origin, incarnation, record
_DUE: Final = struct.Struct(">Bq")  # what is due, and when; sorted by both
_DUE_MESSAGE: Final = 0
_DUE_TOMBSTONE: Final = 1


class _Change(NamedTuple):
    """What has become of a topic's message."""

    stamp_us: int
    origin: int
    incarnation: int
    record: int
    value: bytes | None  # None: it is cleared


class _Table:
    """Changes that are written together, the newest per topic."""

    __slots__ = ("changes", "count", "keys", "last", "size", "written")

    def __init__(self) -> None:
        self.changes: dict[bytes, _Change] = {}
        self.keys: list[bytes] = []  # of changes, in the order in which they came first
        self.count = 0  # by how much they change the number of messages
        self.size = 0  # and their size in bytes
        self.last = 0  # number of the newest record that is in here, or was passed over; 0: none
        self.written = 0  # so many of keys are in LMDB already

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that LMDB is to learn."""
        return not self.keys and not self.last


def _size_of(value: Any) -> int:
    """Return what a message counts for in size_bytes: topic name, properties and payload."""
    return len(value) - _FIXED_BYTES - (_EXPIRES_BYTES if value[_FLAGS_AT] & _FLAG_EXPIRES else 0)


def _due(value: Any) -> bytes | None:
    """Return the key in `due` of a message that expires."""
    if not value[_FLAGS_AT] & _FLAG_EXPIRES:
        return None
    return _DUE.pack(_DUE_MESSAGE, *_EXPIRES.unpack_from(value, _EXPIRES_AT))


def _message_of(value: bytes, now_us: int, now_ms: int) -> Message | None:
    """Return the message in a value; None if its check sum is wrong."""
    _, _, number = _STAMP_AND_NUMBER.unpack_from(value, _STAMP_AT)
    cursor = Cursor(value, 0, 0, number - 1)
    return cursor.message(now_us, now_ms) if cursor.step() else None


class Retained(NamedTuple):
    """A retained message as a scan returns it, and the record that it came with."""

    message: Message
    record: int
    incarnation: int
    origin: int


class RetainedIndex:
    """The retained message of every topic name that has one.

    One worker's Router calls it, and one thread of its own, or commit(), writes. now_us and now_ms are the same
    moment, since 1970 and monotonic; they tell when a message expires.

    Args:
        folder: of the LMDB environment; its parent must exist.
        worker, incarnation: whose records these are.
        map_size: bytes of address space to begin with; grows by itself.
        tombstone_s: how long it is remembered that a topic was cleared, in case something older arrives.
        tombstones_max: of more than that the oldest are forgotten early.
        retry_s: how long to wait after an error of the disk before trying again.

    Raises OSError if the folder cannot be used. A damaged one is set aside, and `report` says so.
    """

    def __init__(
        self,
        folder: str,
        *,
        worker: int = 0,
        incarnation: int = 0,
        map_size: int = MAP_SIZE,
        tombstone_s: int = TOMBSTONE_S,
        tombstones_max: int = TOMBSTONES_MAX,
        retry_s: float = RETRY_S,
    ) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.tombstones_max = tombstones_max
        self.retry_s = retry_s
        self.on_trouble: Callable[[], None] = lambda: None  # from the thread, when `trouble` has changed; only to wake
        self.trouble: str | None = None  # what the disk said last; None while all is well
        self.failure: BaseException | None = None  # what ended the thread before it was closed: a bug of ours
        self.commits = 0  # transactions, each with one sync
        self.errors = 0
        self.damaged_values = 0  # passed over, because their check sum was wrong
        self._tombstone_us = tombstone_s * 1_000_000
        self._environment = RetainedEnvironment(folder, map_size)
        self.report = self._environment.report  # what was found damaged at the start, in one sentence
        self._applied_key = APPLIED_KEY + worker.to_bytes(4, "big")
        with self._environment.lock:
            transaction = self._environment.read()
            applied = transaction.get(self._applied_key, db=self._environment.meta)
            self._count, self._size, self.last_stamp_us = totals(transaction, self._environment.meta)
            transaction.abort()
        self.applied: int = APPLIED.unpack(applied)[0] if applied is not None else 0  # in LMDB up to this record
        self._durable = 0
        self._forget_before_us = 0  # tombstones with an older stamp are to go; 0: nobody has asked
        self._back = _Table()  # being written; nothing is added to it
        self._front = _Table()
        self._lock = threading.Lock()  # around the two tables changing places, and what belongs to them
        self._wake = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # For the Router -------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Messages held, expired ones that are not purged yet included."""
        with self._lock:
            return self._count + self._back.count + self._front.count

    @property
    def size_bytes(self) -> int:
        """Topic, properties and payload bytes held."""
        with self._lock:
            return self._size + self._back.size + self._front.size

    @property
    def pending(self) -> int:
        """Changes that are not in LMDB yet."""
        with self._lock:
            return len(self._back.keys) - self._back.written + len(self._front.keys)

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
        buffer = RecordBuffer(record - 1)
        buffer.add_accepted(stamp_us, record, message, now_ms=now_ms)
        buffer.stamp(0)
        value = bytes(buffer) + _TRAILER.pack(self.worker, self.incarnation)
        change = _Change(stamp_us, self.worker, self.incarnation, record, value)
        return self._add(key_of(message.topic_name), change) == (True, False)

    def clear(self, topic_name: bytes, *, stamp_us: int, record: int) -> bool:
        """Forget a topic's message, and remember for a while that it was cleared; True if there was one."""
        change = _Change(stamp_us, self.worker, self.incarnation, record, None)
        return self._add(key_of(topic_name), change) == (True, True)

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

    def rewind(self, last_number: int) -> None:
        """Tell, once and before anything else, how far the log goes. Raises OSError.

        Where a loss of power has taken records that were applied already (durability `os`), their numbers are given
        again; what gets them must not be taken for applied. Waits for LMDB then.
        """
        if self.applied <= last_number:
            return
        try:
            with self._environment.write() as transaction:
                transaction.put(self._applied_key, APPLIED.pack(last_number), db=self._environment.meta)
        except lmdb.Error as error:
            raise OSError(error.code, str(error)) from error
        self.applied = last_number

    def message_of(self, topic_name: bytes, now_us: int = 0, now_ms: int = 0) -> Message | None:
        """Return a topic's message, a new object each time, or None."""
        value = self._value(key_of(topic_name))
        return _message_of(value, now_us, now_ms) if value is not None else None

    def size_of(self, topic_name: bytes) -> int:
        """Return what a topic's message counts for in size_bytes; 0 if there is none."""
        return max(self._state(key_of(topic_name))[2], 0)

    def scan(self, topic_filter: bytes) -> "RetainedScan":
        """Return what reads the messages that a topic filter matches. Raises ValueError if it is malformed."""
        return RetainedScan(self, topic_filter)

    def match(self, topic_filter: bytes, now_us: int = 0, now_ms: int = 0) -> list[Message]:
        """Return all that a scan would, at once."""
        scan = self.scan(topic_filter)
        found: list[Message] = []
        while not scan.done:
            found += [retained.message for retained in scan.next_slice(1024, now_us, now_ms)]
        return found

    def purge_expired(self, now_us: int, limit: int) -> int:
        """Remove messages that have expired, the earliest first, and return how many.

        Those that are not in LMDB yet come later. Also has the thread forget old tombstones. Cost: what has expired.

        Args:
            limit: messages to look at, 1 or more.
        """
        if limit < 1:
            raise ValueError(f"limit is 1 or more, not {limit}")
        # A message is expired when a whole millisecond has passed.
        end = _DUE.pack(_DUE_MESSAGE, max(now_us - 999, 0))
        expired: list[tuple[bytes, _Change]] = []
        environment = self._environment
        with environment.lock:
            transaction = environment.read(buffers=True)
            cursor = transaction.cursor(db=environment.due)
            more = cursor.first()
            while more and limit > 0 and bytes(cursor.key()) < end:
                limit -= 1
                key = bytes(cursor.value())
                if self._change(key) is None:
                    value = transaction.get(key, db=environment.topics)
                    assert value is not None, key
                    stamp_us, _, number = _STAMP_AND_NUMBER.unpack_from(value, _STAMP_AT)
                    origin, incarnation = _TRAILER.unpack_from(value, len(value) - _TRAILER.size)
                    expired.append((key, _Change(stamp_us, origin, incarnation, number, None)))
                more = cursor.next()
            value = None
            transaction.abort()
        for key, change in expired:
            self._add(key, change, logged=False)
        with self._lock:
            self._forget_before_us = max(self._forget_before_us, now_us - self._tombstone_us)
            self._wake.notify_all()
        return len(expired)

    # What there is --------------------------------------------------------------------------------------------------

    def _change(self, key: bytes) -> _Change | None:
        """Return the change that is not in LMDB yet, or is just being written."""
        # In this order: the thread makes the front table the back one.
        return self._front.changes.get(key) or self._back.changes.get(key)

    def _state(self, key: bytes) -> tuple[int, int, int]:
        """Return stamp, origin and size of a topic's message; size -1 of a tombstone; (-1, 0, -1) of nothing."""
        change = self._change(key)
        if change is not None:
            return change.stamp_us, change.origin, _size_of(change.value) if change.value is not None else -1
        environment = self._environment
        with environment.lock:
            transaction = environment.read(buffers=True)
            try:
                value = transaction.get(key, db=environment.topics)
                if value is not None:
                    origin, _ = _TRAILER.unpack_from(value, len(value) - _TRAILER.size)
                    return _STAMP_AND_NUMBER.unpack_from(value, _STAMP_AT)[0], origin, _size_of(value)
                value = transaction.get(key, db=environment.tombstones)
                if value is not None:
                    stamp_us, origin, _, _ = _TOMBSTONE.unpack(value)
                    return stamp_us, origin, -1
                return -1, 0, -1
            except DAMAGE:
                environment.mark_damaged()
                raise
            finally:
                value = None
                transaction.abort()

    def _value(self, key: bytes) -> bytes | None:
        change = self._change(key)
        if change is not None:
            return change.value
        environment = self._environment
        with environment.lock:
            transaction = environment.read()
            try:
                found: bytes | None = transaction.get(key, db=environment.topics)
            except DAMAGE:
                environment.mark_damaged()
                raise
            finally:
                transaction.abort()
        return found

    def _add(self, key: bytes, change: _Change, logged: bool = True) -> tuple[bool, bool]:
        """Add a change; returns whether it was newer, and whether there was a message before."""
        stamp_us, origin, size = self._state(key)
        is_newer = not logged or (change.stamp_us, change.origin) > (stamp_us, origin)
        with self._lock:
            front = self._front
            if logged:
                front.last = change.record
                self.last_stamp_us = max(self.last_stamp_us, change.stamp_us)
            if is_newer:
                if key not in front.changes:
                    front.keys.append(key)
                front.changes[key] = change
                front.count += (change.value is not None) - (size >= 0)
                front.size += (_size_of(change.value) if change.value is not None else 0) - max(size, 0)
        return is_newer, size >= 0

    # The thread -----------------------------------------------------------------------------------------------------

    def durable(self, number: int) -> None:
        """Tell up to which record the log is durable; from any thread."""
        with self._lock:
            self._durable = max(self._durable, number)
            if self._has_work():
                self._wake.notify_all()

    def start(self) -> None:
        """Start the thread. Without it, commit() does its work, for those who want to see every step."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="retained", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float | None = None) -> bool:
        """Write what is durable, end the thread, close the environment; returns whether nothing is left in memory.

        A disk that refuses is tried once more, not waited for.
        """
        self._closing.set()
        with self._lock:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        while self.commit(self._durable):
            pass
        self._environment.close()
        return self.pending == 0

    def _has_work(self) -> bool:
        if self._closing.is_set() or self._forget_before_us:
            return True
        return not self._front.is_empty if self._back.is_empty else self._back.last <= self._durable

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    self._wake.wait_for(self._has_work)
                if self._closing.is_set():
                    return
                self.commit(self._durable, self._breathe)
                if self.trouble is not None:
                    self._closing.wait(self.retry_s)
        except BaseException as failure:
            self.failure = failure
            self.on_trouble()

    def _breathe(self) -> None:
        """Let the reactor have the interpreter: LMDB's calls are too short for it to get hold of it in between."""
        self._closing.wait(BREATH_S)

    def commit(self, durable: int, breathe: Callable[[], None] = lambda: None) -> bool:
        """Write a piece of what is durable, and sync it. Returns False if there was nothing to do, or it failed.

        Raises nothing that a disk can cause: `trouble` says what it was, and the next call tries again.
        """
        with self._lock:
            if self._back.is_empty and not self._front.is_empty:
                self._back, self._front = self._front, self._back
            table = self._back
            forget_before_us, self._forget_before_us = self._forget_before_us, 0
        ready = not table.is_empty and table.last <= durable
        try:
            if not ready and not self._anything_due(forget_before_us):
                return False
            self._write_piece(table if ready else _Table(), forget_before_us, breathe)
        except lmdb.MapFullError:
            return self._attempt(self._environment.grow)
        except (lmdb.Error, OSError) as error:
            self._note(error)
            if isinstance(error, (lmdb.PanicError, lmdb.BadTxnError)):
                self._attempt(self._environment.reopen)
            return False
        self.commits += 1
        if self.trouble is not None:
            self.trouble = None
            self.on_trouble()
        return True

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except (lmdb.Error, OSError) as error:
            self._note(error)
            return False
        return True

    def _note(self, error: Exception) -> None:
        self.errors += 1
        self.trouble = f"retained messages: {error}"
        self.on_trouble()

    def _write_piece(self, table: _Table, forget_before_us: int, breathe: Callable[[], None]) -> None:
        """Write the next piece of a table, and forget some tombstones, in one transaction."""
        environment = self._environment
        end = min(table.written + PIECE_CHANGES, len(table.keys))
        is_last = end == len(table.keys)
        with environment.write() as transaction:
            count, size, stamp_us = totals(transaction, environment.meta)
            count_before, size_before = count, size
            for position in range(table.written, end):
                if position % BREATH_CHANGES == 0:
                    breathe()
                key = table.keys[position]
                more, larger = self._write_change(transaction, key, table.changes[key])
                count += more
                size += larger
            self._forget(transaction, forget_before_us)
            stamp_us = max(stamp_us, self.last_stamp_us)
            transaction.put(TOTALS_KEY, TOTALS.pack(count, size, stamp_us), db=environment.meta)
            if is_last and table.last:
                transaction.put(self._applied_key, APPLIED.pack(table.last), db=environment.meta)
        with self._lock:
            self._count, self._size = count, size
            table.written = end
            table.count -= count - count_before
            table.size -= size - size_before
            if is_last and table is self._back:
                self.applied = max(self.applied, table.last)
                self._back = _Table()

    def _write_change(self, transaction: "lmdb.Transaction[Any]", key: bytes, change: _Change) -> tuple[int, int]:
        """Put a change into a transaction, unless there is a newer one; returns what it changes in count and size."""
        environment = self._environment
        count = size = 0
        older = transaction.get(key, db=environment.topics)
        if older is not None:
            stamp_us = _STAMP_AND_NUMBER.unpack_from(older, _STAMP_AT)[0]
            origin = _TRAILER.unpack_from(older, len(older) - _TRAILER.size)[0]
            if (change.stamp_us, change.origin) < (stamp_us, origin):
                return 0, 0
            count, size = -1, -_size_of(older)
            due = _due(older)
            if due is not None:
                transaction.delete(due, key, db=environment.due)
        else:
            older = transaction.get(key, db=environment.tombstones)
            if older is not None:
                stamp_us, origin, _, _ = _TOMBSTONE.unpack(older)
                if (change.stamp_us, change.origin) < (stamp_us, origin):
                    return 0, 0
                transaction.delete(_DUE.pack(_DUE_TOMBSTONE, stamp_us), key, db=environment.due)
                transaction.delete(key, db=environment.tombstones)
        if change.value is not None:
            transaction.put(key, change.value, db=environment.topics)
            due = _due(change.value)
            if due is not None:
                transaction.put(due, key, db=environment.due)
            return count + 1, size + _size_of(change.value)
        if count:
            transaction.delete(key, db=environment.topics)
        if self._tombstone_us:
            transaction.put(key, _TOMBSTONE.pack(*change[:4]), db=environment.tombstones)
            transaction.put(_DUE.pack(_DUE_TOMBSTONE, change.stamp_us), key, db=environment.due)
        return count, size

    def _anything_due(self, forget_before_us: int) -> bool:
        """Return whether there is a tombstone to forget."""
        if not forget_before_us:
            return False
        environment = self._environment
        with environment.lock:
            transaction = environment.read()
            try:
                cursor = transaction.cursor(db=environment.due)
                return bool(
                    cursor.set_range(_DUE.pack(_DUE_TOMBSTONE, 0))
                    and (
                        cursor.key() < _DUE.pack(_DUE_TOMBSTONE, max(forget_before_us, 0))
                        or transaction.stat(environment.tombstones)["entries"] > self.tombstones_max
                    )
                )
            finally:
                transaction.abort()

    def _forget(self, transaction: "lmdb.Transaction[Any]", forget_before_us: int) -> None:
        """Remove up to FORGET_MAX tombstones that are old or too many."""
        environment = self._environment
        end = _DUE.pack(_DUE_TOMBSTONE, max(forget_before_us, 0))
        too_many = transaction.stat(environment.tombstones)["entries"] - self.tombstones_max
        cursor = transaction.cursor(db=environment.due)
        for _ in range(FORGET_MAX):
            if not cursor.set_range(_DUE.pack(_DUE_TOMBSTONE, 0)):
                break
            if bytes(cursor.key()) >= end and too_many <= 0:
                break
            transaction.delete(bytes(cursor.value()), db=environment.tombstones)
            cursor.delete()
            too_many -= 1


class RetainedScan:
    """The messages that a topic filter matches, read in slices as they were when the scan began or as they are then.

    What is not in LMDB yet when it begins comes first, in the order in which the topics were published; the others
    follow in the order of their topic names, level by level, bytewise. No topic comes twice. What has changed since
    the scan began is left out: it comes live to whoever subscribed before. Expired messages are left out too.

    Made by RetainedIndex.scan().
    """

    def __init__(self, index: RetainedIndex, topic_filter: bytes) -> None:
        self.done = False
        self._index = index
        self._filter = KeyFilter(topic_filter)
        self._stamp_us = index.last_stamp_us
        with index._lock:
            self._back = index._back
            self._front = index._front
            self._lengths = [len(self._back.keys), len(self._front.keys)]
        self._position = 0
        self._from = self._filter.first  # where to go on in LMDB
        self._behind = False  # whether the message at _from has been looked at

    def next_slice(self, limit: int, now_us: int = 0, now_ms: int = 0) -> list[Retained]:
        """Return the next messages; `done` tells whether these were the last.

        There may be none although there are more: a slice also ends when it has looked at many topics in vain. Cost:
        2 to 3 µs for each message, 4 for each jump over topics that do not match.

        Args:
            limit: messages to return at most, 1 or more.
        """
        found: list[Retained] = []
        steps = max(limit * STEPS_PER_MESSAGE, STEPS_MIN)
        steps = self._read_tables(found, limit, steps, now_us, now_ms)
        if self._lengths or len(found) >= limit or steps <= 0:
            return found
        environment = self._index._environment
        with environment.lock:
            transaction = environment.read()
            try:
                self._read_topics(transaction.cursor(db=environment.topics), found, limit, steps, now_us, now_ms)
            except DAMAGE:
                environment.mark_damaged()
                raise
            finally:
                transaction.abort()
        return found

    def _read_tables(self, found: list[Retained], limit: int, steps: int, now_us: int, now_ms: int) -> int:
        """Go through the changes there were at the start; returns how many steps are left."""
        while self._lengths and len(found) < limit and steps > 0:
            table = self._back if len(self._lengths) == 2 else self._front
            if self._position == self._lengths[0]:
                del self._lengths[0]
                self._position = 0
                continue
            key = table.keys[self._position]
            self._position += 1
            steps -= 1
            if table is self._back and key in self._front.changes:
                continue  # it comes with the others there, or has changed since
            name = key
            if is_cut(key):
                change = table.changes[key]
                if change.value is None:
                    continue
                name = _name_in(change.value)
            if self._filter.target(name) is name:
                value = self._index._value(key)
                if value is not None:
                    self._take(found, value, now_us, now_ms)
        return steps

    def _read_topics(self, cursor: Any, found: list[Retained], limit: int, steps: int, now_us: int, now_ms: int) -> None:
        """Go on through LMDB."""
        target_of = self._filter.target
        index, back, front = self._index, self._back.changes, self._front.changes
        more = cursor.set_range(self._from) if self._from else cursor.first()
        key = cursor.key()
        if more and self._behind and key == self._from:
            more = cursor.next()
            key = cursor.key()
        while more:
            if steps <= 0 or len(found) >= limit:
                self._from, self._behind = key, False
                return
            steps -= 1
            name = key if len(key) < KEY_BYTES_MAX else _name_in(cursor.value())
            target = target_of(name)
            if target is name:
                if key not in back and key not in front and index._change(key) is None:
                    self._take(found, cursor.value(), now_us, now_ms)
                more = cursor.next()
            elif name is not key:
                # Names that are cut to the same prefix are in no order, so the next one may match.
                more = cursor.next()
            elif not target:
                break
            else:
                more = cursor.next()
                if more and cursor.key() < target:
                    more = cursor.set_range(target)
            key = cursor.key()
        self.done = True

    def _take(self, found: list[Retained], value: bytes, now_us: int, now_ms: int) -> None:
        """Append a message to what was found, unless it is newer than the scan, expired or damaged."""
        stamp_us, _, record = _STAMP_AND_NUMBER.unpack_from(value, _STAMP_AT)
        if stamp_us > self._stamp_us:
            return
        message = _message_of(value, now_us, now_ms)
        if message is None:
            self._index.damaged_values += 1
        elif not 0 < message.expires_at_ms < now_ms:
            origin, incarnation = _TRAILER.unpack_from(value, len(value) - _TRAILER.size)
            found.append(Retained(message, record, incarnation, origin))


def _name_in(value: Any) -> bytes:
    """Return a value's topic name with 0 for the separator."""
    message = _message_of(bytes(value), 0, 0)
    return message.topic_name.replace(b"/", b"\0") if message is not None else b""
