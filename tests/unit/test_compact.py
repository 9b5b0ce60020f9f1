"""Snapshots: what comes out of one and the log behind it is what comes out of the whole log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.message import message
from router.log.log_writer import Log
from router.log.record_buffer import RecordBuffer
from router.log.segments import segment_of, snapshot_of
from router.recovery.open_log import Opened, open_log, start_deadlines
from router.recovery.snapshot import compact
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.disk import SimulatedDisk

CLIENTS = (b"one", b"two", b"three")
FILTERS = (b"t/#", b"t/1", b"$share/g/t/#")
REPLAYS = (b"$replay/-1h/t/#", b"$replay/-1d/t/1")
TOPICS = (b"t/1", b"t/2")
SECOND_US = 1_000_000

clients = st.sampled_from(CLIENTS)
identifiers = st.integers(1, 6)
steps = st.one_of(
    st.tuples(st.just("session"), clients, st.sampled_from((0, 60, 0xFFFFFFFF))),
    st.tuples(st.just("will"), clients, st.sampled_from(TOPICS)),
    st.tuples(st.just("detached"), clients, st.integers(0, 8)),
    st.tuples(st.just("detached"), clients, st.integers(4, 8)),
    st.tuples(st.just("ended"), clients),
    st.tuples(st.just("subscribe"), clients, st.sampled_from(FILTERS), st.integers(0, 2), st.sampled_from((0, 7))),
    st.tuples(st.just("unsubscribe"), clients, st.sampled_from((*FILTERS, REPLAYS[0]))),
    st.tuples(
        st.just("replay"),
        clients,
        st.sampled_from(REPLAYS),
        st.integers(0, 1),
        st.sampled_from((0, 7)),
        st.integers(0, 50),
        st.sampled_from((-1, 5)),
    ),
    st.tuples(
        st.just("replay_in_logs"),
        clients,
        st.sampled_from(REPLAYS),
        st.integers(0, 1),
        st.sampled_from((0, 7)),
        st.sampled_from((-1, 5)),
        st.sampled_from(([], [0, 7], [0, 0, 3, 50])),
    ),
    st.tuples(st.just("mounted"), clients, st.sampled_from((b"one/", b"two/"))),
    st.tuples(
        st.just("fenced"), clients, st.sampled_from(FILTERS), st.sampled_from(([], [1, 7, 20], [1, 8, 3, 2, 1, 9]))
    ),
    st.tuples(
        st.just("accepted"), clients, st.sampled_from(TOPICS), st.integers(0, 2), identifiers, st.none() | clients
    ),
    st.tuples(st.just("acknowledged"), clients, st.sampled_from((4, 5, 7)), identifiers),
    st.tuples(st.just("released"), clients, identifiers),
    st.tuples(st.just("dropped"), clients, st.integers(0, 8)),
)


def put(records: RecordBuffer, time_us: int, step: tuple[Any, ...]) -> None:
    kind, client, *rest = step
    if kind == "accepted":
        topic, qos, identifier, picked = rest
        if picked is not None and qos:
            records.add("shared_pick", time_us, b"g/t/#", picked)
        records.add_accepted(
            time_us,
            records.last_number + 1,
            message(topic, b"%d" % (records.last_number + 1), qos),
            client,
            identifier if qos == 2 else 0,
        )
    elif kind == "acknowledged":
        records.add_acknowledged(time_us, client, *rest, 0)
    elif kind == "released":
        records.add_released(time_us, client, *rest)
    elif kind == "will":
        records.add(kind, time_us, client, rest[0], b"gone", b"", 1, False, 5, -1, -1, b"ann", False)
    elif kind == "detached":
        records.add(kind, time_us, client, 60, *rest)
    elif kind == "dropped":
        records.add(kind, time_us, client, *rest, "expired")
    else:
        records.add(kind, time_us, client, *rest)


def reopen(disk: SimulatedDisk) -> tuple[Router, Opened]:
    router = Router(Ledger())
    opened = open_log(
        disk,
        router,
        worker=0,
        make_will=lambda _, *fields: Will(*fields),
        make_mark=lambda: 77,
        now_us=1000 * SECOND_US,
        now_ms=1_000_000,
        segment_bytes_max=4800,
    )
    start_deadlines(router, opened)
    return router, opened


class Will:
    def __init__(self, *fields: Any) -> None:
        self.fields = fields
        self.delay_interval_s = fields[5]


def state(router: Router, log: Log) -> dict[bytes, Any]:
    """Everything that recovery brings back."""
    found = {}
    for client, session in router.sessions.items():
        owed = session.owed.deliveries() if session.owed is not None else []
        bodies = [log.fetch(delivery[1], 0, 0).body for delivery in owed if delivery[4] in (1, 2)]
        found[client] = (
            session.expiry_interval_s,
            session.mount_point,
            session.will.fields if session.will is not None else None,
            sorted(router.tree.subscriptions_of(session)),
            session.incoming_identifiers,
            owed,
            bodies,
            session.owed.numbers if session.owed is not None else (0, 0),
            session.ends_ms,
            session.owed.state()["in_flight"] if session.owed is not None else [],
            sorted(replay.fields() for replay in (session.replays or {}).values()),
            dict(router.retaining.fences.standing(session)),
        )
    return found


def write(disk: SimulatedDisk, log: Log, given_steps: list[Any], first_us: int) -> None:
    for index, step in enumerate(given_steps):
        records = RecordBuffer(log.appended)
        put(records, first_us + index, step)
        log.append(records)
        log.commit()


def everything_is_known(given_steps: list[Any]) -> list[Any]:
    """Return the steps, with every client's session before them."""
    return [("session", client, 60) for client in CLIENTS] + given_steps


@settings(max_examples=200)
@given(st.lists(steps, min_size=40, max_size=80), st.lists(steps, max_size=20), st.lists(steps, max_size=20))
def test_a_snapshot_and_the_log_behind_it_are_the_whole_log(
    first: list[Any], second: list[Any], third: list[Any]
) -> None:
    plain, compacted = SimulatedDisk(), SimulatedDisk()
    for disk in (plain, compacted):
        _, opened = reopen(disk)
        write(disk, opened.log, everything_is_known(first), SECOND_US)
        for more, later_us in ((second, 2 * SECOND_US), (third, 3 * SECOND_US)):
            if disk is compacted:
                made = compact(disk, 0, lambda: 78)
                if made is not None:
                    opened.log.adopt(made.name, made.segment, made.end_offset)
                    opened.log.discard(made.segment)
                    opened.log.commit()
            write(disk, opened.log, more, later_us)
        assert opened.log.close()
    whole, of_whole = reopen(plain)
    short, of_short = reopen(compacted)
    assert state(short, of_short.log) == state(whole, of_whole.log)


def test_a_fence_that_a_peer_has_been_heard_beyond_is_not_kept() -> None:
    disk = SimulatedDisk()
    _, opened = reopen(disk)
    fences = [
        ("fenced", b"one", b"t/1", [1, 7, 20, 2, 3, 9]),
        ("fenced", b"one", b"t/#", [1, 7, 20]),
        ("fenced", b"two", b"t/1", [1, 8, 20]),
        ("fenced", b"three", b"t/1", [1, 7, 21]),
    ]
    write(disk, opened.log, everything_is_known(fences), SECOND_US)
    records = RecordBuffer(opened.log.appended)
    for number in (1, 2):
        records.add("peer", SECOND_US, number, b"node/%d" % number, 0)
    records.add("peer_heard", SECOND_US, 1, 7, 20)
    opened.log.append(records)
    write(disk, opened.log, [("accepted", b"two", b"t/1", 1, 1, None)] * 40, SECOND_US)
    made = compact(disk, 0, lambda: 78)
    assert made is not None
    opened.log.adopt(made.name, made.segment, made.end_offset)
    opened.log.discard(made.segment)
    assert opened.log.close()
    router, _ = reopen(disk)
    assert {name: dict(router.retaining.fences.standing(session)) for name, session in router.sessions.items()} == {
        b"one": {b"t/1": {2: (3, 9)}},
        b"two": {b"t/1": {1: (8, 20)}},
        b"three": {b"t/1": {1: (7, 21)}},
    }


def test_segments_before_a_snapshot_are_not_needed_and_an_older_snapshot_goes() -> None:
    disk = SimulatedDisk()
    _, opened = reopen(disk)
    publishing = [("accepted", b"two", b"t/1", 1, 1, None)] * 40
    subscribed = [("subscribe", b"one", b"t/#", 1, 0)]
    write(disk, opened.log, everything_is_known(subscribed + publishing), SECOND_US)
    for _ in range(2):
        made = compact(disk, 0, lambda: 78)
        assert made is not None
        assert made.sessions == 3
        opened.log.adopt(made.name, made.segment, made.end_offset)
        opened.log.discard(made.segment)
        opened.log.commit()
        assert min(segment for name in disk.names() if (segment := segment_of(name)) is not None) == made.segment
        write(disk, opened.log, publishing, 2 * SECOND_US)
    router, opened = reopen(disk)
    assert [snapshot_of(name) for name in disk.names() if snapshot_of(name) is not None] == [made.segment]
    owed = router.sessions[b"one"].owed.deliveries()
    assert len(owed) == 120
    assert [opened.log.fetch(delivery[1], 0, 0).body for delivery in owed] == [b"%d" % each[1] for each in owed]


def test_there_is_nothing_to_make_of_a_log_of_one_segment() -> None:
    disk = SimulatedDisk()
    _, opened = reopen(disk)
    assert compact(disk, 0, lambda: 78) is None
    write(disk, opened.log, everything_is_known([]), SECOND_US)
    assert compact(disk, 0, lambda: 78) is None


def test_what_waits_for_pubcomp_alone_has_no_subscription_identifiers() -> None:
    disk = SimulatedDisk()
    _, opened = reopen(disk)
    write(
        disk,
        opened.log,
        [
            ("session", b"three", 60),
            ("subscribe", b"three", b"t/#", 2, 7),
            ("accepted", b"one", b"t/1", 2, 1, None),
            ("accepted", b"one", b"t/1", 2, 2, None),
            ("acknowledged", b"three", 5, 1),
        ],
        SECOND_US,
    )
    assert opened.log.close()
    router, _ = reopen(disk)
    released, waiting = router.sessions[b"three"].owed.deliveries()
    assert (released[6], waiting[6]) == (b"", b"\x0b\x07")


def test_a_snapshot_that_finds_no_room_leaves_none_taken() -> None:
    disk = SimulatedDisk()
    _, opened = reopen(disk)
    write(
        disk,
        opened.log,
        everything_is_known([("subscribe", b"one", b"t/#", 1, 0)] + [("accepted", b"two", b"t/1", 1, 1, None)] * 200),
        SECOND_US,
    )
    before = disk.names()
    for room in range(0, 4000, 500):
        disk.capacity = disk.used_bytes + room
        with pytest.raises(OSError, match="No space"):
            compact(disk, 0, lambda: 5)
        assert disk.names() == before
    disk.capacity = None
    assert compact(disk, 0, lambda: 5) is not None


def test_unfinished_snapshots_are_gone_before_a_start_writes() -> None:
    disk = SimulatedDisk()
    _, opened = reopen(disk)
    opened.log.close()
    file = disk.create("snapshot-000000000009.log.new")
    disk.write(file, b"x" * 10_000, 0)
    disk.close(file)
    disk.capacity = disk.used_bytes
    _, opened = reopen(disk)
    assert "snapshot-000000000009.log.new" not in disk.names()
