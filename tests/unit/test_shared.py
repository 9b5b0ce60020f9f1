"""Shared subscriptions: which member gets a message."""

import pytest

from router.core.message import message
from router.matching.shared_groups import STRATEGIES
from router.matching.subscription_tree import SubscriptionTree
from router.sessions.local_receiver import LocalClient

RETAIN_AS_PUBLISHED = 0x08


def group_of(strategy, count, *, options=1, inbox_max=1000):
    """Return a tree (which owns the group), its one group and its members."""
    tree = SubscriptionTree(strategy=strategy, seed=11)
    members = [LocalClient(b"member-%d" % number, inbox_max) for number in range(count)]
    for member in members:
        tree.subscribe(member, b"$share/g/t/#", options)
    return tree, tree.shared_groups(b"t/1")[0], members


def shares(group, members, messages, publisher=None):
    """Publish and return how many each member got."""
    for number in range(messages):
        assert group.publish(publisher, message(b"t/%d" % number, b"x", 1)) == 1
    return [len(member.take()) for member in members]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exactly_one_member_gets_each_message(strategy):
    _tree, group, members = group_of(strategy, 4)
    for number in range(50):
        assert group.publish(LocalClient(b"p"), message(b"t/%d" % number, b"x", 1)) == 1
        assert sum(len(member.take()) for member in members) == 1


def test_round_robin_takes_turns():
    _tree, group, members = group_of("round_robin", 3)
    assert shares(group, members, 9) == [3, 3, 3]
    members[1].connected = False
    assert shares(group, members, 10)[1] == 0
    members[1].connected = True
    assert min(shares(group, members, 9)) == 3


def test_random_reaches_everybody_and_follows_from_the_seed():
    _tree, group, members = group_of("random", 4)
    first = shares(group, members, 200)
    assert min(first) > 20
    _tree, group, members = group_of("random", 4)
    assert shares(group, members, 200) == first


def test_sticky_stays_until_its_member_is_offline_or_gone():
    tree, group, members = group_of("sticky", 3)
    assert shares(group, members, 5) == [5, 0, 0]
    tree.subscribe(LocalClient(b"late"), b"$share/g/t/#", 1)
    members[0].connected = False
    (second,) = [index for index, share in enumerate(shares(group, members, 5)) if share == 5]
    members[0].connected = True
    assert shares(group, members, 5)[second] == 5
    tree.remove_receiver(members[second])
    assert 5 in shares(group, [member for member in members if member is not members[second]], 5)


def test_sticky_stays_when_another_member_leaves():
    tree, group, members = group_of("sticky", 3)
    members[0].connected = members[1].connected = False
    assert shares(group, members, 3) == [0, 0, 3]
    members[0].connected = members[1].connected = True
    tree.remove_receiver(members[0])  # the last member moves into its place
    assert shares(group, members, 3) == [0, 0, 3]


def test_sticky_lends_what_does_not_fit_and_keeps_its_place():
    _tree, group, members = group_of("sticky", 2, inbox_max=2)
    for number in range(3):
        assert group.publish(None, message(b"t/%d" % number, b"x", 1)) == 1
    assert [len(member.take()) for member in members] == [2, 1]
    assert shares(group, members, 2) == [2, 0]


def test_hash_client_keeps_a_publisher_with_one_member_and_moves_few_when_one_leaves():
    tree, group, members = group_of("hash_client", 5)
    publishers = [LocalClient(b"publisher-%d" % number) for number in range(200)]

    def owners():
        found = []
        for publisher in publishers:
            assert group.publish(publisher, message(b"t/x", b"x", 1)) == 1
            found += [member for member in members if member.take()]
        return found

    before = owners()
    assert owners() == before
    assert all(before.count(member) > 10 for member in members)
    tree.remove_receiver(members[2])
    after = owners()
    assert all(now is then for now, then in zip(after, before, strict=True) if then is not members[2])
    tree.subscribe(members[2], b"$share/g/t/#", 1)
    assert owners() == before


def test_hash_topic_keeps_a_topic_with_one_member_whoever_publishes():
    _tree, group, members = group_of("hash_topic", 4)
    first = shares(group, members, 100, LocalClient(b"p"))
    assert first == shares(group, members, 100, LocalClient(b"q"))
    assert min(first) > 5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_without_room_are_skipped_while_another_has_room(strategy):
    _tree, group, members = group_of(strategy, 3, inbox_max=2)
    for number in range(6):
        assert group.publish(None, message(b"t/%d" % number, b"x", 1)) == 1
    assert [member.waiting for member in members] == [2, 2, 2]
    assert group.publish(None, message(b"t/6", b"x", 1)) == 0  # an inbox drops, a session would queue
    assert sum(member.dropped for member in members) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_qos_0_goes_to_nobody_when_all_are_offline(strategy):
    _tree, group, members = group_of(strategy, 2)
    for member in members:
        member.connected = False
    assert group.publish(None, message(b"t/1", b"x", 0)) == 0
    assert [member.dropped for member in members] == [0, 0]
    assert group.publish(None, message(b"t/1", b"x", 1)) == 0  # it was handed to one of them, who dropped it
    assert sum(member.dropped for member in members) == 1


def test_a_member_that_granted_qos_0_gets_nothing_offline():
    tree, group, (member,) = group_of("round_robin", 1, options=0)
    member.connected = False
    assert group.publish(None, message(b"t/1", b"x", 2)) == 0
    assert member.dropped == 0
    assert tree.subscription_count == 1


def test_qos_retain_and_identifier_are_those_of_the_member():
    # Proves: [MQTT-4.8.2-3]
    tree = SubscriptionTree()
    low, high = LocalClient(b"low"), LocalClient(b"high")
    tree.subscribe(low, b"$share/g/t", 1)
    tree.subscribe(high, b"$share/g/t", 2 | RETAIN_AS_PUBLISHED, 300)
    (group,) = tree.shared_groups(b"t")
    for _ in range(2):
        assert group.publish(None, message(b"t", b"x", 2, retain=True)) == 1
    ((_, *low_got),) = low.take()
    ((_, *high_got),) = high.take()
    assert low_got == [1, False, b""]
    assert high_got == [2, True, b"\x0b\xac\x02"]
    group.publish(None, message(b"t", b"x", 0))
    group.publish(None, message(b"t", b"x", 0))
    assert [client.take()[0][1] for client in (low, high)] == [0, 0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_member_leaves_behind_goes_to_another_one(strategy):
    tree, group, members = group_of(strategy, 3)
    for _ in range(20):
        assert group.redispatch(members[1], message(b"t/1", b"x", 1)) == 1
    assert members[1].waiting == 0
    tree.remove_receiver(members[0])
    tree.remove_receiver(members[2])
    assert group.redispatch(members[1], message(b"t/1", b"x", 1)) == 0
    tree.remove_receiver(members[1])
    assert group.redispatch(members[1], message(b"t/1", b"x", 1)) == 0


def test_the_same_share_name_with_another_filter_is_another_group():
    tree = SubscriptionTree()
    client = LocalClient()
    tree.subscribe(client, b"$share/g/t/+", 1)
    tree.subscribe(client, b"$share/g/t/#", 1)
    tree.subscribe(client, b"$share/h/t/+", 1)
    tree.subscribe(client, b"t/+", 1)
    assert sorted(group.name for group in tree.shared_groups(b"t/1")) == [b"g/t/#", b"g/t/+", b"h/t/+"]
    assert len(tree.receivers(b"t/1")) == 1


def test_an_unknown_strategy_is_refused():
    with pytest.raises(KeyError):
        SubscriptionTree(strategy="nearest")
