"""`shoal serve` and `shoal check-config` as a person or a service manager meets them."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.host_resources import WORKERS_BY_DEFAULT_MAX, cores_available
from tests.support.process import ROOT, BrokerProcess

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}


@pytest.fixture
def broker(tmp_path: Path):
    running = BrokerProcess(tmp_path)
    running.start()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.kill()
    running.process.stdout.close()


def shoal(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker.cli.main", *arguments],
        cwd=ROOT, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_version_is_printed() -> None:
    assert shoal("--version").stdout.startswith("shoal ")


def test_help_names_all_commands() -> None:
    shown = shoal("--help").stdout
    for command in ("serve", "check-config", "sub", "pub"):
        assert f"\n  {command} " in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_summary_of_one_line(broker: BrokerProcess, number: int) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)):
        broker.process.send_signal(number)
        said = broker.process.communicate(timeout=30)[0].decode()
    assert broker.process.returncode == 0
    assert [line for line in said.splitlines() if line.startswith("Shoal has stopped after ")] == said.splitlines()[-1:]


def test_there_is_a_worker_for_each_core_unless_it_is_told_how_many(tmp_path: Path) -> None:
    cores = min(cores_available(), WORKERS_BY_DEFAULT_MAX)
    for workers in (0, 1, cores + 1):
        with BrokerProcess(tmp_path, "--workers", str(workers)):
            status = shoal("admin", "--data-dir", str(tmp_path / "data"), "status").stdout
            count = workers or cores
            assert re.search(rf"^workers +{count} of {count}$", status, re.MULTILINE), status


def test_a_port_in_use_is_named_with_its_user(broker: BrokerProcess, tmp_path: Path) -> None:
    refused = shoal("serve", "--listen", f"tcp://127.0.0.1:{broker.port}", "--data-dir", str(tmp_path / "other"))
    assert refused.returncode == 3
    assert refused.stderr.splitlines() == [
        f"The address tcp://127.0.0.1:{broker.port} is in use by shoal: broker "
        f"(process id {broker.process.pid}): stop that or choose another with --listen tcp://HOST:PORT."
    ]


def test_a_data_folder_in_use_is_named_with_its_user(broker: BrokerProcess, tmp_path: Path) -> None:
    refused = shoal("serve", "--listen", "tcp://127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 3
    (line,) = refused.stderr.splitlines()
    assert f"is in use by the broker with process id {broker.process.pid}" in line


def test_the_folder_of_a_killed_broker_is_free_again(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.kill()
    broker.process.stdout.close()
    with BrokerProcess(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = shoal("serve", "--listen", "tcp://127.0.0.1:0", "--data-dir", str(tmp_path / "file" / "data"))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (3, 1)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("tcp://192.0.2.1:0", "is not one of this machine's"), ("tcp://no-such-host.invalid:0", "is not known")],
)
def test_an_address_that_is_not_ours_is_one_sentence(tmp_path: Path, address: str, sentence: str) -> None:
    refused = shoal("serve", "--listen", address, "--data-dir", str(tmp_path / "data"), SHOAL_ALLOW_ANONYMOUS="true")
    assert refused.returncode == 3
    assert sentence in refused.stderr


def test_an_open_address_and_too_many_workers_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    refused = shoal("serve", "--workers", "1025", "--listen", "tcp://0.0.0.0:0", "--data-dir", str(folder))
    assert refused.returncode == 2
    assert "flag --workers: workers: found 1025, expected a whole number from 0 to 1024" in refused.stderr
    assert "allow_anonymous = true" in refused.stderr
    assert not folder.exists()


def test_sighup_opens_the_log_file_anew(tmp_path: Path) -> None:
    log_file = tmp_path / "shoal.log"
    settings = {"SHOAL_LOG__FILE": str(log_file), "SHOAL_LOG__LEVEL": "debug"}
    with BrokerProcess(tmp_path, environment=settings) as broker:
        rotated = log_file.rename(tmp_path / "shoal.log.1")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
    assert [json.loads(line)["event"] for line in rotated.read_text().splitlines()]
    assert log_file.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_standard_error_that_is_closed_does_not_become_a_socket(tmp_path: Path, workers: str) -> None:
    command = [
        sys.executable,
        "-m",
        "broker.cli.main",
        "serve",
        "--listen",
        "tcp://127.0.0.1:0",
        "--data-dir",
        str(tmp_path),
        "--workers",
        workers,
    ]
    script = f"exec {shlex.join(command)} 2>&-"
    with subprocess.Popen(["/bin/sh", "-c", script], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/fd/2").readlink() == Path(os.devnull)
        process.terminate()
        assert process.wait(30) == 0


def test_check_config_says_ok_or_everything_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text("[mqtt]\nreceive_maximum = 5\n")
    assert shoal("check-config", str(file)).stdout == f"{file}: ok\n"
    shown = shoal("check-config", str(file), "--show").stdout
    assert "\nreceive_maximum = 5\n" in shown
    assert "\n#inflight_max = 1000\n" in shown
    file.write_text("[mqtt]\nreceive_maximum = 0\ninflight = 5\n")
    wrong = shoal("check-config", str(file))
    assert wrong.returncode == 1
    assert len(wrong.stderr.splitlines()) == 2


def test_check_config_reads_the_files_that_are_named(tmp_path: Path) -> None:
    file, acl, users = (tmp_path / name for name in ("shoal.toml", "acl.conf", "users"))
    tables = (("authorizer", "acl_file", acl), ("authenticator", "password_file", users))
    file.write_text("".join(f'[[{table}]]\ntype = "{kind}"\nfile = "{path}"\n' for table, kind, path in tables))
    for made, said in ((users, str(users)), (acl, str(acl))):
        refused = shoal("check-config", str(file))
        assert refused.returncode == 1
        assert f"{said} cannot be read" in refused.stderr
        made.touch()
    assert shoal("check-config", str(file)).stdout == f"{file}: ok\n"
    acl.write_text("topic a\ntopic reed a b\n")
    refused = shoal("check-config", str(file))
    assert refused.returncode == 1
    assert "line 2: found 'reed'" in refused.stderr
    roles = '[[authenticator]]\ntype = "dynamic_security"\n'
    file.write_text(roles + roles)
    assert "expected one such table, not two" in shoal("check-config", str(file)).stderr
    file.write_text("[[limit]]\nusers = []\nmessages_per_second_max = 5\n")
    assert "limit 1.users: found []" in shoal("check-config", str(file)).stderr


def test_serving_does_not_load_the_clients_and_a_client_not_the_broker() -> None:
    program = "import sys; from broker.cli import main; main.main.get_command(None, {!r}); print(*sys.modules)"
    for command, absent in (("serve", "broker.cli.pubsub"), ("sub", "broker.reactor.epoll")):
        ran = subprocess.run(
            [sys.executable, "-c", program.format(command)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert absent not in ran.stdout.split()


IDLE_KIB_MAX = 38 * 1024  # 34.7 MiB were seen


def test_a_broker_that_serves_nobody_is_small_and_has_loaded_nothing_that_it_does_not_use(
    broker: BrokerProcess,
) -> None:
    assert broker.process is not None
    if "LD_PRELOAD" not in os.environ:  # a sanitizer takes more than the broker
        status = Path(f"/proc/{broker.process.pid}/status").read_text(encoding="ascii")
        resident_kib = int(status.partition("VmRSS:")[2].split()[0])
        assert resident_kib <= IDLE_KIB_MAX, f"{resident_kib / 1024:.1f} MiB"
    # OpenSSL is for who has listeners with TLS or clients with passwords; trio loads it for streams that nobody opens.
    assert "libcrypto" not in Path(f"/proc/{broker.process.pid}/maps").read_text(encoding="utf-8")
    program = """
import sys
from broker.cli import main, preflight
from broker.config import loader
from broker import logs
from broker.processes import host, worker_main
from broker.worker import worker
from broker.admin import unix_socket
logs.configure(loader.Log())
logs.get("test").info("hello")
print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    unused = (
        "argon2",
        "asyncio",
        "broker.admin.http_server",
        "broker.auth.chain",
        "broker.auth.password_file",
        "broker.admin.worker_queries",
        "broker.cli.backup",
        "broker.auth.token_authenticator",
        "cryptography",
        "difflib",
        "h11",
        "jwt",
        "mesh.mesh",
        "rich",
        "structlog",
        "tomllib",
        "zmq",
    )
    for absent in unused:
        assert absent not in loaded.stdout.split()
