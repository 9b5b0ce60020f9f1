"""The retained index against a dict: the newest stamp wins, LMDB follows the log, a scan shows one moment."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.message import message
from router.matching.topic_names import matches
from router.retained.lmdb_index import RetainedIndex
from router.retained.scan import RetainedScan
from router.retained.values import cleared

ROOT = Path(__file__).resolve().parents[2]
NOW_US = 1_795_250_000_000_000  # when the monotonic clock stood at 0
HOUR_US = 3_600_000_000

levels = st.sampled_from([b"a", b"b", b"", b"$S", b"a!", b"L" * 300])
topic_names = st.lists(levels, min_size=1, max_size=4).map(b"/".join).filter(bool)
topic_filters = st.tuples(
    st.lists(st.one_of(levels, st.just(b"+")), max_size=4), st.sampled_from([[], [b"#"]])
).map(lambda parts: b"/".join(parts[0] + parts[1])).filter(bool)  # fmt: skip
times_ms = st.integers(1, 9)


class RetainedIndexMachine(RuleBasedStateMachine):
    """The index against a dict, with the thread's work done step by step, and with crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.model: dict[bytes, tuple[bytes, int, int]] = {}  # payload, when it expires in ms, record
        self.record = 0
        self.log: list[tuple[int, bytes, bytes, int]] = []  # what the commit log would hold
        self.durable = 0
        self.purged: set[int] = set()  # records of messages that expired
        self.scan: RetainedScan | None = None
        self.scanned: list[tuple[bytes, bytes]] = []
        self.scan_start: dict[bytes, tuple[bytes, int, int]] = {}
        self.open()

    def open(self) -> None:
        self.index = RetainedIndex(str(Path(self.folder, "retained")), map_size=1 << 16)
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
        return self.index.store(kept, stamp_us=NOW_US + self.record, record=self.record)

    @staticmethod
    def is_expired(expires_ms: int, now_ms: int) -> bool:
        """Stamps are some µs after the millisecond that counts for the expiry, and it is never early."""
        return expires_ms > 0 and expires_ms + 1 < now_ms

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
        assert self.index.applied <= self.durable

    @rule()
    def commit_all(self) -> None:
        self.durable = self.record
        while self.index.commit(self.durable):
            pass
        assert self.index.pending == 0
        assert self.index.applied == self.record

    @rule()
    def crash(self) -> None:
        """What was not durable is lost; the rest is applied again from where LMDB says."""
        self.index.close()
        self.scan = None
        self.open()
        self.index.rewind(self.durable)
        self.record = self.durable
        self.log = [entry for entry in self.log if entry[0] <= self.durable]
        self.model.clear()
        for record, topic_name, payload, expires_ms in self.log:
            kept = message(topic_name, payload, retain=True, expires_ms=expires_ms) if payload else None
            is_news = self.index.apply(record, topic_name, kept, stamp_us=NOW_US + record)
            assert is_news == (record > self.index.applied)
            self.model[topic_name] = (payload, expires_ms, record)
        for topic_name, (payload, _, record) in list(self.model.items()):
            if not payload or (record in self.purged and self.index.message_of(topic_name) is None):
                del self.model[topic_name]

    @rule(now_ms=times_ms, limit=st.integers(1, 4))
    def purge(self, now_ms: int, limit: int) -> None:
        removed = self.index.purge_expired(NOW_US + now_ms * 1000, limit)
        assert removed <= limit
        for topic_name, (_, expires_ms, record) in list(self.model.items()):
            if self.index.message_of(topic_name) is None:
                assert self.is_expired(expires_ms, now_ms)
                self.purged.add(record)
                del self.model[topic_name]
                removed -= 1
        assert removed == 0

    @rule(now_ms=times_ms)
    def purge_all(self, now_ms: int) -> None:
        self.commit_all()
        self.purge(now_ms, len(self.model) + 1)
        assert not [1 for _, expires_ms, _ in self.model.values() if self.is_expired(expires_ms, now_ms)]

    @rule(topic_filter=topic_filters, now_ms=times_ms)
    def match(self, topic_filter: bytes, now_ms: int) -> None:
        found = self.index.match(topic_filter, NOW_US + now_ms * 1000, now_ms)
        got = [(kept.topic_name, kept.body) for kept in found]
        assert len(got) == len(set(got))
        assert set(got) == {
            (topic, payload) for topic, (payload, expires_ms, _) in self.model.items()
            if matches(topic_filter, topic) and not self.is_expired(expires_ms, now_ms)
        }  # fmt: skip

    @precondition(lambda self: self.scan is None)
    @rule(topic_filter=topic_filters)
    def begin_scan(self, topic_filter: bytes) -> None:
        self.scan = self.index.scan(topic_filter)
        self.scanned = []
        self.scan_start = {topic: kept for topic, kept in self.model.items() if matches(topic_filter, topic)}

    @precondition(lambda self: self.scan is not None)
    @rule(limit=st.integers(1, 3))
    def read_slice(self, limit: int) -> None:
        assert self.scan is not None
        found = self.scan.next_slice(limit, NOW_US, 0)
        assert len(found) <= limit
        for kept in found:
            self.scanned.append((kept.topic_name, kept.body))
            assert self.scan_start[kept.topic_name][::2] == (kept.body, kept.record)
            assert self.model[kept.topic_name][2] == kept.record, "it goes back in time"
        if self.scan.done:
            self.scan = None
            topics = [topic for topic, _ in self.scanned]
            assert len(topics) == len(set(topics))
            unchanged = {topic for topic, kept in self.scan_start.items() if self.model.get(topic) == kept}
            assert unchanged <= set(topics)

    @invariant()
    def everything_agrees(self) -> None:
        assert self.index.count == len(self.model)
        assert self.index.size_bytes == sum(len(topic) + len(kept[0]) for topic, kept in self.model.items())
        for topic, (payload, _, _) in self.model.items():
            kept = self.index.message_of(topic, NOW_US, 0)
            assert kept is not None
            assert kept.body == payload
            assert self.index.size_of(topic) == len(topic) + len(payload)


RetainedIndexMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestRetainedIndex = RetainedIndexMachine.TestCase


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "retained")


@pytest.fixture
def index(folder: str) -> Iterator[RetainedIndex]:
    index = RetainedIndex(folder, map_size=1 << 16)
    yield index
    index.close()


def fill(index: RetainedIndex, count: int, size: int = 10, first: int = 1, prefix: bytes = b"t/") -> None:
    for record in range(first, first + count):
        kept = message(prefix + b"%05d" % record, b"x" * size, retain=True)
        index.store(kept, stamp_us=NOW_US + record, record=record)


def commit(index: RetainedIndex, durable: int) -> None:
    while index.commit(durable):
        pass


def names(index: RetainedIndex, topic_filter: bytes) -> list[bytes]:
    return [kept.topic_name for kept in index.match(topic_filter)]


# Order ---------------------------------------------------------------------------------------------------------------


def test_what_is_on_disk_comes_in_the_order_of_levels_and_what_is_not_before_it(index: RetainedIndex) -> None:
    topics = [b"z/1", b"a!", b"z", b"a/b/c", b"m/k", b"a", b"a/b", b"L" * 600, b"m"]
    for record, topic in enumerate(topics, 1):
        index.store(message(topic, b"x", retain=True), stamp_us=record, record=record)
    assert names(index, b"#") == topics
    commit(index, 99)
    ordered = sorted(topics, key=lambda topic: topic.split(b"/"))
    assert names(index, b"#") == ordered
    index.store(message(b"z", b"y", retain=True), stamp_us=100, record=100)
    assert names(index, b"#") == [b"z", *(topic for topic in ordered if topic != b"z")]


def test_wildcards_do_not_reach_dollar_topics_on_disk(index: RetainedIndex) -> None:
    # Proves: [MQTT-4.7.2-1]
    for record, topic in enumerate([b"$SYS/a", b"x", b"$SYS", b"$other", b"y/$z"], 1):
        index.store(message(topic, b"x", retain=True), stamp_us=record, record=record)
    for _ in range(2):
        assert names(index, b"#") == [b"x", b"y/$z"]
        assert names(index, b"+") == [b"x"]
        assert names(index, b"+/a") == []
        assert sorted(names(index, b"$SYS/#")) == [b"$SYS", b"$SYS/a"]
        commit(index, 99)


def test_a_topic_that_waits_twice_comes_once_and_one_that_changes_meanwhile_does_not_come(index: RetainedIndex) -> None:
    fill(index, 3)
    assert not index.commit(0), "these three are the table that is to be written next"
    index.store(message(b"t/00001", b"newer", retain=True), stamp_us=NOW_US + 4, record=4)
    scan = index.scan(b"#")
    index.store(message(b"t/00003", b"live", retain=True), stamp_us=NOW_US + 5, record=5)
    assert [(kept.topic_name, kept.record) for kept in scan.next_slice(9)] == [(b"t/00002", 2), (b"t/00001", 4)]
    assert scan.done
    commit(index, 5)
    scan = index.scan(b"#")
    index.store(message(b"t/00001", b"live", retain=True), stamp_us=NOW_US + 6, record=6)
    commit(index, 6)
    assert [kept.record for kept in scan.next_slice(9)] == [2, 5]


# Stamps and tombstones -----------------------------------------------------------------------------------------------


def test_the_newest_stamp_wins_in_whatever_order_they_come(index: RetainedIndex) -> None:
    def store(body: bytes, stamp_us: int, record: int) -> bool:
        return index.store(message(b"t", body, retain=True), stamp_us=stamp_us, record=record)

    assert store(b"1", 10, 1)
    commit(index, 1)
    assert not store(b"0", 9, 2)
    assert index.match(b"t")[0].body == b"1"
    assert not index.clear(b"t", stamp_us=8, record=3)
    assert index.clear(b"t", stamp_us=11, record=4)
    commit(index, 4)
    assert not store(b"2", 10, 5), "a tombstone is newer"
    assert (index.match(b"t"), index.count, index.size_bytes) == ([], 0, 0)
    commit(index, 5)
    assert index.applied == 5, "what was passed over counts as applied too"
    assert store(b"3", 12, 6)


def older_is_let_in(index: RetainedIndex, name: int, record: int) -> bool:
    return index.store(message(b"t%d" % name, b"x", retain=True), stamp_us=NOW_US + name - 1, record=record)


def test_tombstones_are_forgotten_when_they_are_old(index: RetainedIndex) -> None:
    for name in (1, 2):
        index.clear(b"t%d" % name, stamp_us=NOW_US + name, record=name)
    commit(index, 2)
    index.purge_expired(NOW_US + HOUR_US + 1, 10)
    assert not index.commit(2), "none is old enough, and nothing is written"
    index.purge_expired(NOW_US + HOUR_US + 2, 10)
    assert index.commit(2)
    assert not index.commit(2)
    assert older_is_let_in(index, 1, 3)
    assert not older_is_let_in(index, 2, 4)


def test_the_oldest_tombstones_are_forgotten_when_there_are_too_many(folder: str) -> None:
    index = RetainedIndex(folder, tombstones_max=2)
    for name in (1, 2, 3, 4):
        index.clear(b"t%d" % name, stamp_us=NOW_US + name, record=name)
    commit(index, 4)
    assert [name for name in (1, 2, 3, 4) if older_is_let_in(index, name, 4 + name)] == [1, 2]
    index.close()


def test_an_expired_message_leaves_a_tombstone_so_that_nothing_older_takes_its_place(index: RetainedIndex) -> None:
    index.store(message(b"t", b"x", retain=True, expires_ms=5), stamp_us=NOW_US, record=1)
    commit(index, 1)
    assert index.purge_expired(NOW_US + 5_999, 10) == 0
    assert index.purge_expired(NOW_US + 6_000, 10) == 1
    commit(index, 1)
    assert not index.store(message(b"t", b"older", retain=True), stamp_us=NOW_US - 1, record=2)
    assert index.count == 0
    with pytest.raises(ValueError, match="limit"):
        index.purge_expired(0, 0)


def test_a_message_that_came_while_its_expired_one_was_looked_at_is_not_purged(index: RetainedIndex) -> None:
    index.store(message(b"t", b"x", retain=True, expires_ms=5), stamp_us=NOW_US, record=1)
    commit(index, 1)
    expired = index.newest(b"t")
    assert expired is not None
    index.store(message(b"t", b"new", retain=True), stamp_us=NOW_US + 1, record=2)
    commit(index, 2)
    assert index._add(b"t", cleared(b"t", expired)) == (False, True)
    assert (index.count, index.size_bytes, names(index, b"#")) == (1, 4, [b"t"])


# The log and the disk ------------------------------------------------------------------------------------------------


def test_nothing_reaches_the_disk_before_the_log_has_it(folder: str, index: RetainedIndex) -> None:
    fill(index, 3)
    assert not index.commit(2)
    assert (index.commits, index.applied, index.count) == (0, 0, 3)
    fill(index, 1, first=4)
    assert index.commit(3)
    assert (index.commits, index.applied, index.pending, index.count) == (1, 3, 1, 4)
    index.close()
    again = RetainedIndex(folder)
    assert (again.count, again.applied, again.last_stamp_us) == (3, 3, NOW_US + 4)
    again.close()


def test_numbers_that_a_loss_of_power_gave_back_are_applied_again(folder: str, index: RetainedIndex) -> None:
    fill(index, 9)
    commit(index, 9)
    index.rewind(20)
    assert index.applied == 9
    index.close()
    for _ in range(2):
        index = RetainedIndex(folder)
        index.rewind(5)
        assert index.applied == 5
        index.close()
    index = RetainedIndex(folder)
    assert [kept.record for kept in index.match(b"t/#")] == [1, 2, 3, 4, 5, 0, 0, 0, 0]
    assert index.apply(6, b"new", message(b"new", b"x", retain=True), stamp_us=NOW_US + 99)
    assert (index.count, index.message_of(b"new").record) == (10, 6)
    index.close()


def test_a_table_that_is_written_in_part_does_not_count_as_applied(folder: str, index: RetainedIndex) -> None:
    fill(index, 5000)
    assert not index.commit(4999)
    while index.commits == 0:
        assert index.commit(5000)
    assert 0 < index.pending < 5000
    assert index.count == 5000
    index.close()
    again = RetainedIndex(folder)
    assert again.applied == 0
    assert again.count == 4096
    again.rewind(4000)
    assert sorted({kept.record for kept in again.match(b"#")}) == [*range(4001)]
    for record in range(1, 4001):
        assert again.apply(record, b"t/%05d" % record, None, stamp_us=NOW_US + 10_000 + record)
    assert again.count == 96
    again.close()


def test_recovery_writes_as_it_goes_and_holds_little_in_memory(index: RetainedIndex) -> None:
    for record in range(1, 20_001):
        name = b"t/%d" % record
        assert index.apply(record, name, message(name, b"x", retain=True), stamp_us=NOW_US + record)
    assert index.applied > 10_000
    assert index.pending < 10_000
    assert index.count == 20_000


def test_the_map_grows_when_it_is_full_beside_readers(folder: str) -> None:
    index = RetainedIndex(folder, map_size=1 << 16)
    index.start()
    for first in range(1, 5000, 500):
        fill(index, 500, size=300, first=first)
        index.durable(first + 499)
        assert len(index.match(b"t/#")) == first + 499
    assert index.flush(60)
    assert (index.trouble, index.pending, index.applied) == (None, 0, 5000)
    assert index.close()


def test_a_disk_that_refuses_costs_time_and_nothing_else(index: RetainedIndex) -> None:
    fill(index, 10)
    commit(index, 10)
    woken = threading.Event()
    index.on_trouble = woken.set
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill(index, 4000, size=1000, first=11)
    try:
        # No room behind the end of what is there.
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(index._environment.folder + "/data.mdb"), hard))
        while index.commit(9999):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert woken.is_set()
    assert index.trouble is not None
    assert "retained messages" in index.trouble
    assert (index.applied, index.count, len(index.match(b"#"))) == (10, 4010, 4010)
    woken.clear()
    commit(index, 9999)
    assert woken.is_set()
    assert (index.trouble, index.applied, index.count, len(index.match(b"#"))) == (None, 4010, 4010, 4010)


def test_it_goes_on_after_an_error_for_which_lmdb_has_to_be_opened_again(index: RetainedIndex) -> None:
    fill(index, 10)
    commit(index, 10)
    index._environment.reopen()
    fill(index, 10, first=11)
    commit(index, 20)
    assert len(index.match(b"#")) == 20


def data_file(folder: str) -> Path:
    return Path(folder, "data.mdb")


def garble(folder: str) -> None:
    data_file(folder).write_bytes(b"no index at all " * 4096)


def cut(folder: str) -> None:
    os.truncate(data_file(folder), data_file(folder).stat().st_size // 2)


def replace_by_a_file(folder: str) -> None:
    shutil.rmtree(folder)
    Path(folder).write_text("not a folder")


def overwrite_pages(folder: str) -> None:
    with data_file(folder).open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (data_file(folder).stat().st_size - 8192))


@pytest.mark.parametrize(
    ("damage", "says"),
    [(garble, "meta page 0"), (cut, "behind the end"), (replace_by_a_file, "no folder"),
     (overwrite_pages, "not what belongs there")],
)  # fmt: skip
def test_a_damaged_environment_is_set_aside_and_said_so(folder: str, damage: object, says: str) -> None:
    for number in (1, 2):
        index = RetainedIndex(folder)
        fill(index, 500, size=100)
        commit(index, 500)
        assert index.close()
        damage(folder)  # type: ignore[operator]
        index = RetainedIndex(folder)
        assert index.report is not None
        assert says in index.report
        assert f"{folder}.bad-{number}" in index.report
        assert Path(f"{folder}.bad-{number}").exists()
        assert (index.applied, index.count, index.size_bytes, index.match(b"#")) == (0, 0, 0, [])
        index.close()
    index = RetainedIndex(folder)
    assert index.report is None
    index.close()


def test_a_folder_that_may_not_be_used_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        RetainedIndex(str(tmp_path / "missing" / "retained"))


def test_damage_found_while_reading_is_dealt_with_at_the_next_start(folder: str, index: RetainedIndex) -> None:
    fill(index, 20)
    commit(index, 20)
    index._environment.mark_damaged()
    index._environment.mark_damaged()
    index.close()
    again = RetainedIndex(folder)
    assert again.report is not None
    assert "while it was used" in again.report
    again.close()


# Killed --------------------------------------------------------------------------------------------------------------


def topic_of(record: int) -> bytes:
    return b"k/%d" % (record * 7919 % 300)


def body_of(record: int) -> bytes:
    return b"" if record % 11 == 0 else b"%d" % record * (1 + record % 30)


CHILD = """
import sys
from router.core.message import message
from router.retained.lmdb_index import RetainedIndex
from tests.unit.test_retained_index import body_of, topic_of

index = RetainedIndex(sys.argv[1], map_size=1 << 16, tombstone_s=3600)
assert index.report is None, index.report
index.start()
record = start = index.applied
while True:
    record += 1
    name, body = topic_of(record), body_of(record)
    if body:
        index.store(message(name, body, retain=True), stamp_us=record, record=record)
    else:
        index.clear(name, stamp_us=record, record=record)
    if record % 100 == 0:
        index.durable(record)
    if record == start + 1000:
        assert index.flush(60)
        print("going", flush=True)
"""


def test_after_a_kill_the_index_is_what_it_says_and_the_log_completes_it(folder: str) -> None:
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, folder], cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"going\n"
        child.kill()
        child.wait()
        child.stdout.close()
        index = RetainedIndex(folder, map_size=1 << 16)
        assert index.report is None
        assert index.applied >= 1000
        found = {}
        scan = index.scan(b"#")
        while not scan.done:
            for kept in scan.next_slice(100):
                assert (kept.topic_name, kept.body) == (topic_of(kept.record), body_of(kept.record))
                found[kept.topic_name] = kept.record
        newest = {topic_of(record): record for record in range(1, index.applied + 1)}
        for topic, record in newest.items():
            # Part of a table may be there before the number that says so.
            assert found.get(topic, record) >= record
            assert topic in found or not body_of(record) or index.message_of(topic) is None
        last = max([index.applied, index.last_stamp_us])
        for record in range(1, last + 1):
            kept = message(topic_of(record), body_of(record), retain=True) if body_of(record) else None
            index.apply(record, topic_of(record), kept, stamp_us=record)
        expected = {topic_of(record): body_of(record) for record in range(1, last + 1)}
        expected = {topic: body for topic, body in expected.items() if body}
        assert {kept.topic_name: kept.body for kept in index.match(b"#")} == expected
        assert index.count == len(expected)
        assert index.size_bytes == sum(len(topic) + len(body) for topic, body in expected.items())
        commit(index, last)
        index.close()
