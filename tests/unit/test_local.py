"""The client inside the process, as the tree's receivers see it."""

import pytest

from router.core.message import message
from router.log.record_buffer import RecordBuffer
from router.matching.subscription_tree import SubscriptionTree
from router.router import Router
from router.sessions.ledger import Ledger
from router.sessions.local_receiver import LocalClient


def test_an_inbox_is_taken_in_order_and_bounded():
    tree = SubscriptionTree()
    ledger = Ledger()
    client = LocalClient(b"c", inbox_max=2, ledger=ledger)
    tree.subscribe(client, b"$share/g/t", 2, 9)
    (group,) = tree.shared_groups(b"t")
    results = [group.publish(None, message(b"t", b"%d" % number, 1)) for number in range(3)]
    assert results == [1, 1, 0]
    assert [(kept.topic_name, kept.body, qos, retain, ids) for kept, qos, retain, ids in client.take()] == [
        (b"t", b"0", 1, False, b"\x0b\x09"),
        (b"t", b"1", 1, False, b"\x0b\x09"),
    ]
    assert (client.waiting, client.dropped, client.take()) == (0, 1, [])
    assert ledger.dropped() == {"inbox_full": 1}


def test_an_inbox_holds_at_least_one_message():
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        LocalClient(inbox_max=0)


def test_a_client_is_listed_once_until_its_host_has_told_it():
    told: list[str] = []
    arrivals: list[LocalClient] = []
    router = Router(Ledger())
    client = LocalClient(b"c", arrivals=arrivals, on_arrival=lambda: told.append("c"))
    router.subscribe(client, b"t", 0)
    for _ in range(3):
        router.publish_message(message(b"t", b"x"))
    assert (arrivals, told) == ([client], [])
    arrivals.pop().arrived()
    assert told == ["c"]
    router.publish_message(message(b"t", b"x"))
    assert arrivals == [client]


def test_what_expired_in_the_inbox_is_passed_over_and_counted():
    # Proves: [MQTT-3.3.2-5]
    ledger = Ledger()
    router = Router(ledger)
    client = LocalClient(b"c", ledger=ledger)
    router.subscribe(client, b"t", 0)
    for payload, expires_ms in ((b"gone", 99), (b"last moment", 100), (b"never", 0)):
        router.publish_message(message(b"t", payload, expires_ms=expires_ms))
    assert [client.take_next(100)[0].body for _ in range(2)] == [b"last moment", b"never"]
    assert client.take_next(100) is None
    assert (client.dropped, ledger.dropped()) == (1, {"expired": 1})


def test_who_leaves_hands_shared_messages_over_and_drops_the_others():
    ledger = Ledger()
    router = Router(ledger)
    leaver, heir = LocalClient(b"leaver", ledger=ledger), LocalClient(b"heir", ledger=ledger)
    router.subscribe(leaver, b"own", 1)
    router.subscribe(leaver, b"$share/g/t", 2)
    for qos in (0, 1, 2):
        router.publish_message(message(b"t", b"%d" % qos, qos))
    router.publish_message(message(b"own", b"x", 1))
    router.subscribe(heir, b"$share/g/t", 2)
    router.tree.remove_receiver(leaver)
    leaver.leave()
    assert [(kept.body, qos) for kept, qos, _, _ in heir.take()] == [(b"1", 1), (b"2", 2)]
    assert (leaver.waiting, leaver.dropped, ledger.dropped()) == (0, 2, {"session_ended": 2})
    leaver.leave()
    assert leaver.dropped == 2


def test_what_is_left_of_a_group_without_members_is_counted():
    ledger = Ledger()
    router = Router(ledger)
    client = LocalClient(b"c", ledger=ledger)
    router.subscribe(client, b"$share/g/t", 1)
    router.publish_message(message(b"t", b"x", 1))
    router.tree.remove_receiver(client)
    client.leave()
    assert ledger.dropped() == {"no_member": 1}


def test_a_publisher_holds_its_later_messages_behind_one_that_waits_for_its_record():
    # Proves: [MQTT-4.6.0-5]
    router = Router(Ledger())
    router.record_into(RecordBuffer())
    publisher = LocalClient(b"p")
    assert router.publish_message(message(b"t", b"x", 1), publisher) == (0, False)
    publisher.hold()
    assert router.publish_message(message(b"t", b"x", 1), publisher) == (0, True)
    publisher.release()
    assert router.publish_message(message(b"t", b"x", 1), publisher) == (0, False)
