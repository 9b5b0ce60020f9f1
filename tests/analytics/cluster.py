"""A standalone cluster of two worker processes on this machine, and a job that spark-submit gives it.

    python -m tests.analytics.cluster

The package goes with the job as an archive; the executors find it nowhere else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark

from tests.support.log_folders import write
from tests.support.process import ROOT

MESSAGES = (3_000, 4_000, 5_000)
TIMEOUT_S = 300.0
PACKAGES = ("analytics", "router")


def archive(path: Path) -> None:
    """Put the packages that a task needs into a zip file, compiled modules included."""
    with zipfile.ZipFile(path, "w") as made:
        for package in PACKAGES:
            for file in sorted((ROOT / package).iterdir()):
                if file.suffix in (".py", ".so"):
                    made.write(file, f"{package}/{file.name}")
        for module in ("pyspark_shoal.py", "shoal_packages.py"):
            made.write(ROOT / module, module)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def run(folder: Path) -> dict[str, Any]:
    """Run it all in a folder; return what the job found."""
    write(folder / "data", *MESSAGES)
    archive(folder / "shoal.zip")
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(folder / "work"), "SPARK_DAEMON_MEMORY": "256m",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    log = (folder / "cluster.log").open("wb")

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        running.callback(lambda: os.killpg(process.pid, signal.SIGKILL))
        return process

    with ExitStack() as running:
        running.callback(log.close)
        start(f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        for _ in range(2):
            start(f"{package}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "700m",
                  "--webui-port", str(free_port()), master)  # fmt: skip
        until_s = time.monotonic() + TIMEOUT_S
        while (folder / "cluster.log").read_text(errors="replace").count("Successfully registered with master") < 2:
            assert time.monotonic() < until_s, (folder / "cluster.log").read_text(errors="replace")[-3000:]
            time.sleep(0.2)
        submitted = subprocess.run(
            [str(home / "bin" / "spark-submit"), "--master", master, "--archives", f"{folder / 'shoal.zip'}#shoal",
             "--conf", "spark.executorEnv.PYTHONPATH=./shoal", "--conf", "spark.executor.memory=512m",
             "--conf", "spark.cores.max=2", "--driver-memory", "512m", "--conf", "spark.sql.shuffle.partitions=2",
             str(ROOT / "tests" / "analytics" / "cluster_job.py"), str(folder / "data"), str(folder)],
            env={**environment, "PYTHONPATH": str(ROOT)}, cwd=folder, capture_output=True, text=True, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def main() -> None:
    """Run it, and end with 1 if the job counts wrong, or not on two executors from the archive."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder))
    executors = {place[1] for place in found["places"]}
    files = {place[2] for place in found["places"]}
    good = (
        found["count"] == found["lake"] == sum(MESSAGES)
        and len(executors) == 2
        and all(not file.startswith(str(ROOT)) for file in files)
    )
    print(json.dumps({**found, "executors": len(executors), "good": good}))
    sys.exit(not good)


if __name__ == "__main__":
    main()
