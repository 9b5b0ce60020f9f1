"""A router whose retained messages are on disk: the same to subscribers, and what a crash takes comes from the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.message import message
from router.log.last_run import LastRun, write_last_run
from router.log.record_buffer import RecordBuffer
from router.recovery.open_log import open_log
from router.recovery.snapshot import compact
from router.retained.lmdb_index import RetainedIndex
from router.router import Router
from router.sessions.ledger import Ledger
from router.sessions.local_receiver import LocalClient
from tests.support.disk import SimulatedDisk

NOW_US, NOW_MS = 1_795_250_000_000_000, 5_000
MESSAGES_MAX, BYTES_MAX = 3, 30

topic_names = st.sampled_from([b"a", b"b", b"a/b", b"a/c", b"$x/b", b"a" * 300])
payloads = st.sampled_from([b"", b"1", b"22", b"x" * 12])
topic_filters = st.sampled_from([b"#", b"a/#", b"+/b", b"+", b"a/b", b"$x/+", b"a" * 300])


class Run:
    """One run of a router with a log on a simulated disk, and an index; nothing is written unless a test says so."""

    def __init__(
        self, disk: SimulatedDisk, folder: Path, passed_ms: int = 0, segment_bytes_max: int = 1 << 20, **limits: int
    ) -> None:
        now_us, now_ms = NOW_US + passed_ms * 1000, NOW_MS + passed_ms
        self.index = RetainedIndex(str(folder / "retained"))
        self.router = Router(Ledger(**limits), index=self.index)
        self.opened = open_log(disk, self.router, worker=0, make_will=lambda *fields: None, make_mark=lambda: 9,
                               now_us=now_us, now_ms=now_ms, segment_bytes_max=segment_bytes_max)  # fmt: skip
        self.log = self.opened.log
        self.records = RecordBuffer(self.log.appended)
        self.router.record_into(self.records)
        self.router.ledger.now_us, self.router.ledger.now_ms = now_us, now_ms

    def publish(self, topic_name: bytes, payload: bytes, **options: Any) -> None:
        self.router.publish_message(message(topic_name, payload, 1, True, now_ms=NOW_MS, **options))

    def commit(self) -> None:
        """Have the log write everything."""
        self.log.append(self.records)
        self.log.commit()

    def found(self, topic_filter: bytes = b"#") -> dict[bytes, bytes]:
        return {found.topic_name: found.body for found in self.index.match(topic_filter, NOW_US, NOW_MS)}


@contextmanager
def running(disk: SimulatedDisk, folder: Path, **options: int) -> Iterator[Run]:
    run = Run(disk, folder, **options)
    try:
        yield run
    finally:
        run.index.close()


@given(changes=st.lists(st.tuples(topic_names, payloads, st.booleans()), max_size=20), topic_filter=topic_filters)
def test_a_subscriber_gets_the_same_from_memory_and_from_disk(
    changes: list[tuple[bytes, bytes, bool]], topic_filter: bytes
) -> None:
    limits = {"retained_messages_max": MESSAGES_MAX, "retained_bytes_max": BYTES_MAX}
    with TemporaryDirectory() as folder, running(SimulatedDisk(), Path(folder), **limits) as run:
        memory = Router(Ledger(**limits))
        for topic_name, payload, commit in changes:
            run.publish(topic_name, payload)
            memory.publish_message(message(topic_name, payload, 1, True))
            if commit:
                run.commit()
                run.index.commit(run.log.durable)
        expected = {found.topic_name: found.body for found in memory.subscribe(client(memory), topic_filter, 1)}
        scan = run.router.subscribe(client(run.router), topic_filter, 1)
        found: list[Any] = []
        assert scan or run.router.retaining.count == 0
        while scan and not scan.done:
            found += scan.next_slice(2, NOW_US, NOW_MS)
        assert len(found) == len(expected)
        assert {one.topic_name: one.body for one in found} == expected
        assert run.router.retaining.count == memory.retaining.count
        assert run.router.retaining.size_bytes == memory.retaining.size_bytes
        assert run.router.ledger.dropped() == memory.ledger.dropped()
        for topic_name, _, _ in changes:
            kept = run.router.retained_message(topic_name)
            assert (kept.body if kept else None) == memory_body(memory, topic_name)


def client(router: Router) -> LocalClient:
    return LocalClient(b"c", 10, router.ledger, [], lambda: None)


def memory_body(router: Router, topic_name: bytes) -> bytes | None:
    kept = router.retained_message(topic_name)
    return kept.body if kept else None


def test_a_process_has_a_higher_incarnation_than_any_that_the_index_knows(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with running(disk, tmp_path) as run:
        run.publish(b"a", b"1")
        run.commit()
        run.index.incarnation = 9  # of a process after which the file `incarnation` was lost
        run.index.pass_over(run.log.durable + 1)
        assert run.index.commit(run.log.durable + 1)
    with running(disk, tmp_path) as run:
        assert run.log.incarnation == 10
        assert (run.index.applied, run.index.applied_incarnation) == (1, 10), "the numbers behind it are given again"


@pytest.mark.parametrize("applied", [0, 2, 4])
def test_recovery_gives_the_index_what_it_has_not_got(tmp_path: Path, applied: int) -> None:
    disk = SimulatedDisk()
    with running(disk, tmp_path) as run:
        run.publish(b"a", b"1")
        run.publish(b"b", b"2")
        run.commit()
        if applied == 2:
            run.index.commit(2)
        run.publish(b"a", b"")
        run.publish(b"c", b"3")
        run.commit()
        if applied == 4:
            run.index.commit(4)
    with running(disk, tmp_path) as run:
        assert run.index.applied == applied
        assert run.index.pending == (0 if applied == 4 else 2 if applied == 2 else 3)
        assert run.found() == {b"b": b"2", b"c": b"3"}
        assert run.router.retaining.count == 2
        # The next stamp is higher than any before, whatever the clock says.
        run.router.ledger.now_us = 5
        run.publish(b"b", b"4")
        assert run.found() == {b"b": b"4", b"c": b"3"}


def test_what_a_record_says_that_has_the_number_of_a_lost_one_is_not_taken_for_known(tmp_path: Path) -> None:
    with running(SimulatedDisk(), tmp_path) as run:
        run.publish(b"a", b"1")
        run.publish(b"b", b"2")
        run.commit()
        run.index.commit(2)
    disk = SimulatedDisk()  # a loss of power has taken the log, which nothing had synced
    write_last_run(disk, LastRun(1, "os", newest=1))
    with running(disk, tmp_path) as run:
        assert run.found() == {b"a": b"1", b"b": b"2"}
        run.publish(b"b", b"new")
        run.commit()
        assert run.log.appended == 1
    with running(disk, tmp_path) as run:
        assert run.found() == {b"a": b"1", b"b": b"new"}


def test_a_recovered_message_expires_when_it_would_have(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with running(disk, tmp_path) as run:
        run.publish(b"a", b"1", expires_ms=NOW_MS + 60_000)
        run.publish(b"b", b"2", expires_ms=NOW_MS + 60_000)  # its stamp is later by a microsecond, its end is not
        run.commit()
    with running(disk, tmp_path, passed_ms=20_000) as run:
        assert len(run.index.match(b"#", NOW_US + 60_000_000, NOW_MS + 60_000)) == 2
        assert not run.index.match(b"#", NOW_US + 60_001_000, NOW_MS + 60_001)
        for kept in run.index.match(b"#", NOW_US + 30_000_000, NOW_MS + 30_000):
            assert kept.expires_at_ms == NOW_MS + 60_000


def test_a_router_that_retains_nothing_passes_retained_messages_over_and_keeps_the_stamp(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with running(disk, tmp_path) as run:
        run.publish(b"a", b"1")
        run.publish(b"b", b"2")
        run.commit()
        stamp_us = run.router.ledger.stamp_us
    router = Router(Ledger(), retains=False)
    open_log(disk, router, worker=0, make_will=lambda *fields: None, make_mark=lambda: 9, now_us=NOW_US, now_ms=NOW_MS)
    assert router.retaining.count == 0
    assert router.ledger.stamp_us == stamp_us == NOW_US + 1


def test_records_without_retained_messages_are_passed_over(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with running(disk, tmp_path) as run:
        run.publish(b"a", b"1")
        run.commit()
        run.index.pass_over(9)
        assert not run.index.commit(8)
        assert run.index.commit(9)
        assert run.index.applied == 9
        run.index.pass_over(9)
        assert not run.index.commit(9)


def test_an_index_that_lags_behind_a_snapshot_is_brought_up_from_the_segments_before_it(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    options = {"segment_bytes_max": 300}
    with running(disk, tmp_path, **options) as run:
        for number in range(20):
            run.publish(b"t/%d" % number, b"x" * 50)
            run.commit()
    assert compact(disk, 0, lambda: 7) is not None
    with running(disk, tmp_path, **options) as run:
        assert len(run.found()) == 20
        assert run.router.retaining.count == 20


def test_a_message_of_a_slice_gives_way_to_what_has_come_since(tmp_path: Path) -> None:
    with running(SimulatedDisk(), tmp_path) as run:
        for topic_name in (b"a", b"b", b"c"):
            run.publish(topic_name, b"1")
        run.commit()
        run.index.commit(2)
        scan = run.router.subscribe(client(run.router), b"#", 0)
        kept = scan.next_slice(3, NOW_US, NOW_MS)
        assert [scan.is_current(message) for message in kept] == [True, True, True]
        run.publish(b"a", b"2")
        run.publish(b"b", b"")
        assert {message.topic_name for message in kept if scan.is_current(message)} == {b"c"}


def test_a_slice_ends_with_the_message_that_makes_it_large(tmp_path: Path) -> None:
    with running(SimulatedDisk(), tmp_path) as run:
        for number in range(6):
            run.publish(b"t/%d" % number, bytes(1000))
            if number == 2:
                run.commit()
                run.index.commit(3)
        scan = run.router.subscribe(client(run.router), b"#", 0)
        sizes = []
        while not scan.done:
            sizes.append(len(scan.next_slice(10, NOW_US, NOW_MS, 1500)))
        assert sum(sizes) == 6
        assert max(sizes) == 2


@pytest.mark.parametrize("anew", [False, True], ids=["index kept", "index anew"])
def test_the_limits_decide_what_is_retained_when_it_is_published_and_never_again(tmp_path: Path, anew: bool) -> None:
    disk = SimulatedDisk()
    for name in "123":
        (tmp_path / name).mkdir()
    with running(disk, tmp_path / "1", retained_messages_max=2) as run:
        for topic_name, payload in [(b"a", b"1"), (b"b", b"2"), (b"beyond", b"3"), (b"b", b"4")]:
            run.publish(topic_name, payload)
        run.commit()
        assert run.found() == {b"a": b"1", b"b": b"4"}
        assert run.router.ledger.dropped() == {"retained_full": 1}
    with running(disk, tmp_path / ("2" if anew else "1"), retained_messages_max=1) as run:
        assert run.found() == {b"a": b"1", b"b": b"4"}
        run.publish(b"beyond", b"5")
        run.publish(b"a", b"6")
        run.commit()
        assert run.found() == {b"a": b"6", b"b": b"4"}
        assert run.router.ledger.dropped() == {"retained_full": 1}
    with running(disk, tmp_path / "3", retained_messages_max=0) as run:
        assert run.found() == {b"a": b"6", b"b": b"4"}


def test_who_wants_retain_as_published_is_told_though_there_was_no_room_to_keep_it(tmp_path: Path) -> None:
    with running(SimulatedDisk(), tmp_path, retained_messages_max=0) as run:
        receiver = client(run.router)
        run.router.subscribe(receiver, b"#", 0x08)
        run.publish(b"a", b"1")
        assert [(kept.topic_name, retain) for kept, _, retain, _ in receiver.take()] == [(b"a", True)]
