"""docs/metrics.md is made of the table of metrics."""

from pathlib import Path

from broker.telemetry.prometheus import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page(), "python -m broker.telemetry.prometheus > docs/metrics.md"
