"""What is archived, and how long it is kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.log.retention import archive_needs, expired_segments
from router.log.segments import Header
from router.matching.archive_filters import ArchiveFilters
from router.matching.topic_names import matches

S = 1_000_000

levels = st.sampled_from(["", "a", "b", "$a"])
topic_names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)
topic_filters = st.builds(
    lambda path, end: "/".join(path + end),
    st.lists(levels | st.just("+"), max_size=4), st.sampled_from([[], ["#"], ["+"]]),
).filter(bool).map(str.encode)  # fmt: skip


def header(segment: int, created_us: int) -> Header:
    return Header(0, 1, 1, segment, segment * 100, created_us, 1)


def segments(*created_s: int) -> list[Header]:
    return [header(5 + index, created * S) for index, created in enumerate(created_s)]


@settings(max_examples=200)
@given(st.lists(topic_filters, max_size=5), st.lists(topic_names, min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_a_topic_is_archived_if_any_filter_matches_it(filters: list[bytes], names: list[bytes], seed: int) -> None:
    # Proves: [MQTT-4.7.2-1]
    archive = ArchiveFilters(filters, seed)
    assert archive.count == len(set(filters))
    for name in names:
        assert archive.matches(name) == any(matches(topic_filter, name) for topic_filter in filters)


def test_without_a_limit_everything_is_kept() -> None:
    assert expired_segments([], [], 0) == 0
    assert expired_segments(segments(1, 2, 3), [10, 10, 10], 10**9 * S) == 5


def test_a_segment_goes_when_its_newest_record_is_too_old() -> None:
    headers, sizes = segments(100, 200, 300), [10, 10, 10]
    for now_s, keep in ((100, 5), (250, 5), (259, 5), (260, 6), (359, 6), (360, 7), (10**6, 7)):
        assert expired_segments(headers, sizes, now_s * S, age_s=60) == keep
    assert expired_segments(headers, sizes, 200 * S + S // 2, age_s=0.5) == 6


def test_the_newest_segments_that_fit_are_kept_and_the_one_being_written_always() -> None:
    headers, sizes = segments(1, 2, 3), [10, 20, 30]
    for bytes_max, keep in ((1, 7), (30, 7), (49, 7), (50, 6), (59, 6), (60, 5), (1000, 5)):
        assert expired_segments(headers, sizes, 0, bytes_max=bytes_max) == keep


def test_both_limits_hold() -> None:
    headers, sizes = segments(100, 200, 300), [10, 10, 10]
    assert expired_segments(headers, sizes, 260 * S, age_s=60, bytes_max=30) == 6
    assert expired_segments(headers, sizes, 260 * S, age_s=60, bytes_max=10) == 7
    assert expired_segments(headers, sizes, 100 * S, age_s=60, bytes_max=20) == 6


def test_without_an_archive_only_the_newest_segment_is_needed() -> None:
    headers, sizes = segments(1, 2, 3), [10, 10, 10]
    assert archive_needs(headers, sizes, 0, archiving=False, age_s=60, bytes_max=100) == 7
    assert archive_needs(headers, sizes, 0, archiving=True, bytes_max=20) == 6
    assert archive_needs(headers, sizes, 0, archiving=True) == 5
    assert archive_needs([], [], 0, archiving=False) == archive_needs([], [], 0, archiving=True) == 0
