"""Reading a log while a broker writes it: what is whole, what is missing, and where it goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from analytics.source.decoder import Decoder
from analytics.source.log_reader import LogError, Place, Stretch, WorkerLog, decode
from router.log.crc32c import checksum
from router.log.disk import Disk
from router.log.record_scan import TIME_MAX, TIME_MIN
from router.log.segments import RECORDS_AT
from tests.support.commit_logs import open_log, turn
from tests.support.log_folders import RECORD_BYTES, flip, segment, worker_folder, write

ALL = 2**62


def numbers(stretches: list[Stretch], fail_on_loss: bool = True) -> list[int]:
    """Return the numbers of the messages in stretches; n is the record's."""
    found: list[int] = []
    for stretch in stretches:
        decoder = Decoder(("n",), worker=0, since_us=TIME_MIN, until_us=TIME_MAX)
        taken = [*decode(stretch, decoder, fail_on_loss=fail_on_loss, rows_max=3, bytes_max=2**20)]
        for columns, _ in [*taken, (decoder.take(), 0)]:
            found += memoryview(columns["n"].data).cast("q").tolist() if len(columns["n"].data) else []
    return found


def log_of(folder: Path, **options: Any) -> WorkerLog:
    return WorkerLog(str(folder / "worker-0"), 0, **options)


def read_on(folder: Path, place: Place, most: int = ALL, **options: Any) -> tuple[list[int], Place]:
    log = log_of(folder, **options)
    end = log.end()
    assert end is not None
    ahead, found = log.walk(place, end, most)
    read = numbers(log.stretches(place, ahead), options.get("fail_on_loss", True))
    assert len(read) == found
    return read, ahead


def test_a_table_is_all_messages_of_all_segments(tmp_path: Path) -> None:
    write(tmp_path, 3, 4, 5)
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    assert numbers(log.all_of(end)) == [*range(1, 13)]


def test_a_table_ends_where_the_log_did_when_it_was_planned(tmp_path: Path) -> None:
    writing = write(tmp_path, 3, close=False, segment_bytes_max=2**20)
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    stretches = log.all_of(end)
    writing.append(turn(writing, 2))
    assert writing.commit()
    assert numbers(stretches) == [1, 2, 3]


def test_segments_that_are_wholly_of_another_time_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, 3, 4, 5)
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    assert [stretch.header.segment for stretch in log.all_of(end, since_us=8)] == [3]
    assert [stretch.header.segment for stretch in log.all_of(end, until_us=4)] == [1]


@pytest.mark.parametrize("most", [1, 2, 5, 12, 100])
def test_reading_on_and_on_gives_every_message_once(tmp_path: Path, most: int) -> None:
    write(tmp_path, 3, 4, 5)
    place, found = Place(), []
    while True:
        read, place = read_on(tmp_path, place, most)
        if not read:
            break
        assert len(read) <= most
        found += read
    assert found == [*range(1, 13)]


def test_a_record_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = write(tmp_path, 2, close=False, segment_bytes_max=2**20)
    path = segment(tmp_path, 1)
    whole = path.read_bytes()
    for cut in (1, 20, RECORD_BYTES - 1):
        path.write_bytes(whole[:-cut])
        assert read_on(tmp_path, Place())[0] == [1]
    path.write_bytes(whole)
    read, place = read_on(tmp_path, Place())
    assert read == [1, 2]
    log.append(turn(log, 3))
    assert log.commit()
    assert read_on(tmp_path, place)[0] == [3, 4, 5]


def test_a_broker_that_was_killed_within_a_record_makes_nothing_come_twice(tmp_path: Path) -> None:
    write(tmp_path, 3, close=False, segment_bytes_max=2**20)
    path = segment(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-10])
    read, place = read_on(tmp_path, Place())
    assert read == [1, 2]
    log, _ = open_log(Disk(str(tmp_path / "worker-0")), incarnation=2)
    log.append(turn(log, 2))
    assert log.commit()
    assert read_on(tmp_path, place) == ([3, 4], Place(2, 4, 2, RECORDS_AT + 2 * RECORD_BYTES))


def test_what_is_written_again_after_a_sync_that_failed_comes_once(tmp_path: Path) -> None:
    log = write(tmp_path, 3, close=False, segment_bytes_max=2**20)
    read, place = read_on(tmp_path, Place())
    # Records 2 and 3 again, in another segment, and two new ones.
    disk = Disk(str(worker_folder(tmp_path)))
    path = segment(tmp_path, 1)
    os.truncate(path, RECORDS_AT + RECORD_BYTES)
    other, _ = open_log(disk)
    other.append(turn(other, 4))
    assert other.commit()
    assert read == [1, 2, 3]
    assert read_on(tmp_path, place)[0] == [4, 5]
    # A stretch that was planned before goes where the records are now.
    again = log_of(tmp_path)
    assert numbers(again.stretches(Place(), place)) == [1, 2, 3]
    assert log.headers[0].incarnation == other.incarnation


def test_after_a_backup_was_restored_what_is_new_is_read(tmp_path: Path) -> None:
    write(tmp_path, 3)
    place = Place(1, 500, 9, 4711)  # of the log that is lost
    log, _ = open_log(Disk(str(tmp_path / "worker-0")), incarnation=1001)
    log.append(turn(log, 2))
    assert log.commit()
    assert read_on(tmp_path, place)[0] == [4, 5]


def test_a_segment_that_was_removed_unread_is_told_with_its_name_and_the_place(tmp_path: Path) -> None:
    write(tmp_path, 3, 4, 5)
    _, place = read_on(tmp_path, Place(), 2)
    segment(tmp_path, 1).unlink()
    with pytest.raises(
        LogError, match=r"segment-000000000002.log begins with record 4, and .* record 2 \(segment 1, byte"
    ):
        read_on(tmp_path, place)
    assert read_on(tmp_path, place, fail_on_loss=False)[0] == [*range(4, 13)]


def test_a_segment_that_is_removed_under_way_is_told_with_its_name_and_the_place(tmp_path: Path) -> None:
    write(tmp_path, 3, 4, 5)
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    stretches = log.all_of(end)
    segment(tmp_path, 1).unlink()
    with pytest.raises(LogError, match=r"segment-000000000001.log was removed before it was read, from record 1 on"):
        numbers(stretches)
    assert numbers(stretches, fail_on_loss=False) == [*range(4, 13)]


def test_damage_is_told_with_its_segment_and_byte(tmp_path: Path) -> None:
    write(tmp_path, 3, 4, 5)
    flip(segment(tmp_path, 2), RECORDS_AT + RECORD_BYTES + 30)
    sentence = rf"segment-000000000002.log: bytes that are no record at byte {RECORDS_AT + RECORD_BYTES} .* number 5 on"
    with pytest.raises(LogError, match=sentence):
        read_on(tmp_path, Place())
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    with pytest.raises(LogError, match=sentence):
        numbers(log.all_of(end))
    assert read_on(tmp_path, Place(), fail_on_loss=False)[0] == [n for n in range(1, 13) if n != 5]


def test_a_segment_that_is_missing_between_others_is_told(tmp_path: Path) -> None:
    write(tmp_path, 3, 4, 5)
    segment(tmp_path, 2).unlink()
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    with pytest.raises(LogError, match=r"segment-000000000002.log: is missing"):
        log.all_of(end)


def test_an_accepted_record_that_is_none_is_told_with_its_place(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = segment(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[RECORDS_AT + 25 + 12 : RECORDS_AT + 25 + 14] = b"\xff\xff"  # the topic is longer than the record
    body = bytes(data[RECORDS_AT : RECORDS_AT + RECORD_BYTES])
    data[RECORDS_AT + 4 : RECORDS_AT + 8] = checksum(body[8:], checksum(body[:4])).to_bytes(4, "little")
    path.write_bytes(data)
    log = log_of(tmp_path)
    end = log.end()
    assert end is not None
    with pytest.raises(LogError, match=rf"segment-000000000001.log: record 1 at byte {RECORDS_AT} is no well-formed"):
        numbers(log.all_of(end))
