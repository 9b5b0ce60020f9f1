"""What a full queue does, where no conversation shows it: the rules, the log, and numbers that are given again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config.loader import ConfigError, load
from broker.wire.packets import Ack, Publish, Suback, Subscribe, subscription
from broker.wire.properties import PacketType
from broker.worker.terms import ledger
from router.core.message import message
from router.matching.topic_names import matches
from router.sessions.ledger import Ledger
from router.sessions.queue_policy import POLICIES, OverflowRules
from tests.support.doubles import FakeLog
from tests.unit.test_outgoing_model import Broker

LEVELS = st.lists(st.sampled_from((b"a", b"b", b"", b"$a")), min_size=1, max_size=3)
topic_names = LEVELS.map(b"/".join)
topic_filters = st.builds(
    lambda levels, end: b"/".join(levels + end),
    st.lists(st.sampled_from((b"a", b"b", b"", b"+")), min_size=1, max_size=2),
    st.sampled_from(([], [b"#"])),
)


@given(
    st.lists(st.tuples(topic_filters, st.sampled_from(POLICIES)), max_size=6),
    st.sampled_from(POLICIES),
    st.lists(topic_names, min_size=1, max_size=8),
)
@settings(max_examples=200)
def test_the_first_rule_that_matches_a_topic_name_counts(
    rules: list[tuple[bytes, str]], otherwise: str, names: list[bytes]
) -> None:
    overflow = OverflowRules(otherwise, rules, seed=7)
    for name in names:
        expected = next((policy for topic_filter, policy in rules if matches(topic_filter, name)), otherwise)
        assert overflow.policy(name) == expected


class Slow(Broker):
    """A subscriber with a durable session and a window of one message, whose queue holds two; perhaps with a log.

    Attributes:
        syncing: what the log is given is durable at once.
    """

    def __init__(self, ledger: Ledger, log: FakeLog | None = None) -> None:
        self.syncing = True
        super().__init__(ledger, log)
        self.connect(1)
        self.say(self.subscriber, Subscribe(1, (subscription(b"t", 1),)))
        assert isinstance(self.heard()[0], Suback)

    def say(self, connection: Any, *packets: Any) -> None:
        super().say(connection, *packets)
        while self.log is not None and self.syncing and self.log.durable < self.log.appended:
            self.log.sync()
            self.wait(0)

    def offer(self, number: int) -> None:
        """Publish a message whose payload is this number."""
        self.publish(b"t", b"%d" % number, 1)

    def payloads(self) -> list[bytes]:
        """What came meanwhile."""
        return [packet.payload for packet in self.heard() if isinstance(packet, Publish)]


def oldest_goes(gap_min: int = 1024) -> Ledger:
    ledger = Ledger(2, overflow=OverflowRules("drop_oldest"))
    ledger.gap_min = gap_min
    return ledger


def test_nothing_leaves_behind_a_dropped_message_before_the_log_says_that_it_was_dropped() -> None:
    broker = Slow(oldest_goes(), log := FakeLog())
    for number in range(3):
        broker.offer(number)
    assert broker.payloads() == [b"0"]
    broker.syncing = False
    broker.offer(3)
    log.sync()
    broker.wait(0)  # 3 has its record and is queued, so 1 is dropped: that is not durable yet
    assert log.records[-1].kind == "dropped"
    assert log.durable < log.appended
    broker.say(broker.subscriber, Ack(PacketType.PUBACK, 1))
    assert broker.payloads() == []
    log.sync()
    broker.wait(0)
    assert broker.payloads() == [b"2"]


@pytest.mark.parametrize("logged", [False, True], ids=["memory", "log"])
def test_one_delivery_that_is_never_acknowledged_does_not_pin_what_is_dropped_behind_it(logged: bool) -> None:
    broker = Slow(oldest_goes(gap_min=10), FakeLog() if logged else None)
    for number in range(300):
        broker.offer(number)
    session = broker.router.sessions[b"s"]
    assert session.owed.numbers[1] < 20
    assert broker.payloads() == [b"0"]
    assert session.connection.counters()["dropped_queue_oldest"] == 297
    for following in ([b"298"], [b"299"], []):
        ((identifier, _, _),) = session.state()["outgoing"]["in_flight"]
        broker.say(broker.subscriber, Ack(PacketType.PUBACK, identifier))
        assert broker.payloads() == following


def test_a_connection_counts_what_its_queue_did_not_take() -> None:
    for log in (None, FakeLog()):
        broker = Slow(Ledger(2), log)
        for number in range(5):
            broker.offer(number)
        assert broker.subscriber.counters()["dropped_queue_full"] == 2
        assert broker.router.ledger.dropped() == {"queue_full": 2}


def test_what_the_broker_publishes_itself_makes_nobody_wait() -> None:
    """A will, for one: there is nobody who could be made to wait, so what has waited longest goes."""
    broker = Slow(Ledger(2, overflow=OverflowRules("push_back"), push_back_ms=1000))
    for number in range(5):
        broker.router.publish_message(message(b"t", b"%d" % number, 1))
    assert broker.router.ledger.dropped() == {"queue_oldest": 2}
    broker.publish(b"t", b"5", 1)
    assert broker.hub.counters()["pushed_back"] == 1
    assert broker.router.ledger.dropped() == {"queue_oldest": 2}


def test_the_settings_reach_the_router() -> None:
    config = load(
        None,
        {},
        {"mqtt.queue_overflow": "disconnect", "mqtt.queue_rules": ["a b/#: push_back"], "mqtt.queue_push_back_s": 1.5},
    )
    limits = ledger(config)
    assert limits.overflow.policy(b"t") == "disconnect"
    assert limits.overflow.policy(b"a b/c") == "push_back"
    assert limits.push_back_ms == 1500


@pytest.mark.parametrize(
    "rule", ["a/#", "a/# drop_oldest", "a/#: drop", ": drop_oldest", "a#: drop_oldest", "$share/g/a: drop_oldest"]
)
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"mqtt.queue_rules": ["a/#: drop_oldest", rule]})
    assert [problem.key for problem in caught.value.problems] == ["mqtt.queue_rules"]
