"""A tail gives what its filter matches, in order, once, from any place on, while the log grows and shrinks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.message import message
from router.log.log_writer import Log
from router.log.read_cache import LogWindows
from router.log.record_buffer import RecordBuffer
from router.log.segments import RECORDS_AT, segment_name
from router.log.tail import LogTail
from router.matching.topic_names import matches, matches_compiled
from tests.support.commit_logs import open_log
from tests.support.disk import SimulatedDisk, broken

EVERYTHING = 1 << 40
TOPICS = (b"a", b"a/b", b"a/b/c", b"b", b"$a/b", b"c//d")
FILTERS = (b"#", b"a/#", b"+", b"a/+", b"b", b"+/b/#", b"c/+/d", b"$a/#", b"nothing")

levels = st.sampled_from(["", "a", "b", "ab", "$a", "é"])
topic_names = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)
topic_filters = st.builds(
    lambda path, end: "/".join(path + end),
    st.lists(levels | st.just("+"), max_size=4), st.sampled_from([[], ["#"], ["+"]]),
).filter(bool).map(str.encode)  # fmt: skip


class History:
    """A log and every message that was put into it: (number, time, topic name)."""

    def __init__(self, disk: SimulatedDisk, segment_bytes_max: int = RECORDS_AT + 900) -> None:
        self.disk = disk
        self.log, _ = open_log(disk, segment_bytes_max=segment_bytes_max)
        self.windows = LogWindows(self.log)
        self.messages: list[tuple[int, int, bytes]] = []

    def put(self, *topics: bytes, size: int = 10, step_us: int = 10, commit: bool = True) -> None:
        """Put messages in, and a record that is none between any two of them; one batch."""
        buffer = RecordBuffer(self.log.appended)
        time_us = self.messages[-1][1] if self.messages else 0
        for topic in topics:
            time_us += step_us
            buffer.add("ended", time_us, b"somebody")
            number = buffer.last_number + 1
            buffer.add_accepted(time_us, number, message(topic, (b"%d " % number).ljust(size, b".")))
            self.messages.append((number, time_us, topic))
        self.log.append(buffer)
        if commit:
            assert self.log.commit()

    def matching(self, topic_filter: bytes, after: int = 0, since_us: int = 0) -> list[int]:
        return [number for number, time_us, topic in self.messages
                if number > after and time_us >= since_us and matches(topic_filter, topic)]  # fmt: skip

    def tail(self, topic_filter: bytes = b"#", after: int = 0, since_us: int | None = None) -> LogTail:
        return LogTail(self.windows, topic_filter, after, since_us)


def numbers(tail: LogTail, messages_max: int = 1_000_000, bytes_max: int = EVERYTHING) -> list[int]:
    """Read, and see that each message is the one that its number says."""
    found = tail.read(messages_max, bytes_max)
    for number, _, stored in found:
        assert int(stored.body.split()[0]) == number
    return [number for number, _, _ in found]


@given(topic_filters, topic_names)
def test_the_compiled_rule_of_matching_is_the_rule(topic_filter: bytes, topic_name: bytes) -> None:
    # Proves: [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1]
    assert matches_compiled(topic_filter, topic_name) == matches(topic_filter, topic_name)


@settings(max_examples=150)
@given(st.lists(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=6), max_size=12), st.sampled_from(FILTERS),
       st.integers(0, 80), st.integers(1, 5), st.integers(1, 400))  # fmt: skip
def test_a_tail_gives_what_matches_from_any_record_on_however_little_it_may_read(
    turns: list[list[bytes]], topic_filter: bytes, after: int, messages_max: int, bytes_max: int
) -> None:
    history = History(SimulatedDisk())
    for topics in turns:
        history.put(*topics)
    tail = history.tail(topic_filter, after)
    found: list[int] = []
    while not tail.at_end():
        piece = numbers(tail, messages_max, bytes_max)
        assert len(piece) <= messages_max
        found += piece
        if len(found) % 2:
            tail.rest()
    assert found == history.matching(topic_filter, after)
    assert tail.take_gap() is None


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=6), max_size=12), st.integers(-5, 700))
def test_a_tail_begins_with_the_first_record_of_a_time(turns: list[list[bytes]], since_us: int) -> None:
    history = History(SimulatedDisk())
    for topics in turns:
        history.put(*topics)
    assert numbers(history.tail(b"#", since_us=since_us)) == history.matching(b"#", since_us=since_us)


def test_a_clock_that_is_set_back_hides_nothing_that_was_written_later() -> None:
    history = History(SimulatedDisk())
    history.put(b"a", b"a", step_us=1000)
    history.put(b"a", b"a", step_us=-400)
    assert numbers(history.tail(b"#", since_us=2000)) == [number for number, _, _ in history.messages[1:]]


def test_a_tail_goes_on_as_the_log_grows_and_never_beyond_what_is_durable() -> None:
    history = History(SimulatedDisk())
    tails = [history.tail(b"a/#"), history.tail(b"#"), history.tail(b"#", since_us=95)]
    found: list[list[int]] = [[], [], []]
    for turn in range(40):
        history.put(*TOPICS[: 1 + turn % 6], commit=False)
        for tail, before in zip(tails, found, strict=True):
            piece = numbers(tail)
            before += piece
            assert all(number <= history.log.durable for number in piece)
        if turn % 3:
            history.log.commit()
            for tail, before in zip(tails, found, strict=True):
                before += numbers(tail)
                assert tail.at_end()
    history.log.commit()
    for tail, before in zip(tails, found, strict=True):
        before += numbers(tail)
    assert found[0] == history.matching(b"a/#")
    assert found[1] == history.matching(b"#")
    assert found[2] == history.matching(b"#", since_us=95)


def test_a_tail_of_an_empty_log_begins_with_its_first_record() -> None:
    history = History(SimulatedDisk())
    tails = [history.tail(), history.tail(since_us=5), history.tail(after=1000)]
    assert [numbers(tail) for tail in tails] == [[], [], []]
    history.put(b"a", b"b")
    assert [numbers(tail) for tail in tails] == [history.matching(b"#")] * 3


def test_records_larger_than_the_window_are_read() -> None:
    history = History(SimulatedDisk(), segment_bytes_max=1 << 30)
    for size in (10, 300_000, 20_000, 1_000_000, 16_300, 10):
        history.put(b"a", b"b", size=size)
    assert numbers(history.tail(b"b")) == history.matching(b"b")


def test_bytes_that_are_written_and_not_durable_are_never_relied_on() -> None:
    # A sync that fails: the batch is written again, to another segment with another mark.
    disk = SimulatedDisk()
    history = History(disk)
    history.put(b"a")
    tail = history.tail()
    assert numbers(tail) == history.matching(b"#")
    for cut in (True, False):
        history.put(b"a", b"b", commit=False)
        disk.fail = lambda operation, cut=cut: (  # type: ignore[misc]
            broken() if operation == "sync" or (operation == "truncate" and not cut) else None
        )
        assert not history.log.commit()
        assert numbers(tail) == []
        disk.fail = lambda operation: None
        assert history.log.commit()
        assert numbers(tail) == [number for number, _, _ in history.messages[-2:]]
    assert tail.take_gap() is None
    assert numbers(history.tail()) == history.matching(b"#")


@pytest.mark.parametrize("fails", [False, True])
def test_a_window_that_was_read_during_a_sync_is_relied_on_only_as_far_as_it_was_durable(fails: bool) -> None:
    disk = SimulatedDisk()
    history = History(disk)
    history.put(b"a", b"a")
    tail = history.tail()
    history.put(b"a", b"b", commit=False)
    found: list[int] = []
    disk.before_sync = lambda: found.extend(numbers(tail))
    disk.fail = lambda operation: broken() if operation == "sync" and fails else None
    assert history.log.commit() is not fails
    assert found == history.matching(b"#")[:2]
    disk.fail = lambda operation: None
    assert history.log.commit() is fails
    assert found + numbers(tail) == history.matching(b"#")


@pytest.mark.parametrize("durability", ["os", "none"])
def test_what_counts_as_durable_and_is_not_written_yet_is_waited_for(durability: str) -> None:
    disk = SimulatedDisk()
    history = History(disk)
    history.log.durability = durability  # type: ignore[assignment]
    tail = history.tail()
    history.put(b"a")
    history.put(b"b", commit=False)
    assert numbers(tail) == history.matching(b"#")[:1]
    assert history.log.commit()
    assert numbers(tail) == history.matching(b"#")[1:]
    assert tail.take_gap() is None


# What is gone ---------------------------------------------------------------------------------------------------------


def discard(log: Log, before: int) -> None:
    log.discard(before)
    assert log.commit()


def test_what_retention_removed_is_a_gap_wherever_the_tail_stood() -> None:
    history = History(SimulatedDisk())
    for _ in range(30):
        history.put(*TOPICS)
    standing = history.tail()
    assert len(numbers(standing, 4)) == 4
    resting = history.tail()
    numbers(resting, 7)
    resting.rest()
    by_time = history.tail(since_us=1)
    starting = history.tail(after=8)
    ahead = history.tail(after=history.log.headers[3].first_number)
    discard(history.log, history.log.headers[2].segment)
    first = history.log.headers[0].first_number
    after = first - 1
    for tail, seen in ((standing, 8), (resting, 14), (starting, 8)):
        # What a window still holds is not lost.
        found = numbers(tail)
        kept = [number for number in found if number < first]
        assert found[len(kept) :] == history.matching(b"#", after)
        assert kept == history.matching(b"#", seen)[: len(kept)]
        last_seen = kept[-1] if kept else seen
        gap = tail.take_gap()
        assert gap is not None
        assert last_seen < gap[0] <= after
        assert gap[0] + gap[1] == first
        assert tail.take_gap() is None
    assert numbers(by_time) == history.matching(b"#", after)
    assert by_time.take_gap() is None
    assert numbers(ahead) == history.matching(b"#", history.log.headers[1].first_number)
    assert ahead.take_gap() is None


def test_a_segment_that_is_being_removed_is_passed_over() -> None:
    history = History(SimulatedDisk())
    for _ in range(12):
        history.put(*TOPICS)
    history.disk.remove(history.log.headers[0].name)  # the log says so a moment later
    tail = history.tail()
    first = history.log.headers[1].first_number
    assert numbers(tail) == history.matching(b"#", first - 1)
    assert tail.take_gap() == (1, first - 1)


def test_removed_segments_do_not_keep_their_room() -> None:
    history = History(SimulatedDisk())
    for _ in range(30):
        history.put(*TOPICS)
    numbers(history.tail())
    discard(history.log, history.log.headers[-1].segment)
    history.put(*TOPICS)
    numbers(history.tail())
    assert history.disk.open_files <= 3  # the log's own, and what is left
    history.windows.close()
    assert history.disk.open_files == 1


@settings(max_examples=150)
@given(st.integers(0, 1 << 30), st.integers(1, 40), st.booleans())
def test_damage_costs_no_record_that_is_whole(seed: int, length: int, newest: bool) -> None:
    disk = SimulatedDisk()
    history = History(disk)
    for _ in range(9):
        history.put(*TOPICS)
    header = history.log.headers[-1 if newest else 1]
    content = disk.content(header.name)
    random = Random(seed)
    at = random.randrange(RECORDS_AT, len(content))
    file = disk.open(header.name, writable=True)
    disk.write(file, bytes(byte ^ random.randrange(1, 256) for byte in content[at : at + length]), at)
    disk.close(file)
    tail = history.tail()
    found = numbers(tail, bytes_max=300)
    while not tail.at_end():
        found += numbers(tail, bytes_max=300)
    lost = set(history.matching(b"#")) - set(found)
    assert found == sorted(set(found))
    assert len(lost) <= 3 + length // 40
    gap = tail.take_gap()
    assert bool(gap) >= bool(lost)
    if gap and lost:
        assert gap[0] <= min(lost)
        assert max(lost) < gap[0] + gap[1]
    history.put(*TOPICS)
    history.put(*TOPICS)
    assert numbers(tail) == history.matching(b"#")[-10:]


def test_a_disk_that_refuses_to_read_is_asked_again() -> None:
    disk = SimulatedDisk()
    history = History(disk)
    history.put(*TOPICS)
    tail = history.tail()
    disk.fail = lambda operation: broken() if operation == "read" else None
    with pytest.raises(OSError, match="error"):
        numbers(tail)
    disk.fail = lambda operation: None
    assert numbers(tail) == history.matching(b"#")


# What it costs ------------------------------------------------------------------------------------------------------


def test_many_that_follow_the_log_read_it_once() -> None:
    history = History(SimulatedDisk())
    history.put(*TOPICS)
    tails = [history.tail(b"a"), *(history.tail(b"b") for _ in range(20))]
    for tail in tails:
        numbers(tail)
    before = history.windows.reads
    history.put(*TOPICS)
    for tail in tails:
        numbers(tail)
    assert history.windows.reads - before <= 3


def test_the_beginning_is_found_without_reading_what_comes_before() -> None:
    history = History(SimulatedDisk(), segment_bytes_max=300_000)
    for _ in range(300):
        history.put(*TOPICS, size=1000)
    number, time_us, _ = history.messages[-7]
    for tail in (history.tail(after=number - 1), history.tail(since_us=time_us)):
        assert numbers(tail, 1) == [number]
        assert tail.scanned_bytes < 100_000
    assert segment_name(history.log.headers[-1].segment) in history.disk.names()
