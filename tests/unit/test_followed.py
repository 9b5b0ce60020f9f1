"""Several logs are read as one, by others than who writes them: in order, once, never beyond what is durable."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.replay.engine import position_token, time_text
from router.core.message import message
from router.log.log_writer import Log
from router.log.read_cache import LogWindows
from router.log.record_buffer import RecordBuffer
from router.log.remote_log import FollowedLog
from router.log.replay_position import encode_position, format_time, parse_time
from router.log.segments import RECORDS_AT
from router.log.tail import LogTail, MergedTail
from tests.support.commit_logs import open_log
from tests.support.disk import SimulatedDisk, broken

EVERYTHING = 1 << 40
WORKERS = 3


class Node:
    """Some workers' logs, each written by itself and read through its files."""

    def __init__(self) -> None:
        self.now_us = 0
        self.disks = [SimulatedDisk() for _ in range(WORKERS)]
        self.logs: list[Log] = []
        self.followed = []
        self.windows = []
        self.put: list[tuple[int, int, int]] = []  # (time, worker, number)
        for worker, disk in enumerate(self.disks):
            log, _ = open_log(disk, seed=worker, segment_bytes_max=RECORDS_AT + 400)
            log.worker = worker
            self.logs.append(log)
            self.followed.append(FollowedLog(disk, worker))
            self.windows.append(LogWindows(self.followed[-1]))

    def write(self, worker: int, count: int = 1, commit: bool = True) -> None:
        """A worker logs messages; not at the same moment as another."""
        log = self.logs[worker]
        buffer = RecordBuffer(log.appended)
        for _ in range(count):
            self.now_us += 1
            number = buffer.last_number + 1
            buffer.add_accepted(self.now_us, number, message(b"t", b"%d" % number))
            self.put.append((self.now_us, worker, number))
        log.append(buffer)
        if commit:
            assert log.commit()

    def tell(self, worker: int) -> None:
        """A worker says how far it has come."""
        self.followed[worker].told(self.logs[worker].reach())
        self.followed[worker].catch_up()

    def tell_all(self) -> None:
        for worker in range(WORKERS):
            self.tell(worker)

    def tail(self, numbers: dict[int, int] | None = None, since_us: int | None = None) -> MergedTail:
        numbers = numbers or {}
        return MergedTail(
            [
                LogTail(windows, b"#", numbers.get(worker, 0), None if worker in numbers else since_us)
                for worker, windows in enumerate(self.windows)
            ]
        )


def read(tail: MergedTail, messages_max: int = 1_000_000, bytes_max: int = EVERYTHING) -> list[tuple[int, int, int]]:
    found = []
    for worker, number, time_us, stored in tail.read(messages_max, bytes_max):
        assert int(stored.body) == number
        found.append((time_us, worker, number))
    return found


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, WORKERS - 1), st.integers(1, 5)), max_size=30), st.integers(1, 7),
       st.integers(1, 300), st.data())  # fmt: skip
def test_what_is_stored_comes_in_the_order_of_time_from_any_position_however_little_is_read_at_once(
    writes: list[tuple[int, int]], messages_max: int, bytes_max: int, data: st.DataObject
) -> None:
    node = Node()
    for worker, count in writes:
        node.write(worker, count)
    node.tell_all()
    tail = node.tail()
    found: list[tuple[int, int, int]] = []
    positions = [tail.positions()]
    for _ in range(2000):
        if len(found) == len(node.put):
            break
        piece = read(tail, messages_max, bytes_max)
        found += piece
        positions += [{}] * (len(piece) - 1) + [tail.positions()] * bool(piece)
        if data.draw(st.booleans()):
            tail.rest()
    assert found == node.put
    assert read(tail) == []
    assert not tail.missing
    index = data.draw(st.sampled_from([at for at, known in enumerate(positions) if known]))
    assert read(node.tail(positions[index])) == node.put[index:]


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, WORKERS - 1), st.sampled_from(["write", "append", "commit", "tell", "read"])),
        max_size=60,
    )
)
def test_what_is_written_meanwhile_comes_once_in_the_order_of_its_log_and_only_when_it_is_durable(
    steps: list[tuple[int, str]],
) -> None:
    node = Node()
    tail = node.tail()
    found: list[tuple[int, int, int]] = []

    def take() -> None:
        found.extend(read(tail, 4))
        for _, worker, number in found:
            assert number <= node.logs[worker].durable

    for worker, step in steps:
        if step in ("write", "append"):
            node.write(worker, 2, commit=step == "write")
        elif step == "commit":
            node.logs[worker].commit()
        elif step == "tell":
            node.tell(worker)
        else:
            take()
    for worker in range(WORKERS):
        node.logs[worker].commit()
    node.tell_all()
    found += read(tail)
    assert sorted(found) == node.put
    for worker in range(WORKERS):
        mine = [number for _, of, number in found if of == worker]
        assert mine == sorted(mine)


def test_of_a_worker_that_says_nothing_only_what_its_files_prove_durable_is_read() -> None:
    node = Node()
    for _ in range(30):
        node.write(0)
    assert len(node.logs[0].headers) > 2
    for followed in node.followed:
        followed.catch_up()
    proved = node.logs[0].headers[-1].first_number - 1
    tail = node.tail()
    assert [number for _, _, number in read(tail)] == list(range(1, proved + 1))
    node.tell(0)
    assert [number for _, _, number in read(tail)] == list(range(proved + 1, 31))


def test_a_place_beyond_what_a_silent_worker_has_told_is_kept() -> None:
    node = Node()
    node.write(0, 3)
    node.followed[0].catch_up()
    tail = node.tail({0: 2})
    assert read(tail) == []
    assert tail.positions() == {0: 2, 1: 0, 2: 0}
    node.tell(0)
    assert [number for _, _, number in read(tail)] == [3]


def test_a_place_beyond_the_end_is_the_end_of_a_log_that_was_told() -> None:
    node = Node()
    node.write(0, 3)
    node.tell_all()
    tail = node.tail({0: 90})
    assert read(tail) == []
    node.write(0)
    node.tell(0)
    assert [number for _, _, number in read(tail)] == [4]


def test_what_its_worker_removes_is_missing_and_said_so() -> None:
    node = Node()
    for _ in range(30):
        node.write(1)
        node.write(2)
    node.tell_all()
    tail = node.tail()
    first = read(tail, 3, 300)
    gone = node.logs[1].headers[-2].segment
    node.logs[1].discard(gone)
    node.logs[1].commit()
    node.tell(1)
    rest = read(tail)
    left = node.logs[1].headers[0].first_number
    assert tail.missing
    ((worker, start, count),) = tail.take_gaps()
    read_of_1 = [number for _, of, number in first + rest if of == 1]
    assert (worker, start + count) == (1, left)
    assert read_of_1 == [*range(1, start), *range(left, 31)]
    assert [number for _, of, number in first + rest if of == 2] == list(range(1, 31))
    assert tail.take_gaps() == []


def test_a_segment_that_is_begun_anew_under_its_number_is_read_as_it_is_then() -> None:
    node = Node()
    node.write(0, 2)
    log, disk = node.logs[0], node.disks[0]
    node.write(0, 12, commit=False)
    syncs = 0

    def fail(operation: str) -> OSError | None:
        nonlocal syncs
        syncs += operation == "sync"
        if syncs < 3 or operation != "sync":
            return None
        node.tell(0)  # that of the seal and of the new segment's header were done
        return broken()

    disk.fail = fail
    assert not log.commit()
    vain = node.followed[0].headers[-1]
    assert vain.first_number == 3
    disk.fail = lambda operation: None
    assert log.commit()
    node.tell(0)
    again = node.followed[0].headers[-1]
    assert (again.segment, again.mark) == (vain.segment, log.headers[-1].mark)
    assert again.mark != vain.mark
    assert [number for _, _, number in read(node.tail())] == list(range(1, 15))


def test_a_log_that_nobody_writes_any_more_is_read_to_its_end() -> None:
    node = Node()
    node.write(2, 7)
    node.write(2, 2)
    left = FollowedLog(node.disks[2], 2)
    left.finish()
    assert left.durable == 9
    assert not left.is_behind
    nobody = FollowedLog(SimulatedDisk(), 5)
    nobody.finish()
    assert (nobody.durable, nobody.headers) == (0, [])


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), min_size=1, max_size=40))
def test_the_compiled_token_is_the_token(numbers: dict[int, int]) -> None:
    assert position_token(numbers) == encode_position(numbers)


@given(st.integers(0, 253_402_300_799_999_999))
def test_the_compiled_time_is_the_time(time_us: int) -> None:
    assert time_text(time_us) == format_time(time_us)
    assert parse_time(time_text(time_us), 0) == time_us
