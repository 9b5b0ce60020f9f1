"""The admin socket of a running broker, as curl, a program and a person at a terminal use it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.admin.http_server import CONNECTIONS_MAX
from broker.admin.unix_socket import short_path
from tests.support.process import ROOT, BrokerProcess

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
TIMEOUT_S = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path)
    running.start()
    yield running
    assert running.process is not None
    if running.process.poll() is None:
        running.kill()
    assert running.process.stdout is not None
    running.process.stdout.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        with short_path(self.path) as short:
            self.sock.connect(short)


def socket_of(broker: BrokerProcess) -> Path:
    return broker.folder / "data" / "admin.sock"


def asked(broker: BrokerProcess, path: str, method: str = "GET", body: str | None = None) -> tuple[int, Any]:
    connection = UnixConnection(socket_of(broker))
    with contextlib.closing(connection):
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")


def shoal(broker: BrokerProcess, *arguments: str, exit_code: int = 0, output: bool = False, **environment: str) -> str:
    """Return what a command prints; of one that fails, what it says of that, unless its output is wanted."""
    command, *rest = arguments
    options = ["--data-dir", str(broker.folder / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", command, *options, *rest],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**ENVIRONMENT, **environment},
    )
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    return done.stdout if exit_code == 0 or output else done.stderr


@contextlib.contextmanager
def client(broker: BrokerProcess, name: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `shoal sub`; in the block it has subscribed."""
    program = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "broker.cli.main",
            "sub",
            "--url",
            f"tcp://127.0.0.1:{broker.port}",
            "-i",
            name,
            "-d",
            *options,
        ],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    while "subscribed to" not in (line := program.stderr.readline()):
        assert line, "shoal sub has ended"
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


# The socket -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing")
def test_curl_gets_json_and_statuses(broker: BrokerProcess) -> None:
    # Of others, it does not run under our sanitizers.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    def curl(*arguments: str) -> tuple[str, str]:
        done = subprocess.run(
            ["curl", "-sS", "-w", "%{http_code}", "--unix-socket", "admin.sock", *arguments],
            cwd=broker.folder / "data",
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        return done.stdout[:-3].strip(), done.stdout[-3:]

    assert curl("http://localhost/live") == ('{"live":true}', "200")
    assert curl("http://localhost/ready") == ('{"ready":true}', "200")
    text, code = curl("http://localhost/publish", "-d", '{"topic":"a","payload":"x","retain":true}')
    assert (json.loads(text)["receivers"], code) == (0, "200")
    text, code = curl("http://localhost/retained", "http://localhost/nowhere")
    assert [row["topic"] for row in json.loads(text.splitlines()[0])["rows"]] == ["a"] if "\n" in text else True
    assert code == "404"
    assert curl("-X", "POST", "http://localhost/clients")[1] == "405"
    assert curl("http://localhost/clients?limit=x")[1] == "400"
    assert curl("-X", "POST", "http://localhost/clients/x/kick")[1] == "404"
    assert json.loads(curl("http://localhost/clients?wrong=1")[0])["error"]["reason"] == "unknown_argument"


def test_only_the_owner_can_connect_and_the_file_goes_with_the_broker(broker: BrokerProcess) -> None:
    assert socket_of(broker).stat().st_mode & 0o777 == 0o600
    broker.stop()
    assert not socket_of(broker).exists()


def test_what_a_killed_broker_left_is_replaced(broker: BrokerProcess) -> None:
    broker.kill()
    assert broker.process is not None
    assert broker.process.stdout is not None
    broker.process.stdout.close()
    assert socket_of(broker).exists()
    assert "No broker is running" in shoal(broker, "admin", "status", exit_code=2)
    broker.start()
    assert asked(broker, "/live") == (200, {"live": True})


def test_a_data_folder_with_a_long_path_has_its_socket_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    assert len(str(folder)) > 108
    with BrokerProcess(folder) as broker:
        assert asked(broker, "/live") == (200, {"live": True})
        assert "ready" in shoal(broker, "admin", "status")


def test_many_requests_go_over_one_connection_and_many_connections_at_once(broker: BrokerProcess) -> None:
    connection = UnixConnection(socket_of(broker))
    for _ in range(20):
        connection.request("GET", "/status")
        assert json.loads(connection.getresponse().read())["ready"]
    others = [UnixConnection(socket_of(broker)) for _ in range(10)]
    for other in others:
        other.request("GET", "/workers")
    assert all(other.getresponse().status == 200 for other in others)
    for one in [connection, *others]:
        one.close()


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\x10\x0c\0\4MQTT\4\2\0\0\0\0",
        b"GET\r\n\r\n",
        b"\0" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"POST /publish HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /live HTTP/9.9\r\n\r\n",
        b"G",
    ],
)
def test_whatever_is_sent_the_broker_goes_on(broker: BrokerProcess, bytes_sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(TIMEOUT_S)
        with short_path(socket_of(broker)) as short:
            raw.connect(short)
        with contextlib.suppress(OSError):
            raw.sendall(bytes_sent)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert asked(broker, "/ready") == (200, {"ready": True})
    assert "admin_failed" not in broker.errors.read_text()


def test_idle_connections_keep_nobody_from_asking(broker: BrokerProcess) -> None:
    idle = []
    for number in range(2 * CONNECTIONS_MAX):
        idle.append(socket.socket(socket.AF_UNIX))
        with short_path(socket_of(broker)) as short:
            idle[-1].connect(short)
        if number % 2:  # some have begun to ask
            idle[-1].sendall(b"POST /publish HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    assert asked(broker, "/ready") == (200, {"ready": True})
    assert asked(broker, "/status")[0] == 200
    idle[0].settimeout(TIMEOUT_S)
    assert idle[0].recv(1) == b"", "the connection that waited longest is closed"
    for connection in idle:
        connection.close()


def test_a_drained_broker_ends_as_on_sigterm(broker: BrokerProcess) -> None:
    with client(broker, "c", "-t", "a") as program:
        assert asked(broker, "/drain", "POST") == (202, {"draining": True})
        assert broker.process is not None
        assert broker.process.wait(TIMEOUT_S) == 0
        assert program.stderr is not None
        assert "server shutting down (0x8b); connecting again" in program.stderr.readline()


def test_the_level_of_the_log_changes_at_once(broker: BrokerProcess) -> None:
    assert shoal(broker, "admin", "log-level") == "info\n"
    assert shoal(broker, "admin", "log-level", "error") == "error\n"
    with client(broker, "c", "-t", "a"):
        pass
    assert shoal(broker, "admin", "log-level", "info") == "info\n"
    assert not broker.events("connection_ended")
    assert broker.events("log_level_changed")


# The commands ---------------------------------------------------------------------------------------------------------


def test_every_listing_has_a_table_and_json_lines(broker: BrokerProcess) -> None:
    shoal(broker, "admin", "publish", "kept", "hello", "-q", "1", "-r")
    with client(broker, "c1", "-t", "a/#", "-t", "$share/g/b", "-q", "1", "--session-expiry-interval", "100"):
        for command in (["clients"], ["sessions"], ["subscriptions"], ["retained"], ["workers"]):
            table = shoal(broker, "admin", *command)
            assert len(table.splitlines()) >= 2, table
            if command != ["workers"]:
                rows = [json.loads(line) for line in shoal(broker, "admin", *command, "--json").splitlines()]
                assert len(rows) == len(table.splitlines()) - 1
        assert shoal(broker, "admin", "peers") == "There is one worker, so there are no peers.\n"
        assert "a/#" in shoal(broker, "admin", "client", "c1")
        assert json.loads(shoal(broker, "admin", "client", "c1", "--json"))["subscriptions"] == 2
        routes = shoal(broker, "admin", "routes", "a/b", "-q", "1")
        assert re.search(r"c1 +yes +a/# \(QoS 1\) +1 +sent", routes), routes
        assert "c1 would get it at QoS 1: sent" in shoal(broker, "admin", "routes", "b", "-q", "1")
        assert "disconnected" in shoal(broker, "admin", "kick", "c1")
    assert shoal(broker, "admin", "client", "nobody", exit_code=1) == (
        "shoal: There is no session of a client 'nobody'.\n"
    )


def test_tables_fit_the_terminal(broker: BrokerProcess) -> None:
    name = "client-with-a-long-name-" * 4
    with client(broker, name, "-t", "a/" * 60 + "#", "--session-expiry-interval", "100"):
        for command in ("status", "workers", "clients", "sessions", "subscriptions"):
            for width in (80, 120):
                shown = shoal(broker, "admin", command, COLUMNS=str(width))
                assert max(map(len, shown.splitlines())) <= width, shown
        assert name in shoal(broker, "admin", "clients")


def test_why_says_what_became_of_a_message(broker: BrokerProcess) -> None:
    with client(broker, "c1", "-t", "a", "-q", "1", "--session-expiry-interval", "100", "--no-clean-start") as program:
        shoal(broker, "admin", "publish", "a", "first", "-q", "1")
        assert program.stdout is not None
        assert program.stdout.readline() == "first\n"
        while "acknowledged (packet identifier 1)" not in (told := shoal(broker, "admin", "why", "c1", "a")):
            assert "sent, not acknowledged" in told or "sent and finished" in told, told
    shoal(broker, "admin", "publish", "a", "second", "-q", "1")
    assert re.search(r"waits in the queue +second", shoal(broker, "admin", "why", "c1", "a"))


def test_a_trace_ends_after_the_packets_that_were_asked_for(broker: BrokerProcess) -> None:
    with client(broker, "c1", "-t", "a"):
        program = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "broker.cli.main",
                "admin",
                "--data-dir",
                str(broker.folder / "data"),
                "trace",
                "c1",
                "-n",
                "1",
            ],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "Looking at c1, which has a session. Ctrl-C ends it.\n"
        shoal(broker, "admin", "publish", "a", "seen")
        out, _ = program.communicate(timeout=TIMEOUT_S)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} <- PUBLISH topic=a qos=0 packet_identifier=0 4 B: seen\n", out), out


def test_top_prints_one_screen_where_no_terminal_reads(broker: BrokerProcess) -> None:
    shown = shoal(broker, "top", "-i", "0.2", COLUMNS="80")
    assert shown.startswith("Shoal ")
    assert "turn p99" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_top_runs_on_a_terminal_until_q_is_pressed(broker: BrokerProcess) -> None:
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "broker.cli.main", "top", "--data-dir", str(broker.folder / "data"), "-i", "0.2"],
        cwd=ROOT,
        env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    pressed = threading.Event()
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if b"No client is behind" in shown and not pressed.is_set():
            pressed.set()
            os.write(ours, b"q")
    errors = program.communicate(timeout=TIMEOUT_S)[1]
    os.close(ours)
    assert (program.returncode, errors) == (0, b"")
    assert b"messages" in shown
