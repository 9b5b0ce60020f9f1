"""`python -m tests.tools.bench.counting_worker FILE serve ...`: `shoal` that counts its fdatasyncs in a file."""

import os
import sys
from typing import Any

from broker.cli.main import main

target = os.open(sys.argv.pop(1), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
synced = 0
fdatasync = os.fdatasync


def counted(file: Any) -> None:
    """Sync, and count it."""
    global synced
    fdatasync(file)
    synced += 1
    os.pwrite(target, b"%20d" % synced, 0)


os.fdatasync = counted
main(prog_name="shoal")
