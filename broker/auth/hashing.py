"""Passwords are hashed in processes of their own, when a core is idle, so that who is connected does not notice.

Threads of the worker would take its cores from it as equals; and at a lower priority they would stop it for long while
they hold the interpreter, or the lock of its memory, and are not given a core.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from broker.auth.hashing_process import IDLE, NICE, YES, answer_to, fits_request, new_request
from broker.auth.outcome import UndecidedError
from broker.auth.password_hash import PasswordHash
from broker.logs import get

log = get("hashing")

TRIES: Final = 3  # of a password: each of them with a process that has ended meanwhile
IDLE_S: Final = 15.0  # after which a process that hashes nothing ends
LOOK_S: Final = 5.0  # between two looks for those
PATIENCE_S: Final = 1.0  # with a process that gets a core only when nobody else wants it
HURRIED_S: Final = 60.0  # that processes get some of it always, once patience has ended
ANSWER_BYTES_MAX: Final = 65_536
WAITING_MAX: Final = 64  # passwords, for each process: two seconds of argon2id


class HashingProcess:
    """One process, as the broker sees it. It is asked one thing at a time.

    Args:
        policy: when it is given a core: IDLE or NICE.

    Raises OSError: it cannot be started.

    Attributes:
        idle_since_s: when it was given back, on the clock of time.monotonic().
        policy: as given.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.idle_since_s = 0.0
        self._unwanted = 0  # answers that nobody waits for any more
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.setblocking(False)
        # Ours comes first; argon2 is found as we find it.
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        try:
            with theirs:
                # Not subprocess.Popen, which waits until all files of this process are closed in the other one; and in
                # this thread, with which it ends. A signal from the terminal is for the broker alone: setpgroup.
                self._pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-P", "-m", "broker.auth.hashing_process", str(os.getpid()), policy],
                    {**settings, "PYTHONPATH": os.pathsep.join(paths)},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    ],
                    setpgroup=0,
                )
        except OSError:
            self._end.close()
            raise

    @property
    def pid(self) -> int:
        """Its process identifier."""
        return self._pid

    @property
    def is_at_work(self) -> bool:
        """Whether it does what was cancelled."""
        return self._unwanted > 0

    async def ask(self, request: bytes) -> bytes:
        """Return the answer to a request. What is cancelled is done to its end before the next request.

        Raises OSError: it has ended.
        """
        while self._unwanted:
            await self._receive()
            self._unwanted -= 1
        self._end.send(request)
        self._unwanted = 1
        answer = await self._receive()
        self._unwanted = 0
        return answer

    async def _receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._end)
            with suppress(BlockingIOError):
                answer = self._end.recv(ANSWER_BYTES_MAX)
                if not answer:
                    raise ConnectionResetError
                return answer

    def let_go(self) -> None:
        """Have it end when it has done what it does."""
        self._end.close()

    def kill(self) -> None:
        """End it at once."""
        self._end.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # has_ended() was not True: the number cannot be another's

    def has_ended(self, *, wait: bool = False) -> bool:
        """Return whether it is gone; True is said once."""
        try:
            return os.waitpid(self._pid, 0 if wait else os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True  # the program around us takes care of all children


def _reap(process: HashingProcess) -> None:
    """Have a process that was killed be no zombie; it may take a while until it is given a core to end on."""
    if not process.has_ended():
        threading.Thread(target=process.has_ended, kwargs={"wait": True}, daemon=True).start()


class Hashing:
    """Hashes passwords, so many at once; those that wait do so in their order.

    Processes are started when they are needed, and end when they have been idle for a while, or with the broker. What
    one was asked that is killed is asked again.

    Args:
        processes_max: how many there are at most. Each takes 20 MiB, and 46 MiB for argon2id.
    """

    def __init__(self, processes_max: int) -> None:
        self._places = trio.CapacityLimiter(processes_max)
        self._idle: list[HashingProcess] = []  # at the end the one used last, before them those at work
        self._ending: list[HashingProcess] = []
        self._closed = False
        self._warned = False
        self._hurried_until_s = 0.0
        self._waiting = 0
        self._waiting_max = WAITING_MAX * processes_max
        self._is_behind = False

    @property
    def pids(self) -> list[int]:
        """Process identifiers of those that are idle."""
        return [process.pid for process in self._idle]

    def is_behind(self) -> bool:
        """Return whether many passwords wait, until half of them have been hashed.

        Whoever comes then had better wait where that costs nothing: in here they would all wait for longer than their
        time, leave at once, and come again.
        """
        if self._waiting >= self._waiting_max:
            self._is_behind = True
        elif self._waiting <= self._waiting_max // 2:
            self._is_behind = False
        return self._is_behind

    async def fits(self, stored: bytes, password: bytes) -> bool:
        """Return whether a password fits a hash. Raises UndecidedError."""
        hashed = PasswordHash(stored)
        if hashed.is_quick:
            async with self._places:
                await trio.lowlevel.checkpoint()  # a crowd of them is not one turn
                return hashed.fits(password)
        return await self._ask(fits_request(stored, password)) == YES

    async def new_hash(self, password: bytes) -> bytes:
        """Return a new hash of a password. Raises UndecidedError."""
        return await self._ask(new_request(password))

    async def _ask(self, request: bytes) -> bytes:
        self._waiting += 1
        try:
            return await self._answered(request)
        finally:
            self._waiting -= 1

    async def _answered(self, request: bytes) -> bytes:
        async with self._places:
            for _ in range(TRIES):
                try:
                    process = self._take()
                except OSError as error:
                    return await self._ask_thread(request, error)
                answer = None
                try:
                    with trio.move_on_after(PATIENCE_S if process.policy == IDLE else math.inf):
                        answer = await process.ask(request)
                except OSError:
                    log.warning("hashing_process_ended", pid=process.pid, what="a password is hashed again")
                except BaseException:
                    self._give_back(process)
                    raise
                else:
                    if answer is not None:
                        self._give_back(process)
                        return answer
                    self._hurried_until_s = time.monotonic() + HURRIED_S
                self._end(process)
        raise UndecidedError("passwords cannot be checked now")

    def _take(self) -> HashingProcess:
        """Return a process that is idle, or a new one; of those that are too slow now, none. Raises OSError."""
        policy = NICE if time.monotonic() < self._hurried_until_s else IDLE
        while self._idle:
            process = self._idle.pop()
            if process.policy == policy:
                return process
            self._end(process)
        return HashingProcess(policy)

    def _end(self, process: HashingProcess) -> None:
        process.kill()
        self._ending.append(process)

    async def _ask_thread(self, request: bytes, error: OSError) -> bytes:
        """Hash without a process, because none can be started."""
        if not self._warned:
            self._warned = True
            log.warning("hashing_process_not_started", error=str(error), what="passwords are hashed in threads")
        return await trio.to_thread.run_sync(answer_to, request)

    def _give_back(self, process: HashingProcess) -> None:
        if self._closed:
            process.kill()
            _reap(process)
            return
        process.idle_since_s = time.monotonic()
        if process.is_at_work:
            self._idle.insert(0, process)
        else:
            self._idle.append(process)

    async def run(self) -> None:
        """End processes that have been idle for a while; all of them when it is cancelled. May run several times."""
        try:
            while True:
                await trio.sleep(LOOK_S)
                since_s = time.monotonic() - IDLE_S
                for process in [one for one in self._idle if one.idle_since_s <= since_s]:
                    self._idle.remove(process)
                    process.let_go()
                    self._ending.append(process)
                self._ending = [process for process in self._ending if not process.has_ended()]
        finally:
            self.close()

    def close(self) -> None:
        """End all of them at once."""
        self._closed = True
        ending = self._idle + self._ending
        for process in ending:
            process.kill()
        for process in ending:
            _reap(process)
        self._idle, self._ending = [], []
