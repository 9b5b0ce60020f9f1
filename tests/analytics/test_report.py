"""The report: how numbers and times are written in it, and what its plots show."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.reports.html import _moments, amount, area_chart
from analytics.reports.report import Found, render

START = datetime(2026, 11, 21, 9, 0, 7, tzinfo=UTC)


def found(steps: int, step_s: int = 10) -> Found:
    """Return what came at 5 messages a second, the first and the last step looked at for half a second each."""
    counts = [3, *[5 * step_s] * (steps - 2), 2]
    over_time = [(START + timedelta(seconds=step_s * step), count, count * 1_000) for step, count in enumerate(counts)]
    return Found("Fleet", START, since=START, until=over_time[-1][0], messages=sum(counts), bytes=12_345_678,
                 step_s=step_s, over_time=over_time)  # fmt: skip


def heights(page: str) -> set[str]:
    """Return the heights of the points of the first plot."""
    line = re.search(r'<polyline points="([^"]+)"', page)
    assert line is not None
    return {point.split(",")[1] for point in line[1].split()}


def test_a_plot_has_no_dips_where_the_time_that_was_looked_at_ends() -> None:
    assert len(heights(render(found(30)))) == 1
    assert len(heights(render(found(4)))) > 1  # nothing would be left


def test_amounts_have_their_units_as_people_write_them() -> None:
    assert [amount(value, "B") for value in (950, 12_345, 4_500_000)] == ["950 B", "12.3 kB", "4.5 MB"]
    assert [amount(value, "") for value in (950, 12_345)] == ["950", "12.3 k"]
    page = render(found(30))
    assert "12.3 MB" in page
    assert ">5,000 B/s</text>" in page


@pytest.mark.parametrize(("span_s", "labels"), [
    (40, ["09:00:10", "09:00:20", "09:00:30", "09:00:40"]), (3_600 * 3, ["09:30", "10:00", "10:30", "11:00", "11:30"]),
    (86_400 * 5, ["11-22", "11-23", "11-24", "11-25", "11-26"]),
])  # fmt: skip
def test_an_axis_of_time_names_round_moments(span_s: int, labels: list[str]) -> None:
    points = [(START + timedelta(seconds=span_s * share / 100), 1.0) for share in range(101)]
    shown = re.findall(r'text-anchor="\w+">([\d:-]+)</text>', area_chart(points))
    assert [label for label in shown if ":" in label or "-" in label][: len(labels)] == labels


@given(st.floats(0, 4e9), st.floats(0, 1e9))
def test_an_axis_of_time_has_a_handful_of_marks_within_it(first_s: float, span_s: float) -> None:
    moments = [at.timestamp() for at in _moments(first_s, first_s + span_s)]
    assert 1 <= len(moments) <= 9
    assert all(first_s - 1 <= at <= first_s + span_s + 1 for at in moments)
