"""Brokers that hash passwords: what is left of that when their processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.auth.password_hash import new_hash
from broker.wire.reasons import Reason
from tests.support.raw_client import RawClient, wait_until
from tests.support.workers import Workers, is_alive

SECRET = b"correct horse battery staple"


def children(pid: int, word: bytes) -> list[int]:
    """Return the processes that one has started, and whose command has a word in it."""
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in started if word in Path(f"/proc/{child}/cmdline").read_bytes()]


def enter(broker: Workers, name: str) -> Reason:
    with RawClient(broker.port) as client:
        return Reason(client.connect(name, user_name="ann", password=SECRET).reason)


@pytest.mark.parametrize("count", [1, 2])
def test_what_was_verified_outlives_a_worker_and_nothing_outlives_the_broker(tmp_path: Path, count: int) -> None:
    (tmp_path / "users").write_bytes(b"ann:" + new_hash(SECRET, "sha512-pbkdf2", 5_000) + b"\n")
    (tmp_path / "shoal.toml").write_text(f'[[authenticator]]\ntype = "password_file"\nfile = "{tmp_path / "users"}"\n')
    broker = Workers(tmp_path, count)
    broker.options += ("--config", str(tmp_path / "shoal.toml"))
    with broker:
        assert broker.process is not None
        names = [broker.names(home)[0] for home in range(count)] if count > 1 else ["one"]
        pids = broker.pids() if count > 1 else [broker.process.pid]
        for name in names:
            assert enter(broker, name) == Reason.SUCCESS
        # The first has hashed, and all of them know.
        hashing = [children(pid, b"hashing_process") for pid in pids]
        assert [len(found) for found in hashing] == [1, *[0] * (count - 1)]
        started = hashing[0]
        if count > 1:
            killed = broker.kill_worker(0)
            wait_until(lambda: not is_alive(started[0]), "a hashing process has outlived its worker")
            wait_until(lambda: broker.pid_of(0) != killed, "the worker does not come back")
            wait_until(lambda: enter(broker, names[0]) == Reason.SUCCESS, "nobody is let in")
            assert children(broker.pid_of(0), b"hashing_process") == []
            with RawClient(broker.port) as client:
                wrong = client.connect(names[0], user_name="ann", password=b"wrong")
            assert wrong.reason == Reason.BAD_USER_NAME_OR_PASSWORD
            started = children(broker.pid_of(0), b"hashing_process")
            assert len(started) == 1
        broker.kill()
        wait_until(lambda: not any(map(is_alive, started)), "a hashing process has outlived the broker")
        assert SECRET.decode() not in broker.log.read_text()
