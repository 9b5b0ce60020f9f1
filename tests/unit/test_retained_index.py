"""The index of retained messages: the newest stamp wins, LMDB follows the log, and what is read is whole and in order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from router.message import message
from router.topics import matches

from router.retained_index import RetainedIndex

NOW_US = 1_795_250_000_000_000  # when the monotonic clock stood at 0

levels = st.sampled_from([b"a", b"b", b"", b"$S", b"a!", b"L" * 300])
topic_names = st.lists(levels, min_size=1, max_size=4).map(b"/".join).filter(bool)
topic_filters = st.tuples(
    st.lists(st.one_of(levels, st.just(b"+")), max_size=4), st.sampled_from([[], [b"#"]])
).map(lambda parts: b"/".join(parts[0] + parts[1])).filter(bool)  # fmt: skip
times_ms = st.integers(1, 9)


class RetainedIndexMachine(RuleBasedStateMachine):
    """The index against a dict, with the thread's work done step by step, and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.model: dict[bytes, tuple[bytes, int, int]] = {}  # payload, when it expires, record
        self.record = 0
        self.log: list[tuple[int, bytes, bytes, int]] = []  # what the commit log would hold
        self.durable = 0
        self.scan: tuple[object, bytes, dict[bytes, int], set[bytes]] | None = None
        self.open()

    def open(self) -> None:
        self.index = RetainedIndex(str(Path(self.folder, "retained")), map_size=1 << 16, tombstone_s=3600)
        assert self.index.report is None

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)

    def publish(self, topic_name: bytes, payload: bytes, expires_ms: int) -> bool:
        self.record += 1
        self.log.append((self.record, topic_name, payload, expires_ms))
        if not payload:
            return self.index.clear(topic_name, stamp_us=NOW_US + self.record, record=self.record)
        kept = message(topic_name, payload, retain=True, expires_ms=expires_ms)
        return self.index.store(kept, stamp_us=NOW_US + self.record, record=self.record, now_ms=0)

    @rule(topic_name=topic_names, payload=st.binary(min_size=1, max_size=3), expires_ms=st.just(0) | times_ms)
    def store(self, topic_name: bytes, payload: bytes, expires_ms: int) -> None:
        assert self.publish(topic_name, payload, expires_ms) == (topic_name not in self.model)
        self.model[topic_name] = (payload, expires_ms, self.record)

    @rule(topic_name=topic_names)
    def clear(self, topic_name: bytes) -> None:
        assert self.publish(topic_name, b"", 0) == (topic_name in self.model)
        self.model.pop(topic_name, None)

    @rule(behind=st.integers(0, 2))
    def commit(self, behind: int) -> None:
        self.durable = max(self.durable, self.record - behind)
        self.index.commit(self.durable)
        assert self.index.trouble is None

    @rule()
    def commit_all(self) -> None:
        self.durable = self.record
        while self.index.commit(self.durable):
            pass
        assert self.index.pending == 0
        assert self.index.applied == self.record

    @rule(topic_filter=topic_filters, now_ms=times_ms)
    def match(self, topic_filter: bytes, now_ms: int) -> None:
        found = self.index.match(topic_filter, NOW_US + now_ms * 1000, now_ms)
        got = [(kept.topic_name, kept.body) for kept in found]
        assert len(got) == len(set(got))
        assert set(got) == {
            (topic, payload) for topic, (payload, expires_ms, _) in self.model.items()
            if matches(topic_filter, topic) and not self.is_expired(expires_ms, now_ms)
        }  # fmt: skip

    @staticmethod
    def is_expired(expires_ms: int, now_ms: int) -> bool:
        """Stamps are some µs after the millisecond that counts for the expiry, and it is never early."""
        return expires_ms > 0 and expires_ms + 1 < now_ms

    @invariant()
    def everything_agrees(self) -> None:
        assert self.index.count == len(self.model)
        assert self.index.size_bytes == sum(len(topic) + len(kept[0]) for topic, kept in self.model.items())
        for topic, (payload, _, _) in self.model.items():
            kept = self.index.message_of(topic, NOW_US, 0)
            assert kept is not None
            assert kept.body == payload


RetainedIndexMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestRetainedIndex = RetainedIndexMachine.TestCase
