"""Passing over records: what a scan finds is what looking at every record finds."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.core.message import message
from router.log.crc32c import checksum
from router.log.record_buffer import RecordBuffer
from router.log.record_cursor import Cursor
from router.log.record_scan import Census, Scan, matches
from router.matching import topic_names

LEVELS = st.sampled_from(["", "a", "b", "ab", "$a", "é"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, last: "/".join([*levels, *last]),
    st.lists(LEVELS | st.just("+"), max_size=4),
    st.sampled_from([["#"], ["+"], ["a"]]),
)
MARK = 0x5A5A5A5A


@given(FILTERS, NAMES)
@example("a/#", "a")
@example("a/+/#", "a")
@example("+", "a/")
@example("a/+", "a/")
@example("#", "$a")
@example("+/a", "$a/a")
@example("$a/#", "$a")
@example("a", "ab")
@example("ab", "a")
@settings(max_examples=200)
def test_the_compiled_match_is_the_rule(topic_filter: str, topic_name: str) -> None:
    assert topic_names.check_topic_filter(topic_filter.encode()) is None
    expected = topic_names.matches(topic_filter.encode(), topic_name.encode())
    assert matches(topic_filter.encode(), topic_name.encode()) == expected


RECORDS = st.lists(st.tuples(st.sampled_from(["accepted", "acknowledged", "ended"]), st.integers(-50, 50), NAMES))


def written(records: list[tuple[str, int, str]]) -> bytes:
    buffer = RecordBuffer(0)
    for kind, time_us, name in records:
        if kind == "accepted":
            buffer.add_accepted(time_us, 0, message(name.encode(), b"payload", 1), b"c", 1)
        elif kind == "acknowledged":
            buffer.add_acknowledged(time_us, b"c", 4, 1, 0)
        else:
            buffer.add("ended", time_us, b"c")
    buffer.stamp(MARK)
    return bytes(buffer)


@given(RECORDS, st.none() | FILTERS, st.booleans(), st.integers(-60, 60), st.integers(-60, 60))
@settings(max_examples=200)
def test_a_scan_stops_at_every_record_that_is_wanted_and_at_no_other(
    records: list[tuple[str, int, str]], topic_filter: str | None, accepted_only: bool, since_us: int, until_us: int
) -> None:
    wanted = [
        number
        for number, (kind, time_us, name) in enumerate(records, 1)
        if (kind == "accepted" or not (accepted_only or topic_filter is not None))
        and since_us <= time_us < until_us
        and (topic_filter is None or topic_names.matches(topic_filter.encode(), name.encode()))
    ]
    encoded = None if topic_filter is None else topic_filter.encode()
    scan = Scan(encoded, accepted_only=accepted_only, since_us=since_us, until_us=until_us)
    cursor = Cursor(written(records), 0, MARK, 0)
    found = []
    while scan.next(cursor):
        found.append(cursor.number)
    assert found == wanted


@given(RECORDS, RECORDS)
@settings(max_examples=100)
def test_a_census_counts_every_record(one: list[tuple[str, int, str]], two: list[tuple[str, int, str]]) -> None:
    total = Census()
    for records in (one, two):
        census = Census()
        census.count(Cursor(written(records), 0, MARK, 0))
        total.add(census)
    both = one + two
    kinds = [kind for kind, _, _ in both]
    assert total.records == len(both)
    assert total.by_kind() == {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    assert total.payload_bytes == 7 * kinds.count("accepted")
    assert total.first_us == min((time_us for _, time_us, _ in both), default=0)
    assert total.last_us == max((time_us for _, time_us, _ in both), default=0)


def test_a_census_says_which_records_are_not_what_their_kind_says() -> None:
    data = bytearray(written([("ended", 1, "a"), ("accepted", 2, "a")]))
    data[24] = 99  # the kind of the first record
    length = int.from_bytes(data[:4], "little")
    data[4:8] = checksum(bytes(data[8:length]), checksum(bytes(data[:4]))).to_bytes(4, "little")
    census = Census()
    census.count(Cursor(bytes(data), 1000, MARK, 0))
    assert census.by_kind() == {"accepted": 1, "kind 99": 1}
    assert census.problems == [(1000, "record 1 is of kind 99, which this version does not know")]
