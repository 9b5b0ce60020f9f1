"""The second copy of the retained messages against a dict: whatever is merged, the newest of each topic wins."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.message import message
from router.retained.second_copy import CopyError, Gathered, Manifest, RetainedCopy, write_anew
from router.retained.values import decode, is_tombstone, record_of, stamp_of
from tests.support.disk import PowerLoss, SimulatedDisk

HOUR_US = 3_600_000_000
changes = st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 2)), min_size=1, max_size=60)


def gather(copy: RetainedCopy, worker: int, records: list[tuple[int, bytes, bytes, int]], now_us: int = 0) -> None:
    """Add what the log of a worker says: record, topic name, payload (nothing clears it), stamp."""
    gathered = Gathered(copy, worker, copy.covered(worker))
    for record, name, payload, stamp_us in records:
        kept = message(name, payload, retain=True) if payload else None
        gathered.apply(record, name, kept, stamp_us=stamp_us)
    gathered.finish(records[-1][0], records[-1][3] + 1, now_us)


def held(copy: RetainedCopy) -> dict[bytes, bytes]:
    """Return the messages in it."""
    manifest = copy.manifest()
    copy.check(manifest)
    found = {key: decode(value, 0, 0) for key, value in copy.values(manifest.runs) if not is_tombstone(value)}
    return {key: kept.body for key, kept in found.items()}


@given(parts=st.lists(changes, min_size=1, max_size=8), ages_us=st.sampled_from([0, 5 * HOUR_US]))
def test_what_was_added_is_there_whatever_was_merged(parts: list[list[tuple[int, bool, int]]], ages_us: int) -> None:
    disk = SimulatedDisk()
    copy = RetainedCopy(disk)
    copy.workers = (0, 1, 2)
    expected: dict[bytes, bytes] = {}
    covered: dict[int, int] = {}
    stamp_us = HOUR_US
    for part in parts:
        records: dict[int, list[tuple[int, bytes, bytes, int]]] = {}
        for topic, clears, worker in part:
            stamp_us += 1 + ages_us
            name = b"t/%d" % topic
            payload = b"" if clears else b"%d" % stamp_us
            covered[worker] = covered.get(worker, 0) + 1
            records.setdefault(worker, []).append((covered[worker], name, payload, stamp_us))
            expected[name.replace(b"/", b"\0")] = payload
        for worker, those in sorted(records.items()):
            gather(copy, worker, those, stamp_us)
    assert held(copy) == {key: payload for key, payload in expected.items() if payload}
    assert {worker: copy.covered(worker) for worker in covered} == covered
    assert {name for name in disk.names() if name.startswith("run-")} == {run.name for run in copy.manifest().runs}
    sizes = [run.size for run in copy.manifest().runs]
    assert all(older > 2 * newer for older, newer in pairwise(sizes))


def test_a_tombstone_stays_while_an_older_message_may_come_from_another_log() -> None:
    copy = RetainedCopy(SimulatedDisk())
    copy.workers = (0, 1)
    gather(copy, 0, [(1, b"t", b"old", 100), (2, b"u", b"", 101)])
    gather(copy, 1, [(1, b"t", b"", 200), (2, b"v", b"x", 201)], now_us=9 * HOUR_US)
    assert {key: is_tombstone(value) for key, value in copy.values(copy.manifest().runs)} == {
        b"t": True,
        b"u": True,
        b"v": False,
    }
    for worker in (0, 1):
        gather(copy, worker, [(9, b"w%d" % worker, b"y" * 300, 8 * HOUR_US)], now_us=9 * HOUR_US)
    assert sorted(key for key, _ in copy.values(copy.manifest().runs)) == [b"v", b"w0", b"w1"]


def test_numbers_that_a_loss_of_power_has_freed_are_no_records_any_more() -> None:
    copy = RetainedCopy(SimulatedDisk())
    gather(copy, 0, [(1, b"a", b"1", 1), (2, b"b", b"2", 2), (3, b"c", b"3", 3)])
    copy.cut(0, 2)
    assert copy.covered(0) == 2
    assert [record_of(value) for _, value in copy.values(copy.manifest().runs)] == [1, 2, 0]
    gather(copy, 0, [(3, b"d", b"4", 4)])  # merged with what was cut
    assert {key: record_of(value) for key, value in copy.values(copy.manifest().runs)} == {
        b"a": 1,
        b"b": 2,
        b"c": 0,
        b"d": 3,
    }
    assert held(copy) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}


def test_a_copy_that_is_made_anew_replaces_what_there_was() -> None:
    disk = SimulatedDisk()
    copy = RetainedCopy(disk)
    gather(copy, 0, [(1, b"a", b"1", 1)])
    entries = list(copy.values(copy.manifest().runs))
    disk.put("manifest", b"damaged")
    with pytest.raises(CopyError, match="manifest is damaged"):
        copy.manifest()
    write_anew(copy, entries, {0: 1}, 5)
    assert held(copy) == {b"a": b"1"}
    assert [name for name in disk.names() if name.startswith("run-")] == ["run-000000000002"]


def test_every_bit_of_a_copy_counts() -> None:
    disk = SimulatedDisk()
    copy = RetainedCopy(disk)
    gather(copy, 0, [(1, b"a", b"payload", 1), (2, b"b", b"", 2)])
    for name in disk.names():
        whole = disk.content(name)
        for at in range(len(whole) * 8):
            changed = bytearray(whole)
            changed[at // 8] ^= 1 << at % 8
            disk.put(name, bytes(changed))
            with pytest.raises(CopyError):
                copy.check(copy.manifest())
        for size in range(len(whole) - (name == "manifest")):
            disk.put(name, whole[:size])
            with pytest.raises(CopyError):
                copy.check(copy.manifest())
        disk.put(name, whole)
    assert held(copy) == {b"a": b"payload"}


def test_a_power_cut_at_any_step_leaves_the_copy_as_it_was_or_as_it_is_to_be() -> None:
    first = [(1, b"a", b"1", 1), (2, b"b", b"2", 2)]
    second = [(3, b"a", b"3", 3), (4, b"b", b"", 4)]
    before, after = {b"a": b"1", b"b": b"2"}, {b"a": b"3"}
    step = 1
    while True:
        disk = SimulatedDisk(step)
        gather(RetainedCopy(disk), 0, first)
        disk.power_off_at = disk.steps + step
        try:
            gather(RetainedCopy(disk), 0, second)
        except PowerLoss:
            disk.power_loss()
            copy = RetainedCopy(disk)
            assert held(copy) == (after if copy.covered(0) == 4 else before), step
            if copy.covered(0) < 4:
                gather(copy, 0, second)
            assert held(copy) == after
            step += 1
            continue
        break
    assert step > 10


def test_the_manifest_of_another_node_or_a_newer_version_is_refused() -> None:
    disk = SimulatedDisk()
    copy = RetainedCopy(disk, node="00" * 8)
    gather(copy, 0, [(1, b"a", b"1", 1)])
    with pytest.raises(CopyError, match="it belongs to another broker's data folder"):
        RetainedCopy(disk, node="11" * 8).manifest()
    disk.put("manifest", Manifest().encode().replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(CopyError, match="format is 2"):
        copy.manifest()
    assert stamp_of(b"") == 0
