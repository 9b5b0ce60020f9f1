"""What memory the index of retained messages takes: of its file, which LMDB reads in place, and for what waits."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.core.message import message
from router.retained import lmdb_environment, pending_changes
from router.retained.lmdb_index import RetainedIndex
from router.retained.resident_pages import MappedPages

COUNT = 16_000
PAYLOAD = 4000  # a page each, so the file has some 130 MB
ROOM = 16 << 20  # for its pages
LATE = 16 << 20  # between two looks: 4 leaves, as many large values, and the neighbours that the system maps along


def file_bytes_in_memory() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[2]) * resource.getpagesize()


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """The most that files may take of this process's memory, what it had before included."""
    bytes_max = file_bytes_in_memory() + ROOM
    monkeypatch.setattr(lmdb_environment, "MAPPED_BYTES_MAX", bytes_max)
    return bytes_max


@pytest.fixture
def index(tmp_path: Path, bound: int) -> Iterator[RetainedIndex]:
    index = RetainedIndex(str(tmp_path / "retained"))
    yield index
    index.close()


def store(index: RetainedIndex, first: int, last: int) -> None:
    for record in range(first, last + 1):
        kept = message(b"t/%05d" % record, b"%05d" % record * (PAYLOAD // 5), retain=True)
        index.store(kept, stamp_us=record, record=record)


def commit(index: RetainedIndex, durable: int) -> None:
    while index.commit(durable):
        pass


def test_the_pages_of_a_large_file_stay_below_the_bound_while_it_is_written_and_read(
    index: RetainedIndex, bound: int
) -> None:
    highest = 0
    for first in range(1, COUNT, 1000):
        store(index, first, first + 999)
        commit(index, COUNT)
        highest = max(highest, file_bytes_in_memory())
    assert highest < bound + LATE
    scan, found = index.scan(b"#"), []
    while not scan.done:
        found += scan.next_slice(64)
        highest = max(highest, file_bytes_in_memory())
        if len(found) == COUNT // 2:
            # Neither who reads nor who writes meanwhile is disturbed.
            store(index, COUNT + 1, COUNT + 100)
            commit(index, COUNT + 100)
    assert [kept.record for kept in found] == list(range(1, COUNT + 1))
    assert all(kept.body == b"%05d" % kept.record * (PAYLOAD // 5) for kept in found)
    for record in range(1, COUNT, 7):
        kept = index.message_of(b"t/%05d" % (record * 7919 % COUNT + 1))
        assert kept is not None
        assert kept.record == record * 7919 % COUNT + 1
        highest = max(highest, file_bytes_in_memory())
    assert highest < bound + LATE
    assert len(index.match(b"#")) == COUNT + 100


def test_who_writes_all_over_the_file_stays_below_the_bound_without_readers(index: RetainedIndex, bound: int) -> None:
    store(index, 1, COUNT)
    commit(index, COUNT)
    for record in range(COUNT + 1, 2 * COUNT + 1):
        kept = message(b"t/%05d" % (record * 7919 % COUNT + 1), b"%05d" % record, retain=True)
        index.store(kept, stamp_us=record, record=record)
    highest = 0

    def measure() -> None:
        nonlocal highest
        highest = max(highest, file_bytes_in_memory())

    while index.commit(2 * COUNT, measure):
        pass
    assert 0 < highest < bound + LATE
    assert index.pending == 0


def test_what_a_loss_of_power_makes_it_read_is_given_back(tmp_path: Path, bound: int) -> None:
    index = RetainedIndex(str(tmp_path / "retained"), workers=2)
    store(index, 1, COUNT)
    commit(index, COUNT)
    index.rewind(COUNT - 1)
    assert file_bytes_in_memory() < bound
    kept = index.message_of(b"t/%05d" % COUNT)
    assert kept is not None
    assert kept.record == 0
    index.close()


def test_what_others_have_mapped_is_not_counted_against_the_index(tmp_path: Path) -> None:
    index = RetainedIndex(str(tmp_path / "retained"))
    store(index, 1, 4000)
    commit(index, 4000)
    before = file_bytes_in_memory()
    pages = MappedPages(str(tmp_path / "retained" / "data.mdb"), before + ROOM // 2)
    other = tmp_path / "other"
    other.write_bytes(b"x" * (4 * ROOM))
    with other.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, len(mapped), 4096)) == 4 * ROOM // 4096 * ord("x")
        assert len(index.match(b"#")) == 4000
        assert pages.look() > ROOM // 2
        # What is left is the other file, and there is room for ours beside it.
        assert file_bytes_in_memory() > 4 * ROOM
        assert len(index.match(b"#")) == 4000
        assert pages.look() == 0
        # Where others take more than that room, ours goes first.
        with ExitStack() as maps:
            for _ in range(2 + before // (4 * ROOM)):
                more = maps.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                assert sum(more[at] for at in range(0, len(more), 4096)) == 4 * ROOM // 4096 * ord("x")
            assert pages.look() > ROOM // 2
    assert len(index.match(b"#")) == 4000
    index.close()


def test_only_the_file_itself_mapped_for_reading_is_given_back(index: RetainedIndex, tmp_path: Path) -> None:
    own = MappedPages(str(tmp_path / "retained" / "data.mdb"), 1)
    first, length = own.place()
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    assert [line.split()[-1] for line in lines if line.startswith(f"{first:x}-{first + length:x} r--s")] == [
        str(tmp_path / "retained" / "data.mdb")
    ]
    # It is the same file wherever it has moved to.
    (tmp_path / "retained").rename(tmp_path / "moved")
    assert own.place() == (first, length)
    (tmp_path / "moved").rename(tmp_path / "retained")
    # Another file of that name, and one that is written through its map, are others'.
    (tmp_path / "data.mdb").write_bytes(b"x" * 4096)
    with (tmp_path / "data.mdb").open("r+b") as file, mmap.mmap(file.fileno(), 0) as written:
        written[0] = 1
        other = MappedPages(str(tmp_path / "data.mdb"), 1)
        assert other.place() is None
        assert other.look() == 0
        assert written[0] == 1
    with pytest.raises(FileNotFoundError):
        MappedPages(str(tmp_path / "none"), 1)


def test_a_file_much_larger_than_the_bound_stays_below_it_where_pages_of_it_are_read_all_over(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.touch()
    os.truncate(path, 64 * ROOM)
    bound = file_bytes_in_memory() + ROOM
    highest = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        pages = MappedPages(str(path), bound)
        for turn in range(8000):
            assert mapped[turn * 7919 * resource.getpagesize() % len(mapped)] == 0
            pages.touched(1)
            highest = max(highest, file_bytes_in_memory())
        # Then only one end of it: who goes through it in pieces is elsewhere at first.
        for turn in range(16000):
            assert mapped[turn * resource.getpagesize() % (8 * ROOM)] == 0
            pages.touched(1)
            highest = max(highest, file_bytes_in_memory())
        pages.close()
    assert bound < highest < bound + LATE


def test_memory_that_lies_where_the_file_was_is_not_given_back(tmp_path: Path) -> None:
    """An unmapped file's place is soon somebody else's, at the same address and of the same length."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    path = tmp_path / "data.mdb"
    path.write_bytes(b"x" * ROOM)
    with path.open("rb") as file:
        place = libc.mmap(None, ROOM, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert ctypes.string_at(place, ROOM) == b"x" * ROOM
        pages = MappedPages(str(path), 1)
        assert pages.place() == (place, ROOM)
        assert pages.look() > 0
        assert libc.munmap(place, ROOM) == 0
    at_that_place = 0x10
    memory = libc.mmap(
        place, ROOM, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | at_that_place, -1, 0
    )
    assert memory == place
    ctypes.memset(memory, ord("y"), ROOM)
    other = tmp_path / "other"
    other.write_bytes(b"x" * (2 * ROOM))
    with other.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[at] for at in range(0, len(mapped), 4096)) == 2 * ROOM // 4096 * ord("x")
        assert pages.look() == 0, "files take more than they may, and none of that is ours"
    assert ctypes.string_at(memory, ROOM) == b"y" * ROOM
    libc.munmap(memory, ROOM)
    pages.close()


def test_the_thread_pauses_less_often_when_it_is_behind(index: RetainedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_changes, "BEHIND_CHANGES", 100)
    pauses = 0

    def breathe() -> None:
        nonlocal pauses
        pauses += 1

    store(index, 1, 512)
    index.commit(512, breathe)
    assert pauses == 512 // 16
    store(index, 513, 1024)

    def breathe_and_store() -> None:
        if not pauses:
            store(index, 1025, 1200)
        breathe()

    pauses = 0
    index.commit(1024, breathe_and_store)
    assert pauses == 512 // 256
