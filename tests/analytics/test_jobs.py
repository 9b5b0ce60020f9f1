"""Questions about the fleet, on small data whose answers are known, and the report."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli.main import main

pytest.importorskip("pyspark")

from analytics.reports import jobs
from analytics.reports.html import number, seconds
from analytics.reports.report import Found, render

START = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def rows(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


@pytest.fixture(scope="module")
def messages(spark: Any) -> Any:
    sent = [(at(second), "site/a/x", "steady", b"1234") for second in range(0, 100, 2)]
    sent += [(at(second), "site/b/x", "stopped", b"1234") for second in range(0, 50, 2)]
    sent += [(at(second), "site/a/y", "away", b"1234") for second in range(0, 100, 2) if not 30 < second < 60]
    sent += [(at(41), "site/a/x", "steady", b"x" * 500), (at(42), "other", None, b"")]
    return spark.createDataFrame(sent, "time timestamp, topic string, publisher string, payload binary").cache()


@pytest.fixture(scope="module")
def events(spark: Any) -> Any:
    told = [(0, "session", "dash", None), (0, "subscribe", "dash", "site/+/x"), (0, "subscribe", "gone", "site/#")]
    told += [(1, "unsubscribe", "gone", "site/#"), (0, "subscribe", "group", "$share/g/site/a/#")]
    for second in range(10, 40, 10):
        told += [(second, "session", "flaps", None), (second + 5, "detached", "flaps", None)]
    numbered = [(at(second), index, kind, client, text) for index, (second, kind, client, text) in enumerate(told)]
    return spark.createDataFrame(
        numbered, "time timestamp, number bigint, kind string, client string, topic_filter string"
    ).cache()


def test_who_has_stopped_is_found_by_the_own_rhythm_and_who_was_away_is_not(messages: Any) -> None:
    found = rows(jobs.silent(messages))
    assert [(row["publisher"], row["usual_s"], row["silent_s"]) for row in found] == [("stopped", 2.0, 50.0)]


def test_gaps_are_steps_that_are_longer_than_usual(messages: Any) -> None:
    found = rows(jobs.gaps(messages))
    assert [(row["publisher"], row["gap_s"], row["usual_s"]) for row in found] == [("away", 30.0, 2.0)]


def test_traffic_is_counted_by_level_client_and_time(messages: Any) -> None:
    found = {(row["topic"], row["publisher"]): (row["messages"], row["bytes"])
             for row in rows(jobs.traffic(messages, level=2, every="1 hour"))}  # fmt: skip
    assert found == {
        ("site/a", "steady"): (51, 700), ("site/b", "stopped"): (25, 100), ("site/a", "away"): (36, 144),
        ("other", jobs.NOBODY): (1, 0),
    }  # fmt: skip


def test_a_payload_of_another_size_stands_out(messages: Any) -> None:
    assert [(row["publisher"], row["bytes"]) for row in rows(jobs.outliers(messages))] == [("steady", 500)]


def test_who_comes_back_again_and_again_flaps(events: Any) -> None:
    found = {row["client"]: row for row in rows(jobs.churn(events))}
    assert (found["flaps"]["connects"], found["flaps"]["returns_within"], found["flaps"]["median_connected_s"]) == (
        3, 2, 5.0)  # fmt: skip
    assert found["dash"]["returns_within"] == 0


def test_who_would_miss_a_topic_is_who_publishes_there_and_who_still_subscribes(messages: Any, events: Any) -> None:
    found = rows(jobs.affected(messages, events, topic_filter="site/a/x"))
    assert [(row["role"], row["client"], row["messages"]) for row in found] == [
        ("publisher", "steady", 51), ("subscriber", "dash", 51), ("subscriber", "group", 51)]  # fmt: skip


def test_a_series_has_the_steps_in_which_there_was_nothing(messages: Any) -> None:
    found = rows(jobs.series(messages, publisher="away", every="10 seconds"))
    assert [row["messages"] for row in found] == [5, 5, 5, 1, 0, 0, 5, 5, 5, 5]


def test_a_device_that_sends_in_bursts_has_a_rhythm_and_divides_by_nothing(spark: Any) -> None:
    from analytics.reports.report import collect

    sent = [(at(second), "a/b", "bursts", b"") for second in (0, 10, 20, 30) for _ in range(4)]
    sent += [(at(second), "a/b", "once", b"") for second in (3,) * 6]
    sent += [(at(second), "a/b", "steady", b"") for second in range(0, 101, 10)]
    frame = spark.createDataFrame(sent, "time timestamp, topic string, publisher string, payload binary")
    assert [(row["publisher"], row["usual_s"], row["times_usual"]) for row in rows(jobs.silent(frame))] == [
        ("bursts", 10.0, 7.0)]  # fmt: skip
    assert rows(jobs.gaps(frame)) == []
    assert "bursts" in render(collect(frame, None, None, "Bursts"))


def test_the_report_stands_alone_and_what_clients_chose_is_escaped() -> None:
    found = Found(
        "Fleet", START, since=at(0), until=at(100), messages=3, bytes=12, topic_count=2, publisher_count=1, step_s=10,
        over_time=[(at(0), 2, 8), (at(100), 1, 4)], topics=[{"topic": "<b>&", "messages": 3}],
        publishers=[{"publisher": "<script>", "messages": 3, "bytes": 12, "last": at(100)}],
        silent=[{"publisher": "pump", "last": at(1), "silent_s": 99.0, "usual_s": 0.5, "longest_s": 2.0}],
    )  # fmt: skip
    page = render(found)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;&amp;" in page
    assert "http" not in page
    assert "99 s" in page
    assert page.count("<polyline") == 2
    assert "no message" in render(Found("Nothing", START))


def test_numbers_and_times_are_written_as_people_read_them() -> None:
    assert [number(value) for value in (0, 950, 12_345, 4_500_000, 0.123, 3.5)] == [
        "0", "950", "12.3 k", "4.5 M", "0.123", "3.5"]  # fmt: skip
    assert [seconds(value) for value in (0.0602, 12, 300, 7_200, 259_200)] == [
        "60.2 ms", "12 s", "5 min", "2 h", "3 d"]  # fmt: skip


@pytest.mark.parametrize(("missing", "command", "sentence"), [
    ("pyspark", ["analyze", "silent"], "this command needs Spark, which is not installed: pip install"
     " 'shoal-mqtt[analytics]'."),
    ("pyspark", ["lake", "x", "--spark"], "this command needs Spark, which is not installed: pip install"
     " 'shoal-mqtt[analytics]'."),
    ("pyarrow", ["lake", "x"], "this command needs PyArrow, which is not installed: pip install 'shoal-mqtt[lake]'."),
])  # fmt: skip
def test_without_the_extra_a_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, command: list[str], sentence: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.output) == (1, f"shoal: {sentence}\n")
