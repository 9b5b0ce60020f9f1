"""Who loses messages has a line when that begins and one when it is over, whatever the number of messages."""

from __future__ import annotations

from typing import Any

import pytest

from broker.control import lost_messages
from broker.control.lost_messages import tell_losses
from broker.wire.reasons import CloseReason
from router.core.message import message
from router.sessions.ledger import Ledger
from router.sessions.queue_policy import OverflowRules
from tests.support.doubles import FakeLog
from tests.unit.test_overflow import Slow

Lines = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    told: Lines = []
    for level in ("info", "warning"):
        monkeypatch.setattr(
            lost_messages.log,
            level,
            lambda event, **fields: told.append((event, fields)) if "lose" in event else None,
            raising=False,
        )
    return told


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("logged", [False, True], ids=["memory", "log"])
@pytest.mark.parametrize("away", [False, True], ids=["slow", "away"])
def test_a_queue_that_is_full_has_a_line_and_an_end(lines: Lines, policy: str, logged: bool, away: bool) -> None:
    broker = Slow(Ledger(2, overflow=OverflowRules(policy)), FakeLog() if logged else None)
    losses = broker.router.ledger.losses
    if away:
        broker.subscriber.close(CloseReason.CONNECTION_LOST)
    for number in range(10):
        broker.offer(number)
    lost = sum(broker.router.ledger.dropped().values())
    assert lost >= 7
    reason = "queue_full" if policy == "drop_newest" else "queue_oldest"
    tell_losses(losses, broker.now_ms)
    begun = [("client_loses_messages", {"client": "s", "reason": reason, "count": lost})]
    assert lines == begun
    tell_losses(losses, broker.now_ms + 9_999)
    assert lines == begun
    broker.offer(10)
    for later_ms in (10_000, 19_999):  # it has lost another one, so the time begins anew
        tell_losses(losses, broker.now_ms + later_ms)
    assert lines == begun
    tell_losses(losses, broker.now_ms + 20_000)
    over = {"client": "s", "lost": {reason: lost + 1}, "count": lost + 1, "duration_s": 10.0}
    assert lines[1:] == [("client_loses_no_more", over)]
    broker.offer(11)
    tell_losses(losses, broker.now_ms + 20_001)
    assert lines[2:] == [("client_loses_messages", {"client": "s", "reason": reason, "count": 1})]


def test_qos_0_that_does_not_fit_a_client_has_a_line_before_it_is_owed_anything(lines: Lines) -> None:
    broker = Slow(Ledger(2))
    for payload in (b"x" * 1000, b"y"):
        broker.publish(b"t", payload, 0)
    broker.publish(b"t", b"x" * 1000, 1)  # now it has a queue, and it is still the same client
    tell_losses(broker.router.ledger.losses, broker.now_ms)
    assert lines == [("client_loses_messages", {"client": "s", "reason": "too_large", "count": 2})]


def test_what_a_client_was_never_to_have_is_no_loss(lines: Lines) -> None:
    broker = Slow(Ledger(100))
    broker.subscriber.close(CloseReason.CONNECTION_LOST)
    broker.publish(b"t", b"while it is away", 0)
    broker.publish(b"t", b"expires", 1, expiry_s=1)
    broker.wait(2000)
    broker.connect(1)
    assert set(broker.router.ledger.dropped()) == {"offline", "expired"}
    tell_losses(broker.router.ledger.losses, broker.now_ms)
    assert lines == []


def test_beyond_a_hundred_clients_they_are_told_of_together_and_at_most_once_a_minute(lines: Lines) -> None:
    broker = Slow(Ledger(0))
    ledger = broker.router.ledger
    for number in range(130):
        session, _ = broker.router.open_session(b"%d" % number, True, 3600)
        broker.router.subscribe(session, b"fan", 1)
    for _ in range(2):
        broker.router.publish_message(message(b"fan", b"", 1))
    for later_ms in (0, 5_000):
        tell_losses(ledger.losses, broker.now_ms + later_ms)
    assert {fields["count"] for event, fields in lines if event == "client_loses_messages"} == {2}
    assert len(lines) == 101
    assert lines[-1] == ("more_clients_lose_messages", {"lost": {"queue_full": 60}, "count": 60})
    for _ in range(3):
        broker.router.publish_message(message(b"fan", b"", 1))
    tell_losses(ledger.losses, broker.now_ms + 59_999)
    assert len(lines) == 101
    tell_losses(ledger.losses, broker.now_ms + 60_000)
    assert lines[101:] == [("more_clients_lose_messages", {"lost": {"queue_full": 90}, "count": 90})]
    del lines[:]
    tell_losses(ledger.losses, broker.now_ms + 70_000)
    assert [event for event, _ in lines] == ["client_loses_no_more"] * 100
    broker.router.publish_message(message(b"fan", b"", 1))  # the places are free for other clients
    tell_losses(ledger.losses, broker.now_ms + 70_001)
    assert [event for event, _ in lines[100:]] == ["client_loses_messages"] * 100
