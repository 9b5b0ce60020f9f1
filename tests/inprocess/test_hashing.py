"""Passwords are hashed in processes of their own: whatever becomes of these, a client is answered, and rightly."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.auth import chain as chain_module
from broker.auth import hashing as hashing_module
from broker.auth.hashing import Hashing, HashingProcess
from broker.auth.hashing_process import IDLE, NICE, NICENESS
from broker.auth.outcome import UndecidedError
from broker.auth.password_hash import QUICK_ITERATIONS, PasswordHash, new_hash
from broker.config.loader import Limits
from broker.wire.reasons import Reason
from tests.inprocess.test_password_files import answer, serving, settings, written
from tests.support.embedded import until
from tests.support.workers import is_alive

SECRET = b"correct horse battery staple"
SLOW = new_hash(SECRET, "sha512-pbkdf2", QUICK_ITERATIONS + 1)
QUICK = new_hash(SECRET, "sha512-pbkdf2", QUICK_ITERATIONS)
TIMEOUT_S = 60


async def gone(pid: int) -> None:
    """Wait until a process is not even a zombie any more."""
    with trio.fail_after(TIMEOUT_S):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110, ASYNC240  (it tells nobody)
            await trio.sleep(0.01)


@asynccontextmanager
async def running(processes_max: int = 1) -> AsyncIterator[Hashing]:
    hashing = Hashing(processes_max)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hashing.run)
            yield hashing
            nursery.cancel_scope.cancel()


def of_process(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_a_process_hashes_that_knows_nothing_else_and_ends_with_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hashing_module, "PATIENCE_S", math.inf)
    async with running() as hashing:
        assert await hashing.fits(SLOW, SECRET)
        assert not await hashing.fits(SLOW, b"x" * 65_535)
        assert PasswordHash(await hashing.new_hash(SECRET)).fits(SECRET)
        (pid,) = hashing.pids
        assert os.getpriority(os.PRIO_PROCESS, pid) == NICENESS[IDLE]
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        for name in ("cmdline", "environ"):
            assert SECRET not in of_process(pid, name)
        assert b"SHOAL_" not in of_process(pid, "environ")
        # Of the broker it holds what it is asked by, and where its last words go.
        assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
    await gone(pid)


async def test_what_takes_next_to_nothing_is_hashed_at_once() -> None:
    async with running() as hashing:
        assert await hashing.fits(QUICK, SECRET)
        assert not await hashing.fits(QUICK, b"wrong")
        assert hashing.pids == []


async def test_a_password_is_hashed_again_whose_process_was_killed() -> None:
    async with running() as hashing:
        assert await hashing.fits(SLOW, SECRET)
        for is_idle in (True, False):
            (pid,) = hashing.pids
            found: list[bool] = []

            async def fits(found: list[bool] = found) -> None:
                found.append(await hashing.fits(SLOW, SECRET))

            os.kill(pid, signal.SIGKILL if is_idle else signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fits)
                await trio.testing.wait_all_tasks_blocked()
                if not is_idle:
                    os.kill(pid, signal.SIGKILL)
            assert found == [True]
            assert hashing.pids != [pid]


async def test_where_no_core_is_idle_processes_are_started_that_get_some_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as hashing:
        assert await hashing.fits(SLOW, SECRET)
        (pid,) = hashing.pids
        os.kill(pid, signal.SIGSTOP)  # as if others had all of it
        monkeypatch.setattr(hashing_module, "PATIENCE_S", 0.05)
        assert await hashing.fits(SLOW, SECRET)
        (other,) = hashing.pids
        assert other != pid
        assert os.sched_getscheduler(other) == os.SCHED_OTHER
        assert os.getpriority(os.PRIO_PROCESS, other) == NICENESS[NICE]
        monkeypatch.setattr(hashing_module, "PATIENCE_S", math.inf)
        hashing._hurried_until_s = 0.0
        assert await hashing.fits(SLOW, SECRET)
        assert [os.sched_getscheduler(one) for one in hashing.pids] == [os.SCHED_IDLE]


async def test_an_answer_that_nobody_waits_for_is_nobody_elses() -> None:
    async with running() as hashing:
        assert await hashing.fits(SLOW, SECRET)
        (pid,) = hashing.pids
        os.kill(pid, signal.SIGSTOP)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hashing.fits, SLOW, SECRET)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        os.kill(pid, signal.SIGCONT)
        assert not await hashing.fits(SLOW, b"wrong")
        assert await hashing.fits(SLOW, SECRET)
        assert hashing.pids == [pid]


async def test_there_are_as_many_processes_as_are_wanted_at_once_and_no_more() -> None:
    async with running(2) as hashing:
        found = []

        async def fits(password: bytes) -> None:
            found.append(await hashing.fits(SLOW, password))

        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(fits, SECRET if number % 3 else b"wrong")
        assert sorted(found) == [False] * 3 + [True] * 6
        assert len(hashing.pids) == 2


async def test_a_process_that_hashes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing_module, "IDLE_S", 0.0)
    monkeypatch.setattr(hashing_module, "LOOK_S", 0.01)
    async with running() as hashing:
        process = HashingProcess(IDLE)
        hashing._give_back(process)
        while is_alive(process.pid):  # noqa: ASYNC110  (it tells nobody)
            await trio.sleep(0.01)
        assert hashing.pids == []
        assert await hashing.fits(SLOW, SECRET)


async def test_where_no_process_can_be_started_threads_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(hashing_module.log, "warning", lambda event, **_: said.append(event))

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "posix_spawn", refused)
    async with running() as hashing:
        assert await hashing.fits(SLOW, SECRET)
        assert not await hashing.fits(SLOW, b"wrong")
    assert said == ["hashing_process_not_started"]


async def test_a_client_whose_password_cannot_be_checked_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    async with running() as hashing:
        with pytest.raises(UndecidedError):
            await hashing.fits(SLOW, SECRET)
    async with serving(settings(written(tmp_path, ann=SLOW))) as broker:
        assert await answer(broker, "ann", SECRET) == Reason.SERVER_UNAVAILABLE
        assert await answer(broker, "nobody", SECRET) == Reason.SERVER_UNAVAILABLE


async def test_a_crowd_waits_outside_until_half_of_those_inside_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing_module, "WAITING_MAX", 2)
    monkeypatch.setattr(chain_module, "cores_available", lambda: 1)
    go = trio.Event()
    real = Hashing._answered

    async def answered(hashing: Hashing, request: bytes) -> bytes:
        await go.wait()
        return await real(hashing, request)

    monkeypatch.setattr(Hashing, "_answered", answered)
    limits = Limits(login_delay_max_s=0)
    async with serving(settings(written(tmp_path, ann=SLOW), limits=limits)) as broker, trio.open_nursery() as nursery:
        assert broker.acceptor is not None
        found: list[int] = []

        async def enter(password: bytes) -> None:
            found.append(await answer(broker, "ann", password))

        pending = broker.controller.handshake.pending
        for number in range(5):
            nursery.start_soon(enter, b"%d" % number)
            await until(lambda number=number: len(pending.connections) > number or pending.limit_reached)
        await until(lambda: broker.acceptor.pauses["passwords_waiting"])
        assert len(pending.connections) == 2
        go.set()
        await until(lambda: len(found) == 5)
        assert found == [Reason.BAD_USER_NAME_OR_PASSWORD] * 5
        assert pending.limit_reached is None


async def test_the_processes_of_a_broker_end_with_it(tmp_path: Path) -> None:
    async with serving(settings(written(tmp_path, ann=SLOW))) as broker:
        assert await answer(broker, "ann", SECRET) == Reason.SUCCESS
        children = set(of_process(os.getpid(), f"task/{os.getpid()}/children").split())
        started = [pid for pid in children if b"hashing_process" in of_process(int(pid), "cmdline")]
        assert started
    for pid in started:
        await gone(int(pid))
