"""`python -m tests.tools.acl_beside_mosquitto [--files N] [--seed S]`: the same answers at mosquitto, file by file.

ACL files, clients and topics are generated. Ends at the first file on which mosquitto and our rules do not agree, with
the file and what the difference is.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.support.acl_files import compare, compare_faulty

FAULTY = 0.2  # of the files may have a fault in them


def main() -> None:
    """Put files to both until there are enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    answers = allowed = faulty = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.files):
            if draw.random() < FAULTY:
                compare_faulty(Path(folder), draw)
                faulty += 1
            else:
                counts = compare(Path(folder), draw)
                answers, allowed = answers + counts[0], allowed + counts[1]
    print(
        f"{options.files} files, {faulty} of them with a fault in them, perhaps: {answers:,} answers, {allowed:,} of "
        "them yes, all the same"
    )


if __name__ == "__main__":
    main()
