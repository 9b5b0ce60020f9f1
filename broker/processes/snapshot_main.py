"""A process that makes a snapshot of a worker's log, beside the worker.

`python -m broker.processes.snapshot_main FOLDER WORKER`. With a third argument, `copy`, it only sees to the
second copy of the retained messages.
"""

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Final

from broker.storage.retained_copies import complete, open_copy
from mesh.node_identity import owner_in
from router.log.disk import Disk
from router.recovery.snapshot import compact

NICENESS: Final = 10


def main(folder: str, worker: str, only: str = "") -> int:
    """Do it, print what was made as one line of JSON, and return the exit code.

    That is the snapshot, null if there was nothing to do, and with it in `copy` why the copy had to be made anew, null
    if it was whole.
    """
    os.nice(NICENESS)
    data_folder = Path(folder).parent
    copy = open_copy(data_folder)
    reason = complete(data_folder, copy)
    made = None
    if only != "copy":
        made = compact(
            Disk(folder),
            int(worker),
            lambda: secrets.randbits(32),
            copy,
            owner=owner_in(data_folder),
            now_us=time.time_ns() // 1000,
        )
    print(json.dumps({"copy": reason, "snapshot": made._asdict() if made is not None else None}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
