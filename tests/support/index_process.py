"""An index of retained messages in a process of its own, as another worker of the node has it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from router.core.message import message
from router.retained.lmdb_index import RetainedIndex

ROOT = Path(__file__).resolve().parents[2]
MAP_SIZE = 1 << 16
Found = tuple[bytes, bytes, int]  # topic name, payload, record


class IndexCalls:
    """What a test does with an index, in nothing but bytes and numbers."""

    def __init__(self) -> None:
        self.index: RetainedIndex

    def open(self, folder: str, worker: int, workers: int = 2, incarnation: int = 1) -> str | None:
        self.index = RetainedIndex(folder, worker=worker, workers=workers, map_size=MAP_SIZE, incarnation=incarnation)
        return self.index.report

    def close(self) -> None:
        self.index.close()

    def publish(self, topic_name: bytes, payload: bytes, stamp_us: int, record: int) -> bool:
        if not payload:
            return self.index.clear(topic_name, stamp_us=stamp_us, record=record)
        return self.index.store(message(topic_name, payload, retain=True), stamp_us=stamp_us, record=record)

    def publish_expiring(self, topic_name: bytes, payload: bytes, stamp_us: int, record: int, expires_ms: int) -> None:
        kept = message(topic_name, payload, retain=True, expires_ms=expires_ms)
        self.index.store(kept, stamp_us=stamp_us, record=record)

    def purge(self, now_us: int) -> int:
        return self.index.purge_expired(now_us, 10)

    def apply(self, record: int, topic_name: bytes, payload: bytes, stamp_us: int) -> bool:
        kept = message(topic_name, payload, retain=True) if payload else None
        return self.index.apply(record, topic_name, kept, stamp_us=stamp_us)

    def forwarded(
        self, topic_name: bytes, payload: bytes, stamp_us: int, origin: int, incarnation: int, record: int
    ) -> None:
        self.index.forwarded(
            message(topic_name, payload, retain=True),
            stamp_us=stamp_us,
            origin=origin,
            incarnation=incarnation,
            record=record,
        )

    def began(self, origin: int, incarnation: int, after: int) -> None:
        self.index.began(origin, incarnation, after)

    def look(self) -> int:
        return self.index.look()

    def commit(self, durable: int) -> int:
        self.index.commit(durable)
        assert self.index.trouble is None, self.index.trouble
        return self.index.applied

    def commit_all(self, durable: int) -> int:
        while self.index.commit(durable):
            pass
        return self.commit(durable)

    def rewind(self, last_number: int) -> None:
        self.index.rewind(last_number)

    def get(self, topic_name: bytes) -> Found | None:
        kept = self.index.message_of(topic_name)
        return (kept.topic_name, kept.body, kept.record) if kept is not None else None

    def match(self, topic_filter: bytes) -> list[Found]:
        return [(kept.topic_name, kept.body, kept.record) for kept in self.index.match(topic_filter)]

    def totals(self) -> tuple[int, int]:
        return self.index.count, self.index.size_bytes

    def is_damaged(self) -> bool:
        return self.index.is_damaged

    def mark_damaged(self) -> None:
        self.index._environment.mark_damaged()

    def hold_a_reader(self) -> None:
        """Begin to read and never end; what the index does afterwards is undefined."""
        self.reader = self.index._environment.read()


class IndexProcess:
    """IndexCalls in another process: call() does there what it would do here."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.index_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, name: str, *arguments: Any) -> Any:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        pickle.dump((name, arguments), self.child.stdin)
        self.child.stdin.flush()
        failed, result = pickle.load(self.child.stdout)
        if failed:
            raise result
        return result

    def kill(self) -> None:
        self.child.kill()
        self.end()

    def end(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


def caller(calls: IndexCalls) -> Callable[..., Any]:
    """Return what calls an index of this process as IndexProcess.call does one of another."""
    return lambda name, *arguments: getattr(calls, name)(*arguments)


def main() -> None:
    """Do what is asked on standard input, until it ends."""
    calls = IndexCalls()
    answers = os.fdopen(os.dup(1), "wb")
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (False, getattr(calls, name)(*arguments))
        except Exception as failure:
            answer = (True, failure)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
