"""The link between two routers, over queues that lose things: nothing is lost, order holds, nothing twice."""

from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mesh.frames import KINDS, VERSION, FrameError
from mesh.link import PeerLink
from router.core.message import message
from router.router import Router
from router.sessions.ledger import Ledger
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
        self.seen: dict[tuple[int, int, int], int] = {}  # (side, incarnation, peer's): the newest number taken
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
TestLink.settings = settings(max_examples=150, stateful_step_count=40)


def test_nothing_but_heartbeats_is_sent_before_somebody_answers() -> None:
    pair = Pair()
    one = pair.ends[0]
    one.publish()
    for _ in range(8):
        pair.turn(0, 250)
    assert kinds(one.to_peer) == ["heartbeat", "heartbeat"], "one a second"
    assert (one.link.state, one.link.has_credit, one.session.connected) == ("connecting", False, False)
    pair.carry(0, False)
    assert kinds(pair.ends[1].answers) == ["ack", "ack"]
    pair.turn(0, 3)
    pair.carry(1, True)
    assert (one.link.state, one.session.connected, one.changes) == ("up", True, [("connecting", "up")])
    assert one.link.round_trip_us == 753_000, "of the second one"
    pair.turn(0)
    assert kinds(one.to_peer) == ["data"]


def test_the_messages_of_a_turn_are_one_frame() -> None:
    pair = up()
    one, two = pair.ends
    for _ in range(20):
        one.publish()
        one.hand_over(1, 0)
    assert not one.to_peer
    pair.turn(0)
    assert kinds(one.to_peer) == ["data"]
    pair.turn(0)
    assert len(one.to_peer) == 1, "an empty turn sends nothing"
    pair.carry(0, False)
    assert two.taken == [pair for number in range(1, 21) for pair in ((1, number), (0, 1))]


def test_a_batch_that_has_grown_leaves_before_the_turn_ends() -> None:
    pair = up()
    one = pair.ends[0]
    for _ in range(40):
        one.publish(size=10_000)
    assert set(kinds(one.to_peer)) == {"data"}
    assert max(map(len, one.to_peer)) < 65536 + 11_000
    assert [numbers_of(frame)[1] for frame in one.to_peer] == list(range(len(one.to_peer)))


def test_without_credit_qos_1_waits_and_qos_0_is_dropped_and_counted() -> None:
    pair = up(window_bytes=WINDOW_BYTES)
    one, two = pair.ends
    while one.link.has_credit:
        one.publish(size=50_000)
    sent = one.disk.accepted
    for _ in range(30):
        one.publish(size=50_000)
    one.hand_over(7, 0)
    assert WINDOW_BYTES <= one.link.outstanding < WINDOW_BYTES + 60_000
    assert one.link.dropped() == {"output_full": 1}
    pair.turn(0)
    pair.carry(0, False)
    pair.turn(1)
    pair.carry(1, True)
    assert not one.link.has_credit, "received, but not safe there yet"
    assert len(two.taken) == sent
    pair.run(10)
    assert [number for _, number in two.taken] == list(range(1, sent + 31))
    assert (one.link.outstanding, one.link.has_credit) == (0, True)


def test_credit_for_qos_0_comes_back_in_large_pieces_or_with_a_heartbeat() -> None:
    pair = up(window_bytes=WINDOW_BYTES)
    one, two = pair.ends
    for number in range(60):
        one.hand_over(number, 0, size=10_000)
        pair.turn(0)
        pair.carry(0, False)
        two.sync()
        pair.turn(1)
    assert kinds(two.answers) == ["ack"], "after 512 KiB"
    assert one.link.outstanding > 600_000
    pair.carry(1, True)
    assert 0 < one.link.outstanding < 100_000
    pair.run(2)
    assert one.link.outstanding == 0


def publish_with_an_ack(pair: Pair) -> None:
    """The first end publishes, the second has it durable, and publishes."""
    one, two = pair.ends
    one.publish()
    pair.turn(0)
    pair.carry(0, False)
    two.sync()
    two.publish()
    pair.turn(1)


def test_an_ack_that_is_due_goes_in_front_of_messages_and_spares_a_frame() -> None:
    pair = up()
    one, two = pair.ends
    publish_with_an_ack(pair)
    assert (kinds(two.to_peer), kinds(two.answers)) == (["data"], [])
    assert numbers_of(two.to_peer[0])[2:5] == [one.link.epoch, 1, 1]
    two.publish()
    pair.turn(1)
    assert len(numbers_of(two.to_peer[1])) == 2, "it is told once"
    pair.carry(1, False)
    assert (one.disk.acknowledged, one.link.outstanding) == (1, 0)
    assert [number for _, number in one.taken] == [1, 2]


def test_each_epoch_begins_with_where_the_log_of_its_sender_began_and_heartbeats_say_it() -> None:
    pair = Pair(began_after=700)
    pair.run(6)
    one, two = pair.ends
    assert set(two.began_at) == {(1, 700)}
    two.began_at.clear()
    for _ in range(2):
        one.publish()
        pair.turn(0)
    assert [numbers_of(frame)[5:] for frame in one.to_peer] == [[700], []]
    pair.carry(0, False)
    assert two.began_at == [(1, 700)]
    pair.kill(1)
    pair.run(6)
    one, two = pair.ends
    assert (set(two.began_at), [number for _, number in two.taken]) == ({(1, 700)}, [1, 2])


def test_an_ack_in_front_of_messages_counts_although_they_are_not_the_next() -> None:
    pair = up()
    one, two = pair.ends
    two.publish()
    pair.turn(1)
    two.to_peer.clear()
    publish_with_an_ack(pair)
    pair.carry(1, False)
    assert (one.disk.acknowledged, one.taken, kinds(one.answers)) == (1, [], ["gap"])
    pair.run(2)
    assert [number for _, number in one.taken] == [1, 2]


@pytest.mark.parametrize("version", [1, 2])
def test_a_heartbeat_of_a_version_before_is_answered(version: int) -> None:
    # Until 3 it did not say what has left, nor where the log of its sender began.
    pair = Pair(began_after=700)
    pair.turn(0, 1000)
    pair.turn(1, 1000)
    one, two = pair.ends
    frame = one.to_peer.popleft()
    one.link.receive_frame(msgpack.packb([version, KINDS.index("heartbeat"), *numbers_of(frame)[:3]]))
    assert (kinds(one.answers), one.began_at) == (["ack"], [])
    two.link.receive_frame(frame)
    assert two.began_at == [(1, 700)]


def test_messages_with_an_ack_of_what_was_never_sent_are_refused_and_come_again() -> None:
    pair = up()
    one, two = pair.ends
    for wrong, complaint in (
        ([one.link.epoch, 0, 9], "sequence 9, and 0 is the last"),
        ([one.link.epoch, 5, 0], "5 frames of 0"),
    ):
        two.publish()
        pair.turn(1)
        frame = two.to_peer.popleft()
        header = msgpack.packb([VERSION, KINDS.index("data"), *numbers_of(frame)])
        assert frame.startswith(header)
        with pytest.raises(FrameError, match=complaint):
            one.link.receive_frame(
                msgpack.packb([VERSION, KINDS.index("data"), *numbers_of(frame)[:2], *wrong]) + frame[len(header) :]
            )
        pair.run(6)
    assert [number for _, number in one.taken] == [1, 2]


def test_credit_comes_back_also_if_the_newest_frame_is_never_safe_yet() -> None:
    pair = up()
    one, two = pair.ends
    for number in range(120):
        one.hand_over(number, 0, size=10_000)
        pair.turn(0)
        pair.carry(0, False)
        while len(two.unsettled) > 1:
            two.link.settle(*two.unsettled.pop(0))
        pair.turn(1)
    assert kinds(two.answers).count("ack") >= 2
    pair.carry(1, True)
    assert 10_000 < one.link.outstanding < 600_000


def test_a_gap_is_told_once_and_rewinds_once() -> None:
    pair = up()
    one, two = pair.ends
    one.publish()
    pair.turn(0)
    pair.lose(0, False, 1)
    for _ in range(5):
        one.publish()
        pair.turn(0)
    pair.carry(0, False)
    assert kinds(two.answers) == ["gap"]
    two.answers.append(two.answers[0])
    pair.carry(1, True)
    assert one.link.rewinds == 1
    pair.turn(0)
    pair.carry(0, False)
    assert [number for _, number in two.taken] == [1, 2, 3, 4, 5, 6]


def test_the_loss_of_the_last_frame_is_found_by_a_heartbeat() -> None:
    pair = up()
    one, two = pair.ends
    one.publish()
    pair.turn(0)
    pair.lose(0, False, 1)
    pair.turn(0, 250)
    assert kinds(one.to_peer) == ["heartbeat"]
    pair.run(2)
    assert [number for _, number in two.taken] == [1]
    assert one.link.rewinds == 1


def test_what_came_again_is_passed_over() -> None:
    pair = up()
    one, two = pair.ends
    one.publish()
    one.publish()
    pair.turn(0)
    pair.carry(0, False)  # taken, not safe yet, so not acknowledged
    one.publish()
    pair.turn(0)
    pair.lose(0, False, 1)
    pair.run(4)
    assert [number for _, number in two.taken] == [1, 2, 3]
    assert (two.link.repeats, one.disk.acknowledged) == (2, 3)


def test_a_peer_that_does_not_answer_is_silent_and_probed_one_heartbeat_at_a_time() -> None:
    pair = up(heartbeat_ms=1000, silence_ms=3000)
    one, two = pair.ends
    turns = 0
    while one.link.state == "up":
        one.publish()
        pair.turn(0, 250)
        turns += 1
    assert 10 <= turns <= 12
    assert one.session.connected is False
    one.to_peer.clear()
    one.publish()
    one.hand_over(1, 0)
    for _ in range(20):
        pair.turn(0, 250)
    assert kinds(one.to_peer) == ["heartbeat"] * 5
    pair.run(5)
    assert one.changes == [("connecting", "up"), ("up", "silent"), ("silent", "up")]
    assert [number for qos, number in two.taken if qos] == list(range(1, turns + 2))


def test_who_was_stopped_does_not_call_the_peer_silent() -> None:
    pair = up(silence_ms=3000)
    pair.turn(0, 60_000)
    assert pair.ends[0].link.state == "up"
    pair.run(1)
    pair.turn(0, 60_000)
    assert pair.ends[0].link.state == "up"


def test_a_peer_that_starts_again_is_told_of_before_anything_else_and_sent_what_it_has_not() -> None:
    pair = up()
    one = pair.ends[0]
    one.publish()
    pair.run(1)
    one.publish()
    pair.turn(0)
    pair.carry(0, False)  # taken, and not safe
    pair.kill(1)
    pair.run(6)
    assert one.incarnations == [1, 2]
    assert [number for _, number in pair.ends[1].taken] == [2]
    assert pair.disks[1].received == [1, 2]


def test_a_process_before_the_one_that_is_there_is_not_heard() -> None:
    pair = up()
    one, two = pair.ends
    two.publish()
    pair.turn(1, 1000)
    old = list(two.to_peer)
    pair.turn(0, 1000)
    pair.carry(0, False)
    old_answers = list(two.answers)
    assert kinds(old) == ["heartbeat", "data"]
    assert kinds(old_answers) == ["ack"]
    pair.kill(1)
    pair.run(6)
    taken, before = list(one.taken), pair.statistics(0)
    for frame in old + old_answers:
        assert one.link.receive_frame(frame)
    assert (one.taken, pair.statistics(0)) == (taken, before)
    assert not one.answers


def test_an_acknowledgement_of_what_was_never_sent_is_refused() -> None:
    pair = up()
    link = pair.ends[0].link
    ack, gap = KINDS.index("ack"), KINDS.index("gap")
    for wrong, complaint in (
        ([1, ack, link.epoch, 0, 9, 0, 1], "sequence 9, and 0 is the last"),
        ([1, ack, link.epoch, 5, 0, 0, 1], "5 frames of 0"),
        ([1, ack, link.epoch, 0, 0, 0, 2**32], "incarnation 4294967296"),
        ([1, ack, 1], "kind ack with 1 numbers instead of 5"),
        ([1, gap, link.epoch, 9, 1], "sequence 9"),
    ):
        with pytest.raises(FrameError, match=complaint):
            link.receive_frame(msgpack.packb(wrong))
    assert link.errors == 5
    assert link.receive_frame(msgpack.packb([1, KINDS.index("gossip"), {}])) is False
    pair.run(8)
    assert link.state == "up"


def test_a_frame_that_is_bad_half_way_is_sent_again_and_loses_and_repeats_nothing() -> None:
    pair = up()
    one, two = pair.ends
    for _ in range(3):
        one.publish()
    pair.turn(0)
    with pytest.raises(FrameError, match="an entry"):
        two.link.receive_frame(one.to_peer.popleft()[:-1])
    assert [number for _, number in two.taken] == [1, 2]
    for _ in range(5):
        one.publish()
        pair.turn(0)
    pair.carry(0, False)
    assert kinds(two.answers) == [], "it waits for a heartbeat, lest both go round and round"
    pair.run(4)
    assert [number for _, number in two.taken] == list(range(1, 9))
    assert one.disk.acknowledged == 8


def test_who_is_given_up_is_sent_nothing_and_not_heard() -> None:
    pair = up()
    one, two = pair.ends
    two.publish()
    pair.turn(1)
    one.link.give_up()
    one.link.give_up()
    one.publish()
    for _ in range(8):
        pair.turn(0, 1000)
    pair.carry(1, False)
    assert (one.link.state, list(one.to_peer), one.taken, one.session.connected) == ("gone", [], [], False)
    assert one.changes[1:] == [("up", "gone")]


def test_a_message_that_has_expired_is_not_sent() -> None:
    pair = up()
    one, two = pair.ends
    for expires_ms in (pair.now_ms, pair.now_ms + 1):
        one.router.publish_message(message(b"t", b"%d" % expires_ms, 1, now_ms=pair.now_ms, expires_ms=expires_ms))
    pair.turn(0)
    pair.carry(0, False)
    assert two.taken == [(1, pair.now_ms + 1)]


def test_the_terms_of_a_link_are_checked() -> None:
    session, _ = Router(Ledger()).open_session(b"p", True, 1)
    for wrong in ({"incarnation": 0}, {"incarnation": 1, "window_bytes": 1000}):
        with pytest.raises(AssertionError):
            PeerLink(b"n/1", End.__new__(End), session, **wrong)
