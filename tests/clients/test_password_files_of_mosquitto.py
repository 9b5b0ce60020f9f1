"""One password file, written by both brokers' programs, and the same logins at mosquitto and at Shoal."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.auth.password_hash import new_hash
from broker.wire.packets import Connack, Connect, encode
from tests.support.front_ends import program
from tests.support.process import BrokerProcess
from tests.support.raw_client import RawClient, wait_until

USERS = 60
SEED = 21
NAMES = "abc XYZ.-_@+%/ßµ表$#"
PASSWORDS = "abc XYZ:$/+=#é表\t\"'\\"


@contextmanager
def mosquitto(folder: Path, file: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    user = "user root\n" if os.geteuid() == 0 else ""
    (folder / "m.conf").write_text(f"listener {port} 127.0.0.1\npassword_file {file}\n{user}", encoding="utf-8")
    with (folder / "m.log").open("wb") as log:
        process = subprocess.Popen([program("mosquitto"), "-c", str(folder / "m.conf")], stdout=log, stderr=log)
    try:
        wait_until(lambda: "running" in (folder / "m.log").read_text() or process.poll() is not None, "mosquitto")
        assert process.poll() is None, (folder / "m.log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


def gets_in(port: int, user: str | None, password: bytes | None, version: int) -> bool:
    with RawClient(port, version) as client:
        client.socket.sendall(encode(Connect(version, b"c", user_name=user, password=password), version))
        answer = client.read()
        assert isinstance(answer, Connack)
        return answer.reason == 0


def word(draw: random.Random, characters: str, size: int) -> str:
    return "".join(draw.choice(characters) for _ in range(draw.randint(1, size)))


def test_the_same_logins_get_in_at_both_brokers(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    file = tmp_path / "users"
    file.write_bytes(b"# users of both\n\n")
    file.chmod(0o644)
    known: dict[str, str] = {}
    while len(known) < USERS:
        name, password = word(draw, NAMES, 12).strip(), word(draw, PASSWORDS, 20)
        if not name or name.startswith("#") or name in known:
            continue
        kind = draw.choice(("sha512", "sha512-pbkdf2", "ours"))
        if kind == "ours":
            hashed = new_hash(password.encode(), "sha512-pbkdf2", draw.choice((1, 101, 1000)))
            with file.open("ab") as users:
                users.write(draw.choice((b"%b:%b\n", b" %b : %b \r\n")) % (name.encode(), hashed))
        else:
            subprocess.run(
                [program("mosquitto_passwd"), "-H", kind, "-b", str(file), name, password],
                check=True,
                capture_output=True,
            )
        known[name] = password
    (tmp_path / "shoal.toml").write_text(f'[[authenticator]]\ntype = "password_file"\nfile = "{file}"\n')
    answers = {True: 0, False: 0}
    with (
        mosquitto(tmp_path, file) as theirs,
        BrokerProcess(
            tmp_path, "--config", str(tmp_path / "shoal.toml"), environment={"SHOAL_LIMITS__LOGIN_DELAY_MAX_S": "0"}
        ) as ours,
    ):
        for name, password in known.items():
            tries: list[tuple[str | None, bytes | None]] = [
                (name, password.encode()),
                (name, password.encode() + b"x"),
                (name, password.encode()[1:]),
                (name, None),
                (name.swapcase(), password.encode()),
                (f"{name} ", password.encode()),
                (name, draw.choice(list(known.values())).encode()),
            ]
            for user, given in tries:
                expected = gets_in(theirs, user, given, 4)
                assert gets_in(ours.port, user, given, 4) == expected, (user, given)
                assert gets_in(ours.port, user, given, 5) == expected, (user, given)
                answers[expected] += 1
        for version in (4, 5):
            assert not gets_in(theirs, None, None, version)
            assert not gets_in(ours.port, None, None, version)
        assert not gets_in(theirs, None, b"alone", 5)
        assert not gets_in(ours.port, None, b"alone", 5)
    assert answers[True] >= USERS
    assert answers[False] >= 3 * USERS
