"""What the commit log costs: `python -m tests.tools.bench.log_rows run` writes docs/benchmarks-log.md and .json.

`--only NAME` measures a part of it and writes nothing. `--base FOLDER`: a built tree from before there was a log.
"""

from __future__ import annotations

import argparse
import datetime
import getpass
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools.bench import log_probes, probes
from tests.tools.bench.__main__ import by_round, figure, prepare
from tests.tools.bench.machine import Run
from tests.tools.bench.scenarios import CPU, OWN_CORES, SAME_CORE

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "benchmarks-log.md"
FIGURES = DOCUMENT.with_suffix(".json")
BUILD = ROOT / "build" / "bench"
MOSQUITTO_PORT = 18842
BASE_PORT, NOW_PORT = 18862, 18863
# What turns the yardstick's clean sessions into durable ones, and has it time PUBACK instead of the delivery.
DURABLE = (("b[n++] = 2; /* clean */", "b[n++] = 0;"),)
PUBACK = (
    ("u32 inflight, window;", "u32 inflight, window; u64 asked[4096];"),
    (
        "c->pst[id] = cf.qos == 1 ? P_WAIT_ACK : P_WAIT_REC;",
        "c->pst[id] = cf.qos == 1 ? P_WAIT_ACK : P_WAIT_REC; c->asked[id & 4095] = stamp;",
    ),
    (
        'fail(t, &t->e.refused, "PUBACK reason %02x", p[2]);',
        'fail(t, &t->e.refused, "PUBACK reason %02x", p[2]); hist_add(t->h, now_ns() - c->asked[id & 4095]);',
    ),
    ("if (t->now > ts) hist_add(t->h, t->now - ts);\n\t\telse hist_add(t->h, 0);", "(void)ts;"),
)


def generator(sources: Path, name: str, changes: tuple[tuple[str, str], ...]) -> Path:
    """Build the load generator with some of its lines changed; returns the program."""
    text = (sources / "mqload.c").read_text(encoding="utf-8")
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"mqload.c has {text.count(old)} times what {name} changes: {old}")
        text = text.replace(old, new)
    program = BUILD / name
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, "-x", "c", "-"], input=text, text=True, check=True)
    return program


def load(program: Path, port: int, pid: int, *arguments: str) -> dict[str, Any]:
    """Run the generator on the second core; returns what it found. Raises RuntimeError if a check failed."""
    run = subprocess.run(
        [program, *arguments, "-p", str(port), "--cpu", "1", "--cpu-pids", str(pid)],
        check=False,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(run.stdout) if run.stdout else {"ok": False, "reason": run.stderr}
    if not found["ok"]:
        raise RuntimeError(f"{program.name} {' '.join(arguments)}: {found.get('reason')}")
    return found


def durable_pairs(durable: Path, rounds: int, seconds: str) -> dict[str, Any]:
    """Return processor time per message of 50 durable pairs at QoS 1, and check that they were durable."""
    times: dict[str, list[float]] = {}
    checked = {}
    for _ in range(rounds):
        for batch in ("no", "yes"):
            arguments = (
                "pair",
                "-n",
                "50",
                "-q",
                "1",
                "-s",
                "64",
                "--credit",
                "100",
                "-b",
                batch,
                "--seconds",
                seconds,
            )
            folder = log_probes.empty("log-pairs")
            with log_probes.serve(folder) as running:
                time.sleep(1)
                found = load(durable, log_probes.PORT, running.pid, *arguments)
                syncs = running.syncs()
            times.setdefault(f"shoal {batch}", []).append(found[CPU])
            times.setdefault(f"shoal rate {batch}", []).append(found["msgs_per_s"])
            kinds = log_probes.kinds_in(folder)
            if kinds.get("session", 0) < 50 or not syncs or not kinds.get("accepted"):
                raise RuntimeError(f"Shoal's sessions were not durable: {kinds}")
            checked[f"shoal {batch}"] = {**kinds, "fdatasyncs": syncs}
            folder = log_probes.empty("mosquitto-pairs")
            conf = BUILD / "mosquitto-durable.conf"
            conf.write_text(
                f"user {getpass.getuser()}\n"  # or, as root, it becomes another
                f"listener {MOSQUITTO_PORT} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
                "max_inflight_messages 1000\nmax_queued_messages 0\nsys_interval 0\nlog_dest none\n"
                f"persistence true\npersistence_location {folder}/\n",
                encoding="utf-8",
            )
            with probes.broker(f"mosquitto -c {conf}", MOSQUITTO_PORT) as pid:
                found = load(durable, MOSQUITTO_PORT, pid, *arguments)
            times.setdefault(f"mosquitto {batch}", []).append(found[CPU])
            times.setdefault(f"mosquitto rate {batch}", []).append(found["msgs_per_s"])
            kept = (folder / "mosquitto.db").read_bytes()
            if b"bench/" not in kept:
                raise RuntimeError("mosquitto's sessions were not durable: its database has no subscription")
            checked[f"mosquitto {batch}"] = {"database_bytes": len(kept)}
    ratios = {f"ratio {batch}": ratio(times[f"shoal {batch}"], times[f"mosquitto {batch}"]) for batch in ("no", "yes")}
    return {**{name: statistics.median(found) for name, found in times.items()}, **ratios, "checked": checked}


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios within a round: the machine's speed changes from one second to the next."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def puback(program: Path, rounds: int, seconds: str) -> dict[str, Any]:
    """Return p50 and p99 of PUBACK at 5,000 msg/s to durable subscribers, beside the disk's own fdatasync, in us."""
    runs = []
    for _ in range(rounds):
        before = log_probes.disk_sync_us()
        with log_probes.serve(log_probes.empty("log-puback")) as running:
            time.sleep(1)
            syncs = running.syncs()
            found = load(
                program,
                log_probes.PORT,
                running.pid,
                "rate",
                "-n",
                "50",
                "-q",
                "1",
                "--rate",
                "5000",
                "--seconds",
                seconds,
            )
            syncs = running.syncs() - syncs
        after = log_probes.disk_sync_us()
        runs.append(
            {
                "p50": found["p50_us"],
                "p99": found["p99_us"],
                "cpu_us": found[CPU],
                "messages_per_sync": found["sent"] / max(1, syncs),
                "disk_p50": max(before["p50"], after["p50"]),
                "disk_p99": max(before["p99"], after["p99"]),
            }
        )
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def ephemeral(sources: Path, base: Path, rounds: int, seconds: str) -> list[dict[str, Any]]:
    """Return processor time per message of pairs without durable sessions, before there was a log and now."""
    command = f"{sys.executable} -m broker.cli.main serve --listen tcp://127.0.0.1:{{port}} --data-dir {BUILD}/data-"
    config = BUILD / "base.json"
    config.write_text(
        json.dumps(
            {
                "baseline": "base",
                "broker": [
                    {"name": "base", "cmd": command + "base", "port": BASE_PORT, "cwd": str(base)},
                    {"name": "now", "cmd": command + "now", "port": NOW_PORT, "cwd": str(ROOT)},
                ],
            }
        ),
        encoding="utf-8",
    )
    table = []
    for cores, load_cpu, batch in ((SAME_CORE, "0", "no"), (OWN_CORES, "1", "yes")):
        out = BUILD / "base.jsonl"
        out.unlink(missing_ok=True)
        subprocess.run(
            [
                sys.executable,
                sources / "bench.py",
                "run",
                config,
                "-o",
                out,
                "--rounds",
                str(rounds),
                "--seconds",
                seconds,
                "--only",
                f"^pair50 q[01] 64B batch={batch}$",
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
        records = [{**json.loads(line), "cores": cores} for line in out.read_text(encoding="utf-8").splitlines()]
        for qos in (0, 1):
            of = {
                name: by_round(records, f"pair50 q{qos} 64B batch={batch}", cores, name, CPU)
                for name in ("base", "now")
            }
            if isinstance(of["base"], str) or isinstance(of["now"], str):
                raise RuntimeError(f"pairs without durable sessions: {of}")
            table.append(
                {
                    "batch": batch,
                    "qos": qos,
                    "ratio": ratio(of["now"], of["base"]),
                    **{name: statistics.median(figures) for name, figures in of.items()},
                }
            )
    return table


def rows(found: dict[str, Any]) -> list[tuple[str, str, str, bool | None]]:
    """Return the table: what, figure, target, whether it is met (None: there is no target)."""
    table: list[tuple[str, str, str, bool | None]] = []
    if "pairs" in found:
        pairs = found["pairs"]
        for batch, text in (("no", "own writes"), ("yes", "coalesced")):
            ours, theirs = pairs[f"shoal {batch}"], pairs[f"mosquitto {batch}"]
            table.append(
                (
                    f"QoS 1 to durable subscribers, 50 pairs, 64 B, {text}: CPU per message",
                    f"{figure(ours)} µs, mosquitto {figure(theirs)} µs: {pairs[f'ratio {batch}']:.2f}",
                    "0.50",
                    pairs[f"ratio {batch}"] <= 0.5,
                )
            )
    if "puback" in found:
        puback_ms, disk_ms = found["puback"]["p99"] / 1e3, found["puback"]["disk_p99"] / 1e3
        table.append(
            (
                "PUBACK at 5,000 msg/s, QoS 1, durable subscribers: p99",
                f"{puback_ms:.1f} ms (p50 {found['puback']['p50'] / 1e3:.1f} ms); the disk's own fdatasync "
                f"{disk_ms:.1f} ms (p50 {found['puback']['disk_p50'] / 1e3:.1f} ms)",
                "15 ms on a disk below 2 ms",
                puback_ms <= 15,
            )
        )
    if "recovery" in found:
        seconds = found["recovery"]["s_per_gb"]
        table.append(
            (
                f"recovery, per GB of log (measured with {found['recovery']['bytes'] / 1e9:.2f} GB)",
                f"{seconds:.2f} s, CPU {found['recovery']['cpu_s_per_gb']:.2f} s; with one core "
                f"{found['recovery']['one_core_s_per_gb']:.2f} s",
                "2 s",
                seconds <= 2,
            )
        )
    if "all" in found:
        one = found["all"]
        table.append(
            (
                f"restart behind kill -9 with {one['bytes'] / 1e9:.2f} GB of log, {one['sessions']:,} durable "
                f"sessions and {one['retained']:,} retained messages",
                f"{one['s']:.1f} s, CPU {one['cpu_s']:.1f} s; {one['mib']:,.0f} MiB resident",
                "",
                None,
            )
        )
    for name, text in (
        ("made", "durable sessions that subscribe"),
        ("restart", "restart with as many sessions"),
        ("storm", "durable sessions that come back"),
    ):
        if "sessions" in found:
            one, count = found["sessions"][name], found["sessions_count"]
            each = f"; {one['syncs'] / count:.4f} fdatasyncs each" if name != "restart" else ""
            table.append(
                (
                    f"{count:,} {text}",
                    f"{one['s']:.1f} s, CPU {one['cpu_s']:.1f} s ({one['cpu_s'] / count * 1e6:.0f} µs each), "
                    f"{one['syncs']:,.0f} fdatasyncs{each}",
                    "",
                    None,
                )
            )
    if "archive" in found:
        more = found["archive"]["with"] - found["archive"]["without"]
        table.append(
            (
                "archive of QoS 0 traffic, 100 B: CPU per message on top",
                f"{more:.2f} µs ({found['archive']['without']:.2f} without)",
                "1.5 µs",
                more <= 1.5,
            )
        )
    if "replay" in found:
        first_ms, per_s = found["replay"]["first_ms"], found["replay"]["per_s"]
        table.append(
            (
                f"replay: first of {found['replay_count']:,} stored messages",
                f"{first_ms:.1f} ms",
                "50 ms",
                first_ms <= 50,
            )
        )
        table.append(
            (
                "replay to one client that keeps up, QoS 0",
                f"{per_s:,.0f} msg/s, CPU {found['replay']['cpu_us']:.2f} µs each",
                "100,000 msg/s",
                per_s >= 100_000,
            )
        )
    if "retained" in found:
        kept, count = found["retained"], found["retained_count"]
        matches = f"{count // 10:,}"
        table += [
            (f"{count:,} retained: storing one, QoS 1", f"CPU {kept['stored_us']:.1f} µs", "", None),
            (f"{count:,} retained: filter that matches none", f"CPU {kept['none_ms']:.2f} ms", "1 ms",
             kept["none_ms"] <= 1),
            (f"{count:,} retained: first of {matches} matches", f"{kept['first_ms']:.1f} ms", "5 ms",
             kept["first_ms"] <= 5),
            (f"live p99 while {matches} retained are read again and again, to undisturbed",
             f"{kept['beside_p99_us']:,.0f} µs, {kept['live_p99_us']:,.0f} µs: {kept['p99_ratio']:.2f}", "1.50",
             kept["p99_ratio"] <= 1.5),
            (f"{count:,} retained: resident memory, at its highest",
             f"{kept['mib']:,.0f} MiB ({kept['anonymous_mib']:,.0f} its own at the end; the rest are pages of files)",
             "400 MB",
             kept["mib"] <= 400e6 / (1 << 20)),
        ]  # fmt: skip
    for row in found.get("ephemeral", ()):
        text = "own writes, one core" if row["batch"] == "no" else "coalesced, two cores"
        table.append(
            (
                f"without durable sessions: pairs 50:50, 64 B, {text}, QoS {row['qos']}",
                f"{figure(row['now'])} µs, before the log {figure(row['base'])} µs: {row['ratio']:.2f}",
                "1.00, within the noise of 1.05",
                row["ratio"] <= 1.05,
            )
        )
    return table


def page(found: dict[str, Any], run: Run) -> str:
    """Return docs/benchmarks-log.md."""
    made = "\n".join(run.described())
    disk = found["disk"]
    today = datetime.date.today().isoformat()
    words = {True: "met", False: "**missed**", None: ""}
    table = "\n".join(f"| {what} | {value} | {target} | {words[met]} |" for what, value, target, met in rows(found))
    return f"""# Benchmarks of the commit log

What durable sessions, the archive, replay and retained messages cost, with every acknowledgement behind an fdatasync.
docs/benchmarks.md has what needs no log.

{made}
- Disk: its own fdatasync behind 4 KiB takes {disk["p50"] / 1e3:.1f} ms (p50) and {disk["p99"] / 1e3:.1f} ms (p99).
- Durability: `fsync`; mosquitto with `persistence true`, which does not sync and writes every half hour.
- Command: `make bench-log` ({found["rounds"]} rounds of {found["seconds"]} s, medians; ratios within a round), {today}
- The broker has one core, clients and load generator the other one. While it recovers, both are its own: a thread reads
  and checks the log ahead.

| what | Shoal | at most (rates: at least) | |
|---|---:|---:|---|
{table}

Pairs: publishers and subscribers have sessions that outlive their connections, each run begins with an empty folder,
and behind each run the log was read (Shoal) or the database (mosquitto) to see that they were durable. Recovery: QoS 1
messages of 64 bytes, all acknowledged, so 90 bytes a record with the acknowledgements: it is records that cost time,
about 0.25 µs each, and not bytes. Clients that come back: 5.0, 500 at a time, each waits for its answers and leaves
again; the clients are the slower side, so the CPU time says more than the seconds. Restart behind kill -9: one broker
stored all of it; every session and a thousandth of the retained messages are asked for afterwards. Replay and archive:
100 bytes. Retained: 100 bytes, at 5,000 msg/s of QoS 1 beside it.
{"".join(f"{chr(10)}{note}{chr(10)}" for note in found.get("notes", ()))}"""


def main() -> None:
    """Measure, then write or print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.log_rows", description=__doc__)
    parser.add_argument("what", choices=("run",))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", default="1")
    parser.add_argument("--log-bytes", type=int, default=256_000_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--replayed", type=int, default=10_000_000)
    parser.add_argument("--retained", type=int, default=1_000_000)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--keep", action="store_true", help="take what is not measured from the file of figures")
    given = parser.parse_args()
    os.chdir(ROOT)
    sources = prepare()
    run = Run()
    rounds, seconds = given.rounds, given.seconds
    steps: dict[str, Callable[[], Any]] = {
        "disk": log_probes.disk_sync_us,
        "pairs": lambda: durable_pairs(generator(sources, "mqload-durable", DURABLE), rounds, seconds),
        "puback": lambda: puback(generator(sources, "mqload-puback", DURABLE + PUBACK), rounds, seconds),
        "recovery": lambda: log_probes.recovery(given.log_bytes),
        "all": lambda: log_probes.restart_of_all(1_000_000_000, given.sessions, given.retained),
        "sessions": lambda: log_probes.sessions(given.sessions),
        "archive": lambda: log_probes.archive_us(500_000, rounds),
        "replay": lambda: log_probes.replay(given.replayed),
        "retained": lambda: log_probes.retained(given.retained, BUILD / "mqload"),
    }
    if given.base:
        steps["ephemeral"] = lambda: ephemeral(sources, given.base.resolve(), rounds, seconds)
    found: dict[str, Any] = json.loads(FIGURES.read_text("utf-8")) if given.keep and FIGURES.exists() else {}
    found |= {"rounds": rounds, "seconds": seconds}
    counts = {"sessions": given.sessions, "replay": given.replayed, "retained": given.retained}
    for name, step in steps.items():
        if given.only and name not in given.only:
            continue
        started = time.monotonic()
        found[name] = step()
        if name in counts:
            found[f"{name}_count"] = counts[name]
        print(f"{name} ({time.monotonic() - started:.0f} s): {found[name]}", file=sys.stderr, flush=True)
    for what, value, target, met in rows(found):
        print(f"{what}: {value}{f'; at most {target}' if target else ''}{'' if met is not False else '  MISSED'}")
    if not given.only or given.keep:
        FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        DOCUMENT.write_text(page(found, run), encoding="utf-8")


if __name__ == "__main__":
    main()
