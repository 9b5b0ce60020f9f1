"""Retained messages of several workers in one environment: what is acknowledged is seen by all, the newest wins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.message import message
from router.retained.lmdb_environment import RetainedEnvironment
from router.retained.lmdb_index import RetainedIndex
from router.retained.scan import RetainedScan
from tests.support.index_process import MAP_SIZE, ROOT, IndexCalls, IndexProcess, caller

topics = st.sampled_from([b"a", b"a/b", b"b", b"$S/a", b"L" * 600])
workers = st.integers(0, 1)
Entry = tuple[int, bytes, bytes, int]  # record, topic name, payload, stamp


class SharedIndexMachine(RuleBasedStateMachine):
    """Two workers, one of them in another process, against a dict; with crashes, loss of the log's end, and links."""

    other: IndexProcess

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.call = [caller(IndexCalls()), self.other.call]
        self.logs: list[list[Entry]] = [[], []]
        self.durable = [0, 0]
        self.applied = [0, 0]
        self.sent = [0, 0]  # entries of the log that the other worker has got
        self.got: list[dict[bytes, tuple[int, int]]] = [{}, {}]  # at least this stamp, origin is known there
        self.incarnations = [1, 1]
        self.began = [0, 0]  # the number behind which each process began
        self.heard = [0, 0]  # the process of each worker that the other one has heard of
        # By topic name what came later than another worker's message that has a higher stamp: its version and record.
        self.late: list[dict[bytes, tuple[tuple[int, int], int]]] = [{}, {}]
        self.clock_us = 100
        for worker in (0, 1):
            assert self.call[worker]("open", f"{self.folder}/retained", worker) is None

    def teardown(self) -> None:
        for call in self.call:
            call("close")
        shutil.rmtree(self.folder)

    def winners(self, through: list[int]) -> dict[bytes, tuple[int, int, bytes, int]]:
        """Return stamp, origin, payload and record of what wins per topic among the records up to these."""
        found: dict[bytes, tuple[int, int, bytes, int]] = {}
        for worker in (0, 1):
            for record, topic_name, payload, stamp_us in self.logs[worker]:
                entry = (stamp_us, worker, payload, record)
                if record <= through[worker] and entry > found.get(topic_name, (0,)):
                    found[topic_name] = entry
        return found

    @rule(worker=workers, topic_name=topics, payload=st.binary(max_size=2), moment=st.integers(0, 3))
    def publish(self, worker: int, topic_name: bytes, payload: bytes, moment: int) -> None:
        self.clock_us += moment
        clock_us = self.clock_us - 2 * worker  # they do not agree about the time
        stamp_us = max(clock_us, self.call[worker]("look") + 1)
        acknowledged = self.winners(self.applied).get(topic_name)
        assert acknowledged is None or stamp_us > acknowledged[0], "what was acknowledged would win over this"
        record = len(self.logs[worker]) + 1
        self.logs[worker].append((record, topic_name, payload, stamp_us))
        self.call[worker]("publish", topic_name, payload, stamp_us, record)
        self.know(worker, topic_name, (stamp_us, worker))

    def know(self, worker: int, topic_name: bytes, version: tuple[int, int]) -> None:
        self.got[worker][topic_name] = max(version, self.got[worker].get(topic_name, (0, 0)))

    @rule(worker=workers, behind=st.integers(0, 1))
    def commit(self, worker: int, behind: int) -> None:
        self.durable[worker] = max(self.durable[worker], len(self.logs[worker]) - behind)
        self.applied[worker] = self.call[worker]("commit", self.durable[worker])
        assert self.applied[worker] <= self.durable[worker]

    @rule(worker=workers)
    def sync(self, worker: int) -> None:
        """The log is durable, and the index is yet to be written."""
        self.durable[worker] = len(self.logs[worker])

    @rule(worker=workers, late=st.sampled_from([0, 0, 20]))
    def forward(self, worker: int, late: int) -> None:
        """A link brings the other worker what is durable, in order; of a new process it says where that one began.

        Its stamp is as of when it comes, and that may be higher than that of what was published after it.
        """
        if self.sent[worker] == self.durable[worker]:
            return
        if self.heard[worker] < self.incarnations[worker]:
            self.heard[worker] = self.incarnations[worker]
            self.call[1 - worker]("began", worker, self.incarnations[worker], self.began[worker])
        record, topic_name, payload, stamp_us = self.logs[worker][self.sent[worker]]
        self.sent[worker] += 1
        came_us = max(stamp_us, self.clock_us + late) if late else stamp_us
        self.call[1 - worker]("forwarded", topic_name, payload, came_us, worker, self.incarnations[worker], record)
        if late:
            self.late[1 - worker][topic_name] = (stamp_us, worker), record
        else:
            self.know(1 - worker, topic_name, (stamp_us, worker))

    @rule(worker=workers)
    def crash(self, worker: int) -> None:
        """What was not durable is lost, the numbers of it are given again, and the rest is applied again."""
        call = self.call[worker]
        call("close")
        self.incarnations[worker] += 1
        assert call("open", f"{self.folder}/retained", worker, 2, self.incarnations[worker]) is None
        lost = [entry[1] for entry in self.logs[worker][self.durable[worker] :]]
        del self.logs[worker][self.durable[worker] :]
        self.began[worker] = self.durable[worker]
        self.heard[1 - worker] = 0
        call("rewind", self.durable[worker])
        for entry in self.logs[worker]:
            call("apply", *entry)
        self.got[worker] = {}
        self.late[worker].clear()
        for topic_name, (stamp_us, origin, _, _) in self.winners(self.applied).items():
            self.know(worker, topic_name, (stamp_us, origin))
        assert lost is not None

    @rule()
    def all_is_written(self) -> None:
        for worker in (0, 1):
            self.durable[worker] = len(self.logs[worker])
            self.applied[worker] = self.call[worker]("commit_all", self.durable[worker])
            assert self.applied[worker] == self.durable[worker]
        winners = self.winners(self.applied)
        expected = {topic: (payload, record) for topic, (_, _, payload, record) in winners.items() if payload}
        for call in self.call:
            found = [call("get", topic) for topic in winners]
            assert {entry[0]: entry[1:] for entry in found if entry is not None} == expected
            visible = {topic: kept for topic, kept in expected.items() if not topic.startswith(b"$")}
            assert {topic: (payload, record) for topic, payload, record in call("match", b"#")} == visible
            assert call("totals") == (len(expected), sum(len(topic) + len(kept[0]) for topic, kept in expected.items()))

    @invariant()
    def what_is_acknowledged_or_came_is_seen(self) -> None:
        for worker in (0, 1):
            for topic_name, (stamp_us, origin, _, _) in self.winners(self.applied).items():
                self.know(worker, topic_name, (stamp_us, origin))
            for topic_name, version in self.got[worker].items():
                found = self.call[worker]("get", topic_name)
                late, record = self.late[worker].get(topic_name, (version, 0))
                if record > self.applied[1 - worker]:
                    version = min(late, version)  # until its stamp is known by the index
                newer = [
                    (payload, record) for origin in (0, 1) for record, topic, payload, stamp_us in self.logs[origin]
                    if topic == topic_name and (stamp_us, origin) >= version
                ]  # fmt: skip
                allowed = {entry if entry[0] else None for entry in newer}
                assert (found[1:] if found is not None else None) in allowed


SharedIndexMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=40)


class TestSharedIndex(SharedIndexMachine.TestCase):
    """The machine, with one other process for all its runs."""

    @classmethod
    def setUpClass(cls) -> None:
        SharedIndexMachine.other = IndexProcess()

    @classmethod
    def tearDownClass(cls) -> None:
        SharedIndexMachine.other.end()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "retained")


@pytest.fixture
def other(folder: str) -> Iterator[IndexProcess]:
    """Worker 1, in a process of its own."""
    process = IndexProcess()
    process.call("open", folder, 1)
    yield process
    process.end()


@pytest.fixture
def own(folder: str, other: IndexProcess) -> Iterator[IndexCalls]:
    """Worker 0."""
    calls = IndexCalls()
    calls.open(folder, 0)
    yield calls
    calls.close()


# What a subscriber gets ----------------------------------------------------------------------------------------------


def read(scan: RetainedScan) -> list[tuple[bytes, bytes]]:
    found = []
    while not scan.done:
        found += [(kept.topic_name, kept.body) for kept in scan.next_slice(10)]
    return found


def test_what_came_over_a_link_is_found_before_its_worker_has_written_it(own: IndexCalls, other: IndexProcess) -> None:
    own.publish(b"t", b"old", 10, 1)
    own.commit_all(1)
    own.forwarded(b"t", b"new", 20, 1, 1, 1)
    own.forwarded(b"u", b"", 21, 1, 1, 2)
    assert own.match(b"#") == [(b"t", b"new", 1)]
    for topic_name, payload, stamp_us, record in ((b"t", b"new", 20, 1), (b"u", b"", 21, 2)):
        other.call("publish", topic_name, payload, stamp_us, record)
    scan = own.index.scan(b"#")
    other.call("commit_all", 2)
    assert own.totals() == (1, 4)
    assert not own.index._forwarded.tables(), "LMDB has them, and nobody needs to remember them"
    assert read(scan) == [(b"t", b"new")], "and it comes once, although it is in LMDB by now"


def test_a_scan_passes_over_what_has_come_live_since(own: IndexCalls, other: IndexProcess) -> None:
    for record, topic_name in enumerate((b"a", b"b", b"c"), 1):
        other.call("publish", topic_name, b"old", record, record)
    other.call("commit_all", 3)
    scan = own.index.scan(b"#")
    own.forwarded(b"b", b"live", 4, 1, 1, 4)
    assert read(scan) == [(b"a", b"old"), (b"c", b"old")]
    slice_read = own.index.scan(b"a")
    (kept,) = slice_read.next_slice(1)
    assert slice_read.is_current(kept)
    own.forwarded(b"a", b"live", 5, 1, 1, 5)
    assert not slice_read.is_current(kept)
    scan = own.index.scan(b"c")
    other.call("publish", b"c", b"live", 6, 6)
    other.call("commit_all", 6)
    assert read(scan) == [], "it was published after the scan began"


def test_what_another_worker_has_written_goes_before_what_waits_here(own: IndexCalls, other: IndexProcess) -> None:
    own.publish(b"t", b"older", 1, 1)
    other.call("publish", b"t", b"newer", 2, 1)
    other.call("commit_all", 1)
    assert own.get(b"t") == (b"t", b"newer", 1)
    assert own.match(b"#") == [(b"t", b"newer", 1)]
    own.commit_all(1)
    assert own.get(b"t") == (b"t", b"newer", 1)


def test_a_scan_that_begins_again_has_what_others_stored_meanwhile_and_not_what_came_live(
    own: IndexCalls, other: IndexProcess
) -> None:
    for topic_filter in (b"+", b"own"):
        scan = own.index.scan(topic_filter)
        stamp_us = own.look() + 1
        own.publish(b"own", b"live", stamp_us, stamp_us)
        other.call("publish", b"other", b"1", stamp_us + 1, stamp_us)
        other.call("commit_all", stamp_us)
        scan.begin()
        found = scan.next_slice(10)
        assert [kept.topic_name for kept in found] == ([b"other"] if topic_filter == b"+" else [])
        assert all(scan.is_current(kept) for kept in found)


def test_what_another_worker_has_written_since_is_no_reason_to_forget_what_is_forwarded(
    own: IndexCalls, other: IndexProcess
) -> None:
    own.forwarded(b"t", b"2", 20, 1, 1, 2)
    other.call("publish", b"t", b"1", 19, 1)
    other.call("commit_all", 1)
    assert own.get(b"t") == (b"t", b"2", 2)
    # It ended and has recovered: whatever its log had kept is in LMDB, and the rest is nobody's any more.
    own.forwarded(b"u", b"1", 30, 1, 2, 1)
    own.look()
    assert own.get(b"t") == (b"t", b"1", 1)


def test_what_came_ahead_of_its_record_is_remembered_when_others_come_that_were_published_before_it(
    own: IndexCalls, other: IndexProcess
) -> None:
    own.forwarded(b"t", b"3", 20, 1, 1, 3)
    own.forwarded(b"u", b"1", 21, 1, 1, 1)
    own.forwarded(b"t", b"2", 22, 1, 1, 2)
    for payload, record in ((b"1", 1), (b"2", 2)):
        other.call("publish", {b"1": b"u", b"2": b"t"}[payload], payload, record, record)
    other.call("commit_all", 2)
    own.look()
    assert own.get(b"t") == (b"t", b"3", 3)


def test_what_was_lost_with_its_worker_is_not_shown_any_more(own: IndexCalls, other: IndexProcess) -> None:
    other.call("publish", b"t", b"1", 1, 1)
    other.call("commit_all", 1)
    own.forwarded(b"t", b"2", 2, 1, 1, 2)
    own.forwarded(b"u", b"kept", 3, 1, 1, 3)
    own.forwarded(b"t", b"4", 4, 1, 1, 4)
    own.forwarded(b"v", b"5", 5, 1, 1, 5)
    scan = own.index.scan(b"#")
    own.index.began(1, 2, 3)
    assert (own.get(b"t"), own.get(b"v")) == ((b"t", b"1", 1), None)
    assert own.get(b"u") == (b"u", b"kept", 3), "it has that, and has yet to write it"
    assert sorted(read(scan)) == [(b"t", b"1"), (b"u", b"kept")]
    own.forwarded(b"v", b"anew", 6, 1, 2, 4)
    own.index.began(1, 3, 4)
    assert own.get(b"v") == (b"v", b"anew", 4)
    assert own.get(b"t") == (b"t", b"1", 1)
    for record, (topic_name, payload) in enumerate(((b"u", b"kept"), (b"v", b"anew")), 3):
        other.call("publish", topic_name, payload, record, record)
    other.call("commit_all", 4)
    own.look()
    assert not own.index._forwarded.tables(), "LMDB has them all"
    assert sorted(own.match(b"#")) == [(b"t", b"1", 1), (b"u", b"kept", 3), (b"v", b"anew", 4)]


def test_what_came_over_a_link_late_gives_way_to_what_its_worker_has_written_since(
    own: IndexCalls, other: IndexProcess
) -> None:
    # As after a pause of this worker: it has the time of when it was read.
    own.forwarded(b"t", b"1", 50, 1, 1, 1)
    own.forwarded(b"u", b"", 51, 1, 1, 3)
    other.call("publish", b"t", b"1", 19, 1)
    other.call("publish", b"t", b"2", 20, 2)
    other.call("commit_all", 2)
    assert own.get(b"t") == (b"t", b"2", 2)
    assert own.match(b"#") == [(b"t", b"2", 2)]


def test_what_came_late_of_one_worker_gives_way_to_what_another_has_published_since_when_both_have_written_it(
    own: IndexCalls, other: IndexProcess
) -> None:
    other.call("publish", b"t", b"first", 10, 1)
    own.publish(b"t", b"second", 20, 1)
    own.forwarded(b"t", b"first", 30, 1, 1, 1)  # it has the time of when it came
    own.forwarded(b"u", b"is yet to be written there", 31, 1, 1, 9)
    other.call("commit_all", 1)
    own.commit_all(1)
    assert own.get(b"t") == other.call("get", b"t") == (b"t", b"second", 1)
    assert (b"t", b"second", 1) in own.match(b"#")
    assert own.match(b"t") == [(b"t", b"second", 1)]


def test_what_is_forwarded_and_never_written_is_bounded(own: IndexCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.retained.unapplied_remote.TABLE_MAX", 10)
    for record in range(1, 36):
        own.forwarded(b"t%d" % record, b"x", record, 1, 1, record)
    assert [record for _, _, record in own.match(b"#")] == list(range(21, 36))


def test_one_worker_purges_for_all(own: IndexCalls, other: IndexProcess) -> None:
    assert other.call("totals") == (0, 0)
    alone = own.index
    other.call("publish_expiring", b"t", b"x", 1, 1, 5)
    other.call("commit_all", 1)
    assert other.call("purge", 10_000_000) == 0
    assert alone.purge_expired(10_000_000, 10) == 1
    own.commit_all(0)
    assert other.call("totals") == (0, 0)


# The environment -----------------------------------------------------------------------------------------------------


def test_when_one_worker_makes_it_grow_the_others_follow(own: IndexCalls, other: IndexProcess) -> None:
    for record in range(1, 301):
        other.call("publish", b"t/%d" % record, b"x" * 1000, record, record)
    other.call("commit_all", 300)
    assert own.totals()[0] == 300
    own.publish(b"u", b"y", 1000, 1)
    own.commit_all(1)
    assert len(other.call("match", b"#")) == 301


def test_numbers_that_a_loss_of_power_gave_back_are_those_of_one_worker(own: IndexCalls, other: IndexProcess) -> None:
    own.publish(b"own", b"x", 1, 5)
    own.commit_all(5)
    other.call("publish", b"other", b"x", 2, 5)
    other.call("commit_all", 5)
    own.index.rewind(4)
    assert [record for _, _, record in own.match(b"+")] == [5, 0]


def pages(index: RetainedIndex) -> int:
    return int(index._environment._environment.info()["last_pgno"])


def test_a_worker_that_was_killed_while_it_read_does_not_keep_pages_for_ever(
    own: IndexCalls, other: IndexProcess
) -> None:
    def write(first: int) -> None:
        for record in range(first, first + 200):
            own.publish(b"t", b"%d" % record * 500, record, record)
            own.commit_all(record)

    write(1)
    other.call("hold_a_reader")
    other.kill()
    write(201)
    before = pages(own.index)
    write(401)
    assert pages(own.index) == before


def test_a_damaged_one_is_set_aside_by_whoever_has_it_alone(folder: str, own: IndexCalls, other: IndexProcess) -> None:
    own.publish(b"t", b"x", 1, 1)
    own.commit_all(1)
    assert not other.call("is_damaged")
    own.mark_damaged()
    assert other.call("is_damaged"), "so all can end"
    own.close()
    with pytest.raises(OSError, match="cannot be set aside while other workers use it"):
        RetainedEnvironment(folder, MAP_SIZE, tries=2)
    other.call("close")
    report = own.open(folder, 0)
    assert report is not None
    assert "found damaged" in report
    assert other.call("open", folder, 1) is None
    assert (own.match(b"#"), other.call("match", b"#")) == ([], [])
    assert os.path.isdir(f"{folder}.bad-1")
    assert not os.path.exists(f"{folder}.bad-2")


# Killed --------------------------------------------------------------------------------------------------------------


CHILD = """
import sys
from router.core.message import message
from tests.unit.test_shared_index import body_of, read_log, topic_of
from router.retained.lmdb_index import RetainedIndex

folder, worker = sys.argv[1], int(sys.argv[2])
index = RetainedIndex(folder, worker=worker, workers=3, map_size=1 << 16)
assert index.report is None, index.report
entries = read_log(folder, worker)
for record, stamp in entries:
    body = body_of(worker, record)
    kept = message(topic_of(record), body, retain=True) if body else None
    index.apply(record, topic_of(record), kept, stamp_us=stamp)
record = start = entries[-1][0] if entries else 0
index.start()
log = open(f"{folder}.log-{worker}", "a")
going = False
while True:
    record += 1
    stamp = index.look() + 1
    name, body = topic_of(record), body_of(worker, record)
    if body:
        index.store(message(name, body, retain=True), stamp_us=stamp, record=record)
    else:
        index.clear(name, stamp_us=stamp, record=record)
    print(record, stamp, file=log)
    if record % 50 == 0:
        log.flush()
        index.durable(record)
    if not going and index.applied > start + 200:
        going = True
        print("going", flush=True)
"""


def topic_of(record: int) -> bytes:
    return b"k/%d" % (record * 7919 % 100)


def body_of(worker: int, record: int) -> bytes:
    return b"" if record % 11 == 0 else b"%d %d" % (worker, record) * (1 + record % 30)


def read_log(folder: str, worker: int) -> list[tuple[int, int]]:
    """Return record and stamp of all lines that are whole."""
    path = Path(f"{folder}.log-{worker}")
    if not path.exists():
        return []
    lines = path.read_bytes().rpartition(b"\n")[0]
    path.write_bytes(lines + b"\n" if lines else b"")
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines.splitlines()]


def test_workers_that_are_killed_while_they_write_leave_what_their_logs_say(folder: str) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def begin(worker: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", CHILD, folder, str(worker)], cwd=ROOT, stdout=subprocess.PIPE)

    try:
        children += [begin(worker) for worker in range(3)]
        for turn in range(6):
            for child in children:
                assert child.stdout is not None
                if turn == 0 or child is children[(turn - 1) % 3]:
                    assert child.stdout.readline() == b"going\n"
            victim = children[turn % 3]
            victim.kill()
            victim.communicate()
            children[turn % 3] = begin(turn % 3)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    winners: dict[bytes, tuple[int, int, bytes]] = {}
    for worker in range(3):
        entries = read_log(folder, worker)
        index = RetainedIndex(folder, worker=worker, workers=3, map_size=1 << 16)
        assert index.report is None
        assert 0 < index.applied <= entries[-1][0]
        for record, stamp_us in entries:
            name, body = topic_of(record), body_of(worker, record)
            winners[name] = max(winners.get(name, (0, 0, b"")), (stamp_us, worker, body))
            index.apply(record, name, message(name, body, retain=True) if body else None, stamp_us=stamp_us)
        while index.commit(entries[-1][0]):
            pass
        index.close()
    index = RetainedIndex(folder, worker=0, workers=3)
    expected = {name: body for name, (_, _, body) in winners.items() if body}
    assert {kept.topic_name: kept.body for kept in index.match(b"#")} == expected
    assert (index.count, index.size_bytes) == (
        len(expected),
        sum(len(name) + len(body) for name, body in expected.items()),
    )
    index.close()
