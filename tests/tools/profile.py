"""`python -m tests.tools.profile [LOAD ...]`: where the time goes in a loaded worker, as py-spy and perf see it.

LOAD is a command line of the yardstick's load generator without its port, by default `pair -q 1 -s 64 -b yes`. What is
seen is written to build/profile: py-spy.txt (Python and C stacks, folded, for any flame graph viewer) and perf.txt.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.process import ROOT, BrokerProcess
from tests.tools.bench.__main__ import BUILD, prepare

FOLDER = ROOT / "build" / "profile"
DEFAULT_LOAD = ["pair", "-q", "1", "-s", "64", "-b", "yes"]
SECONDS = 10


def observed(port: int, load: list[str], observer: list[str]) -> None:
    """Run the load generator, and beside it an observer of the broker for SECONDS."""
    command = [BUILD / "mqload", *load, "--port", str(port), "--seconds", str(SECONDS + 5)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as loading:
        subprocess.run(observer, check=False)
        loading.terminate()


def main() -> None:
    tools = {"py-spy": f"{sys.executable} -m pip install py-spy", "perf": "apt-get install linux-perf"}
    there = [
        tool for tool in tools if shutil.which(tool, path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    ]
    for tool in tools:
        if tool not in there:
            print(f"{tool} is missing, its view is left out: {tools[tool]}", file=sys.stderr)
    if not there:
        sys.exit(1)
    prepare()
    FOLDER.mkdir(parents=True, exist_ok=True)
    load = sys.argv[1:] or DEFAULT_LOAD
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder))
        broker.start()
        assert broker.process is not None
        pid = str(broker.process.pid)
        if "py-spy" in there:
            py_spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin") or "py-spy"
            observed(
                broker.port,
                load,
                [py_spy, "record", "--native", "--format", "raw", "-d", str(SECONDS), "-o", str(FOLDER / "py-spy.txt"),
                 "--pid", pid],
            )  # fmt: skip
        if "perf" in there:
            data = str(FOLDER / "perf.data")
            observed(
                broker.port, load, ["perf", "record", "-q", "-g", "-o", data, "-p", pid, "--", "sleep", str(SECONDS)]
            )
            with (FOLDER / "perf.txt").open("wb") as report:
                command = ["perf", "report", "--stdio", "--no-children", "-g", "none", "-i", data]
                subprocess.run(command, check=False, stdout=report, stderr=subprocess.DEVNULL)
        broker.stop()
    print("Written:", *sorted(str(path.relative_to(ROOT)) for path in FOLDER.iterdir()))


if __name__ == "__main__":
    main()
