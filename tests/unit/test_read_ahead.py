"""Reading a log a window ahead: whatever is read that way is what a plain disk reads, and no thread stays."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random

import pytest

from broker.storage.readahead_disk import ReadAheadDisk
from broker.storage.readahead_thread import AheadReader
from router.log.disk import Disk
from router.log.record_cursor import checked_bytes
from router.log.record_kinds import Record
from router.log.segments import HEADER, RECORDS_AT, Header, Segments, segment_name
from tests.support.log_folders import RECORD_BYTES, worker_folder, write

TURNS = (3, 40, 1, 60)  # messages in each segment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, *TURNS)
    return worker_folder(tmp_path)


def read(disk: Disk, window_bytes: int) -> tuple[list[Record], list[str]]:
    segments = Segments(disk, worker=0, rules=1, accept_loss=True)
    records = [record for cursor in segments.cursors(window_bytes=window_bytes) for record in cursor]
    return records, [str(damage) for damage in segments.damages]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


@pytest.mark.parametrize("window_bytes", [60, RECORD_BYTES, 4 * RECORD_BYTES, 1000, 1 << 20])
def test_the_same_is_read_as_from_a_plain_disk(folder: Path, window_bytes: int) -> None:
    disk = ReadAheadDisk(str(folder))
    found = read(disk, window_bytes)
    assert bool(readers()) == (window_bytes < 1 << 20), "a thread only where there is something ahead"
    disk.stop()
    assert found == read(Disk(str(folder)), window_bytes)
    assert len(found[0]) == sum(TURNS)


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_found_where_a_plain_disk_finds_it(folder: Path, seed: int) -> None:
    random = Random(seed)
    path = folder / segment_name(random.randint(1, len(TURNS)))
    content = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 3)):
        content[random.randrange(RECORDS_AT, len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content[: random.choice((len(content), random.randrange(RECORDS_AT, len(content))))])
    disk = ReadAheadDisk(str(folder))
    found = read(disk, random.choice((60, 200, 1000)))
    disk.stop()
    assert found == read(Disk(str(folder)), 1 << 20)


def test_checked_bytes_ends_with_the_last_whole_record(folder: Path) -> None:
    name = segment_name(2)
    content = (folder / name).read_bytes()
    header = Header.decode(content[: HEADER.size])
    assert header is not None
    data = content[RECORDS_AT : RECORDS_AT + 3 * RECORD_BYTES]
    for length in range(len(data) + 1):
        assert checked_bytes(data[:length], header.mark) == length // RECORD_BYTES * RECORD_BYTES
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 0x10
        assert checked_bytes(bytes(wrong), header.mark) == at // RECORD_BYTES * RECORD_BYTES
    assert checked_bytes(data, header.mark ^ 1) == 0


def test_a_file_that_is_closed_is_read_no_more_and_its_number_may_be_another_s(folder: Path) -> None:
    disk = ReadAheadDisk(str(folder))
    mark = Segments(Disk(str(folder)), worker=0, rules=1).headers[1].mark
    for _ in range(200):
        file = disk.open(segment_name(2))
        data, checked = disk.read_records(file, RECORDS_AT, 1000, mark)
        assert checked == 1000 // RECORD_BYTES * RECORD_BYTES
        assert data == disk.read(file, RECORDS_AT, 1000)
        disk.close(file)
        other = disk.open(segment_name(4))
        assert other == file
        assert disk.read_records(other, RECORDS_AT + checked, 1000, mark)[1] == 0, "it has another mark"
        disk.close(other)
    disk.stop()


def test_what_was_not_read_ahead_is_read_when_it_is_wanted(folder: Path) -> None:
    disk = ReadAheadDisk(str(folder))
    mark = Segments(Disk(str(folder)), worker=0, rules=1).headers[1].mark
    file = disk.open(segment_name(2))
    following = RECORDS_AT + disk.read_records(file, RECORDS_AT, 1000, mark)[1]
    assert disk.read_records(file, following, 1000, mark ^ 1) == (disk.read(file, following, 1000), 0)
    assert disk.read_records(file, RECORDS_AT, 1000, mark)[1] == following - RECORDS_AT
    for offset, length in ((following, 500), (RECORDS_AT, 300), (following, 1000), (following, 0)):
        data, checked = disk.read_records(file, offset, length, mark)
        assert (data, checked) == (disk.read(file, offset, length), length // RECORD_BYTES * RECORD_BYTES)
    disk.close(file)
    disk.stop()
    assert not readers()
    file = disk.open(segment_name(2))
    assert disk.read_records(file, RECORDS_AT, 1000, mark) == (disk.read(file, RECORDS_AT, 1000), 0)
    disk.close(file)
    assert not readers(), "it is a disk as any other"


def test_an_error_comes_to_who_wants_the_bytes(tmp_path: Path) -> None:
    reader = AheadReader()
    thread = threading.Thread(target=reader.run)
    thread.start()
    file = os.open(tmp_path, os.O_RDONLY)
    reader.begin(file, 0, 100, 1)
    with pytest.raises(IsADirectoryError):
        reader.end()
    os.close(file)
    (tmp_path / "short").write_bytes(b"x" * 60)
    file = os.open(tmp_path / "short", os.O_RDONLY)
    reader.begin(file, 10, 100, 1)
    assert reader.end() == (b"x" * 50, 0)
    os.close(file)
    reader.stop()
    thread.join()
