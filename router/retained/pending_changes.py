"""Changes of retained messages on their way to LMDB: the tables they wait in, and the thread that writes them.

Changes gather in one table while the table before it is written. A table is written when all its records are durable,
and with its last piece LMDB learns up to which record it has seen the log, so what a crash takes is applied again from
there. Applying a record twice changes nothing: the newest stamp wins.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

import lmdb

from router.retained.change_table import ChangeTable
from router.retained.lmdb_environment import (
    APPLIED,
    APPLIED_KEY,
    DAMAGE,
    TOTALS,
    TOTALS_KEY,
    RetainedEnvironment,
    applied_in,
    totals,
)
from router.retained.lmdb_writer import anything_to_forget, forget, forget_records, write_change

PIECE_CHANGES: Final = 4096  # written and synced at a time: what LMDB keeps in memory for them stays small
BREATH_CHANGES: Final = 16  # of the thread between two pauses: about 0.15 ms of its time
BREATH_S: Final = 0.0003
BEHIND_CHANGES: Final = 32_768  # with more than that in the front table, some 12 MiB, the thread pauses less often,
BREATH_BEHIND: Final = 256  # so that the reactor stores no faster than the thread writes
LOOK_COMMITS: Final = 64  # between two looks for readers that were killed


class PendingChanges:
    """The half of router.retained.lmdb_index.RetainedIndex that writes, by a thread of its own or by commit().

    Only durable() and commit() are for other threads than the Router's.

    Args:
        environment: open; close() closes it.
        worker, incarnation: whose records these are.
        tombstone_s, tombstones_max, retry_s: as RetainedIndex has them.
    """

    def __init__(
        self,
        environment: RetainedEnvironment,
        worker: int,
        incarnation: int,
        tombstone_s: int,
        tombstones_max: int,
        retry_s: float,
    ) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.tombstones_max = tombstones_max
        self.retry_s = retry_s
        self.on_trouble: Callable[[], None] = lambda: None  # from the thread, when `trouble` has changed; only to wake
        self.on_applied: Callable[[], None] = lambda: None  # from the thread, when `applied` has; only to wake
        self.trouble: str | None = None  # what the disk said last; None while all is well
        self.failure: BaseException | None = None  # what ended the thread before it was closed: a bug of ours
        self.commits = 0  # transactions, each with one sync
        self.errors = 0
        self._tombstone_us = tombstone_s * 1_000_000
        self._environment = environment
        self._applied_key = APPLIED_KEY + worker.to_bytes(4, "big")
        with environment.lock:
            transaction = environment.read()
            applied = transaction.get(self._applied_key, db=environment.meta)
            self._count, self._size, self.last_stamp_us = totals(transaction, environment.meta)
            transaction.abort()
        # In LMDB up to the first one, and nothing is of a higher record than the second one.
        self.applied, self._highest, self.applied_incarnation = applied_in(applied)
        self._durable = 0
        self._forget_before_us = 0  # tombstones with an older stamp are to go; 0: nobody has asked
        self._back = ChangeTable()  # being written; nothing is added to it
        self._front = ChangeTable()
        self._lock = threading.Lock()  # around the two tables changing places, and what belongs to them
        self._wake = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """Changes that are not in LMDB yet."""
        with self._lock:
            return len(self._back.keys) - self._back.written + len(self._front.keys)

    def pass_over(self, record: int) -> None:
        """Tell that the records up to this one have nothing more to say here, so that `applied` can get there.

        From the thread that stores and clears, when it has done so for all of these records. Costs a transaction.
        """
        with self._lock:
            if record > max(self._front.last, self._back.last, self.applied):
                self._front.last, self._front.incarnation = record, self.incarnation
                self._wake.notify_all()

    def rewind(self, last_number: int) -> None:
        """Tell, once and before a new record has a number, how far the log goes. Raises OSError.

        Where a loss of power has taken records that were applied already (durability `os`), their numbers are given
        again: what gets them must not be taken for applied, and messages that had them have record 0 from now on.
        Waits for LMDB then. Cost: nothing, or 1 µs for each message there is.

        `incarnation` is that of the process that gives them again.
        """
        if self._highest <= last_number:
            return
        environment = self._environment
        try:
            with environment.write() as transaction:
                forget_records(environment, transaction, self.worker, last_number)
                if self.applied > last_number:
                    # All that is left of earlier processes' records is in here.
                    self.applied, self.applied_incarnation = last_number, self.incarnation
                self._highest = last_number
                value = APPLIED.pack(self.applied, last_number, self.applied_incarnation)
                environment.put_meta(transaction, self._applied_key, value)
            with environment.lock:
                environment.touched(self._count)
        except lmdb.Error as error:
            raise OSError(error.code, str(error)) from error

    def read(self, reading: "Callable[[lmdb.Transaction[bytes]], Any]") -> Any:
        """Call something with a read transaction, and return what it returned."""
        environment = self._environment
        with environment.lock:
            transaction = environment.read()
            try:
                return reading(transaction)
            except DAMAGE:
                environment.mark_damaged()
                raise
            finally:
                transaction.abort()

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

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that the log has durable is in LMDB; returns whether it is. Not for the reactor."""
        with self._lock:
            return self._wake.wait_for(
                lambda: all(table.is_empty or table.last > self._durable for table in (self._back, self._front)),
                timeout_s,
            )

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
            if not ready and not (forget_before_us and self.read(
                lambda transaction: anything_to_forget(
                    self._environment, transaction, forget_before_us, self.tombstones_max)
            )):  # fmt: skip
                return False
            self._write_piece(table if ready else ChangeTable(), forget_before_us, breathe)
        except lmdb.MapFullError:
            return self._attempt(self._environment.grow)
        except (lmdb.Error, OSError) as error:
            self._note(error)
            if isinstance(error, (lmdb.PanicError, lmdb.BadTxnError)):
                self._attempt(self._environment.reopen)
            return False
        self.commits += 1
        if self.commits % LOOK_COMMITS == 0:
            self._attempt(self._environment.forget_the_dead)
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

    def _write_piece(self, table: ChangeTable, forget_before_us: int, breathe: Callable[[], None]) -> None:
        """Write the next piece of a table, and forget some tombstones, in one transaction."""
        environment = self._environment
        end = min(table.written + PIECE_CHANGES, len(table.keys))
        is_last = end == len(table.keys)
        with environment.write() as transaction:
            count, size, stamp_us = totals(transaction, environment.meta)
            count_before, size_before = count, size
            for position in range(table.written, end):
                if position % BREATH_CHANGES == 0:
                    with environment.lock:
                        environment.touched(BREATH_CHANGES)
                    if position % BREATH_BEHIND == 0 or len(self._front.keys) < BEHIND_CHANGES:
                        breathe()
                key = table.keys[position]
                more, larger = write_change(
                    environment, transaction, key, table.changes[key], keep_tombstone=self._tombstone_us > 0
                )
                count += more
                size += larger
            forget(environment, transaction, forget_before_us, self.tombstones_max)
            stamp_us = max(stamp_us, self.last_stamp_us)
            environment.put_meta(transaction, TOTALS_KEY, TOTALS.pack(count, size, stamp_us))
            if table.last:
                applied, incarnation = (
                    (table.last, table.incarnation) if is_last else (self.applied, self.applied_incarnation)
                )
                highest = max(self._highest, table.last)  # until rewind() was told, it may be higher than the log is
                environment.put_meta(transaction, self._applied_key, APPLIED.pack(applied, highest, incarnation))
        with self._lock:
            self._count, self._size = count, size
            table.written = end
            table.count -= count - count_before
            table.size -= size - size_before
            self._highest = max(self._highest, table.last)
            if is_last and table is self._back:
                if table.last > self.applied:
                    self.applied, self.applied_incarnation = table.last, table.incarnation
                self._back = ChangeTable()
                self._wake.notify_all()
        if is_last and table.last:
            self.on_applied()
