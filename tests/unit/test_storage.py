"""The log: what counts as durable is there after any crash, and a disk that fails costs time, never a record."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.log.disk import Disk
from router.log.log_writer import Log
from router.log.record_buffer import RecordBuffer
from router.log.segments import RECORDS_AT, Position, Segments, segment_name, segment_of
from tests.support.commit_logs import open_log, read_log, turn, whole
from tests.support.disk import PowerLoss, SimulatedDisk, broken, no_space


def fill(log: Log, turns: int, records: int = 1, size: int = 40) -> None:
    for _ in range(turns):
        log.append(turn(log, records, size))
        assert log.commit()


def segments_of(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if segment_of(name)]


# What counts as durable ----------------------------------------------------------------------------------------------


def test_a_batch_is_one_write_and_one_sync_however_many_turns_gathered() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    fill(log, 1)
    operations: list[str] = []
    disk.fail = operations.append  # type: ignore[assignment]  # returns None: nothing fails
    for records in (3, 1, 7):
        log.append(turn(log, records))
    assert (log.durable, log.appended) == (1, 12)
    assert log.commit()
    assert operations == ["write", "sync"]
    assert (log.durable, log.backlog_bytes, log.batches, log.syncs) == (12, 0, 2, 2)
    assert not log.commit()


def test_nothing_is_durable_before_its_sync_has_ended() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    seen: list[int] = []
    disk.before_sync = lambda: seen.append(log.durable)
    fill(log, 3, records=2)
    assert seen == [0, 0, 2, 4]  # the first is the header's
    assert log.durable == 6


@pytest.mark.parametrize(("durability", "after_append"), [("fsync", 0), ("os", 0), ("none", 2)])
def test_durable_means_what_the_setting_says(durability: Any, after_append: int) -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, durability=durability)
    log.append(turn(log, 2))
    assert log.durable == after_append
    assert log.commit()
    assert log.durable == 2
    assert log.syncs == (1 if durability == "fsync" else 0)
    # A killed process loses nothing of what was written, whatever is synced.
    disk.process_killed()
    assert whole(read_log(disk)[1]) == [1, 2]


def test_when_durable_has_its_callback_called_whenever_there_is_something_to_see() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    seen: list[tuple[int, bool]] = []
    log.when_durable(lambda: seen.append((log.durable, log.full)))
    fill(log, 1)
    disk.capacity = 0
    log.append(turn(log, 1))
    assert not log.commit()
    disk.capacity = None
    assert log.commit()
    assert seen == [(1, False), (1, True), (2, False)]


# Segments ------------------------------------------------------------------------------------------------------------


def test_a_full_segment_is_sealed_and_the_next_one_goes_on_with_the_numbers() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 300)
    fill(log, 7)
    assert segments_of(disk) == [segment_name(1), segment_name(2), segment_name(3)]
    assert [header.first_number for header in log.headers] == [1, 4, 7]
    assert [header.created_us for header in log.headers] == [1, 4, 7]
    assert len({header.mark for header in log.headers}) == 3
    assert log.close()
    assert disk.open_files == 0
    for header in log.headers:
        start = Position(header.segment, RECORDS_AT, header.first_number)
        cursor = next(Segments(disk, worker=0, rules=1).cursors(start))
        numbers = [record.number for record in cursor]
        assert cursor.kind_name() == "sealed"
        assert cursor.fields() == {
            "first_us": numbers[0], "last_us": numbers[-1], "index": [[numbers[0], RECORDS_AT, numbers[0]]]
        }  # fmt: skip


def test_a_batch_larger_than_a_segment_has_one_for_itself() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 300)
    fill(log, 1)
    fill(log, 1, records=30)
    fill(log, 1)
    assert [header.first_number for header in log.headers] == [1, 2, 32]
    assert whole(read_log(disk)[1]) == list(range(1, 33))


def test_every_run_begins_a_segment_of_its_own_and_an_idle_one_makes_none() -> None:
    disk = SimulatedDisk()
    for incarnation in range(1, 4):
        log, records = open_log(disk, incarnation=incarnation)
        assert whole(records) == list(range(1, 2 * incarnation - 1))
        fill(log, 2)
        assert log.close()
    idle, _ = open_log(disk, incarnation=9)
    assert idle.close()
    assert [header.incarnation for header in read_log(disk)[0].headers] == [1, 2, 3]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.booleans(), st.data())
def test_a_record_is_found_at_or_shortly_behind_where_it_is_located(
    sizes: list[int], restarted: bool, data: st.DataObject
) -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 90_000)
    batches: list[int] = []  # first numbers
    for size in sizes:
        batches.append(log.appended + 1)
        fill(log, 1, records=size // 40 + 1, size=size * 10)
    last = log.durable
    if restarted:
        assert log.close()
        log, _ = open_log(disk, incarnation=2)
    number = data.draw(st.integers(1, last))
    # turn() gives records their number as time. Of one time there may be more, so that is looked for a batch earlier.
    for position, batches_ahead in ((log.locate(number), 1), (log.locate_time(number), 2)):
        assert position is not None
        assert position.number <= number
        found = [record.number for cursor in log.reader().cursors(position, 4096) for record in cursor]
        assert found == list(range(position.number, last + 1))
        # Not more than 64 KiB and these batches before it.
        ahead = [first for first in batches if position.number < first <= number]
        sizes_ahead = [sizes[batches.index(first)] * 10 * (sizes[batches.index(first)] // 40 + 1) for first in ahead]
        assert sum(sizes_ahead[:-batches_ahead]) <= 65_536
    assert log.locate(0) is None
    assert log.locate_time(-1) == Position(1, RECORDS_AT, 1)


def test_a_segment_that_was_never_sealed_is_read_from_its_beginning() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    fill(log, 40, size=10_000)
    disk.process_killed()
    log, _ = open_log(disk, incarnation=2)
    assert log.locate(35) == Position(1, RECORDS_AT, 1)
    assert log.locate_time(35) == Position(1, RECORDS_AT, 1)
    assert open_log(SimulatedDisk())[0].locate_time(5) is None


def test_old_segments_are_removed_oldest_first_and_the_newest_stays() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 100)
    fill(log, 5)
    removed: list[str] = []
    disk.fail = removed.append  # type: ignore[assignment]
    log.discard(3)
    assert log.commit()
    assert removed == ["names", "remove", "sync_folder", "remove", "sync_folder"]
    assert segments_of(disk)[0] == segment_name(3)
    assert log.locate(2) is None
    log.discard(100)
    assert log.commit()
    assert segments_of(disk) == [segment_name(5)]
    assert log.close()
    log, records = open_log(disk, incarnation=2)
    assert whole(records) == [5]
    fill(log, 1)
    assert log.durable == 6


# A disk that fails ---------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_what_is_not_written_says_so_and_heals_by_itself() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    fill(log, 2)
    disk.capacity = len(disk.content(segment_name(1))) + 50  # room for half a record
    log.append(turn(log, 3))
    for _ in range(3):
        assert not log.commit()
        assert (log.full, log.accepting, log.durable) == (True, False, 2)
        assert log.trouble is not None
        assert log.trouble == f"{segment_name(1)}: No space left on device"
    log.append(turn(log, 2))
    disk.capacity = None
    assert log.commit()
    assert (log.full, log.accepting, log.trouble, log.durable) == (False, True, None, 5)
    assert log.commit()
    disk.power_loss()
    segments, records = read_log(disk)
    assert whole(records) == list(range(1, 8))
    assert segments.damages == []
    assert len(segments.headers) == 1


def test_a_disk_too_full_for_a_new_segment_leaves_none_behind() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 100)
    fill(log, 1)
    disk.capacity = len(disk.content(segment_name(1))) + 200  # room for the seal, and part of a header
    log.append(turn(log, 1))
    assert not log.commit()
    assert log.full
    assert disk.open_files == 0
    disk.capacity = None
    assert log.commit()
    assert segments_of(disk) == [segment_name(1), segment_name(2)]
    assert whole(read_log(disk)[1]) == [1, 2]


def test_after_a_failed_sync_the_batch_is_written_again_elsewhere_and_the_old_pages_are_not_trusted() -> None:
    disk = SimulatedDisk(seed=3)
    log, _ = open_log(disk)
    fill(log, 2)
    log.append(turn(log, 4))
    disk.fail = lambda operation: broken() if operation == "sync" else None
    assert not log.commit()
    assert (log.durable, log.full, log.accepting) == (2, False, False)
    assert log.trouble is not None
    disk.fail = lambda operation: None
    assert log.commit()
    assert (log.durable, log.trouble, log.accepting) == (6, None, True)
    assert [(header.segment, header.first_number) for header in log.headers] == [(1, 1), (2, 3)]
    fill(log, 1)
    disk.power_loss()
    segments, records = read_log(disk)
    assert whole(records) == list(range(1, 8))
    assert segments.damages == []  # what the old segment may still hold of the batch is in the new one


def test_damage_to_what_a_later_segment_has_is_none() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    fill(log, 2)
    log.append(turn(log, 4))
    disk.fail = lambda operation: broken() if operation in ("sync", "truncate") else None
    assert not log.commit()
    disk.fail = lambda operation: None
    fill_length = len(disk.content(segment_name(1)))
    assert log.commit()
    assert whole(read_log(disk)[1]) == list(range(1, 7))
    record = (fill_length - RECORDS_AT) // 6
    for at in range(RECORDS_AT + 2 * record, fill_length):
        broken_disk = disk.copy()
        content = bytearray(disk.content(segment_name(1)))
        content[at] ^= 0xFF
        broken_disk.put(segment_name(1), bytes(content))
        segments, records = read_log(broken_disk)
        assert whole(records) == list(range(1, 7)), at
        assert segments.damages == []
        assert segments.last_number == 6


def test_os_durability_syncs_a_segment_when_it_is_full() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, durability="os", segment_bytes_max=RECORDS_AT + 300)
    fill(log, 3)
    operations: list[str] = []
    disk.fail = operations.append  # type: ignore[assignment]
    fill(log, 1)
    assert operations == ["write", "sync", "create", "write", "sync", "sync_folder", "write"]


def test_a_segment_whose_first_sync_fails_is_removed_and_its_number_used_again() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    failures = iter([None, broken(), broken()])
    disk.fail = lambda operation: next(failures, None) if operation == "sync" else None
    log.append(turn(log, 1))
    for _ in range(2):
        assert not log.commit()
        assert log.headers == []
        assert disk.open_files == 0
    assert log.commit()
    assert segments_of(disk) == [segment_name(1)]
    assert log.durable == 1
    assert disk.open_files == 1


def test_a_file_that_is_in_the_way_is_not_removed() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    disk.put(segment_name(1), b"somebody else's")
    log.append(turn(log, 1))
    for _ in range(2):
        assert not log.commit()
        assert log.trouble is not None
        assert "File exists" in log.trouble
    assert disk.content(segment_name(1)) == b"somebody else's"


@settings(max_examples=150)
@given(st.integers(0, 10**6))
def test_whatever_fails_nothing_durable_is_lost_and_all_of_it_gets_there_in_the_end(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk(seed)
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 600)
    failing = True

    def fail(operation: str) -> OSError | None:
        if failing and operation != "names" and random.random() < 0.2:
            return random.choice((broken, no_space))()
        return None

    disk.fail = fail
    for _ in range(25):
        if random.random() < 0.6:
            log.append(turn(log, random.randrange(1, 4)))
        if random.random() < 0.1:
            disk.capacity = None if disk.capacity else random.randrange(8000, 20_000)
        log.commit()
        assert log.durable <= log.appended
        if log.trouble is None and log.backlog_bytes == 0:
            assert log.durable == log.appended
    durable, appended = log.durable, log.appended
    lost = disk.copy() if random.random() < 0.3 else None
    failing, disk.capacity = False, None
    if lost is None:
        while log.commit():
            pass
        assert log.durable == appended
        disk.power_loss()
        segments, records = read_log(disk)
        assert whole(records) == list(range(1, appended + 1))
        assert [damage for damage in segments.damages if damage.missing] == []
    else:
        found = whole(read_log(lost)[1])
        assert found[:durable] == list(range(1, durable + 1))


# A crash -------------------------------------------------------------------------------------------------------------


def run_until_the_power_goes(disk: SimulatedDisk, seed: int, incarnation: int, certain: set[int]) -> int:
    """Open, append, commit, close; returns the last number appended, and adds to `certain` what must survive."""
    random = Random(seed)
    log, begun, appended = None, 0, 0
    try:
        log, records = open_log(disk, incarnation=incarnation, seed=seed, segment_bytes_max=RECORDS_AT + 700)
        certain.update(whole(records))
        begun = log.durable
        for _ in range(8):
            for _ in range(random.randrange(3)):
                log.append(turn(log, random.randrange(1, 4), random.choice((10, 40, 600))))
            log.commit()
            certain.update(range(begun + 1, log.durable + 1))
        log.close()
    except PowerLoss:
        pass
    if log is not None:
        certain.update(range(begun + 1, log.durable + 1))
        appended = log.appended
    return appended


@pytest.mark.parametrize("seed", range(6))
def test_power_lost_at_every_step_loses_nothing_durable_and_invents_nothing(seed: int) -> None:
    step = 0
    while True:
        step += 1
        disk = SimulatedDisk(seed * 1000 + step)
        disk.power_off_at = step
        certain: set[int] = set()
        appended = run_until_the_power_goes(disk, seed, 1, certain)
        if disk.steps < step:
            break
        durable = len(certain)
        disk.power_loss()
        segments, records = read_log(disk)
        found = whole(records)
        # In order, as far as durable; what was only written may be there or not, and with gaps.
        assert found[:durable] == sorted(certain), step
        assert not found or found[-1] <= appended, step
        assert all(damage.first_missing > durable for damage in segments.damages if damage.missing), step
        # Recovery is idempotent, also when the power goes again within it.
        disk.power_off_at = disk.steps + step % 17 + 1
        try:
            open_log(disk, incarnation=2)
        except PowerLoss:
            pass
        disk.power_loss()
        log, records = open_log(disk, incarnation=3)
        assert whole(records) == found, step
        fill(log, 2)
        again = found[-1] if found else 0
        assert whole(read_log(disk)[1]) == [*found, again + 1, again + 2], step
    assert step > 10  # the runs are not empty


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 60), st.booleans()), min_size=1, max_size=6))
def test_any_number_of_crashes_one_after_another_lose_nothing_durable(crashes: list[tuple[int, int, bool]]) -> None:
    disk = SimulatedDisk(crashes[0][0])
    certain: set[int] = set()
    for incarnation, (seed, step, power) in enumerate(crashes, 1):
        disk.power_off_at = disk.steps + step
        run_until_the_power_goes(disk, seed, incarnation, certain)
        if power:
            disk.power_loss()
        else:
            disk.process_killed()
        found = whole(read_log(disk)[1])
        assert found == sorted(set(found))
        assert certain <= set(found)


@settings(max_examples=150)
@given(st.integers(0, 10**6))
def test_what_a_start_has_read_after_a_kill_is_still_there_after_a_loss_of_power(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk(seed)
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 2000)
    disk.fail = lambda operation: broken() if operation == "sync" and random.random() < 0.4 else None
    for _ in range(random.randrange(1, 8)):
        log.append(turn(log, random.randrange(1, 8), 100))
        log.commit()
    log.append(turn(log, 3))
    disk.fail = lambda operation: broken() if operation == "sync" else None
    if random.random() < 0.5:
        log.commit()
    else:
        disk.power_off_at = disk.steps + random.randrange(1, 3)
        try:
            log.commit()
        except PowerLoss:
            pass  # killed, that is: between write and sync, or in the write
    disk.process_killed()
    disk.fail = lambda operation: None
    _, records = open_log(disk, incarnation=2)
    found = whole(records)
    assert found[: log.durable] == list(range(1, log.durable + 1))
    disk.power_loss()
    assert whole(read_log(disk)[1]) == found


def test_os_durability_survives_a_killed_process_at_every_step() -> None:
    for step in range(1, 40):
        disk = SimulatedDisk(step)
        log, _ = open_log(disk, durability="os")
        disk.power_off_at = disk.steps + step
        try:
            fill(log, 20)
        except PowerLoss:
            pass
        disk.process_killed()
        found = whole(read_log(disk)[1])
        assert found[: log.durable] == list(range(1, log.durable + 1))


# The thread ----------------------------------------------------------------------------------------------------------


def test_while_one_batch_is_synced_the_next_one_gathers_and_nobody_waits() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    fill(log, 1)
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert go_on.wait(30)

    disk.before_sync = slow
    log.backlog_bytes_max = 5000
    log.start()
    log.append(turn(log, 1))
    assert entered.wait(30)
    assert log.accepting
    for _ in range(50):
        log.append(turn(log, 2))  # returns, though the disk does not
    assert not log.accepting
    assert log.durable == 1
    assert not log.flush(0)
    go_on.set()
    assert log.flush(30)
    assert log.durable == 102
    assert log.batches == 3
    assert log.accepting
    assert log.close(30)
    assert disk.open_files == 0


def log_of_a_full_disk(capacity: int, retry_s: float, records: int) -> tuple[SimulatedDisk, Log]:
    """Return a log whose thread has found that its disk has no room for what was appended."""
    disk = SimulatedDisk()
    disk.capacity = capacity
    log, _ = open_log(disk, retry_s=retry_s)
    changed = threading.Event()
    log.when_durable(changed.set)
    log.start()
    log.append(turn(log, records))
    assert changed.wait(30)
    return disk, log


def test_the_thread_tries_again_until_there_is_room() -> None:
    disk, log = log_of_a_full_disk(100, 0.001, 3)
    assert log.full
    disk.capacity = None
    assert log.flush(30)
    assert (log.full, log.durable) == (False, 3)
    assert log.close(30)


def test_closing_does_not_wait_for_a_disk_that_is_full() -> None:
    _, log = log_of_a_full_disk(0, 3600, 1)
    assert not log.close(30)
    assert (log.durable, log.errors) == (0, 2)  # once, and once more when closing


def test_closing_writes_what_is_left() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    log.start()
    for _ in range(20):
        log.append(turn(log, 5))
    assert log.close(30)
    assert log.durable == 100
    assert whole(read_log(disk)[1]) == list(range(1, 101))


def test_a_thread_that_has_ended_is_seen_at_the_next_append() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)

    def bug() -> None:
        raise ZeroDivisionError

    disk.before_sync = bug
    ended = threading.Event()
    log.when_durable(ended.set)
    log.start()
    log.append(turn(log, 1))
    assert ended.wait(30)
    with pytest.raises(RuntimeError, match="the log's thread has ended") as seen:
        log.append(RecordBuffer(1))
    assert isinstance(seen.value.__cause__, ZeroDivisionError)
    assert not log.flush(30)


# A real disk ---------------------------------------------------------------------------------------------------------


def test_a_real_folder_holds_a_log(tmp_path: Path) -> None:
    for incarnation in range(1, 4):
        log, records = open_log(Disk(str(tmp_path)), incarnation=incarnation, segment_bytes_max=20_000)  # type: ignore[arg-type]
        assert whole(records) == list(range(1, 200 * (incarnation - 1) + 1))
        log.start()
        for _ in range(100):
            log.append(turn(log, 2, 100))
            assert log.flush(30)  # a batch each: behind a hole, only what was synced later proves that it is one
        assert log.close(30)
    newest = sorted(tmp_path.glob("segment-*.log"))[-1]
    with newest.open("r+b") as file:
        file.seek(RECORDS_AT + 100)
        file.write(b"?")
        file.seek(0, 2)
        file.truncate(file.tell() - 1)
    log, records = open_log(Disk(str(tmp_path)), incarnation=4)  # type: ignore[arg-type]
    assert len(records) == 599
    assert log.close(30)
    assert sorted(path.suffix for path in tmp_path.glob(f"{newest.name}.*"))[0].startswith(".bad-")
