"""A process whose parent is killed: nobody is let in any more, though others hold its listening socket open."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import ROOT
from tests.support.raw_client import wait_until
from tests.support.workers import is_alive

PARENT = """
import subprocess, sys
listener, code = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", code, listener], pass_fds=[int(listener)], stdout=subprocess.PIPE,
                         process_group=0)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
CHILD = """
import ctypes, signal, sys
from broker.processes.orphan import end_with_parent
signal.signal(signal.SIGHUP, lambda *_: None)        # as a worker has it: the system says it to a stopped orphan
end_with_parent([int(sys.argv[1])])
print("ready", flush=True)
ctypes.PyDLL(None).sleep(600)            # in native code, with the interpreter's lock
"""


def state_of(pid: int) -> str:
    """Return a process's state as the system has it."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


@pytest.mark.parametrize("stopped", [False, True], ids=["hanging", "stopped"])
def test_whoever_comes_to_an_orphan_is_refused(stopped: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with subprocess.Popen(
            [sys.executable, "-c", PARENT, str(listener.fileno()), CHILD],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
        ) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            with socket.create_connection(listener.getsockname()):
                pass
            if stopped:
                os.kill(child, signal.SIGSTOP)
                wait_until(lambda: state_of(child) == "T", "it is stopped")
            parent.kill()
        wait_until(lambda: not is_alive(child), "the orphan ends")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
