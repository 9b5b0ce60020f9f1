"""The link between two routers, over queues that lose things: nothing is lost, order holds, nothing twice."""

from typing import Any

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mesh.frames import KINDS

from tests.support.mesh_ends import WINDOW_BYTES, End, Pair

sides = st.integers(0, 1)


def kinds(frames: Any) -> list[str]:
    """The names of frames' kinds."""
    return [KINDS[frame[2]] for frame in frames]


def numbers_of(frame: bytes) -> list[int]:
    """A header's numbers behind version and kind."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame)
    found: list[int] = unpacker.unpack()[2:]
    return found


def up(**terms: int) -> Pair:
    """Two ends that know each other."""
    pair = Pair(**terms)
    pair.run(2)
    assert [end.link.state for end in pair.ends] == ["up", "up"]
    return pair


class LinkMachine(RuleBasedStateMachine):
    """Two ends, and everything that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(window_bytes=WINDOW_BYTES, silence_ms=3000)
        self.seen: dict[tuple[int, int, int], int] = {}     # (side, incarnation, peer's): the newest number taken
        self.looked: dict[End, int] = {}
        self.qos0 = 0
        self.pair.run(2)

    @rule(side=sides, count=st.integers(1, 40), size=st.sampled_from((0, 0, 0, 3000, 400_000)))
    def publish(self, side: int, count: int, size: int) -> None:
        for _ in range(count if size < 10_000 else 2):
            self.pair.ends[side].publish(size)

    @rule(side=sides)
    def publish_qos0(self, side: int) -> None:
        self.qos0 += 1
        self.pair.ends[side].hand_over(self.qos0, 0)

    @rule(side=sides, pass_ms=st.sampled_from((0, 1, 250, 250, 1000, 4000)))
    def turn(self, side: int, pass_ms: int) -> None:
        self.pair.turn(side, pass_ms)

    @rule(side=sides, answers=st.booleans(), count=st.sampled_from((1, 2, 1 << 30, 1 << 30)))
    def carry(self, side: int, answers: bool, count: int) -> None:
        self.pair.carry(side, answers, count)

    @rule(side=sides)
    def sync(self, side: int) -> None:
        self.pair.ends[side].sync()

    @rule(side=sides, answers=st.booleans(), count=st.sampled_from((1, 2, 3, 1 << 30)))
    def lose(self, side: int, answers: bool, count: int) -> None:
        self.pair.lose(side, answers, count)

    @rule(side=sides, really=st.sampled_from((False, False, True)))
    def kill(self, side: int, really: bool) -> None:
        if really:
            self.pair.kill(side)

    @rule(side=sides, pass_ms=st.sampled_from((0, 250)))
    def exchange(self, side: int, pass_ms: int) -> None:
        self.pair.turn(side, pass_ms)
        self.pair.carry(side, False)
        self.pair.turn(1 - side)
        self.pair.carry(1 - side, True)

    @rule()
    def run(self) -> None:
        self.pair.run(2)

    @invariant()
    def nothing_comes_twice_or_out_of_order(self) -> None:
        for side, end in enumerate(self.pair.ends):
            key = (side, end.disk.incarnation, end.link.peer_incarnation)
            start = self.looked.get(end, 0)
            self.looked[end] = len(end.taken)
            for qos, number in end.taken[start:]:
                if qos:
                    assert number > self.seen.get(key, 0), (number, key)
                    self.seen[key] = number

    @invariant()
    def what_is_acknowledged_is_safe_at_the_other_end(self) -> None:
        for side in (0, 1):
            owed = set(range(1, self.pair.disks[side].acknowledged + 1))
            assert owed <= set(self.pair.disks[1 - side].received)

    @invariant()
    def the_window_holds(self) -> None:
        for end in self.pair.ends:
            assert end.link.outstanding < WINDOW_BYTES + 500_000
            assert end.link.has_credit == (end.link.state == "up" and end.link.outstanding < WINDOW_BYTES)

    def teardown(self) -> None:
        self.pair.run(60)
        for side in (0, 1):
            end, disk = self.pair.ends[side], self.pair.disks[side]
            assert end.link.state == "up"
            assert disk.acknowledged == disk.accepted, self.pair.statistics(side)
            assert set(self.pair.disks[1 - side].received) == set(range(1, disk.accepted + 1))
            assert end.link.outstanding == 0
            assert end.link.errors == 0
        self.nothing_comes_twice_or_out_of_order()


TestLink = LinkMachine.TestCase
TestLink.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
