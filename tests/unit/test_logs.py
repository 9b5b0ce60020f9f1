"""Log lines: what a line looks like, and that none of them is ever waited for.

The writer is the process's, so what it does to a process is looked at in one of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker import logs
from broker.config.loader import Log

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "shoal.log"


def lines_of(file: Path) -> list[dict[str, Any]]:
    logs.flush(10)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_line_says_when_how_bad_what_and_who(log_file: Path) -> None:
    early = logs.get("early")
    logs.configure(Log(file=str(log_file)))
    early.info("from_before_configure")
    logs.get("late").warning("connection_closed", client_identifier=b"c7\xff", reason="keep_alive", count=3)
    first, second = lines_of(log_file)
    assert first["logger"] == "early"
    assert list(second) == ["timestamp", "level", "event", "logger", "client_identifier", "reason", "count"]
    assert second["timestamp"].endswith("Z")
    assert (second["level"], second["client_identifier"]) == ("warning", "c7\\xff")


def test_a_line_below_the_level_is_not_written_and_a_new_level_counts_at_once(log_file: Path) -> None:
    log = logs.get("test")
    logs.configure(Log(file=str(log_file), level="warning"))
    log.info("quiet")
    logs.configure(Log(file=str(log_file), level="debug"))
    log.debug("loud")
    assert [line["event"] for line in lines_of(log_file)] == ["loud"]


def test_an_exception_is_written_with_its_traceback(log_file: Path) -> None:
    logs.configure(Log(file=str(log_file)))
    try:
        raise ZeroDivisionError("by chance")
    except ZeroDivisionError:
        logs.get("test").exception("turn_failed")
    (line,) = lines_of(log_file)
    assert line["exception"].endswith("ZeroDivisionError: by chance")


def test_no_value_makes_a_log_call_fail(log_file: Path) -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise RuntimeError("no words")

    logs.configure(Log(file=str(log_file)))
    log = logs.get("test")
    log.info("surrogate", path="\ud800")
    log.info("unspeakable", value=Unspeakable())
    log.info("long", value="x" * 1_000_000)
    surrogate, unspeakable, long = lines_of(log_file)
    assert surrogate["path"] == "\ud800"
    assert (unspeakable["event"], unspeakable["of"]) == ("log_unrenderable", "unspeakable")
    assert len(long["value"]) == logs.VALUE_LENGTH_MAX + 3


def test_one_event_too_often_is_suppressed_and_counted_while_others_pass(log_file: Path) -> None:
    logs.configure(Log(file=str(log_file)))
    log = logs.get("test")
    for _ in range(10 * logs.LINES_PER_EVENT):
        log.warning("flood")
    log.warning("other")
    lines = lines_of(log_file)
    floods = sum(line["event"] == "flood" for line in lines)
    suppressed = sum(line["count"] for line in lines if line["event"] == "log_suppressed")
    assert floods >= logs.LINES_PER_EVENT
    assert floods + suppressed == 10 * logs.LINES_PER_EVENT
    assert logs.counters()["log_suppressed"] == suppressed
    assert any(line["event"] == "other" for line in lines)
    assert {line.get("suppressed_event", "flood") for line in lines} == {"flood"}


def test_what_is_costly_is_found_out_for_written_lines_only(log_file: Path) -> None:
    logs.configure(Log(file=str(log_file)))
    asked: list[int] = []

    def name(number: int) -> str:
        asked.append(number)
        return f"c{number}"

    for number in range(1000):
        logs.get("test").info("often", client=logs.Late(name, number))
    written = [line for line in lines_of(log_file) if line["event"] == "often"]
    assert [line["client"] for line in written] == [f"c{number}" for number in asked]
    assert 0 < len(asked) < 1000
    assert str(logs.Late(name, 7)) == "c7"  # what a renderer makes of it that does not know it


def test_suppressed_lines_are_reported_though_nothing_is_logged_any_more(log_file: Path) -> None:
    os.mkfifo(log_file)
    reader = os.open(log_file, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    logs.configure(Log(file=str(log_file)))
    log = logs.get("test")
    for _ in range(logs.LINES_PER_EVENT + 7):
        log.warning("flood")
    with open(reader, encoding="utf-8") as lines:
        reported = next(line for line in map(json.loads, lines) if line["event"] == "log_suppressed")
    assert reported["count"] == 7


def test_a_rotated_file_is_left_at_the_next_line_after_reopen(log_file: Path) -> None:
    logs.configure(Log(file=str(log_file)))
    log = logs.get("test")
    log.info("before")
    logs.flush(10)
    rotated = log_file.rename(log_file.with_suffix(".1"))
    log.info("still_in_the_old_file")
    logs.flush(10)
    logs.reopen()
    log.info("after")
    assert [line["event"] for line in lines_of(log_file)] == ["after"]
    assert [line["event"] for line in lines_of(rotated)] == ["before", "still_in_the_old_file"]


def test_a_file_that_cannot_be_reopened_is_kept_and_said(log_file: Path) -> None:
    logs.configure(Log(file=str(log_file)))
    kept = log_file.rename(log_file.with_suffix(".1"))
    log_file.mkdir()
    logs.reopen()
    assert [line["event"] for line in lines_of(kept)] == ["log_reopen_failed"]


def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        logs.configure(Log(file=str(tmp_path)))


def run(program: str, *, stderr: int, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **variables},
        cwd=ROOT,
        timeout=60,
        check=True,
    )


def test_a_caller_does_not_wait_when_stderr_is_a_full_pipe_that_nobody_reads() -> None:
    # Each line is longer than what a pipe holds, and the exit does not wait for them either.
    program = """
from broker import logs
from broker.config.loader import Log
logs.configure(Log(queue_max=50))
log = logs.get("test")
for number in range(5000):
    log.warning(f"event_{number}", filler="x" * 4000)
print(logs.counters()["log_dropped"])
"""
    reader, writer = os.pipe()
    try:
        finished = run(program, stderr=writer)
    finally:
        os.close(writer)
        os.close(reader)
    assert int(finished.stdout) > 4000


def test_a_reader_that_is_gone_costs_its_lines_and_nothing_else() -> None:
    program = """
from broker import logs
from broker.config.loader import Log
logs.configure(Log())
logs.get("test").warning("unheard")
logs.flush(10)
print(logs.counters()["log_dropped"])
"""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        finished = run(program, stderr=writer)
    finally:
        os.close(writer)
    assert int(finished.stdout) >= 1


def test_a_pipe_that_somebody_made_non_blocking_gets_every_line() -> None:
    program = """
from broker import logs
from broker.config.loader import Log
logs.configure(Log())
for number in range(500):
    logs.get("test").warning(f"event_{number}", filler="x" * 1000)
logs.flush(30)
"""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with (
        subprocess.Popen([sys.executable, "-c", program], stderr=writer, cwd=ROOT) as process,
        open(reader, encoding="utf-8") as lines,
    ):
        os.close(writer)
        assert [json.loads(line)["event"] for line in lines] == [f"event_{number}" for number in range(500)]
        assert process.wait(60) == 0


def test_lines_are_json_unless_standard_error_is_a_terminal() -> None:
    program = """
from broker import logs
from broker.config.loader import Log
logs.configure(Log())
logs.get("test").info("hello", client_identifier="a\\x1b[2Jb")
logs.flush(30)
"""
    assert json.loads(run(program, stderr=subprocess.STDOUT).stdout)["event"] == "hello"
    controller, terminal = os.openpty()
    try:
        run(program, stderr=terminal, NO_COLOR="1")
        shown = os.read(controller, 10_000).decode()
    finally:
        os.close(terminal)
        os.close(controller)
    assert "[info     ] hello" in shown
    # What a client sends must not move the cursor of whoever looks at the log.
    assert "\x1b" not in shown


def test_a_line_that_would_be_left_out_is_known_beforehand_and_counted(log_file: Path) -> None:
    log = logs.get("test")
    logs.configure(Log(file=str(log_file)))
    written = 0
    while not logs.leaves_out("crowd"):
        log.info("crowd")
        written += 1
    assert written == logs.LINES_PER_EVENT + 1  # the last one has found the window full
    assert logs.leaves_out("crowd")
    lines = lines_of(log_file)
    assert [line["event"] for line in lines].count("crowd") == logs.LINES_PER_EVENT
    assert lines[-1]["event"] == "log_suppressed"
    assert lines[-1]["count"] == 3
    assert not logs.leaves_out("another")
    logs.configure(Log(file=str(log_file), level="warning"))
    assert logs.leaves_out("another")
