"""HAProxy and nginx in front of a broker, each a process of a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
ADMINISTRATORS = os.pathsep + "/usr/sbin:/usr/local/sbin"  # folders that a user's path may lack


def program(name: str) -> str:
    """Return the path of a program; one that is not installed is named and the test skipped, except in CI."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ADMINISTRATORS)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"missing: {name}")
        pytest.skip(f"missing: {name}")
    return found


def listening(count: int) -> list[socket.socket]:
    """Return sockets that listen on free ports of this machine: who connects before a proxy is there waits for it."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    for one in sockets:
        one.set_inheritable(True)
    return sockets


@contextlib.contextmanager
def haproxy(folder: Path, sections: str, sockets: Sequence[socket.socket]) -> Iterator[Path]:
    """Run HAProxy. Gives the file that it writes to.

    Args:
        sections: front and back ends; they bind to `fd@N`, N a descriptor of one of the sockets.
    """
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"""
global
    maxconn 200
    stats socket {folder}/haproxy.sock level admin
defaults
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    timeout check 5s
{sections}""",
        encoding="utf-8",
    )
    with _running([program("haproxy"), "-db", "-f", str(configuration)], folder, sockets) as written:
        yield written


@contextlib.contextmanager
def nginx(folder: Path, server: str) -> Iterator[Path]:
    """Run nginx. Gives the Unix socket that it listens on.

    Args:
        server: what is in its server block.
    """
    listens_on = folder / "nginx.sock"
    configuration = folder / "nginx.conf"
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration.write_text(
        f"""
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
{temporary}    server {{
        listen unix:{listens_on};
        {server}
    }}
}}
""",
        encoding="utf-8",
    )
    command = [program("nginx"), "-p", str(folder), "-e", "stderr", "-c", str(configuration)]
    with _running(command, folder, ()) as written:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(listens_on):
            assert time.monotonic() < deadline, written.read_text(encoding="utf-8", errors="replace")
            time.sleep(0.01)
        yield listens_on


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _running(command: list[str], folder: Path, sockets: Sequence[socket.socket]) -> Iterator[Path]:
    written = folder / "proxy.log"
    with written.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[one.fileno() for one in sockets]
        )
    try:
        yield written
        assert process.poll() is None, written.read_text(encoding="utf-8", errors="replace")
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for one in sockets:
            one.close()
