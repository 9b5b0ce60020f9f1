"""`shoal passwd` at a terminal and without one, and a broker that takes what it writes."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.auth.password_hash import PasswordHash
from broker.auth.password_lines import PasswordLines
from broker.cli.passwd import passwd
from broker.wire.packets import Connect, encode
from broker.wire.reasons import Reason
from tests.processes.test_admin import asked
from tests.support.process import ROOT, BrokerProcess
from tests.support.raw_client import RawClient, wait_until

SECRET = "correct horse battery staple"
QUICK = ("--hash", "sha512-pbkdf2", "--iterations", "2")


def run(*arguments: str, given: str | bytes = SECRET + "\n", code: int = 0) -> Result:
    result = CliRunner().invoke(passwd, arguments, input=given)
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result


def users(file: Path) -> dict[str, bytes]:
    return PasswordLines(file.read_bytes()).hashes


def test_users_are_added_changed_listed_and_deleted(tmp_path: Path) -> None:
    file = tmp_path / "users"
    said = run(str(file), "ann", "--stdin").output
    assert said.startswith("ann: added to")
    assert f'[[authenticator]]\ntype = "password_file"\nfile = "{file}"' in said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(str(file), "bob", "--stdin", *QUICK).output == f"bob: added to {file}.\n"
    assert {name: PasswordHash(stored).kind for name, stored in users(file).items()} == {
        "ann": "argon2id",
        "bob": "sha512-pbkdf2",
    }
    before = users(file)
    assert run(str(file), "ann", "--stdin", given="another").output == f"ann: changed in {file}.\n"
    assert PasswordHash(users(file)["ann"]).fits(b"another")
    assert users(file)["bob"] == before["bob"]
    assert run(str(file), "--list").output == "ann\nbob\n"
    run(str(file), "ann", "--delete")
    assert list(users(file)) == ["bob"]
    assert "there is no user ann" in run(str(file), "ann", "--delete", code=1).output


def test_comments_order_mode_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "real"
    run(str(real), "ann", "--stdin", *QUICK)
    run(str(real), "bob", "--stdin", *QUICK)
    real.write_bytes(b"# first\n" + real.read_bytes().replace(b"bob", b"\n# second\nbob"))
    real.chmod(0o640)
    (tmp_path / "users").symlink_to("real")
    run(str(tmp_path / "users"), "ann", "--stdin", *QUICK, given="new")
    assert (tmp_path / "users").is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    lines = real.read_bytes().split(b"\n")
    assert [line.partition(b":")[0] for line in lines] == [b"# first", b"ann", b"", b"# second", b"bob", b""]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real", "users"]


@pytest.mark.parametrize(("arguments", "given", "code", "said"), [
    ((), "", 2, "either USER or --list"),
    (("ann", "--list"), "", 2, "either USER or --list"),
    (("ann", "--delete", "--stdin"), "", 2, "exclude one another"),
    (("ann", "--stdin", "--iterations", "9"), SECRET, 2, "--iterations is for"),
    (("a:b", "--stdin"), SECRET, 1, "colon"),
    (("#a", "--stdin"), SECRET, 1, "#"),
    (("", "--stdin"), SECRET, 1, "empty user name"),
    (("ann", "--stdin"), "", 1, "empty password"),
    (("ann", "--stdin"), "\n", 1, "empty password"),
    (("ann", "--stdin"), f"{SECRET}\n{SECRET}\n", 1, "several lines"),
    (("ann", "--stdin"), "x" * 65_536, 1, "65535 bytes"),
    (("ann",), SECRET, 1, "--stdin"),
    (("ann", "-b", SECRET), "", 2, "--stdin"),
    (("--list",), "", 1, "No such file"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_and_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], given: str, code: int, said: str
) -> None:
    result = CliRunner().invoke(prepared_passwd(), [str(tmp_path / "users"), *arguments], input=given)
    assert result.exit_code == code
    assert said.lower() in result.output.lower()
    assert not list(tmp_path.iterdir())


def prepared_passwd() -> object:
    from broker.cli.main import Commands
    from broker.cli.main import main as program

    assert isinstance(program, Commands)
    import click

    return program.get_command(click.Context(program), "passwd")


def test_a_broken_file_is_not_made_worse(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(f"# x\nann:{SECRET}\n".encode())
    for arguments in (("bob", "--stdin"), ("ann", "--delete"), ("--list",)):
        assert "line 2: found no hash" in run(str(file), *arguments, code=1).output
    assert file.read_bytes() == f"# x\nann:{SECRET}\n".encode()


@pytest.mark.parametrize(("second", "code"), [(SECRET, 0), ("other", 1)])
def test_at_a_terminal_the_password_is_asked_for_twice_and_not_shown(tmp_path: Path, second: str, code: int) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "broker.cli.main", "passwd", str(tmp_path / "users"), "ann", *QUICK],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    os.close(theirs)
    shown = b""
    for question, typed in ((b"Password of ann", SECRET), (b"The same again", second)):
        while question not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, f"{typed}\n".encode())
    assert process.wait() == code
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # the terminal is gone with its last program
    os.close(ours)
    assert SECRET.encode() not in shown
    assert (tmp_path / "users").exists() == (code == 0)
    if code == 0:
        assert PasswordHash(users(tmp_path / "users")["ann"]).fits(SECRET.encode())


def login(broker: BrokerProcess, user: str, password: str) -> int:
    with RawClient(broker.port) as client:
        client.socket.sendall(encode(Connect(5, b"c", user_name=user, password=password.encode()), 5))
        answer = client.read()
        assert answer is not None
        return int(answer.reason)  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_running_broker_takes_what_is_written_and_no_secret_is_told(tmp_path: Path, workers: str) -> None:
    file = tmp_path / "users"
    run(str(file), "ann", "--stdin")
    hashed = users(file)["ann"].decode().rpartition("$")[2]
    (tmp_path / "shoal.toml").write_text(f'[[authenticator]]\ntype = "password_file"\nfile = "{file}"\n')
    bad = Reason.BAD_USER_NAME_OR_PASSWORD
    options = ("--config", str(tmp_path / "shoal.toml"), "--workers", workers, "--log-level", "debug")
    with BrokerProcess(tmp_path, *options) as broker:
        assert [login(broker, "ann", SECRET) for _ in range(6)] == [0] * 6
        assert login(broker, "ann", "wrong-guess") == bad
        assert login(broker, "zoe", "wrong-guess") == bad
        wait_until(lambda: len(broker.events("connection_ended", reason="bad_user_name_or_password")) == 2, "two lines")
        for line in broker.events("connection_ended", reason="bad_user_name_or_password"):
            assert line["address"].startswith("127.0.0.1:")
        run(str(file), "zoe", "--stdin", *QUICK, given="wrong-guess")
        run(str(file), "ann", "--delete")
        status, answer = asked(broker, "/reload", "POST")
        assert status == 200
        (row,) = answer["authenticators"]
        assert (row["type"], row["users"]) == ("password_file", 1)
        assert login(broker, "zoe", "wrong-guess") == 0
        assert login(broker, "ann", SECRET) == bad
        file.write_bytes(file.read_bytes() + b"ann:" + SECRET.encode())
        status, refused = asked(broker, "/reload", "POST")
        assert status == 422
        assert "line 2" in refused["error"]["text"]
        assert login(broker, "zoe", "wrong-guess") == 0
        told = [str(asked(broker, path)) for path in ("/status", "/listeners", "/clients", "/workers")]
    told += [str(answer), str(refused), *(path.read_text(errors="replace") for path in tmp_path.glob("*.log"))]
    for secret in (SECRET, "wrong-guess", hashed):
        for text in told:
            assert secret not in text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_broker_without_its_password_file_says_so_and_ends(tmp_path: Path, workers: str) -> None:
    (tmp_path / "shoal.toml").write_text('[[authenticator]]\ntype = "password_file"\nfile = "nowhere"\n')
    broker = BrokerProcess(tmp_path, "--config", str(tmp_path / "shoal.toml"), "--workers", workers)
    with pytest.raises(AssertionError) as caught:
        broker.start()
    assert "authenticator 1: The password file nowhere cannot be read: No such file or directory." in str(caught.value)
    assert "`shoal passwd nowhere USER` makes one." in str(caught.value)
