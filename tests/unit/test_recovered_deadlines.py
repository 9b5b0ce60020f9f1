"""Deadlines of sessions that come out of the log."""

from __future__ import annotations

from broker.reactor.pump import Pump
from router.log.last_run import LastRun, write_last_run
from router.log.record_buffer import RecordBuffer
from router.recovery.open_log import DEADLINES_PER_SLICE, deadlines_in_slices, start_deadlines
from router.recovery.open_log import open_log as open_commit_log
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.commit_logs import open_log
from tests.support.disk import SimulatedDisk


def test_a_session_outlives_a_start_on_a_machine_that_has_been_up_for_longer_than_its_expiry_interval() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    buffer = RecordBuffer(0)
    buffer.add("session", 1_000_000, b"c", 3600)
    buffer.add("detached", 2_000_000, b"c", 3600, 0)
    log.append(buffer)
    log.close()
    write_last_run(disk, LastRun(1, newest=1))
    up_ms = 36_000_000
    router = Router(Ledger())
    opened = open_commit_log(disk, router, worker=0, make_will=lambda *fields: None, make_mark=lambda: 9,
                    now_us=62_000_000, now_ms=up_ms)  # fmt: skip
    assert router.expire() == 0  # nobody waits for anything yet
    start_deadlines(router, opened)
    # A minute of the hour has passed since its connection was gone.
    assert router.expire() == up_ms + 3540 * 1000
    assert list(router.sessions) == [b"c"]


def test_the_deadlines_of_many_sessions_are_started_some_at_a_time_and_those_that_are_due_may_end_meanwhile() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    buffer = RecordBuffer(0)
    count = 3 * DEADLINES_PER_SLICE + 1
    for number in range(count):
        name = b"%d" % number
        expiry_interval_s = 1 if number % 100 == 0 else 3600
        buffer.add("session", 1_000_000, name, expiry_interval_s)
        buffer.add("detached", 2_000_000, name, expiry_interval_s, 0)
    log.append(buffer)
    log.close()
    write_last_run(disk, LastRun(1, newest=1))
    router = Router(Ledger())
    opened = open_commit_log(disk, router, worker=0, make_will=lambda *fields: None, make_mark=lambda: 9,
                    now_us=62_000_000, now_ms=60_000)  # fmt: skip
    Pump(router, opened.log)
    started = [0]
    for _ in deadlines_in_slices(router, opened):
        started.append(router.deadline_count + int(router.ledger.sessions_expired))
        router.expire()
    assert started == [0, DEADLINES_PER_SLICE, 2 * DEADLINES_PER_SLICE, 3 * DEADLINES_PER_SLICE]
    router.expire()
    assert router.ledger.sessions_expired == (count + 99) // 100
    assert router.deadline_count == len(router.sessions) == count - router.ledger.sessions_expired
    assert opened.detached_us == {}
