"""What memory the index of retained messages takes of its file, which LMDB reads in place."""

from __future__ import annotations

import resource
from pathlib import Path

from router.message import message

from router.retained_index import RetainedIndex

COUNT = 4000
SOME = 8_000_000  # bytes


def file_bytes_in_memory() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[2]) * resource.getpagesize()


def test_the_pages_that_were_read_are_given_back_while_somebody_reads(tmp_path: Path) -> None:
    index = RetainedIndex(str(tmp_path / "retained"))
    for record in range(1, COUNT + 1):
        kept = message(b"t/%05d" % record, b"x" * 4000, retain=True)
        index.store(kept, stamp_us=record, record=record)
    while index.commit(COUNT):
        pass
    before = file_bytes_in_memory()
    assert len(index.match(b"#")) == COUNT
    scan = index.scan(b"#")
    found = scan.next_slice(100)
    read = file_bytes_in_memory()
    assert read - before > SOME
    index.let_go()
    index.commit(COUNT)
    assert read - file_bytes_in_memory() > SOME
    while not scan.done:
        found += scan.next_slice(100)
    assert [kept.record for kept in found] == list(range(1, COUNT + 1))
    index.close()
