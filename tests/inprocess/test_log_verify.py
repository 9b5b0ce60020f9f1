"""`shoal log verify`: what is damage and what is not, and where it is."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.log.disk import Disk
from router.log.segments import HEADER_COPY_AT, RECORDS_AT, Header, segment_name
from router.log.verify import examine
from tests.support.commit_logs import open_log, turn
from tests.support.disk import SimulatedDisk, broken
from tests.support.log_folders import RECORD_BYTES, content, flip, segment, shoal, write, write_snapshot


def verdict(folder: Path, exit_code: int = 1) -> dict[str, Any]:
    before = content(folder)
    result = shoal("log", "verify", "--data-dir", folder, "--json")
    assert result.exit_code == exit_code, result.output
    assert shoal("log", "verify", "--data-dir", folder).exit_code == exit_code
    assert content(folder) == before
    (worker,) = json.loads(result.stdout)["workers"]
    assert worker["whole"] == (exit_code == 0)
    return dict(worker)


def test_a_log_as_it_was_written_is_whole(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    assert verdict(tmp_path, 0)["records"] == 15
    printed = shoal("log", "verify", "--data-dir", tmp_path).stdout
    assert printed == f"{tmp_path}/worker-0: whole (15 records in 3 files).\n"


def test_a_damaged_record_is_named_with_its_place_and_number(tmp_path: Path) -> None:
    write(tmp_path, 5, 5)
    flip(segment(tmp_path, 1), RECORDS_AT + 2 * RECORD_BYTES + 5)
    (damage,) = verdict(tmp_path)["damages"]
    assert damage == {
        "file": segment_name(1), "offset": RECORDS_AT + 2 * RECORD_BYTES, "length": RECORD_BYTES, "first_missing": 3,
        "missing": 1, "what": "bytes that are no record", "aside": None,
    }  # fmt: skip
    assert shoal("log", "verify", "--data-dir", tmp_path).stdout == (
        f"{tmp_path}/worker-0/{segment_name(1)}: bytes that are no record at byte 4,332 (86 bytes); "
        "record 3 is missing.\n"
        f"{tmp_path}/worker-0: 1 thing is wrong (9 records in 2 files).\n"
    )


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    segment(tmp_path, 2).unlink()
    found = verdict(tmp_path)["damages"]
    assert [(damage["file"], damage["missing"]) for damage in found] == [(segment_name(1), 5), (segment_name(2), 0)]


def test_a_segment_whose_end_is_missing_is_damage(tmp_path: Path) -> None:
    write(tmp_path, 5, 5)
    os.truncate(segment(tmp_path, 1), RECORDS_AT + 100)
    (damage,) = verdict(tmp_path)["damages"]
    assert (damage["file"], damage["first_missing"], damage["missing"]) == (segment_name(1), 2, 4)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 6}, "has format version 6"),
        ({"worker": 3}, "belongs to worker 3 and not to worker 0"),
        ({"segment": 9}, "says that it is segment 9"),
    ],
)
def test_a_segment_that_is_not_this_logs_is_damage(tmp_path: Path, change: dict[str, int], what: str) -> None:
    write(tmp_path, 5, 5)
    data = segment(tmp_path, 2).read_bytes()
    told = Header.decode(data[:64])
    assert told is not None
    fields = {name: getattr(told, name) for name in Header.__slots__}
    encoded = Header(**{**fields, **change}).encode()
    segment(tmp_path, 2).write_bytes(encoded.ljust(HEADER_COPY_AT, b"\0") + encoded + data[RECORDS_AT:])
    assert what in verdict(tmp_path)["damages"][0]["what"]


def test_the_incarnation_is_looked_at(tmp_path: Path) -> None:
    write(tmp_path, 5, incarnation=4)
    assert "says 1, and there is a segment of incarnation 4" in verdict(tmp_path)["damages"][0]["what"]
    (tmp_path / "worker-0" / "incarnation").write_text("four")
    assert verdict(tmp_path)["damages"][0]["what"] == "does not hold the number of the worker's last run"


def test_removed_segments_need_a_whole_snapshot(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    segment(tmp_path, 1).unlink()
    (damage,) = verdict(tmp_path)["damages"]
    assert (damage["first_missing"], damage["missing"]) == (1, 5)
    assert "no whole snapshot stands for what came before" in damage["what"]
    write_snapshot(tmp_path, 1, 5)
    assert verdict(tmp_path)["damages"][0]["missing"] == 1
    write_snapshot(tmp_path, 2, 6)
    verdict(tmp_path, 0)
    flip(tmp_path / "worker-0" / "snapshot-000000000002.log", RECORDS_AT + 40)
    found = verdict(tmp_path)["damages"]
    assert [(damage["file"], damage["what"], damage["missing"]) for damage in found] == [
        ("snapshot-000000000002.log", "bytes that are no record", 0),
        (segment_name(2), "is the oldest segment, and no whole snapshot stands for what came before", 5),
    ]


def test_a_snapshot_is_whole_or_damaged(tmp_path: Path) -> None:
    write(tmp_path, 5, 5)
    path = write_snapshot(tmp_path, 2, 6)
    data = path.read_bytes()
    verdict(tmp_path, 0)
    for length in (0, 63, 64, HEADER_COPY_AT, RECORDS_AT - 1, RECORDS_AT, RECORDS_AT + 10, len(data) - 1):
        path.write_bytes(data[:length])
        assert {damage["file"] for damage in verdict(tmp_path)["damages"]} == {path.name}
    path.write_bytes(data + b"more")
    assert verdict(tmp_path)["damages"][0]["what"] == "bytes that are no record"
    path.rename(path.with_name("snapshot-000000000001.log"))
    assert verdict(tmp_path)["damages"][0]["what"] == "says that it is snapshot 2"


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ((4, b""), "has 3 records before its end, which says 4"),
        ((3, b""), "says at its end that messages are where they are not"),
        ((3, struct.pack("<QQ", 3, RECORDS_AT)), "says at its end that messages are where they are not"),
    ],
)
def test_the_end_of_a_snapshot_is_true(tmp_path: Path, end: tuple[Any, ...], what: str) -> None:
    write(tmp_path, 5, 5)
    write_snapshot(tmp_path, 2, 6, end)
    assert verdict(tmp_path)["damages"][0]["what"] == what


def test_a_snapshot_needs_a_segment_beside_it(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 1, 6)
    assert "and not one segment" in verdict(tmp_path)["damages"][0]["what"]


def test_a_snapshot_larger_than_a_window_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 5, 5)
    write_snapshot(tmp_path, 2, 6)
    monkeypatch.setattr("router.log.verify.WINDOW_BYTES", 8)
    verdict(tmp_path, 0)


@given(st.integers(0, 10**9), st.integers(0, 7))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_anywhere_is_noticed(where: int, bit: int) -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 1)
    for _ in range(3):
        log.append(turn(log, 3))
        log.commit()
    log.close()
    names = disk.names()
    name = names[where % 3]
    data = bytearray(disk.content(name))
    offset = where % len(data)
    data[offset] ^= 1 << bit
    disk.put(name, bytes(data))
    report = examine(disk, 0)
    if 64 <= offset < HEADER_COPY_AT:
        assert not report.damages  # zeros that nobody reads
    elif name != names[-1]:
        # In the record that seals a segment nothing is lost, and the segment counts as one that was never sealed.
        seal_at = len(data) - (len(data) - RECORDS_AT) // 4 - 40
        assert report.damages or (offset >= seal_at and not report.segments[names.index(name)].whole)
    else:
        assert report.damages or report.unfinished or not report.segments[2].whole
    assert report.census.records >= 6


def test_a_disk_that_fails_is_not_taken_for_damage() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    log.append(turn(log, 3))
    log.close()
    disk.fail = lambda operation: broken() if operation == "read" else None
    with pytest.raises(OSError, match="Input/output error"):
        examine(disk, 0)


def test_segments_that_the_broker_removes_meanwhile_are_no_damage(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    removed = False

    def progress(length: int) -> None:
        nonlocal removed
        if not removed:
            segment(tmp_path, 1).unlink()
            segment(tmp_path, 2).unlink()
            removed = True

    report = examine(Disk(str(tmp_path / "worker-0")), 0, progress)
    assert (report.moved, report.damages, report.census.records) == (True, [], 10)


def test_a_segment_that_the_broker_removes_before_it_is_read_does_not_count_as_missing() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=RECORDS_AT + 1)
    for _ in range(3):
        log.append(turn(log, 5))
        log.commit()
    listings = 0

    def remove(operation: str) -> None:
        nonlocal listings
        listings += operation == "names"
        if listings == 2:
            listings += 1
            disk.remove(segment_name(1))

    disk.fail = remove
    report = examine(disk, 0)
    assert (report.moved, report.damages, report.census.records) == (True, [], 10)
