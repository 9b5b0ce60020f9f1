"""`python -m tests.tools.compare [COMMIT]`: what a message, an idle worker and a start cost here, beside a commit.

The commit, by default where this branch left main, is exported to build/base and compiled there. What is compared is
counted, or is CPU and memory of processes that take turns, so it holds on a busy machine too. It fails where this tree
is over a bound of BOUNDS.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.process import ROOT

BASE: Final = ROOT / "build" / "base"
ROUNDS: Final = 7  # starts of each tree, in turn
SETTLED_S: Final = 2.0  # after a start, before its memory is looked at
INSTRUCTIONS: Final = 0.01  # more of a message's, at most
IDLE_KIB: Final = 512  # more of an idle worker, at most
START: Final = 0.05  # more CPU of a start, at most


def git(*arguments: str) -> str:
    """Return what git says."""
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def prepare(commit: str) -> None:
    """Have the commit in BASE, and compiled; what is there already keeps its time, and is not compiled again."""
    there = {
        path for kind in ("*.py", "*.pyx", "*.pxd") for path in BASE.rglob(kind) if BASE / "build" not in path.parents
    }
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        git("archive", "-o", archive.name, commit)
        with tarfile.open(archive.name) as tree:
            for member in tree:
                content, path = tree.extractfile(member) if member.isfile() else None, BASE / member.name
                if content is None:
                    continue
                there.discard(path)
                data = content.read()
                if not path.is_file() or path.read_bytes() != data:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    for path in there:
        path.unlink()
    subprocess.run(
        (sys.executable, "setup.py", "-q", "build_ext", "--inplace"), cwd=BASE, check=True, stdout=subprocess.DEVNULL
    )


def instructions(tree: Path) -> dict[str, float]:
    """Return the instructions of a message, by scenario of tests.tools.instructions."""
    printed = subprocess.run(
        (sys.executable, "-m", "tests.tools.instructions"),
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    ).stdout
    return {line[:-10].strip(): float(line[-10:]) for line in printed.splitlines()}


def start(tree: Path) -> tuple[float, int]:
    """Start a broker with one worker; return the ms of CPU until it is ready, and its KiB in RAM without clients."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            (
                sys.executable,
                "-m",
                "broker.cli.main",
                "serve",
                "--workers",
                "1",
                "--listen",
                "tcp://127.0.0.1:0",
                "--data-dir",
                f"{folder}/data",
            ),
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            while "ready" not in (line := process.stdout.readline()):
                assert line, "the broker has ended"
            tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
            cpu_ms = sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e6
            time.sleep(SETTLED_S)
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            return cpu_ms, next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        finally:
            process.terminate()
            process.communicate()


def main() -> None:
    """Compare, print, and fail over a bound."""
    commit = sys.argv[1] if len(sys.argv) > 1 else git("merge-base", "main", "HEAD")
    prepare(commit)
    print(f"{'':30}{git('rev-parse', '--short', commit):>10}{'here':>10}{'':>10}")
    worse = []
    before, here = instructions(BASE), instructions(ROOT)
    rows = [
        (f"instructions, {name}", before[name], here[name], before[name] * INSTRUCTIONS)
        for name in here
        if name in before
    ]
    start(BASE)  # what compiles Python's bytecode does not count
    start(ROOT)
    starts = [(start(BASE), start(ROOT)) for _ in range(ROUNDS)]
    cpu = [statistics.median(pair[tree][0] for pair in starts) for tree in (0, 1)]
    idle = [statistics.median(pair[tree][1] for pair in starts) for tree in (0, 1)]
    rows += [("start, ms of CPU", *cpu, cpu[0] * START), ("idle worker, KiB", *idle, float(IDLE_KIB))]
    for name, older, newer, bound in rows:
        print(f"{name:30}{older:10.1f}{newer:10.1f}{(newer / older - 1) * 100:+9.1f} %", flush=True)
        if newer > older + bound:
            worse.append(f"{name}: {newer - older:.1f} more, at most {bound:.1f} are allowed")
    if worse:
        sys.exit("\n".join(worse))


if __name__ == "__main__":
    main()
