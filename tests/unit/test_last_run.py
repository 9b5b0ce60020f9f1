"""The file `incarnation`: what every version wrote is read, and what is lost of a log is known by it."""

from __future__ import annotations

import pytest

from router.log.last_run import LOST, LastRun, parse, read_last_run, write_last_run
from router.log.segments import HOLE, ForeignFileError, MissingSegmentError, Segments, segment_name
from tests.support.commit_logs import open_log, read_log, turn
from tests.support.disk import SimulatedDisk


def written(*turns: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=1)
    for number in turns:
        log.append(turn(log, number))
        assert log.commit()
    assert log.close()
    return disk


def test_what_every_version_wrote_is_read() -> None:
    assert parse(b"7\n") == LastRun(7, "fsync", 0, 0)
    assert parse(b"7 os\n") == LastRun(7, "os", 0, 0)
    assert parse(b"1007 restored\n") == LastRun(1007, "restored", 0, 0)
    assert parse(b"7 fsync 1 12\n") == parse(LastRun(7, "fsync", 1, 12).encode()) == LastRun(7, "fsync", 1, 12)
    for damaged in (b"", b"seven", b"7 fsync 1", b"7 fsync 1 2 3", b"-1 fsync"):
        with pytest.raises(ValueError, match="does not hold the number"):
            parse(damaged)


def test_a_log_without_its_incarnation_is_refused_unless_the_loss_is_accepted() -> None:
    disk = written(5)
    with pytest.raises(MissingSegmentError, match=r"incarnation: is missing, and segment-000000000001\.log is there"):
        read_last_run(disk, accept_loss=False)
    assert read_last_run(disk, accept_loss=True).durability == LOST
    disk.put("incarnation", b"")
    with pytest.raises(ForeignFileError):
        read_last_run(disk, accept_loss=False)
    assert read_last_run(disk, accept_loss=True).durability == LOST
    assert read_last_run(SimulatedDisk(), accept_loss=False) == LastRun()
    write_last_run(disk, LastRun(3, "os", 1, 1))
    assert read_last_run(disk, accept_loss=False) == LastRun(3, "os", 1, 1)


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("empty", [False, True])
def test_a_lost_segment_is_refused_wherever_it_was_and_then_known_to_be_lost(lost: int, empty: bool) -> None:
    disk = written(5, 5, 5)
    if empty:
        disk.put(segment_name(lost), b"")
    else:
        disk.remove(segment_name(lost))
    known = {"begins": 1, "newest": 3, "strict": True}
    with pytest.raises(MissingSegmentError, match=segment_name(lost)):
        Segments(disk, worker=0, rules=1, **known)
    segments, _ = read_log(disk, accept_loss=True, **known)
    segments.repair()
    newest = segments.headers[-1].segment
    again, records = read_log(disk, begins=segments.begins, newest=newest, strict=True)
    assert len(records) == 10
    again.repair()


def test_an_empty_file_stands_for_a_loss_that_an_earlier_version_was_told_of() -> None:
    disk = written(5, 5, 5)
    disk.put(segment_name(2), b"")
    segments, records = read_log(disk, begins=1)
    assert len(records) == 10
    segments.repair()
    assert disk.content(segment_name(2)) == HOLE
    assert len(read_log(disk, begins=1, newest=3, strict=True)[1]) == 10
