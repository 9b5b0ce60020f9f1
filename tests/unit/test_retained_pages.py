"""The check of the retained index's file: what it lets through, LMDB reads without harm, and as it was written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import lmdb
import pytest
from lmdb.verify import verify

from router.core.message import message
from router.retained.lmdb_index import RetainedIndex
from router.retained.page_check import DATABASES, PageCheck, PagesError

PAGE = 4096
STAMP_US = 1_795_250_000_000_000
Content = dict[bytes, list[tuple[bytes, bytes]]]


def written(folder: Path) -> bytes:
    """Return the file of an index that has everything: large values, cut keys, what is due at once, free pages."""
    index = RetainedIndex(str(folder))
    random = Random(7)
    record = 0
    for part in range(6):
        for _ in range(500):
            record += 1
            number = random.randrange(700)
            name = b"site/%d/device/%d" % (number % 9, number) + b"/long" * (120 if number % 50 == 0 else 0)
            if random.random() < 0.2:
                index.clear(name, stamp_us=STAMP_US + record * 1000, record=record)
                continue
            expires_ms = 50_000 if number % 3 == 0 else random.randrange(1, 9999) if number % 3 == 1 else 0
            size = 9000 if number % 40 == 0 else random.randrange(1, 200)
            # All of them at the same time, so that what is due at once needs a tree of its own.
            index.store(
                message(name, random.randbytes(size), retain=True, expires_ms=expires_ms),
                stamp_us=STAMP_US + record * 1000,
                now_ms=record,
                record=record,
            )
        while index.commit(record):
            pass
        index.purge_expired(STAMP_US + part * 1_000_000, 50)
    assert index.close()
    return (folder / "data.mdb").read_bytes()


def content(folder: Path) -> Content:
    """Return what LMDB reads."""
    opened = lmdb.open(str(folder), max_dbs=4, readonly=True, lock=False)
    with opened as environment, environment.begin() as transaction:
        databases = {
            name: environment.open_db(name, transaction, create=False, dupsort=name == b"due") for name in DATABASES
        }
        return {name: list(transaction.cursor(db=database)) for name, database in databases.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Content]:
    folder = tmp_path_factory.mktemp("pages") / "retained"
    return written(folder), content(folder)


def refused(folder: Path, changed: bytes) -> bool:
    (folder / "data.mdb").write_bytes(changed)
    try:
        PageCheck(str(folder / "data.mdb"))
    except PagesError:
        return True
    return False


def test_what_was_written_is_whole(tmp_path: Path, whole: tuple[bytes, Content]) -> None:
    assert not refused(tmp_path, whole[0])
    assert verify(str(tmp_path)) == []
    assert PageCheck(str(tmp_path / "data.mdb")).meta[b"applied\0\0\0\0"] == (
        (3000).to_bytes(8, "little") * 2 + bytes(4)
    )
    assert any(len(value) > PAGE for _, value in whole[1][b"topics"])
    due = [key for key, _ in whole[1][b"due"]]
    assert max(map(due.count, set(due))) > 100


def zeroed(content: bytearray, page: int, random: Random) -> None:
    content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)


def random_bytes(content: bytearray, page: int, random: Random) -> None:
    content[page * PAGE : (page + 1) * PAGE] = random.randbytes(PAGE)


def random_body(content: bytearray, page: int, random: Random) -> None:
    content[page * PAGE + 16 : (page + 1) * PAGE] = random.randbytes(PAGE - 16)


def another_page(content: bytearray, page: int, random: Random) -> None:
    other = random.randrange(len(content) // PAGE)
    content[page * PAGE : (page + 1) * PAGE] = content[other * PAGE : (other + 1) * PAGE]


def older_page(content: bytearray, page: int, random: Random) -> None:
    """A page of other bytes that says that it is this one."""
    another_page(content, page, random)
    content[page * PAGE : page * PAGE + 8] = page.to_bytes(8, "little")


def flipped_header(content: bytearray, page: int, random: Random) -> None:
    content[page * PAGE + random.randrange(160)] ^= 1 << random.randrange(8)


def flipped(content: bytearray, page: int, random: Random) -> None:
    content[page * PAGE + random.randrange(PAGE)] ^= 1 << random.randrange(8)


@pytest.mark.parametrize(
    "damage", [zeroed, random_bytes, random_body, another_page, older_page, flipped_header, flipped]
)
def test_each_page_damaged_in_turn_is_refused_or_does_no_harm(
    tmp_path: Path, whole: tuple[bytes, Content], damage: Callable[[bytearray, int, Random], None]
) -> None:
    data, expected = whole
    refusals = 0
    for page in range(len(data) // PAGE):
        random = Random(page)
        changed = bytearray(data)
        damage(changed, page, random)
        if refused(tmp_path, bytes(changed)):
            refusals += 1
            continue
        # A page that nothing leads to, or a number that LMDB only tells: it reads and writes all the same.
        assert content(tmp_path) == expected, page
        with lmdb.open(str(tmp_path), max_dbs=4, map_size=1 << 24, sync=False) as environment:
            topics = environment.open_db(b"topics")
            for number in range(50):
                with environment.begin(write=True) as transaction:
                    transaction.put(b"new %d" % number, bytes(500), db=topics)
        os.unlink(tmp_path / "lock.mdb")
        after = content(tmp_path)
        assert {key for key, _ in after[b"topics"]} >= {key for key, _ in expected[b"topics"]}, page
        assert after[b"due"] == expected[b"due"], page
    assert refusals > 0


def test_a_file_cut_at_any_page_is_refused(tmp_path: Path, whole: tuple[bytes, Content]) -> None:
    data, expected = whole
    for page in range(len(data) // PAGE):
        for size in (page * PAGE, page * PAGE + 100):
            if size and not refused(tmp_path, data[:size]):
                assert content(tmp_path) == expected, size
