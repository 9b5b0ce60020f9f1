"""The client inside the process, as the tree's receivers see it."""

import pytest
from router.local import LocalClient
from router.message import message
from router.subscriptions import SubscriptionTree


def test_an_inbox_is_taken_in_order_and_bounded():
    tree = SubscriptionTree()
    client = LocalClient(b"c", inbox_max=2)
    tree.subscribe(client, b"$share/g/t", 2, 9)
    (group,) = tree.shared_groups(b"t")
    results = [group.publish(None, message(b"t", b"%d" % number, 1)) for number in range(3)]
    assert results == [1, 1, 0]
    assert [(kept.topic_name, kept.body, qos, retain, ids) for kept, qos, retain, ids in client.take()] == [
        (b"t", b"0", 1, False, b"\x0b\x09"), (b"t", b"1", 1, False, b"\x0b\x09")]
    assert (client.waiting, client.dropped, client.take()) == (0, 1, [])


def test_an_inbox_holds_at_least_one_message():
    with pytest.raises(ValueError):    # noqa: PT011  (the one that is raised here)
        LocalClient(inbox_max=0)
