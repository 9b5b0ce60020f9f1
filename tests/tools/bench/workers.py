"""`python -m tests.tools.bench.workers [--rounds 9] [--seconds 0.6]` measures what several workers cost beside one, and
writes docs/benchmarks-workers.md."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.wire.packets import Connect, Suback, Subscribe, decode, encode, next_frame, subscription
from tests.tools.bench import probes
from tests.tools.bench.__main__ import BUILD, MOSQUITTO_PORT, ROOT, figure, prepare
from tests.tools.bench.machine import Run

DOCUMENT = ROOT / "docs" / "benchmarks-workers.md"
PORT = 18862
FOLDER = BUILD / "workers"
PLACING = Path(__file__).resolve().parent / "placing"
READY_S = 60
PEERS = 10
FILTERS = 100_000
FILTERS_PER_CLIENT = 10_000
FILTERS_PER_PACKET = 500
PAIRS = ("pair", "-n", "50", "-s", "64", "--credit", "100")
APART = {"p": 0, "s": 1}
# The generator sleeps between messages: two workers and what spins would be three on two cores.
LATENCY = ("rate", "-n", "20", "-q", "0", "--rate", "2000", "--credit", "1000", "--no-spin")
CONNECTS = 5000

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Node:
    """A running broker and the processes of its workers."""

    pids: list[int]

    def workers(self) -> list[dict[str, Any]]:
        """Return the counters of each worker, in their order."""
        rows: list[dict[str, Any]] = told("workers")["rows"]
        return rows

    def sum_of(self, counter: str) -> int:
        """Return a counter, summed over the workers."""
        return sum(int(row[counter]) for row in self.workers())

    def forwarded(self) -> int:
        """Return how many messages the workers have sent to one another."""
        return sum(int(row["messages_out"]) for row in told("peers")["rows"])


def told(question: str) -> dict[str, Any]:
    """Ask the running broker."""
    answer = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", "admin", "--data-dir", FOLDER, question, "--json"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@contextmanager
def node(
    workers: int, places: Mapping[str, int | str] | None = None, cores: tuple[int, ...] = (0, 1)
) -> Iterator[Node]:
    """Run a broker with an empty folder until the block ends."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(PLACING), str(ROOT))),
        "SHOAL_LIMITS__CONNECTS_PER_SECOND_MAX": "0",
    }
    if places:
        environment["BENCH_PLACES"] = json.dumps(places)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "broker.cli.main",
            "serve",
            "--workers",
            str(workers),
            "--listen",
            f"tcp://127.0.0.1:{PORT}",
            "--data-dir",
            FOLDER,
        ],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        end = time.monotonic() + READY_S
        while True:
            try:
                rows = told("workers")["rows"]
                if len(rows) == workers and all(row.get("ready") for row in rows):
                    break
            except (subprocess.CalledProcessError, KeyError):
                if time.monotonic() > end or process.poll() is not None:
                    raise
            time.sleep(0.1)
        yield Node([int(row["pid"]) for row in rows])
    finally:
        process.terminate()
        process.wait(READY_S)


def load(pids: list[int], *arguments: str, port: int = PORT) -> dict[str, Any]:
    """Run the load generator; returns what it says. Exits if one of its checks failed."""
    done = subprocess.run(
        [BUILD / "mqload", *arguments, "-p", str(port), "--cpu-pids", ",".join(map(str, pids))],
        check=False,
        capture_output=True,
        text=True,
    )
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}
    if not said.get("ok"):
        sys.exit(f"void: {arguments}: {said or done.stderr}")
    return said


def pairs(seconds: str, qos: int, batch: str) -> tuple[str, ...]:
    """Return the load's arguments for fifty publishers with a subscriber each."""
    return (*PAIRS, "-q", str(qos), "-b", batch, "--seconds", seconds)


def mosquitto(*arguments: str) -> dict[str, Any]:
    """Run the load on Debian's mosquitto."""
    with probes.broker(f"mosquitto -c {BUILD}/mosquitto.conf", MOSQUITTO_PORT, (0, 1)) as pid:
        return load([pid], *arguments, port=MOSQUITTO_PORT)


def one_round(seconds: str) -> Figures:
    """Return every figure that depends on how disturbed the machine is, measured once, brokers beside one another."""
    found: Figures = {}
    for qos in (0, 1):
        for name, batch in (("coalesced", "yes"), ("own writes", "no")):
            arguments = pairs(seconds, qos, batch)
            key = f"{name} QoS {qos}"
            with node(1) as one:
                said = load(one.pids, *arguments)
                found[f"{key} one"] = said["broker_cpu_us_per_msg"]
                found[f"{key} rate one"] = said["msgs_per_s"]
            with node(2, APART) as two:
                found[f"{key} apart"] = load(two.pids, *arguments)["broker_cpu_us_per_msg"]
                assert two.forwarded() >= two.sum_of("messages_in"), "all subscribers are on the other worker"
            with node(2) as two:
                said = load(two.pids, *arguments)
                found[f"{key} two"] = said["broker_cpu_us_per_msg"]
                found[f"{key} rate two"] = said["msgs_per_s"]
                found[f"{key} share"] = two.forwarded() / two.sum_of("messages_in")
            found[f"{key} mosquitto"] = mosquitto(*arguments)["broker_cpu_us_per_msg"]
    for name, count, places in (("local", 1, None), ("forwarded", 2, APART)):
        with node(count, places) as some:
            found[f"p99 {name}"] = load(some.pids, *LATENCY, "--seconds", seconds)["p99_us"]
    for where, count, places in (("one", 1, None), ("here", 2, {"c": "here"}), ("there", 2, {"c": "there"})):
        with node(count, places) as some:
            found[f"connect {where}"] = load(some.pids, "connect", "-n", str(CONNECTS))["broker_cpu_us_per_msg"]
            moved = some.sum_of("clients_handed_over") if count > 1 else 0
            assert moved == (CONNECTS if where == "there" else 0), (where, moved)
    return found


def subscribe(client: socket.socket, number: int) -> None:
    """Have a client subscribe to its share of the topic filters, and wait for the SUBACKs: the peers have them then."""
    client.sendall(encode(Connect(4, b"ml0s%d" % number), 4))
    packets = FILTERS_PER_CLIENT // FILTERS_PER_PACKET
    for packet in range(packets):
        first = number * FILTERS_PER_CLIENT + packet * FILTERS_PER_PACKET
        filters = tuple(subscription(b"fleet/%06d/state" % (first + index), 0) for index in range(FILTERS_PER_PACKET))
        client.sendall(encode(Subscribe(1 + packet, filters), 4))
    buffer = bytearray()
    while packets:
        buffer += client.recv(65_536)
        while (frame := next_frame(buffer)) is not None:
            answer = decode(*frame, 4)
            if isinstance(answer, Suback):
                assert not any(answer.reasons), answer.reasons
                packets -= 1


def memory() -> Figures:
    """Return the resident memory of a worker that is alone, and of one that has ten peers with many filters, MiB."""
    with node(1) as one:
        alone = max(map(probes.resident_kib, one.pids)) / 1024
    with node(1 + PEERS, {"s": 0}) as many:
        peers = max(map(probes.resident_kib, many.pids[1:])) / 1024
        with ExitStack() as clients:
            for number in range(FILTERS // FILTERS_PER_CLIENT):
                subscribe(clients.enter_context(socket.create_connection(("127.0.0.1", PORT))), number)
            full = max(map(probes.resident_kib, many.pids[1:])) / 1024
    return {"alone": alone, "peers": peers, "full": full}


def table(rounds: list[Figures], used: Figures) -> list[tuple[str, str, str, bool | None]]:
    """Return what was measured, the figures, the target, whether it is met."""
    rows: list[tuple[str, str, str, bool | None]] = []
    found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}

    def ratio(figure_of: str, to: str) -> float:
        return statistics.median(each[figure_of] / each[to] for each in rounds)

    for qos in (0, 1):
        for name, most in (("coalesced", 3.0), ("own writes", 2.0)):
            key = f"{name} QoS {qos}"
            one, apart, theirs = (found[f"{key} {who}"] for who in ("one", "apart", "mosquitto"))
            times = ratio(f"{key} apart", f"{key} one")
            rows.append(
                (
                    f"publisher and subscriber on different workers, 64 B, {name}, QoS {qos}",
                    f"both workers {apart:.2f} µs, one worker {one:.2f} µs: {times:.2f}; mosquitto {theirs:.2f} µs",
                    f"{most:.0f} x, and below mosquitto",
                    times <= most and apart < theirs,
                )
            )
            two = found[f"{key} two"]
            share = found[f"{key} share"]
            times = ratio(f"{key} two", f"{key} one")
            rows.append((f"50 pairs over 2 workers, {name}, QoS {qos}: CPU per message, {share:.0%} forwarded",
                         f"{two:.2f} µs, one worker {one:.2f} µs: {times:.2f}", "1.6 x", times <= 1.6))  # fmt: skip
            rates = found[f"{key} rate two"], found[f"{key} rate one"]
            rows.append(
                (
                    f"the same, messages per second; broker and load share {os.cpu_count()} cores",
                    f"{rates[0]:,.0f}, one worker {rates[1]:,.0f}: {ratio(f'{key} rate two', f'{key} rate one'):.2f}",
                    "",
                    None,
                )
            )
    near, far, times = found["p99 local"], found["p99 forwarded"], ratio("p99 forwarded", "p99 local")
    rows.append(("2,000 msg/s QoS 0, one at a time, to the other worker: p99",
                 f"{figure(far)} µs, on one worker {figure(near)} µs: {times:.2f}", "3 x", times <= 3))  # fmt: skip
    more = statistics.median(each["connect there"] - each["connect here"] for each in rounds)
    rows.append(
        (
            f"{CONNECTS:,} connects to two workers, all of which change the worker: CPU on top of when none does",
            f"{more:.0f} µs ({found['connect here']:.0f} µs without; to one worker {found['connect one']:.0f} µs)",
            "40 µs",
            more <= 40,
        )
    )
    grown = used["full"] - used["alone"]
    rows.append(
        (
            f"memory of a worker with {PEERS} peers and {FILTERS:,} topic filters there, on top of a lone one's",
            f"{grown:.1f} MiB ({used['peers'] - used['alone']:.1f} without the filters)",
            "40 MB",
            grown * 1.048576 <= 40,
        )
    )
    return rows


def write(rows: list[tuple[str, str, str, bool | None]], rounds: int, seconds: str, run: Run) -> None:
    """Write docs/benchmarks-workers.md."""
    lines = [
        "# Benchmarks of several workers",
        "",
        "What it costs that publisher and subscriber are on different workers of one machine. CPU per delivered",
        "message is that of all workers together, ZeroMQ's threads included.",
        "",
        *run.described(),
        f"- Command: `make bench-workers` ({rounds} rounds of {seconds} s), {datetime.date.today()}",
        "- Figures are medians over the rounds; a ratio is the median of the ratios within a round.",
        "- Workers and load generator share the cores as the system likes.",
        "",
        "| what | | at most | |",
        "|---|---|---|---|",
    ]
    for what, figures, target, met in rows:
        lines.append(f"| {what} | {figures} | {target} | {'' if met is None else 'met' if met else '**missed**'} |")
    DOCUMENT.write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", default="0.6")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    prepare()
    run = Run()
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(one_round(arguments.seconds))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    rows = table(rounds, memory())
    for what, figures, target, met in rows:
        print(f"{what}: {figures}  {target}  {'' if met is None else 'met' if met else 'MISSED'}")
    write(rows, arguments.rounds, arguments.seconds, run)


if __name__ == "__main__":
    main()
