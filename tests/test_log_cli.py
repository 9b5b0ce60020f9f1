"""`shoal log` on real files: what it prints, what it calls damage, and that it changes nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from router.message import message
from router.records import RecordBuffer
from router.scan import Scan

from broker.cli import main
from router.disk import Disk
from router.inspection import examine
from router.reading import Follower
from router.segments import HEADER_COPY_AT, RECORDS_AT, Header, create_segment, segment_name
from router.storage import Log
from tests.support.commit_logs import open_log, turn
from tests.support.disk import SimulatedDisk, broken

ROOT = Path(__file__).resolve().parents[1]
SOON_S = 30
RECORD_BYTES = 25 + 19 + 1 + 1 + 40  # of one that turn() makes


def shoal(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def rows(*arguments: str | Path, exit_code: int = 0) -> list[dict[str, Any]]:
    result = shoal("log", "cat", "--json", *arguments)
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def worker_folder(folder: Path, worker: int = 0) -> Path:
    path = folder / f"worker-{worker}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "incarnation").write_text("1\n")
    return path


def write(folder: Path, *turns: int, close: bool = True, **options: Any) -> Log:
    """Write turns of so many messages, 70 and some bytes each, numbered and timed from 1 on; a segment per turn."""
    options = {"segment_bytes_max": RECORDS_AT + 1, "durability": "os", **options}
    log, _ = open_log(Disk(str(worker_folder(folder))), **options)
    for number in turns:
        log.append(turn(log, number))
        assert log.commit()
    if close:
        assert log.close()
    return log


def write_messages(folder: Path, *messages: tuple[int, str, bytes], worker: int = 0) -> None:
    """Write messages: time in µs, topic name, payload."""
    make_folder = worker_folder(folder, worker)
    if worker:
        # open_log() is for worker 0, and so are its headers.
        disk = Disk(str(make_folder))
        os.close(create_segment(disk, Header(worker, 1, 7, 1, 1, 0, 1)))
        buffer = RecordBuffer(0)
        for time_us, name, payload in messages:
            buffer.add_accepted(time_us, 1, message(name.encode(), payload, 1), b"c", 1)
        buffer.stamp(7)
        with open(make_folder / segment_name(1), "ab") as file:
            file.write(bytes(buffer))
        return
    log, _ = open_log(Disk(str(make_folder)))
    buffer = RecordBuffer(log.appended)
    for time_us, name, payload in messages:
        buffer.add_accepted(time_us, 1, message(name.encode(), payload, 1), b"c", 1)
    log.append(buffer)
    log.close()


def write_snapshot(folder: Path, number: int, first_number: int, whole: bool = True) -> Path:
    """Write a snapshot that stands for the records before first_number."""
    path = worker_folder(folder) / f"snapshot-{number:012d}.log"
    header = Header(0, 1, 99, number, first_number, 5, 1).encode()
    buffer = RecordBuffer(first_number - 1)
    buffer.add(*BEGIN, first_number)
    buffer.add("ended", 5, b"c")
    if whole:
        buffer.add(*END)
    buffer.stamp(99)
    path.write_bytes(header.ljust(HEADER_COPY_AT, b"\0") + header + bytes(buffer))
    return path


BEGIN: tuple[Any, ...] = ("snapshot_begin", 5, 1, 1)
END: tuple[Any, ...] = ("snapshot_end", 5, 1, 3)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def segment(folder: Path, number: int) -> Path:
    return folder / "worker-0" / segment_name(number)


# cat -----------------------------------------------------------------------------------------------------------------


def test_cat_prints_the_messages_whose_topic_matches(tmp_path: Path) -> None:
    write_messages(tmp_path, (1, "a/x", b"1"), (2, "b/x", b"2"), (3, "a/y", b"3"))
    assert shoal("log", "cat", "a/+", "--data-dir", tmp_path).stdout == (
        "1970-01-01T00:00:00.000001Z  a/x  q1  c  1\n1970-01-01T00:00:00.000003Z  a/y  q1  c  3\n"
    )
    assert [row["payload"] for row in rows("--data-dir", tmp_path)] == ["1", "2", "3"]
    assert [row["payload"] for row in rows("--data-dir", tmp_path, "-n", "2")] == ["1", "2"]


def test_json_has_all_there_is(tmp_path: Path) -> None:
    log, _ = open_log(Disk(str(worker_folder(tmp_path))), incarnation=3)
    buffer = RecordBuffer(0)
    # Payload Format Indicator 1, Correlation Data FF.
    properties = b"\x01\x01\x09\x00\x01\xff"
    buffer.add_accepted(1_000_000, 1, message(b"a", b"text", 2, retain=True, properties=properties), b"pump", 77)
    buffer.add_accepted(2_000_000, 2, message(b"a", b"\xff\x00", 0), None, 0)
    log.append(buffer)
    log.close()
    assert rows("--data-dir", tmp_path) == [
        {
            "time": "1970-01-01T00:00:01.000000Z", "worker": 0, "incarnation": 3, "number": 1, "kind": "accepted",
            "n": 1, "topic": "a", "publisher": "pump", "packet_identifier": 77, "qos": 2, "retain": True,
            "expires": None, "peers": [], "payload": "text",
            "properties": {"payload_format_indicator": 1, "correlation_data": {"base64": "/w=="}},
        },
        {
            "time": "1970-01-01T00:00:02.000000Z", "worker": 0, "incarnation": 3, "number": 2, "kind": "accepted",
            "n": 2, "topic": "a", "publisher": "", "packet_identifier": 0, "qos": 0, "retain": False,
            "expires": None, "peers": [], "payload": {"base64": "/wA="}, "properties": {},
        },
    ]  # fmt: skip
    assert shoal("log", "cat", "--data-dir", tmp_path).stdout.splitlines() == [
        "1970-01-01T00:00:01.000000Z  a  q2r  pump  text",
        "1970-01-01T00:00:02.000000Z  a  q0  -  0xff00",
    ]


def test_a_terminal_is_not_told_what_to_do_by_a_payload(tmp_path: Path) -> None:
    write_messages(tmp_path, (1, "a\x1b[2J", b"\x1b[31mred\nsecond line\x07 \xc3\xa9"))
    printed = shoal("log", "cat", "--data-dir", tmp_path).stdout
    assert printed == "1970-01-01T00:00:00.000001Z  a\\x1b[2J  q1  c  \\x1b[31mred\\nsecond line\\x07 é\n"


@pytest.mark.parametrize("since", [None, 1, 4, 5, 6, 11, 99])
@pytest.mark.parametrize("until", [None, 0, 4, 5, 6, 11, 99])
def test_since_is_inclusive_and_until_is_not(tmp_path: Path, since: int | None, until: int | None) -> None:
    write(tmp_path, 4, 3, 3, 1)
    times = {"--since": since, "--until": until}
    options = [text for name, at in times.items() if at is not None for text in (name, f"1970-01-01T00:00:00.{at:06}Z")]
    expected = [number for number in range(1, 12) if (since or 0) <= number < (99 if until is None else until)]
    assert [row["number"] for row in rows(*options, "--data-dir", tmp_path)] == expected


def test_segments_that_are_wholly_too_old_or_too_new_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    for number in (1, 3):
        flip(segment(tmp_path, number), RECORDS_AT + 30)  # would be found damaged
    between = ("--since", "1970-01-01T00:00:00.000006Z", "--until", "1970-01-01T00:00:00.000011Z")
    assert [row["number"] for row in rows(*between, "--data-dir", tmp_path)] == [6, 7, 8, 9, 10]


def test_how_long_ago_is_a_time_too(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1000
    write_messages(tmp_path, (now_us - 7_200_000_000, "a", b"old"), (now_us - 60_000_000, "a", b"new"))
    assert [row["payload"] for row in rows("--since", "-1h", "--data-dir", tmp_path)] == ["new"]
    assert [row["payload"] for row in rows("--until", "-1h", "--data-dir", tmp_path)] == ["old"]


def test_every_kind_of_record_can_be_shown_and_a_filter_leaves_those_with_a_topic(tmp_path: Path) -> None:
    log, _ = open_log(Disk(str(worker_folder(tmp_path))))
    buffer = RecordBuffer(0)
    buffer.add_acknowledged(1, b"\xffsub", 4, 9, 0)
    buffer.add_accepted(2, 2, message(b"a", b"x", 1), b"c", 1)
    buffer.add("peer", 3, 1, "n/1/1")
    log.append(buffer)
    log.close()
    assert [row["kind"] for row in rows("--data-dir", tmp_path)] == ["accepted"]
    assert [row["kind"] for row in rows("#", "--kind", "all", "--data-dir", tmp_path)] == ["accepted"]
    acknowledged, accepted, peer = rows("--kind", "all", "--data-dir", tmp_path)
    assert acknowledged == {
        "time": "1970-01-01T00:00:00.000001Z", "worker": 0, "incarnation": 1, "number": 1, "kind": "acknowledged",
        "packet_type": 4, "reason": 0, "packet_identifier": 9, "client_identifier": {"base64": "/3N1Yg=="},
    }  # fmt: skip
    assert (accepted["topic"], peer["router_identifier"]) == ("a", "n/1/1")
    printed = shoal("log", "cat", "--kind", "all", "--data-dir", tmp_path).stdout.splitlines()
    assert printed[0].endswith(
        "[1 acknowledged]  packet_type=4 reason=0 packet_identifier=9 client_identifier='0xff737562'"
    )


def test_several_logs_are_merged_by_time(tmp_path: Path) -> None:
    write_messages(tmp_path, (1, "a", b"0.1"), (4, "a", b"0.4"))
    write_messages(tmp_path, (2, "a", b"2.2"), (3, "a", b"2.3"), (5, "a", b"2.5"), worker=2)
    assert [row["payload"] for row in rows("--data-dir", tmp_path)] == ["0.1", "2.2", "2.3", "0.4", "2.5"]
    assert [row["payload"] for row in rows("--data-dir", tmp_path, "--worker", "2")] == ["2.2", "2.3", "2.5"]
    assert [row["worker"] for row in rows("--data-dir", tmp_path, "-n", "2")] == [0, 2]


def test_what_is_damaged_is_passed_over_and_said(tmp_path: Path) -> None:
    write(tmp_path, 5, 5)
    flip(segment(tmp_path, 1), RECORDS_AT + 30)
    result = shoal("log", "cat", "--json", "--data-dir", tmp_path)
    assert [json.loads(line)["number"] for line in result.stdout.splitlines()] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert result.stderr.startswith("shoal: segment-000000000001.log: bytes that are no record at byte 4160 (")
    assert result.stderr.endswith("1 records are missing from number 1 on.\n")
    assert result.exit_code == 1


def test_what_is_unfinished_at_the_end_is_the_end_so_far(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, close=False)
    with segment(tmp_path, 2).open("ab") as file:
        file.write(b"the first bytes of a record")
    segment(tmp_path, 3).write_bytes(b"SHOALSEG")  # only begun
    before = content(tmp_path)
    assert [row["number"] for row in rows("--data-dir", tmp_path)] == list(range(1, 11))
    assert shoal("log", "verify", "--data-dir", tmp_path).exit_code == 0
    assert shoal("log", "inspect", "--data-dir", tmp_path).exit_code == 0
    assert content(tmp_path) == before


# Wrong usage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cat", "a/#/b"], "'a/#/b': "),
        (["cat", ""], "'': a topic filter has 1 to 65535 bytes"),
        (["cat", "$share/g/a"], "a shared subscription has no place in the log"),
        (["cat", "--since", "soon"], "'soon' is not a time like"),
        (["cat", "--until", "2026-11-21T09:00:00"], "has no time zone"),
        (["cat", "--worker", "7"], "there is no worker 7 in"),
        (["cat", "-n", "0"], "0 is not in the range"),
        (["cat", "--kind", "some"], "'some' is not one of"),
        (["follow", "#/a"], "'#/a': "),
        (["follow", "--worker", "7"], "there is no worker 7 in"),
    ],
)
def test_wrong_usage_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    write(tmp_path, 1)
    result = shoal("log", *arguments, "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["inspect", "cat", "verify", "follow"])
def test_a_folder_that_is_no_data_folder_is_one_sentence(tmp_path: Path, command: str) -> None:
    result = shoal("log", command, "--data-dir", tmp_path / "nowhere")
    assert (result.exit_code, f"there is no data folder {tmp_path / 'nowhere'}" in result.stderr) == (2, True)
    result = shoal("log", command, "--data-dir", tmp_path)
    assert (result.exit_code, f"there is no log in {tmp_path}: it has no folder worker-0" in result.stderr) == (2, True)
    file = tmp_path / "shoal.toml"
    file.write_text("data_dirr = 1\n")
    result = shoal("log", command, "--config", file)
    assert (result.exit_code, "data_dirr: found an unknown setting" in result.stderr) == (2, True)


def test_the_configuration_names_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", 2)
    file = tmp_path / "shoal.toml"
    file.write_text(f'data_dir = "{tmp_path / "data"}"\n')
    assert len(rows("--config", file)) == 2
    monkeypatch.setenv("SHOAL_DATA_DIR", str(tmp_path / "data"))
    assert len(rows()) == 2


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "worker-0" / "incarnation").unlink()
    (tmp_path / "worker-0" / "incarnation").mkdir()
    result = shoal("log", "verify", "--data-dir", tmp_path)
    assert (result.exit_code, result.stderr) == (2, "shoal: Is a directory.\n")


# inspect -------------------------------------------------------------------------------------------------------------


def test_inspect_says_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, 4, 3, close=False)
    write_snapshot(tmp_path, 1, 3)
    (tmp_path / "worker-0" / "segment-000000000001.log.torn-4242").write_bytes(b"12345")
    (tmp_path / "worker-0" / "something.else").write_bytes(b"")
    result = shoal("log", "inspect", "--data-dir", tmp_path, "--json")
    assert result.exit_code == 0
    (worker,) = json.loads(result.stdout)["workers"]
    sizes = [segment(tmp_path, number).stat().st_size for number in (1, 2)]
    assert {name: worker[name] for name in worker if name not in ("segments", "snapshots")} == {
        "worker": 0, "incarnation": 1, "records": 7, "first_time": "1970-01-01T00:00:00.000001Z",
        "last_time": "1970-01-01T00:00:00.000007Z", "kinds": {"accepted": 7},
        "accepted": {"messages": 7, "payload_bytes": 280}, "bytes": sum(sizes),
        "kept_aside": [{"file": "segment-000000000001.log.torn-4242", "bytes": 5}], "damages": [], "unfinished": None,
    }  # fmt: skip
    assert worker["segments"] == [
        {
            "file": segment_name(number), "bytes": sizes[number - 1], "incarnation": 1, "rules": 1,
            "first_number": first, "last_number": last, "first_time": f"1970-01-01T00:00:00.00000{first}Z",
            "last_time": f"1970-01-01T00:00:00.00000{last}Z", "sealed": number == 1,
        }
        for number, first, last in ((1, 1, 4), (2, 5, 7))
    ]  # fmt: skip
    (snapshot,) = worker["snapshots"]
    assert (snapshot["file"], snapshot["whole"]) == ("snapshot-000000000001.log", True)
    printed = shoal("log", "inspect", "--data-dir", tmp_path).stdout
    for text in ("records      7, from number 1 to 7", "1-4  ", "5-7  ", "sealed", "open", "kinds        accepted 7",
                 "snapshot-000000000001.log", "torn-4242  5 bytes"):  # fmt: skip
        assert text in printed


def test_inspect_of_a_log_without_records(tmp_path: Path) -> None:
    worker_folder(tmp_path)
    assert "records      none" in shoal("log", "inspect", "--data-dir", tmp_path).stdout


# verify --------------------------------------------------------------------------------------------------------------


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
        ({"version": 2}, "has format version 2"),
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
    assert verdict(tmp_path)["damages"][0]["what"] == "does not hold a number"


def test_removed_segments_need_a_whole_snapshot(tmp_path: Path) -> None:
    write(tmp_path, 5, 5, 5)
    segment(tmp_path, 1).unlink()
    (damage,) = verdict(tmp_path)["damages"]
    assert (damage["first_missing"], damage["missing"]) == (1, 5)
    assert "no whole snapshot stands for what came before" in damage["what"]
    write_snapshot(tmp_path, 1, 6, whole=False)
    assert verdict(tmp_path)["damages"] == [damage]
    write_snapshot(tmp_path, 1, 5)
    assert verdict(tmp_path)["damages"][0]["missing"] == 1
    write_snapshot(tmp_path, 2, 6)
    verdict(tmp_path, 0)
    flip(tmp_path / "worker-0" / "snapshot-000000000002.log", RECORDS_AT + 40)
    found = verdict(tmp_path)["damages"]
    assert [(damage["file"], damage["what"]) for damage in found] == [
        ("snapshot-000000000002.log", "bytes that are no record"), (segment_name(2), "is the oldest segment"),
    ]  # fmt: skip


def test_a_snapshot_that_was_never_finished_is_no_damage(tmp_path: Path) -> None:
    write(tmp_path, 5, 5)
    path = write_snapshot(tmp_path, 1, 6)
    data = path.read_bytes()
    # Not within the end of its last record, where it would be whole but for what follows.
    for length in (0, 63, 64, HEADER_COPY_AT, RECORDS_AT - 1, RECORDS_AT, RECORDS_AT + 10, len(data) - 1):
        path.write_bytes(data[:length])
        verdict(tmp_path, 0)
    path.write_bytes(data + b"more")
    assert verdict(tmp_path)["damages"][0]["what"] == "bytes that are no record"


def test_a_snapshot_needs_a_segment_beside_it(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 1, 6)
    assert "and not one segment" in verdict(tmp_path)["damages"][0]["what"]


def test_a_snapshot_larger_than_a_window_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 5, 5)
    write_snapshot(tmp_path, 1, 6)
    monkeypatch.setattr("router.inspection.WINDOW_BYTES", 8)
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


# follow --------------------------------------------------------------------------------------------------------------


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
        command = [sys.executable, "-m", "broker.cli", "log", "follow", "--data-dir", str(folder), *options]
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


def test_a_reader_that_has_had_enough_ends_it_quietly(tmp_path: Path) -> None:
    write(tmp_path, 3000)
    command = [sys.executable, "-m", "broker.cli", "log", "cat", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"1970-01-01T00:00:00.000001Z  t  q1  c  1 ...")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(SOON_S) == 0
    process.stderr.close()


def test_help_does_not_load_what_reads_the_log() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from broker.cli import main;"
        "print(CliRunner().invoke(main, ['--help']).output); loaded = {'router', 'msgspec', 'lmdb', 'broker.backup'};"
        "print(sorted(loaded & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Look into the commit log." in output
    assert output.endswith("[]\n")
