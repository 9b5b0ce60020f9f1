"""The plot of the benchmarks is that of the committed figures, and shows no figure that is none."""

import json
import xml.etree.ElementTree as ElementTree
from typing import Any

from tests.tools.bench.plot import FIGURES, PLOT, measured, plotted

SVG = "{http://www.w3.org/2000/svg}"


def row(
    scenario: str, shoal: float | str, reference: str, figure: float | str | None, unit: str = "µs"
) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "cores": "one core",
        "shoal": shoal,
        "reference": reference,
        "unit": unit,
        "reference_figure": figure,
    }


def test_the_committed_plot_is_that_of_the_committed_figures() -> None:
    assert PLOT.read_text(encoding="utf-8") == plotted(json.loads(FIGURES.read_text(encoding="utf-8"))), (
        "python -m tests.tools.bench.plot"
    )


def test_a_scenario_has_one_line_with_a_mark_for_each_that_was_measured() -> None:
    table = [
        row("fan-out 1 to 100", 0.2, "floor", 0.1),
        row("fan-out 1 to 100", 0.2, "mosquitto", 8.0),
        row("pairs 50:50", 3.0, "floor", 2.0),
    ]
    assert measured(table) == {
        ("fan-out 1 to 100", "one core"): {"shoal": 0.2, "floor": 0.1, "mosquitto": 8.0},
        ("pairs 50:50", "one core"): {"shoal": 3.0, "floor": 2.0},
    }
    svg = ElementTree.fromstring(plotted(table))
    in_legend, titles = 3, [title.text for title in svg.iter(f"{SVG}title")]
    assert len(titles) == in_legend + 5
    assert "mosquitto: 8 µs, one core" in titles
    # Along a line, what costs more is further to the right.
    places = [float(circle.get("cx", "")) for circle in list(svg.iter(f"{SVG}circle"))[in_legend : in_legend + 3]]
    floor, shoal, mosquitto = places
    assert floor < shoal < mosquitto


def test_what_is_no_cpu_of_a_message_beside_another_program_is_not_plotted() -> None:
    good = row("pairs 50:50", 3.0, "floor", 2.0)
    others = [
        row("5,000 msg/s QoS 1: p99", 76.0, "floor", 63.0),
        row("memory", 45.0, "", None, "MiB"),
        row("5.0 against 3.1.1", 1.9, "shoal", 2.8),
        row("fan-in", "void: lost a message", "floor", 2.0),
        row("fan-in", 2.0, "floor", "not run"),
    ]
    assert list(measured([good, *others])) == [("pairs 50:50", "one core")]
