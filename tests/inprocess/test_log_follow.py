"""`shoal log follow`: each record that is written from now on, once."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from router.log.reader import Follower
from router.log.record_scan import Scan
from router.log.segments import RECORDS_AT, segment_name
from tests.support.commit_logs import open_log, turn
from tests.support.disk import SimulatedDisk, broken
from tests.support.log_folders import write

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 30


def numbers(follower: Follower) -> list[int]:
    return [row.number for row in follower.poll()]


def test_a_follower_reports_what_is_written_from_now_on_and_goes_over_to_new_segments() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 1)
    log.append(turn(log, 3))
    log.commit()
    follower = Follower(disk, 0, Scan())
    assert numbers(follower) == []
    for _ in range(3):
        log.append(turn(log, 2))
        log.commit()
        assert numbers(follower) == list(range(log.appended - 1, log.appended + 1))
        assert numbers(follower) == []
    for _ in range(3):
        log.append(turn(log, 2))
        log.commit()
    assert numbers(follower) == [10, 11, 12, 13, 14, 15]
    log.close()
    assert numbers(follower) == []
    log, _ = open_log(disk, incarnation=2)
    assert numbers(follower) == []
    log.append(turn(log, 2))
    log.commit()
    assert [(row.number, row.incarnation) for row in follower.poll()] == [(16, 2), (17, 2)]
    follower.close()
    assert follower.problems == []
    log.close()
    assert disk.open_files == 0


def test_a_follower_of_a_log_without_segments_waits_for_the_first() -> None:
    disk = SimulatedDisk()
    follower = Follower(disk, 0, Scan())
    assert numbers(follower) == []
    log, _ = open_log(disk)
    log.append(turn(log, 2))
    log.commit()
    assert numbers(follower) == [1, 2]
    follower.close()


def test_a_record_that_is_being_written_is_waited_for() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    log.append(turn(log, 1))
    log.commit()
    follower = Follower(disk, 0, Scan())
    before = disk.content(segment_name(1))
    log.append(turn(log, 2))
    log.commit()
    after = disk.content(segment_name(1))
    found = []
    for length in range(len(before), len(after) + 1):
        # Some file systems show a file's new length before its bytes.
        disk.put(segment_name(1), after[:length].ljust(len(after), b"\0") if length % 2 else after[:length])
        follower.close()
        follower._file = disk.open(segment_name(1))
        found += numbers(follower)
    assert found == [2, 3]
    assert follower.problems == []


def test_a_batch_that_is_written_again_after_a_failed_sync_is_reported_once() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    log.append(turn(log, 2))
    log.commit()
    follower = Follower(disk, 0, Scan())
    found = []
    disk.before_sync = lambda: found.extend(numbers(follower))  # written, and not synced
    disk.fail = lambda operation: broken() if operation == "sync" else None
    log.append(turn(log, 2))
    assert not log.commit()
    assert found == [3, 4]
    disk.before_sync, disk.fail = lambda: None, lambda operation: None
    log.append(turn(log, 2))
    while log.commit():
        pass
    found += numbers(follower)
    found += numbers(follower)
    assert found == [3, 4, 5, 6]
    assert follower.problems == []


def test_what_is_written_between_two_looks_at_one_segment_and_the_next_is_not_missed() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 200)
    log.append(turn(log, 1))
    log.commit()
    follower = Follower(disk, 0, Scan())
    busy = False

    def write_on(operation: str) -> None:
        nonlocal busy
        if operation == "open" and not busy:
            busy = True
            for number in (1, 3):
                log.append(turn(log, number))
                log.commit()

    disk.fail = write_on  # the follower has read the first segment to its end, and opens the second
    assert numbers(follower) == [2, 3, 4, 5]
    assert len(log.headers) == 2
    assert follower.problems == []


def test_a_follower_says_what_it_could_not_read() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    log.append(turn(log, 1))
    log.commit()
    follower = Follower(disk, 0, Scan())
    end = len(disk.content(segment_name(1)))
    log.append(turn(log, 3))
    log.commit()
    data = bytearray(disk.content(segment_name(1)))
    data[end + 30] ^= 1
    disk.put(segment_name(1), bytes(data))
    follower.close()
    follower._file = disk.open(segment_name(1))
    assert numbers(follower) == [3, 4]
    assert len(follower.problems) == 1
    assert f"segment-000000000001.log: bytes that are no record at byte {end} (" in follower.problems[0]
    assert follower.problems[0].endswith("1 records are missing")


def test_a_follower_that_was_overtaken_goes_on_with_what_is_left() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 1)
    log.append(turn(log, 1))
    log.commit()
    follower = Follower(disk, 0, Scan())
    for _ in range(3):
        log.append(turn(log, 2))
        log.commit()
    disk.remove(segment_name(2))
    disk.remove(segment_name(3))
    found = [number for _ in range(50) for number in numbers(follower)]
    assert found == [6, 7]
    assert follower.problems == ["4 records are missing from number 2 on"]


class Following:
    """`shoal log follow` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "broker.cli.main", "log", "follow", "--data-dir", str(folder), *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SOON_S)[0], "nothing came"
        return self.process.stdout.readline().decode()


def test_follow_prints_what_a_running_broker_stores_until_it_is_interrupted(tmp_path: Path) -> None:
    log = write(tmp_path, 2, close=False)
    following = Following(tmp_path, "t", "--json")
    # What comes before it has looked for the end is not printed; so it is written until something is.
    assert following.process.stdout is not None
    deadline = time.monotonic() + SOON_S
    while not select.select([following.process.stdout], [], [], 0.05)[0]:
        log.append(turn(log, 1))
        log.commit()
        assert time.monotonic() < deadline
    first = json.loads(following.line())["number"]
    last = log.appended
    assert [json.loads(following.line())["number"] for _ in range(last - first)] == list(range(first + 1, last + 1))
    log.append(turn(log, 2))
    log.commit()
    assert [json.loads(following.line())["number"] for _ in range(2)] == [last + 1, last + 2]
    following.process.send_signal(signal.SIGINT)
    output, errors = following.process.communicate(timeout=SOON_S)
    assert (following.process.returncode, output, errors) == (130, b"", b"")
