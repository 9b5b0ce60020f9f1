"""A process that makes a snapshot of a worker's log, beside the worker: `python -m broker.compaction FOLDER WORKER`."""

import json
import os
import secrets
import sys
from typing import Final

from router.compact import compact
from router.disk import Disk

NICENESS: Final = 10


def main(folder: str, worker: str) -> int:
    """Make a snapshot, print what it is as one line of JSON, null if there was nothing to do; return the exit code."""
    os.nice(NICENESS)
    made = compact(Disk(folder), int(worker), lambda: secrets.randbits(32))
    print(json.dumps(made._asdict() if made is not None else None))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
