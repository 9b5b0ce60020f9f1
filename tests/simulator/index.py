"""What all workers of a simulated node have in common: the index of retained messages, in memory.

It is as in reality: what a worker has written is seen by all others at once, ahead of what its links bring; a write is
whole or it has not been; and neither the end of a process nor a loss of power takes anything of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from router.retained.lmdb_index import RetainedIndex
from router.retained.page_check import meta_value

Pairs = list[tuple[bytes, bytes]]  # sorted; in `due` a key may be there with several values
DATABASES: Final = 4
DUE: Final = 2


class Cursor:
    """A place in a database."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.at = 0

    def first(self) -> bool:
        """Go to the first key, if there is any."""
        self.at = 0
        return bool(self.pairs)

    def next(self) -> bool:
        """Go to the next key, if there is any."""
        self.at += 1
        return self.at < len(self.pairs)

    def set_range(self, key: bytes) -> bool:
        """Go to the first key that is not less than this one, if there is any."""
        self.at = bisect_left(self.pairs, (key, b""))
        return self.at < len(self.pairs)

    def key(self) -> bytes:
        """Return the key that it stands at."""
        return self.pairs[self.at][0]

    def value(self) -> bytes:
        """Return what lies there."""
        return self.pairs[self.at][1]

    def delete(self) -> None:
        """Remove what it stands at; it stands at the next one then."""
        del self.pairs[self.at]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        yield from list(self.pairs)


class Transaction:
    """A state of all databases; one that writes has copies of its own."""

    def __init__(self, databases: list[Pairs], number: int) -> None:
        self.databases = databases
        self.number = number

    def id(self) -> int:
        """Return the number of the state."""
        return self.number

    def abort(self) -> None:
        """It was a look only."""

    def get(self, key: bytes, default: bytes | None = None, db: int = 0) -> bytes | None:
        """Return the first value of a key."""
        cursor = self.cursor(db)
        return cursor.value() if cursor.set_range(key) and cursor.key() == key else default

    def put(self, key: bytes, value: bytes, db: int = 0) -> None:
        """Put a value in place of the one that is there; in `due` beside it."""
        if db != DUE:
            self.delete(key, db=db)
        pairs, entry = self.databases[db], (key, value)
        place = bisect_left(pairs, entry)
        if pairs[place : place + 1] != [entry]:
            pairs.insert(place, entry)

    def delete(self, key: bytes, value: bytes = b"", db: int = 0) -> None:
        """Remove a key; in `due` with this value."""
        self.databases[db][:] = [
            pair for pair in self.databases[db] if pair[0] != key or (db == DUE and pair[1] != value)
        ]

    def cursor(self, db: int = 0) -> Cursor:
        """Return what goes through a database."""
        return Cursor(self.databases[db])

    def stat(self, db: int) -> dict[str, int]:
        """Return how many entries there are."""
        return {"entries": len(self.databases[db])}


class SharedEnvironment:
    """What router.retained.lmdb_environment.RetainedEnvironment is to all workers of a node."""

    topics, tombstones, due, meta = range(DATABASES)
    report = None

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.databases: list[Pairs] = [[] for _ in range(DATABASES)]
        self.number = 0

    def read(self) -> Transaction:
        """Return what there is now."""
        return Transaction(self.databases, self.number)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Change all or, if something is raised, nothing."""
        transaction = Transaction([list(pairs) for pairs in self.databases], self.number)
        yield transaction
        self.databases = transaction.databases
        self.number += 1

    def value_of(self, transaction: Transaction, key: bytes) -> bytes | None:
        """Return what lies under a topic's key, a message or a tombstone."""
        return transaction.get(key, None, self.topics) or transaction.get(key, None, self.tombstones)

    def put_meta(self, transaction: Transaction, key: bytes, data: bytes) -> None:
        """Write what stands under a name of `meta`, with its check sum."""
        transaction.put(key, meta_value(key, data), db=self.meta)

    def touched(self, pages: int) -> None:
        """Nothing of a file is in memory."""

    def forget_the_dead(self) -> None:
        """Who is dead reads nothing."""

    def is_marked_damaged(self) -> bool:
        """Nothing damages it."""
        return False


def index_of(environment: SharedEnvironment, worker: int, workers: int) -> RetainedIndex:
    """Return the index as a worker's new process has it; its thread's steps are write_index()."""

    def open_environment(*_: Any, **__: Any) -> Any:
        return environment

    return RetainedIndex("", worker=worker, workers=workers, open_environment=open_environment)


def write_index(index: RetainedIndex, at: Callable[[str], None]) -> None:
    """A step of the thread: write what is durable. `at` is told where it is, and may raise."""
    if index.commit(index._durable, lambda: at("index write")):
        at("indexed")
