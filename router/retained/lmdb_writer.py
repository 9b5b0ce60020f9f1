"""What a thread writes into the environment of the retained messages, within one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.retained.values import (
    DUE_TOMBSTONE,
    due_key,
    due_of,
    is_newer,
    is_tombstone,
    origin_of,
    record_of,
    size_of,
    without_record,
)

if TYPE_CHECKING:
    import lmdb

    from router.retained.lmdb_environment import RetainedEnvironment

FORGET_MAX: Final = 256  # tombstones removed along with other changes


def write_change(
    environment: RetainedEnvironment,
    transaction: lmdb.Transaction[bytes],
    key: bytes,
    value: bytes,
    *,
    keep_tombstone: bool,
) -> tuple[int, int]:
    """Put a message or a tombstone in place of a topic's older one.

    Returns by how much that changes the number of messages and their size in bytes; (0, 0) if there is a newer one.
    """
    count = size = 0
    older = environment.value_of(transaction, key)
    if older is not None:
        if is_newer(older, value):
            return 0, 0
        due = due_of(older)
        if due is not None:
            transaction.delete(due, key, db=environment.due)
        if is_tombstone(older):
            transaction.delete(key, db=environment.tombstones)
        else:
            count, size = -1, -size_of(older)
    if not is_tombstone(value):
        transaction.put(key, value, db=environment.topics)
        count, size = count + 1, size + size_of(value)
    else:
        if count:
            transaction.delete(key, db=environment.topics)
        if not keep_tombstone:
            return count, size
        transaction.put(key, value, db=environment.tombstones)
    due = due_of(value)
    if due is not None:
        transaction.put(due, key, db=environment.due)
    return count, size


def anything_to_forget(
    environment: RetainedEnvironment, transaction: lmdb.Transaction[bytes], before_us: int, tombstones_max: int
) -> bool:
    """Return whether there is a tombstone with an older stamp, or one too many."""
    cursor = transaction.cursor(db=environment.due)
    return cursor.set_range(DUE_TOMBSTONE) and (
        cursor.key() < due_key(DUE_TOMBSTONE, before_us)
        or transaction.stat(environment.tombstones)["entries"] > tombstones_max
    )


def forget(
    environment: RetainedEnvironment, transaction: lmdb.Transaction[bytes], before_us: int, tombstones_max: int
) -> None:
    """Remove up to FORGET_MAX tombstones that are old or too many, the oldest first."""
    end = due_key(DUE_TOMBSTONE, before_us)
    too_many = transaction.stat(environment.tombstones)["entries"] - tombstones_max
    cursor = transaction.cursor(db=environment.due)
    for _ in range(FORGET_MAX):
        if not cursor.set_range(DUE_TOMBSTONE) or (cursor.key() >= end and too_many <= 0):
            break
        transaction.delete(cursor.value(), db=environment.tombstones)
        cursor.delete()
        too_many -= 1


def forget_records(
    environment: RetainedEnvironment, transaction: lmdb.Transaction[bytes], worker: int, last_number: int
) -> None:
    """Note of a worker's messages with a higher number that no log has them any more. Cost: 1 µs for each of all."""
    lost = [(key, value) for key, value in transaction.cursor(db=environment.topics)
            if record_of(value) > last_number and origin_of(value) == worker]  # fmt: skip
    for key, value in lost:
        transaction.put(key, without_record(value), db=environment.topics)
