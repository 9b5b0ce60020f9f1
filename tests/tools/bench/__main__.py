"""Measuring beside the floor and mosquitto.

`python -m tests.tools.bench run [--rounds 15] [--seconds 0.6]` measures and writes docs/benchmarks.md, .json and .svg;
`python -m tests.tools.bench check` measures and compares with the committed ratios. With `--probes` either measures
only what is no scenario of the yardstick (memory, a lone connect, bad clients) and takes the scenarios from the last
run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tools.bench import plot, probes
from tests.tools.bench.machine import Run
from tests.tools.bench.scenarios import LONGER, OWN_CORES, ROWS, SAME_CORE, Row

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "docs" / "benchmarks.json"
BUILD = ROOT / "build" / "bench"
FLOOR_PORT, MOSQUITTO_PORT, SHOAL_PORT = 18850, 18841, 18860
TOLERANCE = 1.25  # a ratio of a check may be so many times the committed one: machines are noisy
SHOAL = (
    f"{sys.executable} -m broker.cli.main serve --workers 1 --listen tcp://127.0.0.1:{{port}} --data-dir {BUILD}/data"
)
BUSY = SHOAL.replace("broker.cli.main", "tests.tools.bench.busy_worker")
MOSQUITTO_CONF = f"""listener {MOSQUITTO_PORT} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 1000
max_queued_messages 0
sys_interval 0
log_dest none
"""


def find_sources() -> Path:
    """Return where the yardstick's sources are. Exits if something is missing that every run needs."""
    sources = Path(os.environ.get("YARDSTICK", ROOT.parent / "shared" / "bench"))
    if not (sources / "mqload.c").exists():
        sys.exit(f"The yardstick (mqload.c, yardstick.c, bench.py) is not in {sources}: set YARDSTICK to its folder.")
    if shutil.which("mosquitto") is None:
        sys.exit("mosquitto is missing, which the ratios are taken to: apt-get install mosquitto")
    return sources


def prepare() -> Path:
    """Build the load generator and the floor; returns where the yardstick's sources are."""
    sources = find_sources()
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-pthread", "-o", BUILD / "mqload", sources / "mqload.c"], check=True)
    subprocess.run(["cc", "-O2", "-o", BUILD / "yardstick", sources / "yardstick.c"], check=True)
    (BUILD / "mosquitto.conf").write_text(MOSQUITTO_CONF, encoding="utf-8")
    # Next to Shoal what it is compared with, because the machine's speed changes from one second to the next.
    brokers = {
        "baseline": "floor",
        "broker": [
            {"name": "floor", "cmd": f"{BUILD}/yardstick {{port}}", "port": FLOOR_PORT, "skip": unneeded("floor")},
            {"name": "shoal", "cmd": SHOAL, "port": SHOAL_PORT, "cwd": str(ROOT)},
            {
                "name": "mosquitto",
                "cmd": f"mosquitto -c {BUILD}/mosquitto.conf",
                "port": MOSQUITTO_PORT,
                "skip": unneeded("mosquitto"),
            },
        ],
    }
    (BUILD / "brokers.json").write_text(json.dumps(brokers), encoding="utf-8")
    return sources


def unneeded(reference: str) -> list[str]:
    """Return expressions for the scenarios that no row compares with a reference."""
    needed = {row.scenario for row in ROWS if row.reference == reference}
    return [f"^{re.escape(row.scenario)}$" for row in ROWS if row.scenario not in needed]


def measure(sources: Path, rounds: int, seconds: float, kept: bool) -> list[dict[str, Any]]:
    """Run every scenario that a row needs; returns the yardstick's records, each with its cores.

    Args:
        kept: they have been run, and their records are those of the last run.
    """
    records: list[dict[str, Any]] = []
    for cores, long in sorted({(row.cores, row.long) for row in ROWS}):
        wanted = {
            name for row in ROWS if (row.cores, row.long) == (cores, long) for name in (row.scenario, row.of) if name
        }
        load_cpu = "0" if cores == SAME_CORE else "1"
        out = BUILD / f"results-{load_cpu}-{'long' if long else 'short'}.jsonl"
        expression = "^(" + "|".join(map(re.escape, sorted(wanted))) + ")$"
        if not kept:
            out.unlink(missing_ok=True)
            subprocess.run(
                [
                    sys.executable,
                    sources / "bench.py",
                    "run",
                    BUILD / "brokers.json",
                    "-o",
                    out,
                    "--rounds",
                    str(rounds),
                    "--seconds",
                    f"{seconds * LONGER if long else seconds:g}",
                    "--only",
                    expression,
                    "--broker-cpus",
                    "0",
                    "--load-cpu",
                    load_cpu,
                    "--mqload",
                    BUILD / "mqload",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        records += [{**json.loads(line), "cores": cores} for line in out.read_text(encoding="utf-8").splitlines()]
    return records


def by_round(records: list[dict[str, Any]], scenario: str, cores: str, broker: str, figure: str) -> list[float] | str:
    """Return a figure of each round, or why there is none: a run that fails a check voids it."""
    runs = [
        record["r"]
        for record in records
        if (record["name"], record["cores"], record["broker"]) == (scenario, cores, broker)
    ]
    bad = [run for run in runs if not run.get("ok")]
    if bad or not runs:
        return f"void: {bad[0].get('reason', 'failed a check')[:60]}" if bad else "not run"
    return [run[figure] for run in runs]


def evaluate(records: list[dict[str, Any]], probed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one entry per row of the table: figures, ratio, target, whether it is met."""
    table = []
    for row in ROWS:
        ours = by_round(records, row.scenario, row.cores, "shoal", row.figure)
        theirs = (
            by_round(records, row.of or row.scenario, row.cores, row.reference, row.figure)
            if row.reference
            else [1.0] * len(ours)
        )
        table.append(entry(row, ours, theirs))
    # What computes keeps the interpreter until its switch interval is over, and longer while the system stops it there.
    single = (
        (
            Row("a lone connect on an idle worker: p99", "lone", OWN_CORES, "", "mosquitto", 3),
            probed["lone_shoal"],
            probed["lone_mosquitto"],
        ),
        (
            Row("a lone publish beside a Python thread that computes: p99", "busy", OWN_CORES, "", "", 10_000),
            probed["publish_busy"],
            1.0,
        ),
        (Row("the same without that thread: p99", "busy", OWN_CORES, "", "", 1000), probed["publish_alone"], 1.0),
        (Row("resident memory of an idle worker", "idle", OWN_CORES, "", "", 38, unit="MiB"), probed["idle_mib"], 1.0),
        (
            Row(
                "memory after ten times 10,000 clients, to that after the first time",
                "left",
                OWN_CORES,
                "",
                "first time",
                1.1,
                unit="MiB",
            ),
            max(probed["after_clients_mib"][1:]),
            probed["after_clients_mib"][0],
        ),
    )
    table += [entry(row, [ours], [theirs]) for row, ours, theirs in single]
    elsewhere_us, beside_us = probed["p99_us"]
    table.append(
        entry(
            Row(
                "5,000 msg/s QoS 1 while bad clients attack: p99",
                "hostile",
                OWN_CORES,
                "",
                "they attack no broker",
                1.5,
            ),
            beside_us,
            elsewhere_us,
        )
    )
    return table


def entry(row: Row, ours: list[float] | str, theirs: list[float] | str) -> dict[str, Any]:
    """Return one line of the table: medians over the rounds, and of the ratios within a round.

    A round in which the system counted nothing for the reference, whose time was short, has no ratio.
    """
    ratio = None
    if not isinstance(ours, str) and not isinstance(theirs, str):
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True) if other]
        ratio = round(statistics.median(ratios), 3) if ratios else None
    return {
        "scenario": row.text,
        "cores": row.cores,
        "shoal": middle(ours),
        "reference": row.reference,
        "unit": row.unit,
        "reference_figure": middle(theirs) if row.reference else None,
        "ratio": ratio,
        "target": row.target,
        "met": ratio is not None and ratio <= row.target,
    }


def middle(figures: list[float] | str) -> float | str:
    """Return the median, or why there is none."""
    return figures if isinstance(figures, str) else statistics.median(figures)


def figure(value: Any) -> str:
    """Return a number for a reader."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def write(table: list[dict[str, Any]], rounds: int, seconds: float, kept: bool, after: list[float], run: Run) -> None:
    """Write docs/benchmarks.md, docs/benchmarks.json, and the plot of these."""
    lines = [
        "# Benchmarks",
        "",
        "CPU time of the broker per delivered message beside two references, measured in one run, round by round and",
        "broker after broker. The *floor* is not a broker: it is the least work that this kernel allows for the same",
        "traffic (yardstick.c). Every delivery and acknowledgement is checked; a run that fails a check voids its row.",
        "What durable sessions, archive, replay and retained messages cost: [benchmarks-log.md](benchmarks-log.md).",
        "",
        f"![CPU time for each delivered message, beside floor and mosquitto]({plot.PLOT.name})",
        "",
        *run.described(),
        f"- Command: `make bench` ({rounds} rounds of {seconds:g} s, of {seconds * LONGER:g} s at 5,000 msg/s), "
        f"{datetime.date.today().isoformat()}",
        *(
            ["- The rows from the lone connect on were measured apart from the others, by `make bench ARGS=--probes`."]
            if kept
            else []
        ),
        "- Figures are medians over the rounds; a ratio is the median of the ratios within a round.",
        "- One core: broker and load generator share it. Two cores: one each.",
        "",
        "| scenario | cores | Shoal | reference | ratio | at most | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in table:
        reference = f"{row['reference']} {figure(row['reference_figure'])}" if row["reference"] else ""
        lines.append(
            f"| {row['scenario']} | {row['cores']} | {figure(row['shoal'])} {row['unit']} | {reference} | "
            f"{figure(row['ratio']) if row['reference'] else ''} | {figure(row['target'])} | "
            f"{'met' if row['met'] else '**missed**'} |"
        )
    lines += [
        "",
        "Resident memory after each of ten times 10,000 clients that connected, subscribed, published and",
        f"left, MiB: {', '.join(f'{value:.1f}' for value in after)}.",
        "",
    ]
    DOCUMENT.write_text("\n".join(lines), encoding="utf-8")
    FIGURES.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plot.write(table)


def main() -> None:
    """Measure, then write or compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench", description=__doc__)
    parser.add_argument("what", choices=("run", "check"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument(
        "--probes",
        action="store_true",
        help="measure only what is no scenario of the yardstick; those are the last run's",
    )
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sources = prepare()
    mosquitto = f"mosquitto -c {BUILD}/mosquitto.conf"
    run = Run()
    print("memory of an idle worker, a lone connect, latency beside bad clients, memory after clients", file=sys.stderr)
    probed = {
        "idle_mib": probes.idle_worker_mib(SHOAL, SHOAL_PORT),
        "lone_shoal": probes.lone_connect_p99_us(SHOAL, SHOAL_PORT),
        "lone_mosquitto": probes.lone_connect_p99_us(mosquitto, MOSQUITTO_PORT),
        "publish_alone": probes.lone_publish_p99_us(SHOAL, SHOAL_PORT),
        "publish_busy": probes.lone_publish_p99_us(BUSY, SHOAL_PORT),
        "p99_us": probes.p99_beside_bad_clients_us(SHOAL, SHOAL_PORT, BUILD / "mqload"),
        "after_clients_mib": probes.memory_after_clients(SHOAL, SHOAL_PORT),
    }
    table = evaluate(measure(sources, arguments.rounds, arguments.seconds, arguments.probes), probed)
    for row in table:
        print(
            f"{row['scenario']:62} {figure(row['shoal']):>10} {row['unit']:6} {row['reference']:10} "
            f"{figure(row['ratio']):>8}  at most {figure(row['target']):>8}  {'met' if row['met'] else 'MISSED'}"
        )
    if arguments.what == "run":
        write(table, arguments.rounds, arguments.seconds, arguments.probes, probed["after_clients_mib"], run)
        return
    committed = {(row["scenario"], row["reference"]): row["ratio"] for row in json.loads(FIGURES.read_text("utf-8"))}
    worse = [
        row
        for row in table
        if row["ratio"] is None
        or row["ratio"] > TOLERANCE * (committed.get((row["scenario"], row["reference"])) or row["target"])
    ]
    for row in worse:
        print(
            f"worse than committed: {row['scenario']}: {figure(row['ratio'])}, committed "
            f"{figure(committed.get((row['scenario'], row['reference'])))}"
        )
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
