"""The plot of docs/benchmarks.json: `make bench` and `python -m tests.tools.bench.plot` write docs/benchmarks.svg."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

FIGURES: Final = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.json"
PLOT: Final = FIGURES.with_suffix(".svg")
# Name in the plot, colour, radius of the mark, whether it is filled.
MARKS: Final = {
    "floor": ("floor: no broker, only the same bytes moved", "#6b7280", 5.5, False),
    "shoal": ("Shoal", "#1d4ed8", 5.5, True),
    "mosquitto": ("mosquitto", "#c2410c", 5.5, True),
}
LABELS: Final = 350  # width of the names of the scenarios, pixels
SCALE: Final = 470  # width of the axis
RIGHT: Final = 40
TOP: Final = 84
ROW: Final = 27
BOTTOM: Final = 46
TICKS_US: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FONT: Final = "font-family='DejaVu Sans, Verdana, Helvetica, sans-serif'"


def measured(table: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """Return CPU per delivered message, µs, by scenario and cores and then by who spent it, in the order of the table.

    Only what is such a figure beside one of another program: no latency, no memory, nothing that failed a check.
    """
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in table:
        ours, theirs = row["shoal"], row["reference_figure"]
        if row["unit"] != "µs" or row["reference"] not in MARKS or row["reference"] == "shoal" or ":" in tail(row):
            continue
        if isinstance(ours, str) or isinstance(theirs, str):
            continue
        found.setdefault((row["scenario"], row["cores"]), {}).update({"shoal": ours, row["reference"]: theirs})
    return found


def tail(row: dict[str, Any]) -> str:
    """Return what a scenario's name says behind its ratio of clients: ": p99" of a latency is there."""
    return str(row["scenario"]).replace("50:50", "")


def plotted(table: list[dict[str, Any]]) -> str:
    """Return the plot as SVG: a line for each scenario, and a mark on a logarithmic scale for each program."""
    rows = measured(table)
    figures = [figure for by_program in rows.values() for figure in by_program.values()]
    ticks = [tick for tick in TICKS_US if min(figures) / 2.5 < tick < max(figures) * 2.5]
    low, high = math.log(min(ticks[0], min(figures) * 0.9)), math.log(max(ticks[-1], max(figures) * 1.1))

    def place(figure: float) -> str:
        return f"{LABELS + SCALE * (math.log(figure) - low) / (high - low):.1f}"

    width, height = LABELS + SCALE + RIGHT, TOP + ROW * len(rows) + BOTTOM
    end = TOP + ROW * len(rows)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' "
        f"{FONT} font-size='13'>",
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        text(16, 28, "CPU time of the broker for each delivered message", "start", "font-weight='bold' font-size='15'"),
        *legend(),
    ]
    for tick in ticks:
        lines += [
            f"<line x1='{place(tick)}' y1='{TOP - 8}' x2='{place(tick)}' y2='{end}' stroke='#e5e7eb'/>",
            text(place(tick), end + 18, f"{tick:g} µs", "middle", "fill='#374151' font-size='12'"),
        ]
    for index, ((scenario, cores), by_program) in enumerate(rows.items()):
        y = TOP + ROW * index + ROW // 2
        lines += [
            text(LABELS - 16, y + 4, scenario, "end", "fill='#111827' font-size='12'"),
            f"<line x1='{place(min(by_program.values()))}' y1='{y}' x2='{place(max(by_program.values()))}' y2='{y}' "
            "stroke='#9ca3af' stroke-width='1.5'/>",
        ]
        for program in MARKS:
            if program in by_program:
                said = f"{MARKS[program][0]}: {by_program[program]:.3g} µs, {cores}"
                lines.append(mark(place(by_program[program]), y, program, said))
    lines.append(
        text(
            LABELS + SCALE / 2,
            end + 38,
            "logarithmic: each line is two or two and a half times the one before",
            "middle",
            "fill='#6b7280' font-size='11'",
        )
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


def legend() -> Iterable[str]:
    """Yield the marks and what they stand for."""
    x = 22.0
    for program, (name, _, _, _) in MARKS.items():
        yield mark(f"{x:.0f}", 52, program, name)
        yield text(x + 12, 56, name, "start", "fill='#111827' font-size='12'")
        x += 44 + 6.6 * len(name)


def mark(x: str, y: float, program: str, said: str) -> str:
    """Return one mark; `said` is what a browser shows where the pointer rests."""
    _, colour, radius, filled = MARKS[program]
    return (
        f"<circle cx='{x}' cy='{y}' r='{radius}' fill='{colour if filled else '#ffffff'}' stroke='{colour}' "
        f"stroke-width='2'><title>{escape(said)}</title></circle>"
    )


def text(x: float | str, y: float, words: str, anchor: str, style: str) -> str:
    """Return a piece of text."""
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' {style}>{escape(words)}</text>"


def write(table: list[dict[str, Any]]) -> None:
    """Write docs/benchmarks.svg."""
    PLOT.write_text(plotted(table), encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(FIGURES.read_text(encoding="utf-8")))
