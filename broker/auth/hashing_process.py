"""A process that hashes passwords for a broker: `python -m broker.auth.hashing_process PARENT POLICY`, by
broker.auth.hashing.

Its standard input is one end of a pair of sockets. A request is one packet, and so is its answer; the requests come one
after the other. It ends when the other end is closed, and with the thread that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import Final

# When a core is given to them: "idle" when nobody else wants it, so that who does is not kept waiting for a moment; and
# "nice" a third of what others get, so that a machine that is never idle lets clients in as well (at 19, a sixtieth,
# a login took ten seconds beside four busy processes on two cores).
IDLE, NICE = "idle", "nice"
NICENESS: Final = {IDLE: 19, NICE: 5}
DESCRIPTORS_MAX: Final = 2**31 - 1
PR_SET_PDEATHSIG: Final = 1  # of prctl(2)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)
KEPT_BYTES: Final = 128 << 20  # of memory that the next hash needs again
REQUEST_BYTES_MAX: Final = 131_072  # a password has 65,535 at most

FITS, NEW = b"F", b"N"  # with which requests begin
YES, NO = b"Y", b"N"


def fits_request(stored: bytes, password: bytes) -> bytes:
    """Return the request whose answer is YES if a password fits a hash, and NO if it does not."""
    return FITS + len(stored).to_bytes(4) + stored + password


def new_request(password: bytes) -> bytes:
    """Return the request whose answer is a new hash of a password."""
    return NEW + password


def answer_to(request: bytes) -> bytes:
    """Hash what a request asks for, and return its answer."""
    # Here, so that it is loaded at the lowest priority.
    from broker.auth.password_hash import PasswordHash, new_hash

    if request.startswith(NEW):
        return new_hash(request[1:])
    end = 5 + int.from_bytes(request[1:5])
    return YES if PasswordHash(request[5:end]).fits(request[end:]) else NO


def main(parent: int, policy: str) -> None:
    """Answer requests until the broker ends, or wants no more.

    Args:
        parent: the broker's process.
        policy: IDLE or NICE.
    """
    os.closerange(3, DESCRIPTORS_MAX)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return  # it ended before
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS[policy])
        if policy == IDLE:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        pass  # a sandbox may forbid it: then hashing costs those who are connected some milliseconds
    # argon2id takes 46 MiB for each hash. To get them from the kernel anew each time costs more than the hash itself.
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    end = socket.socket(fileno=0)
    end.setblocking(True)
    while request := end.recv(REQUEST_BYTES_MAX):
        answer = answer_to(request)
        try:
            end.send(answer)
        except OSError:
            return  # nobody wants to know


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
