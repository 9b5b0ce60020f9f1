"""What other workers of the node have written to the index of retained messages, and what they have yet to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from router.retained.keys import key_of
from router.retained.link_waits import NOWHERE, Id, Ids, covers, lowered
from router.retained.lmdb_environment import APPLIED_KEY, applied_in, totals
from router.retained.values import encode, id_of, is_newer, origin_of, tombstone

if TYPE_CHECKING:
    import lmdb

    from router.core.message import Message

TABLE_MAX: Final = 32_768


class _Table:
    """Forwarded messages that are forgotten together, when LMDB has them all."""

    __slots__ = ("before", "changes", "keys", "last")

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes] = {}  # key to value, which may be a tombstone
        self.before: dict[bytes, bytes] = {}  # key to what changes had before, the newest that cannot be lost
        self.keys: list[bytes] = []  # of changes, in the order in which they came first
        self.last: Ids = {}  # origin to the record of its newest message in here


class Forwarded:
    """Retained messages that came over links, for as long as LMDB may not have them.

    They gather in one table while the table before it waits to be in LMDB. A table of more than TABLE_MAX takes the
    place of the one before it, which is forgotten early.

    Not for several threads.

    Args:
        worker: ours.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.applied: Ids = {}  # worker to the record up to which LMDB has its log
        self.came: Ids = {}  # worker to the newest record that came of it
        self._incarnations: dict[int, int] = {}  # of origins, the highest
        self._starts: Ids = {}  # worker to its newest process that is heard, and after which record that began
        # Origin to its incarnations that began since something came, and after which record of its log each did.
        self._began: dict[int, list[tuple[int, int]]] = {}
        self._seen = -1  # id of the transaction that was looked at last
        self._back = _Table()
        self._front = _Table()

    def look(self, transaction: lmdb.Transaction[bytes], meta: Any) -> tuple[int, int, int] | None:
        """Forget what LMDB has, and return its totals; None if no worker has written since the last time."""
        newest = transaction.id()
        if newest == self._seen:
            return None
        self._seen = newest
        cursor = transaction.cursor(db=meta)
        more = cursor.set_range(APPLIED_KEY)
        while more and cursor.key().startswith(APPLIED_KEY):
            worker = int.from_bytes(cursor.key()[len(APPLIED_KEY) :], "big")
            number, _, incarnation = applied_in(cursor.value())
            self._note_applied(worker, (incarnation, number))
            more = cursor.next()
        self._settle()
        return totals(transaction, meta)

    def _note_applied(self, worker: int, applied: Id) -> None:
        if worker in self._starts:
            applied = lowered(applied, *self._starts[worker])
        self.applied[worker] = applied
        incarnation = applied[0]
        if any(worker in table.last and table.last[worker][0] < incarnation for table in (self._back, self._front)):
            # What came of an earlier process is in LMDB as far as it is in a log, whether the new one is heard or not.
            began = self._began.setdefault(worker, [])
            if (incarnation, 0) not in began:
                began.append((incarnation, 0))

    def began(self, origin: int, incarnation: int, after: int) -> None:
        """A worker has come back, and what came of it before with a higher record is in no log."""
        self._incarnations[origin] = incarnation
        self._starts[origin] = incarnation, after
        if origin in self.applied:
            self.applied[origin] = lowered(self.applied[origin], incarnation, after)
        self.came[origin] = lowered(self.came.get(origin, NOWHERE), incarnation, after)
        for table in (self._back, self._front):
            if origin in table.last:
                # What it has kept may not be in LMDB yet.
                table.last[origin] = incarnation, min(table.last[origin][1], after)
                self._began.setdefault(origin, []).append((incarnation, after))
        self._settle()

    def add(self, message: Message, stamp_us: int, origin: int, incarnation: int, record: int, sure: Ids) -> None:
        """Remember what came, unless LMDB has it or something newer came before it.

        Args:
            message, stamp_us, origin, incarnation, record: as of RetainedIndex.forwarded().
            sure: origin to the record up to which its log is synced: what is there is kept behind what comes, which may
                be lost.
        """
        if incarnation > self._incarnations.get(origin, 0):
            # It has recovered, and with that given LMDB whatever its log had kept.
            self._incarnations[origin] = incarnation
            self.came[origin] = incarnation, 0
            self._settle()
        self.came[origin] = max(self.came.get(origin, NOWHERE), (incarnation, record))
        key = key_of(message.topic_name)
        if message.body:
            value = encode(message, stamp_us, 0, record, origin, incarnation)
        else:
            value = tombstone(key, stamp_us, record, origin, incarnation)
        older = self.get(key)
        if covers(self.applied.get(origin, NOWHERE), (incarnation, record)):
            return
        if older is not None:
            # Stamps are of when it came: of one worker the numbers say what was first.
            is_late = id_of(older) > (incarnation, record) if origin_of(older) == origin else is_newer(older, value)
            if is_late:
                return
        front = self._front
        if key not in front.changes:
            front.keys.append(key)
        if older is not None and covers(sure.get(origin_of(older), NOWHERE), id_of(older)):
            front.before[key] = older
        front.changes[key] = value
        # What comes at QoS 0 comes ahead of what has a lower number and waits for its record.
        front.last[origin] = max(front.last.get(origin, NOWHERE), (incarnation, record))
        if len(front.keys) >= TABLE_MAX:
            self._back, self._front = front, _Table()

    def written(self) -> Ids:
        """Return up to which record of each other worker's log LMDB has what was retained, as it was seen last."""
        return {origin: record for origin, record in self.applied.items() if origin != self.worker}

    def reached(self) -> Ids:
        """Return the same, or up to which record something has come, if that is further."""
        return self.written() | {
            origin: max(record, self.applied.get(origin, NOWHERE)) for origin, record in self.came.items()
        }

    def get(self, key: bytes) -> bytes | None:
        """Return the newest value of a key that is remembered, unless LMDB has it, or what follows it there.

        Its stamp is of when it came, and another worker may have published meanwhile: with the stamp that it has in
        LMDB it may be the older one.
        """
        if not self._began:
            value = self._front.changes.get(key) or self._back.changes.get(key)
        else:
            value = next(
                (value for table in (self._front, self._back) for values in (table.changes, table.before)
                 if (value := values.get(key)) is not None and not self._is_lost(value)), None
            )  # fmt: skip
        return None if value is None or self._is_applied(value) else value

    def _is_applied(self, value: bytes) -> bool:
        origin, found = origin_of(value), id_of(value)
        if origin in self._starts:
            found = lowered(found, *self._starts[origin])
        return covers(self.applied.get(origin, NOWHERE), found)

    def sure(self, key: bytes) -> bytes | None:
        """Return the value that a key had before the one that may be lost, if it is remembered."""
        return self._front.before.get(key) or self._back.before.get(key)

    def _is_lost(self, value: bytes) -> bool:
        incarnation, record = id_of(value)
        return any(incarnation < later and record > after for later, after in self._began.get(origin_of(value), ()))

    def tables(self) -> list[tuple[dict[bytes, bytes], list[bytes], int]]:
        """Return the tables that are not empty, the older one first: values by key, the keys, how many they are."""
        return [(table.changes, table.keys, len(table.keys)) for table in (self._back, self._front) if table.keys]

    def _settle(self) -> None:
        if self._is_settled(self._back):
            self._back, self._front = self._front, _Table()
        if self._back.keys and self._is_settled(self._back):
            self._back = _Table()
        if self._began and not (self._back.keys or self._front.keys):
            self._began.clear()

    def _is_settled(self, table: _Table) -> bool:
        return all(
            covers(self.applied.get(origin, NOWHERE), last) or last[0] < self._incarnations.get(origin, 0)
            for origin, last in table.last.items()
        )
