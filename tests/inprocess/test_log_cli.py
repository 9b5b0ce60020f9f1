"""`shoal log` on real files: what it prints, what it refuses, and that it changes nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.storage.data_folder import locked_folder
from router.core.message import message
from router.log.disk import Disk
from router.log.record_buffer import RecordBuffer
from router.log.segments import RECORDS_AT, segment_name
from router.recovery.open_log import open_log as open_recovered
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.commit_logs import open_log
from tests.support.log_folders import (
    content,
    flip,
    segment,
    shoal,
    worker_folder,
    write,
    write_messages,
    write_snapshot,
)

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 30


def rows(*arguments: str | Path, exit_code: int = 0) -> list[dict[str, Any]]:
    result = shoal("log", "cat", "--json", *arguments)
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


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
            "will": False, "picked": False,
            "expires": None, "peers": [], "payload": "text",
            "properties": {"payload_format_indicator": 1, "correlation_data": {"base64": "/w=="}},
        },
        {
            "time": "1970-01-01T00:00:02.000000Z", "worker": 0, "incarnation": 3, "number": 2, "kind": "accepted",
            "n": 2, "topic": "a", "publisher": "", "packet_identifier": 0, "qos": 0, "retain": False,
            "will": False, "picked": False,
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
    buffer.add("peer", 3, 1, b"n/1", 7)
    log.append(buffer)
    log.close()
    assert [row["kind"] for row in rows("--data-dir", tmp_path)] == ["accepted"]
    assert [row["kind"] for row in rows("#", "--kind", "all", "--data-dir", tmp_path)] == ["accepted"]
    acknowledged, accepted, peer = rows("--kind", "all", "--data-dir", tmp_path)
    assert acknowledged == {
        "time": "1970-01-01T00:00:00.000001Z", "worker": 0, "incarnation": 1, "number": 1, "kind": "acknowledged",
        "packet_type": 4, "reason": 0, "packet_identifier": 9, "client_identifier": {"base64": "/3N1Yg=="},
    }  # fmt: skip
    assert (accepted["topic"], peer["router_identifier"]) == ("a", "n/1")
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
    write_snapshot(tmp_path, 2, 5)
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
    assert (snapshot["file"], snapshot["whole"], snapshot["records_from"]) == ("snapshot-000000000002.log", True, 5)
    printed = shoal("log", "inspect", "--data-dir", tmp_path).stdout
    for text in ("records      7, from number 1 to 7", "1-4  ", "5-7  ", "sealed", "open", "kinds        accepted 7",
                 "snapshot-000000000002.log", "torn-4242  5 bytes"):  # fmt: skip
        assert text in printed


def test_inspect_of_a_log_without_records(tmp_path: Path) -> None:
    worker_folder(tmp_path)
    assert "records      none" in shoal("log", "inspect", "--data-dir", tmp_path).stdout


# In a process of its own ---------------------------------------------------------------------------------------------


def test_a_reader_that_has_had_enough_ends_it_quietly(tmp_path: Path) -> None:
    write(tmp_path, 3000)
    command = [sys.executable, "-m", "broker.cli.main", "log", "cat", "--data-dir", str(tmp_path)]
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
        "import sys; from click.testing import CliRunner; from broker.cli.main import main;"
        "print(CliRunner().invoke(main, ['--help']).output);"
        "loaded = {'router.log.record_cursor', 'router.log.segments', 'msgspec', 'lmdb', 'broker.storage.backup'};"
        "print(sorted(loaded & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Look into the commit log." in output
    assert output.endswith("[]\n")


# compact -------------------------------------------------------------------------------------------------------------


def test_compact_makes_a_snapshot_that_the_next_start_begins_with(tmp_path: Path) -> None:
    log, _ = open_log(Disk(str(worker_folder(tmp_path))), segment_bytes_max=5000)
    buffer = RecordBuffer(0)
    buffer.add("session", 1, b"away", 3600)
    buffer.add("subscribe", 2, b"away", b"t", 1, 0)
    log.append(buffer)
    for number in range(3, 43):
        buffer.add_accepted(number, number, message(b"t", b"%d" % number, 1), b"p")
        log.append(buffer)
        log.commit()
    log.close()
    result = shoal("log", "compact", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert re.search(
        r"/worker-0: snapshot-\d{12}.log has 1 sessions and \d+ messages that wait, [\d,]+ bytes\.\n", result.stdout
    )
    assert shoal("log", "verify", "--data-dir", tmp_path).exit_code == 0
    assert "nothing to do" in shoal("log", "compact", "--data-dir", tmp_path).stdout
    router = Router(Ledger())
    opened = open_recovered(
        Disk(str(worker_folder(tmp_path))),
        router,
        worker=0,
        make_will=lambda *fields: None,
        make_mark=lambda: 1,
        now_us=100,
        now_ms=1000,
    )
    owed = router.sessions[b"away"].owed.deliveries()
    assert [opened.log.fetch(delivery[1], 0, 0).body for delivery in owed] == [b"%d" % each for each in range(3, 43)]


def test_compact_leaves_a_running_broker_alone(tmp_path: Path) -> None:
    write_messages(tmp_path, (1, "a/x", b"1"))
    with locked_folder(str(tmp_path)):
        result = shoal("log", "compact", "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert "is in use by the broker with process id" in result.output
