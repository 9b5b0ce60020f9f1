"""`python -m tests.tools.bench.transports [--rounds 9] [--seconds 0.6]` measures what each way in costs, beside the
floor that speaks the same and mosquitto, and writes docs/benchmarks-transports.md."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.bench.__main__ import ROOT, figure, find_sources
from tests.tools.bench.machine import Run
from tests.tools.bench.transports.brokers import Broker, Tools, check_places, put_load, running
from tests.tools.bench.transports.rows import CONNECT, HOLD, ROWS, Load, Row

DOCUMENT = ROOT / "docs" / "benchmarks-transports.md"

Side = tuple[str, Load]


@dataclass(frozen=True, slots=True)
class Amounts:
    """How long a load is put on, how many connects there are, how many connections are held."""

    seconds: str
    connects: int
    held: int

    def of(self, load: Load) -> tuple[str, ...]:
        """Return the generator's arguments for a load."""
        if load.arguments == HOLD:
            return "-n", str(self.held)
        return ("-n", str(self.connects)) if load.arguments == CONNECT else ("--seconds", self.seconds)


def measure(tools: Tools, rows: list[Row], rounds: int, amounts: Amounts) -> dict[Side, list[dict[str, Any]]]:
    """Put every load of the rows on its brokers, round by round; returns what the generator said, a list for each.

    The brokers of a round run side by side, and under each load one comes directly after the other. Memory is measured
    once, with brokers that have done nothing before.
    """
    found: dict[Side, list[dict[str, Any]]] = {}
    wanted = dict.fromkeys(side for row in rows for side in row.sides)
    loads = dict.fromkeys(load for _, load in wanted)
    for number in range(rounds):
        with ExitStack() as stack:
            brokers: dict[str, Broker] = {}
            for load in loads:
                for name in (name for name, its_load in wanted if its_load == load):
                    if load.arguments == HOLD:
                        if number == 0:
                            with running(tools, name, True) as fresh:
                                found[name, load] = [put_load(tools, fresh, load, amounts.of(load))]
                        continue
                    if name not in brokers:
                        brokers[name] = stack.enter_context(running(tools, name, False))
                    found.setdefault((name, load), []).append(put_load(tools, brokers[name], load, amounts.of(load)))
                    check_places(name, brokers[name])
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def figures(said: list[dict[str, Any]], key: str) -> list[float] | str:
    """Return a figure of each round, or why there is none: a run that fails a check voids it."""
    bad = [one for one in said if not one.get("ok")]
    return f"void: {bad[0].get('reason', 'failed a check')[:60]}" if bad else [one[key] for one in said]


def middle(values: list[float] | str) -> str:
    """Return the median for a reader, or why there is none."""
    return values if isinstance(values, str) else figure(statistics.median(values))


def line(row: Row, found: dict[Side, list[dict[str, Any]]]) -> tuple[str, str, str, str, str, str, str]:
    """Return the row of the table."""
    ours, *others = (figures(found[side], row.figure) for side in row.sides)
    ratio: float | None = None
    reference = ""
    if others:
        (theirs,) = others
        of = "" if row.of is None else f", {row.of.way}"
        reference = f"{row.reference}{of} {middle(theirs)}"
        if not isinstance(ours, str) and not isinstance(theirs, str):
            # A round in which the system counted nothing for the reference, whose time was short, has no ratio.
            ratios = [mine / other for mine, other in zip(ours, theirs, strict=True) if other]
            ratio = statistics.median(ratios) if ratios else None
    elif not isinstance(ours, str):
        ratio = statistics.median(ours)
    met = "" if row.target is None else "met" if ratio is not None and ratio <= row.target else "**missed**"
    return (
        row.text,
        row.load.cores,
        f"{middle(ours)} {row.unit}",
        reference,
        figure(ratio) if others else "",
        "" if row.target is None else figure(row.target),
        met,
    )


def write(table: Sequence[tuple[str, ...]], rounds: int, amounts: Amounts, run: Run, document: Path) -> None:
    """Write the page."""
    lines = [
        "# Benchmarks of the ways in",
        "",
        "CPU time of the broker per delivered message, or per connection that is made, over TLS, WebSocket and Unix",
        "sockets. The *floor* is not a broker: it is the least work that this kernel and OpenSSL allow for the same",
        "traffic (yardstick.c, tests/tools/bench/transports/ways.c). All deliveries and acknowledgements are checked;",
        "a run that fails a check voids its row. What the ways in are: [transports.md](transports.md).",
        "",
        *run.described(),
        f"- Command: `make bench-transports` ({rounds} rounds of {amounts.seconds} s, {amounts.connects:,} connects, "
        f"{amounts.held:,} connections held), {datetime.date.today().isoformat()}",
        "- Figures are medians over the rounds; a ratio is the median of the ratios within a round. The brokers of",
        "  a round run side by side, and under each load one comes directly after the other.",
        "- One core: broker and load share it. Two cores: one each. Both workers: as the system likes; the CPU",
        "  time is that of both.",
        "- TLS 1.3 with TLS_AES_256_GCM_SHA384 and a certificate with a key of P-256. The floor keeps OpenSSL's",
        "  buffers, which costs memory and spares time; where memory is measured, it releases them.",
        "",
        "| what | cores | Shoal | reference | ratio | at most | |",
        "|---|---|---:|---:|---:|---:|---|",
        *("| " + " | ".join(row) + " |" for row in table),
    ]
    document.write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.transports", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", default="0.6", help="for which a load lasts")
    parser.add_argument("--connects", type=int, default=2000)
    parser.add_argument("--held", type=int, default=10_000, help="connections whose memory is measured")
    parser.add_argument("--only", default="", help="regular expression over the rows; the page is not written then")
    parser.add_argument("--page", type=Path, default=DOCUMENT)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    amounts = Amounts(arguments.seconds, arguments.connects, arguments.held)
    rows = [row for row in ROWS if re.search(arguments.only, row.text)]
    run = Run()
    with tempfile.TemporaryDirectory(prefix="shoal-ways-") as folder:
        found = measure(Tools(find_sources(), Path(folder)), rows, arguments.rounds, amounts)
    table = [line(row, found) for row in rows]
    for row in table:
        print("  ".join(row))
    if not arguments.only:
        write(table, arguments.rounds, amounts, run, arguments.page)


if __name__ == "__main__":
    main()
