"""`python -m tests.tools.bench.busy_worker serve ...`: `shoal` with a thread beside the reactor that computes."""

import threading

from broker.cli.main import main


def compute() -> None:
    """Hold the interpreter as long as it lets a thread: sys.getswitchinterval() at a time."""
    number = 0
    while True:
        number = (number * 31 + 7) % 65_537


threading.Thread(target=compute, daemon=True).start()
main(prog_name="shoal")
