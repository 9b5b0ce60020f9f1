"""Segments: a log is read back whatever became of its bytes, and says what became of them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.log.crc32c import checksum
from router.log.record_kinds import FORMAT_VERSION
from router.log.segments import (
    HEADER,
    HEADER_COPY_AT,
    RECORDS_AT,
    ForeignFileError,
    Header,
    MissingSegmentError,
    NewerVersionError,
    Position,
    SegmentError,
    segment_name,
    segment_of,
)
from tests.support.commit_logs import open_log, read_log, turn, whole
from tests.support.disk import PowerLoss, SimulatedDisk, broken

FIRST, SECOND, THIRD = segment_name(1), segment_name(2), segment_name(3)


def some_log(turns: int = 6, records: int = 3, segment_bytes_max: int = RECORDS_AT + 560) -> SimulatedDisk:
    """Three segments, if nothing else is said: two that are sealed, and the newest, not sealed."""
    disk = SimulatedDisk()
    log, _ = open_log(disk, segment_bytes_max=segment_bytes_max)
    for _ in range(turns):
        log.append(turn(log, records))
        assert log.commit()
    return disk.copy()


def changed(disk: SimulatedDisk, name: str, change: Callable[[bytearray], None]) -> SimulatedDisk:
    other = disk.copy()
    content = bytearray(other.content(name))
    change(content)
    other.put(name, bytes(content))
    return other


def record_ends(disk: SimulatedDisk, name: str) -> list[tuple[int, int]]:
    """Return (end, number) of each record of a segment, by a walk of its own; the seal has the number that follows."""
    content = disk.content(name)
    header = Header.decode(content[: HEADER.size])
    assert header is not None
    ends, at, number = [], RECORDS_AT, header.first_number
    while at < len(content):
        at += struct.unpack_from("<I", content, at)[0]
        ends.append((at, number))
        number += 1
    return ends


def is_seal(disk: SimulatedDisk, name: str, end: int) -> bool:
    """Return whether the record that ends there is the one that seals its segment."""
    starts = [RECORDS_AT, *(end for end, _ in record_ends(disk, name))]
    return disk.content(name)[max(start for start in starts if start < end) + 24] & 0x7F == 63


def test_names_sort_as_segments_do() -> None:
    assert sorted(segment_name(number) for number in (9, 10, 11, 100)) == [segment_name(n) for n in (9, 10, 11, 100)]
    assert segment_of(segment_name(123)) == 123
    for name in ("segment-1.log", f"{FIRST}.torn-0", "segment-0000000000011.log", "index.mdb"):
        assert segment_of(name) is None


def test_a_log_of_several_segments_is_read_back_in_order() -> None:
    disk = some_log()
    segments, records = read_log(disk)
    assert whole(records) == list(range(1, 19))
    assert segments.damages == []
    assert [header.segment for header in segments.headers] == [1, 2, 3]
    assert [header.first_number for header in segments.headers] == [1, 7, 13]
    assert (segments.last_number, segments.next_segment) == (18, 4)
    assert disk.open_files == 0


def test_an_empty_folder_is_an_empty_log() -> None:
    segments, records = read_log(SimulatedDisk())
    assert (segments.last_number, segments.next_segment, records) == (0, 1, [])


def test_reading_begins_at_any_position() -> None:
    disk = some_log()
    for name, number in ((FIRST, 1), (SECOND, 2), (THIRD, 3)):
        start = RECORDS_AT
        for end, following in record_ends(disk, name):
            if disk.content(name)[start + 24] & 0x7F == 63:
                break
            segments, _ = read_log(disk)
            cursors = segments.cursors(Position(number, start, following))
            assert whole([record for cursor in cursors for record in cursor]) == list(range(following, 19))
            assert segments.damages == []
            start = end


def test_records_larger_than_the_window_are_read() -> None:
    disk = SimulatedDisk()
    log, _ = open_log(disk)
    for size in (10, 1_048_576, 3_000_000, 1_048_500, 10):
        log.append(turn(log, 2, size))
        assert log.commit()
    segments, records = read_log(disk)
    assert whole(records) == list(range(1, 11))
    assert segments.damages == []


def test_cut_at_every_byte_what_was_whole_is_there_and_the_rest_is_kept_aside() -> None:
    disk = some_log()
    content = disk.content(THIRD)
    ends = record_ends(disk, THIRD)
    for length in range(RECORDS_AT, len(content) + 1):
        cut = changed(disk, THIRD, lambda bytes_, length=length: bytes_.__delitem__(slice(length, None)))  # type: ignore[misc]
        segments, records = read_log(cut)
        last = max((number for end, number in ends if end <= length), default=12)
        assert whole(records) == list(range(1, last + 1))
        start = max((end for end, _ in ends if end <= length), default=RECORDS_AT)
        assert [(d.file, d.offset, d.length, d.torn, d.missing) for d in segments.damages] == (
            [(THIRD, start, length - start, True, 0)] if length > start else []
        )
        segments.repair()
        if length > start:
            assert cut.content(f"{THIRD}.torn-{start}") == content[start:length]
        assert cut.content(THIRD) == content[:start]
        assert cut.open_files == 0
        again, records = read_log(cut)
        assert whole(records) == list(range(1, last + 1))
        assert again.damages == []
        assert (again.last_number, again.next_segment) == (last, 4)


def test_with_every_byte_changed_in_turn_everything_else_is_there_and_what_is_missing_is_said() -> None:
    disk = some_log(turns=5, records=2, segment_bytes_max=RECORDS_AT + 360)
    names = [name for name in disk.names() if segment_of(name)]
    newest = names[-1]
    for name in names:
        ends = record_ends(disk, name)
        content = disk.content(name)
        for at in range(len(content)):
            if HEADER.size <= at < HEADER_COPY_AT:
                continue  # nothing is here, and nobody reads it
            broken = changed(disk, name, lambda b, at=at: b.__setitem__(at, b[at] ^ 0x55))  # type: ignore[misc]
            segments, records = read_log(broken)
            hit = [number for end, number in ends if at < end][:1] if at >= RECORDS_AT else []
            in_seal = bool(hit) and hit[0] == ends[-1][1] and name != newest
            # Nothing proves that the batch at the end was ever synced, so there is nothing behind a hole in it.
            in_last_batch = name == newest and bool(hit) and hit[0] > 8
            lost = range(hit[0], 11) if in_last_batch else hit
            expected = [number for number in range(1, 11) if in_seal or number not in lost]
            assert whole(records) == expected, (name, at)
            missing = sum(damage.missing for damage in segments.damages)
            assert missing == (0 if in_seal or in_last_batch or not hit else 1), (name, at)
            if not in_seal:
                assert len(segments.damages) == 1
                assert segments.damages[0].torn == in_last_batch
            segments.repair()
            assert all(damage.aside in broken.names() for damage in segments.damages)
            if not in_last_batch and not in_seal:
                # Kept aside, and still where they were: nothing behind them may move.
                assert broken.content(name)[RECORDS_AT:] == (
                    content[RECORDS_AT:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]
                    if at >= RECORDS_AT else content[RECORDS_AT:]
                )  # fmt: skip


@settings(max_examples=150)
@given(st.data())
def test_any_stretch_of_a_log_may_be_overwritten_cut_out_or_doubled(data: st.DataObject) -> None:
    disk = some_log(turns=8)
    names = disk.names()
    of_segments = {
        name: [pair for pair in record_ends(disk, name) if not is_seal(disk, name, pair[0])] for name in names
    }
    name = data.draw(st.sampled_from(names))
    content = bytearray(disk.content(name))
    start = data.draw(st.integers(RECORDS_AT, len(content) - 1))
    length = data.draw(st.integers(1, len(content) - start))
    how = data.draw(st.sampled_from(["zeros", "noise", "cut out", "doubled"]))
    if how == "cut out":
        del content[start : start + length]
    elif how == "doubled":
        content[start:start] = content[start : start + length]
    else:
        content[start : start + length] = bytes(length) if how == "zeros" else disk.random.randbytes(length)
    disk.put(name, bytes(content))

    segments, records = read_log(disk)
    found = whole(records)
    assert found == sorted(set(found))
    untouched = {number for other in names if other != name for _, number in of_segments[other]}
    untouched |= {number for end, number in of_segments[name] if end <= start}
    assert untouched <= set(found)
    said = {damage.first_missing + more for damage in segments.damages for more in range(damage.missing)}
    assert set(range(1, max(found) + 1)) - set(found) == said
    # And it can be repaired and written on.
    log, records = open_log(disk, incarnation=2)
    assert whole(records) == found
    log.append(turn(log, 2))
    assert log.commit()
    assert whole(read_log(disk)[1]) == [*found, found[-1] + 1, found[-1] + 2]


def test_either_copy_of_a_header_is_enough() -> None:
    disk = some_log()
    for at in (0, HEADER_COPY_AT):
        broken = changed(disk, SECOND, lambda b, at=at: b.__setitem__(slice(at, at + 64), bytes(64)))  # type: ignore[misc]
        segments, records = read_log(broken)
        assert whole(records) == list(range(1, 19))
        assert [(damage.offset, damage.length) for damage in segments.damages] == [(at, 64)]
        assert "one of the two copies of the header is damaged" in str(segments.damages[0])


def rewritten(header: Header) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[: HEADER.size] = content[HEADER_COPY_AT:RECORDS_AT] = header.encode()

    return change


def header_of(disk: SimulatedDisk, name: str, **changes: int) -> Header:
    found = Header.decode(disk.content(name)[: HEADER.size])
    assert found is not None
    fields = {field: getattr(found, field) for field in Header.__slots__}
    return Header(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "offset", "sentence"),
    [
        ({"version": 6}, NewerVersionError, 8, "has format version 6; this version of Shoal reads up to 5"),
        ({"rules": 7}, NewerVersionError, 10, "was written under rules version 7; this version of Shoal knows 1"),
        ({"worker": 3}, ForeignFileError, 12, "belongs to worker 3 and not to worker 0"),
        ({"segment": 9}, ForeignFileError, 24, "says that it is segment 9"),
        (None, ForeignFileError, 0, "is not a segment of Shoal's log, or both copies of its header are damaged"),
    ],
)  # fmt: skip
def test_what_is_newer_or_foreign_is_refused_by_name_unless_loss_is_accepted(
    changes: dict[str, int] | None, error: type[SegmentError], offset: int, sentence: str
) -> None:
    disk = some_log()
    if changes is None:
        disk.put(SECOND, b"somebody's diary" * 1000)
    else:
        disk = changed(disk, SECOND, rewritten(header_of(disk, SECOND, **changes)))
    before = disk.content(SECOND)
    with pytest.raises(error) as refused:
        read_log(disk)
    assert str(refused.value) == f"{SECOND}: {sentence}"
    assert (refused.value.file, refused.value.offset) == (SECOND, offset)
    assert disk.open_files == 0

    log, records = open_log(disk, incarnation=2, accept_loss=True)
    assert whole(records) == [*range(1, 7), *range(13, 19)]
    assert disk.content(f"{SECOND}.foreign") == before
    log.append(turn(log, 1))
    assert log.commit()
    # Accepted once, it does not come up again, but the numbers are still missing.
    segments, records = read_log(disk)
    assert whole(records) == [*range(1, 7), *range(13, 20)]
    assert [(damage.first_missing, damage.missing) for damage in segments.damages] == [(7, 6)]


def test_a_segment_of_another_node_is_refused_by_name_unless_loss_is_accepted() -> None:
    disk = some_log()
    for name, owner in ((FIRST, 0), (SECOND, 8), (THIRD, 7)):  # the first one is of a version that did not say
        disk = changed(disk, name, rewritten(header_of(disk, name, owner=owner)))
    for owner in (0, 8):
        if owner:
            disk = changed(disk, THIRD, rewritten(header_of(disk, THIRD, owner=8)))
        assert whole(read_log(disk, owner=owner)[1]) == list(range(1, 19))
    with pytest.raises(ForeignFileError, match=f"{SECOND}: belongs to another broker's data folder"):
        read_log(disk, owner=7)
    disk = changed(disk, THIRD, rewritten(header_of(disk, THIRD, owner=7)))
    log, records = open_log(disk, incarnation=2, owner=7, accept_loss=True)
    assert whole(records) == [*range(1, 7), *range(13, 19)]
    log.append(turn(log, 1))
    assert log.commit()
    segments, records = read_log(disk, owner=7)
    assert (whole(records)[-1], segments.headers[-1].owner) == (19, 7)


def test_a_missing_segment_is_refused_by_name_unless_loss_is_accepted() -> None:
    disk = some_log()
    disk.remove(SECOND)
    with pytest.raises(MissingSegmentError, match=f"{SECOND}: is missing, and {THIRD} is there: the log has a hole"):
        read_log(disk)
    log, records = open_log(disk, incarnation=2, accept_loss=True)
    assert whole(records) == [*range(1, 7), *range(13, 19)]
    assert log.close()
    segments, _ = read_log(disk)
    assert [str(damage) for damage in segments.damages] == [
        f"{FIRST}: the end is missing at byte {len(disk.content(FIRST))} (0 bytes); "
        "6 records are missing from number 7 on"
    ]


def test_the_oldest_segment_that_is_needed_must_be_there() -> None:
    disk = some_log()
    disk.remove(FIRST)
    assert whole(read_log(disk)[1]) == list(range(7, 19))
    assert whole(read_log(disk, first_needed=2)[1]) == list(range(7, 19))
    with pytest.raises(MissingSegmentError, match=f"{FIRST}: is missing, and {SECOND} is there"):
        read_log(disk, first_needed=1)
    with pytest.raises(MissingSegmentError, match=f"{segment_name(4)}: is missing, and it is needed"):
        read_log(disk, first_needed=4)


def test_files_that_are_none_of_the_logs_are_left_alone() -> None:
    disk = some_log()
    disk.put("notes.txt", b"x")
    log, records = open_log(disk, incarnation=2)
    assert len(records) == 18
    assert log.close()
    assert disk.content("notes.txt") == b"x"


def test_a_segment_that_was_never_finished_being_made_is_put_aside_and_its_number_used_again() -> None:
    for length in (0, 30, HEADER.size, HEADER_COPY_AT, RECORDS_AT - 1):
        disk = some_log()
        disk.put(segment_name(4), disk.content(THIRD)[:length])
        disk.put(segment_name(5), b"")
        log, records = open_log(disk, incarnation=2)
        assert whole(records) == list(range(1, 19))
        assert disk.names()[-2:] == [f"{segment_name(4)}.torn-0", f"{segment_name(5)}.torn-0"]
        log.append(turn(log, 1))
        assert log.commit()
        assert whole(read_log(disk)[1]) == list(range(1, 20))
        assert log.headers[-1].segment == 4


@pytest.mark.parametrize("seed", range(8))
def test_repairing_may_be_interrupted_anywhere_and_loses_no_byte(seed: int) -> None:
    disk = some_log()
    torn = changed(disk, THIRD, lambda b: b.__delitem__(slice(len(b) - 7, None)))
    torn = changed(torn, FIRST, lambda b: b.__setitem__(RECORDS_AT + 40, b[RECORDS_AT + 40] ^ 1))
    torn.put(segment_name(4), b"SHOAL")
    ends = record_ends(disk, THIRD)
    first_end = record_ends(disk, FIRST)[0][0]
    torn_at, torn_bytes = ends[-2][0], torn.content(THIRD)[ends[-2][0] :]
    for step in range(1, 60):
        broken = torn.copy()
        broken.random.seed(seed * 100 + step)
        segments, records = read_log(broken)
        assert whole(records) == list(range(2, 18))
        broken.power_off_at = broken.steps + step
        try:
            segments.repair()
        except PowerLoss:
            pass
        else:
            break
        broken.power_loss()
        if len(broken.content(THIRD)) < torn_at + len(torn_bytes):
            assert broken.content(f"{THIRD}.torn-{torn_at}") == torn_bytes
        segments, records = read_log(broken)
        assert whole(records) == list(range(2, 18))
        segments.repair()
        assert broken.content(f"{THIRD}.torn-{torn_at}") == torn_bytes
        assert broken.content(f"{FIRST}.bad-{RECORDS_AT}") == torn.content(FIRST)[RECORDS_AT:first_end]
        assert broken.content(f"{segment_name(4)}.torn-0") == b"SHOAL"
    else:
        pytest.fail("repairing has no end")


def test_the_header_is_the_64_bytes_that_the_table_says() -> None:
    header = Header(1, 2, 3, 4, 5, 6, 7)
    encoded = header.encode()
    assert encoded[:60] == b"SHOALSEG" + struct.pack("<HHIIIQQq", FORMAT_VERSION, 7, 1, 2, 3, 4, 5, 6) + bytes(12)
    owned = Header(1, 2, 3, 4, 5, 6, 7, owner=2**64 - 2)
    assert owned.encode()[48:60] == struct.pack("<Q4x", 2**64 - 2)
    assert Header.decode(owned.encode()) == owned
    assert struct.unpack("<I", encoded[60:])[0] == checksum(encoded[:60])
    assert Header.decode(encoded) == header
    for at in range(64):
        assert Header.decode(encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]) is None
        assert Header.decode(encoded[:at]) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_header_that_the_disk_refused_to_sync_is_written_once_more_at_the_next_start(seed: int) -> None:
    disk = SimulatedDisk(seed)
    log, _ = open_log(disk)
    log.append(turn(log, 3))
    disk.fail = lambda operation: broken() if operation == "sync" else None
    assert not log.commit()
    disk.fail = lambda operation: None

    # Who starts now reads the header, from memory; the next sync of this file writes nothing of it.
    disk.process_killed()
    log, records = open_log(disk, incarnation=2)
    assert records == []
    log.append(turn(log, 3))
    assert log.commit()
    disk.power_loss()
    segments, records = read_log(disk)
    assert [header.segment for header in segments.headers] == [1, 2]
    assert [record.number for record in records] == [1, 2, 3]
    assert segments.damages == []


@pytest.mark.parametrize("seed", range(20))
def test_what_stands_for_a_lost_segment_outlives_a_disk_that_refused_to_sync_it(seed: int) -> None:
    disk = SimulatedDisk(seed)
    kept = some_log()
    for name in kept.names():
        if name != SECOND:
            disk.put(name, kept.content(name))
    segments, _ = read_log(disk, accept_loss=True)
    disk.fail = lambda operation: broken() if operation == "sync" else None
    with pytest.raises(OSError, match="Input/output error"):
        segments.repair()
    disk.fail = lambda operation: None

    disk.process_killed()
    segments, records = read_log(disk, accept_loss=True)
    segments.repair()
    disk.power_loss()
    assert read_log(disk, strict=True)[1] == records
