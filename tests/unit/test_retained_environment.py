"""The environment of the retained index: of a newer version, damaged while it is used, made anew of its copy."""

from __future__ import annotations

import gzip
import stat
from pathlib import Path

import lmdb
import pytest

from router.log.segments import MissingSegmentError, NewerVersionError
from router.retained.link_waits import UNKNOWN
from router.retained.lmdb_environment import applied_in
from router.retained.lmdb_index import RetainedIndex
from router.retained.page_check import PageCheck
from router.retained.second_copy import RetainedCopy
from tests.support.index_process import IndexProcess
from tests.unit.test_retained_copy import gather
from tests.unit.test_retained_index import commit, data_file, fill, names

# What an earlier version wrote; it is never made again.
FORMAT_2 = Path(__file__).resolve().parents[1] / "data" / "retained-v2.mdb.gz"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "retained")


@pytest.fixture
def index(folder: str) -> RetainedIndex:
    return RetainedIndex(folder)


def test_an_environment_of_a_newer_version_is_left_alone(folder: str) -> None:
    index = RetainedIndex(folder)
    fill(index, 50)
    commit(index, 50)
    index.close()
    with lmdb.open(folder, max_dbs=4) as environment, environment.begin(write=True) as transaction:
        meta = environment.open_db(b"meta", transaction)
        transaction.put(b"format", b"\4\0\0\0 and more", db=meta)
        transaction.put(b"something", b"new", db=meta)
        environment.open_db(b"another", transaction)
    with lmdb.open(folder, max_dbs=4) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"format", b"\4\0\0\0", db=environment.open_db(b"meta", transaction))
    before = data_file(folder).read_bytes()
    for accept_loss in (False, True):
        with pytest.raises(NewerVersionError, match="format 4; this version of Shoal reads up to 3"):
            RetainedIndex(folder, accept_loss=accept_loss)
        assert data_file(folder).read_bytes() == before


def test_a_value_that_is_damaged_while_the_index_is_open_is_counted_and_has_it_made_anew(
    folder: str, index: RetainedIndex
) -> None:
    fill(index, 3, size=50)
    commit(index, 3)
    content = data_file(folder).read_bytes()
    at = content.rindex(b"t/00002" + b"x" * 50)
    with data_file(folder).open("r+b") as file:  # LMDB has the same pages
        file.seek(at + 20)
        file.write(b"y")
    assert names(index, b"#") == [b"t/00001", b"t/00003"]
    assert index.damaged_values == 1
    assert index.is_damaged
    assert index.message_of(b"t/00002") is None
    index.close()
    again = RetainedIndex(folder)
    assert again.report is not None
    again.close()


def test_nobody_but_its_owner_reads_it(tmp_path: Path, folder: str) -> None:
    index = RetainedIndex(folder)
    fill(index, 5)
    commit(index, 5)
    index.close()
    copy = RetainedCopy.at(f"{folder}-copy")
    gather(copy, 0, [(1, b"a", b"1", 1)])
    copy.close()
    everything = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert len(everything) >= 7
    for path in everything:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    Path(folder).chmod(0o750)
    data_file(folder).chmod(0o640)  # as earlier versions made them
    RetainedIndex(folder).close()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (Path(folder), data_file(folder))] == [0o700, 0o600]


def test_an_index_that_lacks_what_no_log_has_is_made_anew_of_its_copy(folder: str) -> None:
    copy = RetainedCopy.at(f"{folder}-copy")
    records = [(number, b"t/%05d" % number, b"x" * 50, number) for number in range(1, 501)]
    gather(copy, 0, [*records, (501, b"t/00007", b"", 501)])
    gather(copy, 3, [(9, b"t/00008", b"of worker 3", 502)])
    index = RetainedIndex(folder, logs={0: 502, 3: 10})
    assert index.report is not None
    assert "from its copy and the log" in index.report
    assert (index.applied, index.count, index.last_stamp_us) == (501, 499, 502)
    kept = index.message_of(b"t/00008")
    assert kept is not None
    assert kept.body == b"of worker 3"
    index.close()
    PageCheck(str(data_file(folder)))
    again = RetainedIndex(folder, logs={0: 502, 3: 10})
    assert again.report is None
    again.close()
    copy.close()


@pytest.mark.parametrize("logs", [{0: 503}, {0: 1, 3: 11}])
def test_what_neither_index_nor_copy_have_is_lost_and_not_begun_without(folder: str, logs: dict[int, int]) -> None:
    copy = RetainedCopy.at(f"{folder}-copy")
    gather(copy, 0, [(501, b"a", b"1", 1)])
    gather(copy, 3, [(9, b"b", b"2", 2)])
    copy.close()
    for _ in range(2):
        with pytest.raises(MissingSegmentError, match=r"retained messages are lost: .* and there is no copy"):
            RetainedIndex(folder, logs=logs)
    assert not Path(f"{folder}.bad-1").exists()
    index = RetainedIndex(folder, logs=logs, accept_loss=True)
    assert names(index, b"#") == [b"a", b"b"]
    index.close()


def test_one_that_came_back_while_others_went_on_looks_first_and_all_begin_anew(folder: str) -> None:
    """A page that ends whoever reads it does so once: the others are told, and the first to start again mends it."""
    one, other = IndexProcess(), IndexProcess()
    try:
        assert one.call("open", folder, 0) is None
        assert other.call("open", folder, 1) is None
        for record in range(1, 200):
            one.call("publish", b"t/%d" % record, b"x" * 100, record, record)
        one.call("commit_all", 199)
        assert not other.call("is_damaged")
        with data_file(folder).open("r+b") as file:
            content = bytearray(file.read())
            for page in range(2, len(content) // 4096):
                if b"t\0" in content[page * 4096 : (page + 1) * 4096]:
                    file.seek(page * 4096)
                    file.write(bytes(4096))
        one.kill()
        back = IndexProcess()
        try:
            with pytest.raises(OSError, match="cannot be set aside while other workers use it"):
                back.call("open", folder, 0)
            assert other.call("is_damaged")
            other.kill()
            assert "is damaged" in back.call("open", folder, 0)
            back.call("close")
        finally:
            back.kill()
    finally:
        one.kill()
        other.kill()


def test_what_format_2_wrote_is_read_and_knows_the_process_when_it_is_written_again(folder: str) -> None:
    Path(folder).mkdir()
    data_file(folder).write_bytes(gzip.decompress(FORMAT_2.read_bytes()))
    index = RetainedIndex(folder, worker=0, workers=2, incarnation=6, node="0011223344556677")
    assert index.report is None
    assert (index.applied, index.applied_incarnation) == (5, UNKNOWN)
    assert names(index, b"#") == [b"t/0/2", b"t/0/3", b"t/0/4", b"t/1/2"]
    assert index.written() == {1: (UNKNOWN, 3)}
    index.began(1, 7, 2)
    assert index.written() == {1: (7, 2)}, "it is of a process before all that are there"
    index.pass_over(8)
    assert index.commit(8)
    index.close()
    meta = PageCheck(str(data_file(folder))).meta
    assert meta[b"format"] == b"\3\0\0\0"
    assert meta[b"applied\0\0\0\0"] == b"\x08" + bytes(7) + b"\x08" + bytes(7) + b"\6\0\0\0"
    assert meta[b"applied\0\0\0\1"] == (b"\3" + bytes(7)) * 2, "the other worker has its own"
    again = RetainedIndex(folder, worker=1, workers=2, node="0011223344556677")
    again.look()
    assert again.written() == {0: (6, 8)}
    again.close()


def test_up_to_where_a_log_was_applied_is_told_as_the_process_has_it_that_gave_the_numbers(folder: str) -> None:
    def told() -> tuple[int, int]:
        meta = index._environment.meta
        number, _, incarnation = applied_in(
            index.read(lambda transaction: transaction.get(b"applied\0\0\0\0", db=meta))
        )
        return incarnation, number

    index = RetainedIndex(folder, incarnation=5)
    fill(index, 9)
    commit(index, 9)
    assert told() == (5, 9)
    index.close()
    index = RetainedIndex(folder)
    assert (index.applied, index.applied_incarnation) == (9, 5)
    index.incarnation = 6
    index.rewind(20)
    fill(index, 5000, first=21)
    index.commit(5020)  # a piece
    assert told() == (5, 9), "not before all of it is there"
    commit(index, 5020)
    assert told() == (6, 5020)
    index.close()
    index = RetainedIndex(folder, incarnation=7)
    index.rewind(3000)
    assert told() == (7, 3000), "it gives the numbers behind it again"
    index.close()
