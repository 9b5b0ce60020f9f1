"""Packet identifiers of sessions whose log may have lost its end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from broker.reactor.pump import Pump
from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from broker.wire.reasons import Reason
from router.log.segments import remove_segments
from router.recovery.open_log import Opened, begin, open_log
from router.recovery.snapshot import compact
from router.router import Router
from router.sessions.ledger import Ledger
from tests.support.disk import SimulatedDisk
from tests.unit.test_incoming_model import NOW_MS, Talk

NEVER = 0xFFFFFFFF
STEP = 40_503


def test_two_runs_shift_by_other_amounts_also_if_the_log_has_lost_the_first_shift() -> None:
    amounts = []
    for incarnation in range(1, 40):
        router = Router(Ledger())
        router.ledger.incarnation = incarnation
        session, _ = router.open_session(b"c", False, NEVER)
        amounts.append(session.doubt_identifiers()[1])
    for window in (amounts, sorted(amounts)):
        assert all(abs(one - other) > 500 for one, other in pairwise(window))
    assert amounts[:2] == [STEP, 2 * STEP % 65_535]


def test_a_shift_of_deliveries_that_the_log_has_lost_gives_way_to_the_one_of_today() -> None:
    disk = SimulatedDisk()
    for run in (1, 2):
        router = Router(Ledger())
        opened = open_log(
            disk,
            router,
            worker=0,
            make_will=lambda *fields: None,
            make_mark=lambda: 7,
            now_us=0,
            now_ms=0,
            durability="os",
        )
        Pump(router, opened.log)
        begin(router, opened)
        if run == 1:
            router.open_session(b"c", False, NEVER)
            # As behind a hole that has taken thirty deliveries.
            router.ledger.records.add("shifted", 0, b"c", 30, STEP)
        opened.log.append(router.ledger.records)
        while opened.log.commit():
            pass
        disk.process_killed()
    assert router.sessions[b"c"].shifts == [(0, 2 * STEP % 65_535)]


def test_an_identifier_whose_release_the_log_may_have_lost_is_free_for_any_new_exchange() -> None:
    talk = Talk()
    assert talk.say(Publish(b"t", b"x", 2, packet_identifier=7))[-1].type == PacketType.PUBREC
    talk.router.sessions[b"c"].doubt_identifiers()
    assert [(packet.type, packet.reason) for packet in talk.say(Publish(b"u", b"x", 1, packet_identifier=7))] == [
        (PacketType.PUBACK, Reason.NO_MATCHING_SUBSCRIBERS)
    ]
    assert talk.say(Publish(b"t", b"x", 2, packet_identifier=7))[-1].type == PacketType.PUBREC
    talk.router.sessions[b"c"].doubt_identifiers()
    assert talk.say(Subscribe(7, (subscription(b"v", 0),))) == [Suback(7, (Reason.SUCCESS,))]


def reopen(disk: SimulatedDisk) -> tuple[Router, Opened]:
    router = Router(Ledger())
    return router, open_log(
        disk,
        router,
        worker=0,
        make_will=lambda *fields: None,
        make_mark=lambda: 7,
        now_us=0,
        now_ms=NOW_MS,
        durability="os",
    )


def talk_to(disk: SimulatedDisk) -> Talk:
    """Start a broker on what the disk has, and come back as its client."""
    router, opened = reopen(disk)
    talk = Talk(router, opened.log)
    begin(router, opened)
    return talk


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_what_comes_again_under_an_identifier_whose_release_was_lost_is_told_by_its_content(by_snapshot: bool) -> None:
    disk = SimulatedDisk()
    talk = talk_to(disk)
    talk.say(Publish(b"t", b"old", 2, packet_identifier=7), Publish(b"t", b"other", 2, packet_identifier=8))
    assert talk.router.sessions[b"c"].incoming_identifiers == [7, 8]
    disk.process_killed()
    if by_snapshot:
        talk_to(disk)  # whose segment comes behind the one that the snapshot has
        disk.process_killed()
        assert compact(disk, 0, lambda: 9) is not None
        remove_segments(disk, 2)

    # Whether PUBRELs were in the end that the log may have lost, nobody knows.
    talk = talk_to(disk)
    again = [
        Publish(b"t", payload, 2, False, True, identifier)
        for payload, identifier in ((b"new", 7), (b"new", 7), (b"other", 8))
    ]
    answers = talk.say(*again)
    assert [answer.payload for answer in answers if isinstance(answer, Publish)] == [b"new"]
    assert {answer.packet_identifier for answer in answers if isinstance(answer, Ack)} == {7, 8}
    disk.process_killed()

    # The next start finds the one that was accepted last under each.
    assert not [answer for answer in talk_to(disk).say(*again) if isinstance(answer, Publish)]
