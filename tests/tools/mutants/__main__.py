"""Break the tree that this runs in, one mutant at a time: `python -m tests.tools.mutants [part of a name ...]`.

It changes sources, so it runs in a copy (see `make mutants`). Only the module that a mutant is in is built again, and
its source and everything built from it come back afterwards. Exit status 1 if a mutant survives, 2 if the tests fail
without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools.mutants.data import ROOT, Mutant, mutants

TESTS_TIMEOUT_S = 180
STORE = ROOT / "build" / "mutant"


def built_from(source: Path) -> list[Path]:
    """What the build made of a .pyx: C, object and modules."""
    package, stem = source.parent.relative_to(ROOT), source.stem
    patterns = (
        f"build/cython/{package}/{stem}.c",
        f"build/temp*/**/{package}/{stem}.o",
        f"build/lib*/{package}/{stem}.*.so",
        f"{package}/{stem}.*.so",
    )
    return [path for pattern in patterns for path in ROOT.glob(pattern)]


def forget_an_interrupted_run() -> None:
    """A run that was killed left a mutant built; without what was built from it, it is built again."""
    if STORE.exists():
        for source in STORE.rglob("*.pyx"):
            for path in built_from(ROOT / source.relative_to(STORE)):
                path.unlink()
        shutil.rmtree(STORE)


@contextmanager
def alive(mutant: Mutant) -> Iterator[bool]:
    """Put a mutant in place and build it; yields whether it could be built. All that was there comes back."""
    source = ROOT / mutant.file
    kept = [source, *(built_from(source) if mutant.is_compiled else [])]
    for path in kept:
        copy = STORE / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    try:
        text = source.read_text(encoding="utf-8")
        assert text.count(mutant.find) == 1, f"{mutant.name}: {text.count(mutant.find)} times in {mutant.file}"
        source.write_text(text.replace(mutant.find, mutant.replace), encoding="utf-8")
        yield not mutant.is_compiled or build()
    finally:
        for path in kept:
            shutil.copy2(STORE / path.relative_to(ROOT), path)
        shutil.rmtree(STORE)


def build() -> bool:
    """Build what changed; says why on standard error if it cannot be built."""
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
    return done.returncode == 0


def run_tests(nodes: list[str]) -> int | None:
    """Return pytest's exit status, None if it did not end in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *nodes]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            check=False,
            capture_output=True,
            timeout=TESTS_TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def verdict(mutant: Mutant) -> str:
    """Return `caught` if a test failed, hung or died of the mutant, else what happened instead."""
    with alive(mutant) as built:
        if not built:
            return "NOT BUILT"
        status = run_tests(mutant.nodes())
    if status == 0:
        return "SURVIVED"
    # 1: a test failed; less than 0: the process died; None: it hung. The others say that pytest itself had no tests.
    return "caught" if status is None or status == 1 or status < 0 else f"NOT RUN ({status})"


def main(parts: list[str]) -> int:
    """Run the mutants whose names hold one of the parts, all without parts. Returns the exit status."""
    forget_an_interrupted_run()
    assert build(), "the tree does not build"
    chosen = [mutant for mutant in mutants() if not parts or any(part in mutant.name for part in parts)]
    status = run_tests(sorted({node for mutant in chosen for node in mutant.nodes()}))
    if status != 0:
        print(f"the tests fail without a mutant (pytest's status {status})", file=sys.stderr)
        return 2
    uncaught = 0
    print(f"{'clause':16} {'file':22} {'seconds':>7}  verdict    mutant")
    for mutant in chosen:
        began = time.monotonic()
        word = verdict(mutant)
        uncaught += word != "caught"
        seconds = time.monotonic() - began
        print(f"{mutant.clause:16} {mutant.file:22} {seconds:7.0f}  {word:10} {mutant.name}", flush=True)
    print(f"{len(chosen) - uncaught} of {len(chosen)} mutants caught")
    return 1 if uncaught else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
