"""`make bench-transports` measures every row on real brokers and writes its page. What it finds is not judged here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import ROOT
from tests.tools.bench.transports.rows import ROWS

SOURCES = Path(os.environ.get("YARDSTICK", ROOT.parent / "shared" / "bench"))
NUMBER = re.compile(r"[\d,]+(\.\d+)?")


@pytest.mark.skipif(not (SOURCES / "mqload.c").exists(), reason=f"the yardstick is not in {SOURCES}: set YARDSTICK")
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is missing: apt-get install mosquitto")
def test_every_row_is_measured_and_stands_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.tools.bench.transports",
            "--rounds",
            "1",
            "--seconds",
            "0.05",
            "--connects",
            "40",
            "--held",
            "40",
            "--page",
            page,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line.strip("| ").split(" | ")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and "|---" not in line
    ][1:]
    assert [line[0] for line in lines] == [row.text for row in ROWS]
    for row, line in zip(ROWS, lines, strict=True):
        assert line[1] == row.load.cores
        figure, unit = line[2].split()
        assert NUMBER.fullmatch(figure), line
        assert unit == row.unit
        if row.reference:
            assert line[3].startswith(row.reference)
            assert NUMBER.fullmatch(line[3].split()[-1]), line
        if row.target is not None:
            assert line[-1] in ("met", "**missed**"), line
