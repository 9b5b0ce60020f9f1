"""A page of HTML in one file: tiles, tables and plots in SVG, without a script and without anything from elsewhere."""

from __future__ import annotations

import html
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

AXIS_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)
_AXIS_MARKS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip
_MARKS_MAX: Final = 7
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 920, 220, 56, 26, 10
_SECONDS_COLUMNS: Final = ("gap_s", "usual_s", "silent_s", "longest_s", "median_connected_s")

_STYLE: Final = """
:root { --ink: #1c2530; --soft: #66717f; --line: #e3e7ec; --paper: #ffffff; --back: #f4f6f8; --mark: #1f77a4;
        --fill: #cfe5f1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaee; --soft: #9aa5b1; --line: #303944; --paper: #1b222a; --back: #12171d; --mark: #6db9e0;
          --fill: #244457; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
       font: 15px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 28px 20px 40px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0; }
p { margin: 0 0 16px; color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 16px 20px;
          margin: 14px 0; overflow-x: auto; }
section p { margin: 0 0 10px; font-size: 13px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 16px 0; }
.tile { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 24px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line);
     padding: 4px 12px 4px 0; }
td { border-bottom: 1px solid var(--line); padding: 5px 12px 5px 0; white-space: nowrap; }
td.cut { max-width: 340px; overflow: hidden; text-overflow: ellipsis; }
tr:last-child td { border-bottom: 0; }
.right { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""


class Page:
    """A page, from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = html.escape(title)
        self._parts: list[str] = []

    def text(self, sentence: str) -> None:
        """Add a line of text."""
        self._parts.append(f"<p>{html.escape(sentence)}</p>")

    def tiles(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Add figures, each with what it counts."""
        inner = "".join(
            f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
            for name, value in pairs
        )
        self._parts.append(f'<div class="tiles">{inner}</div>')

    def section(self, title: str, what: str, content: str) -> None:
        """Add a section around HTML."""
        self._parts.append(f"<section><h2>{html.escape(title)}</h2><p>{html.escape(what)}</p>{content}</section>")

    def html(self, footer: str) -> str:
        """Return the whole page."""
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{self.title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_STYLE}</style></head><body><main><h1>{self.title}</h1>{''.join(self._parts)}"
            f"<footer>{html.escape(footer)}</footer></main></body></html>\n"
        )


def number(value: float) -> str:
    """Return a number as people read it: 950, 12.3 k, 4.5 M."""
    for bound, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= bound:
            scale = 1e3 if letter == "k" else bound
            return f"{value / scale:.3g} {letter}" if value / scale < 1000 else f"{value / scale:.0f} {letter}"
    if value == int(value):
        return f"{int(value):,} ".strip()
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def amount(value: float, unit: str) -> str:
    """Return a number with its unit as people write it: 950 B, 12.3 kB, 4.5 MB/s."""
    digits, space, letter = number(value).partition(" ")
    return f"{digits} {letter}{unit}" if unit else f"{digits}{space}{letter}"


def seconds(value: float) -> str:
    """Return a length of time as people read it."""
    for bound, unit, name in ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min")):
        if value >= bound:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} s" if value >= 0.1 or value == 0 else f"{value * 1000:.3g} ms"


def timestamp(at: datetime) -> str:
    """Return a moment, to the second."""
    return at.strftime("%Y-%m-%d %H:%M:%S")


def table(
    rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]], nothing: str = "There is nothing."
) -> str:
    """Return a table of some columns of rows, (name, heading) each; numbers to the right."""
    if not rows:
        return f"<p>{html.escape(nothing)}</p>"
    right = {name for name, _ in columns if any(isinstance(row.get(name), (int, float)) for row in rows)}
    head = "".join(f"<th{_class(name in right)}>{html.escape(heading)}</th>" for name, heading in columns)
    body = "".join(
        "<tr>" + "".join(_cell(name, row.get(name), name in right) for name, _ in columns) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _class(right: bool) -> str:
    return ' class="right"' if right else ""


def _cell(name: str, value: Any, right: bool) -> str:
    if value is None:
        text = "–"
    elif isinstance(value, datetime):
        text = timestamp(value)
    elif name in _SECONDS_COLUMNS:
        text = seconds(float(value))
    elif isinstance(value, (int, float)):
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    else:
        text = str(value)
    shown = html.escape(text)
    return f'<td class="right">{shown}</td>' if right else f'<td class="cut" title="{shown}">{shown}</td>'


def _scale(most: float) -> tuple[float, list[float]]:
    """Return the top of an axis and its marks."""
    if most <= 0:
        return 1.0, [0.0, 1.0]
    unit = 10.0 ** (len(str(int(most))) - 1) if most >= 1 else 10.0 ** -(len(f"{1 / most:.0f}"))
    step = next(factor * unit for factor in (0.2, 0.5, 1, 2, 5, 10) if most / (factor * unit) <= 5)
    count = int(most / step + 0.999999)
    return step * count, [step * index for index in range(count + 1)]


def _moments(first_s: float, last_s: float) -> list[datetime]:
    """Return the moments that an axis of time names: round ones, six or so; the first one where there is none."""
    span_s = last_s - first_s
    step_s = next((step for step in _AXIS_MARKS_S if span_s / step <= _MARKS_MAX), None)
    if step_s is None:
        step_s = _AXIS_MARKS_S[-1] * math.ceil(span_s / _AXIS_MARKS_S[-1] / _MARKS_MAX)
    found = range(math.ceil(first_s / step_s) * step_s, math.floor(last_s) + 1, step_s)
    return [datetime.fromtimestamp(at_s, UTC) for at_s in found or (first_s,)]


def _shape(span_s: float, at: datetime) -> str:
    """Return how a moment is written on an axis: a day begins with its date."""
    if span_s > 86_400 and at.hour == at.minute == 0:
        return "%m-%d"
    return "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s <= 172_800 else "%m-%d %H:%M"


def area_chart(points: Sequence[tuple[datetime, float]], unit: str = "") -> str:
    """Return a plot of values over time, at equal steps."""
    top, marks = _scale(max(value for _, value in points))
    width, height = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - _TOP

    def x(index: int) -> float:
        return _LEFT + (width * index / (len(points) - 1) if len(points) > 1 else width / 2)

    def y(value: float) -> float:
        return _TOP + height * (1 - value / top)

    parts = []
    for mark in marks:
        label = amount(mark, unit) if mark else "0"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" stroke="var(--line)"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{html.escape(label)}</text>')
    line = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, (_, value) in enumerate(points))
    if len(points) > 1:
        parts.append(
            f'<polygon points="{_LEFT:.1f},{y(0):.1f} {line} {x(len(points) - 1):.1f},{y(0):.1f}" fill="var(--fill)"/>'
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="var(--mark)" stroke-width="1.6"/>')
    else:
        parts.append(f'<circle cx="{x(0):.1f}" cy="{y(points[0][1]):.1f}" r="3" fill="var(--mark)"/>')
    first_s, last_s = (points[index][0].timestamp() for index in (0, -1))
    for at in _moments(first_s, last_s):
        place = x(0) if last_s == first_s else _LEFT + width * (at.timestamp() - first_s) / (last_s - first_s)
        anchor = "start" if place < _LEFT + 30 else "end" if place > _WIDTH - 40 else "middle"
        label = at.strftime(_shape(last_s - first_s, at))
        parts.append(f'<text x="{place:.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{label}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def bar_chart(pairs: Sequence[tuple[str, float]]) -> str:
    """Return horizontal bars, one for each pair."""
    most = max((value for _, value in pairs), default=0) or 1
    row, left = 24, 190
    parts = []
    for index, (name, value) in enumerate(pairs):
        shown = name if len(name) <= 26 else f"{name[:25]}…"
        length = (_WIDTH - left - 90) * value / most
        middle = index * row + row / 2
        parts.append(f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{html.escape(shown)}</text>')
        parts.append(
            f'<rect x="{left}" y="{middle - 7}" width="{max(1.0, length):.1f}" height="14" rx="3" fill="var(--mark)"/>'
        )
        parts.append(f'<text x="{left + length + 8:.1f}" y="{middle + 4}">{number(value)}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {row * len(pairs)}" role="img">{"".join(parts)}</svg>'
