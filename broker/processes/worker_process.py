"""What the supervisor starts as a worker: `python -m broker.processes.worker_process DESCRIPTOR PARENT`.

All that a worker is imports trio, so what trio should not load is put off here, before any of it.
"""

import sys

from broker.processes.deferred import defer

if __name__ == "__main__":
    defer("ssl", "hmac")
    from broker.processes.worker_main import main

    sys.exit(main(sys.argv[1:]))
