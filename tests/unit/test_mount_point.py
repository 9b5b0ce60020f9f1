"""Names under a mount point: what a client says and sees, and what the broker makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.config.listener_check import mount_point_problem
from broker.reactor.mount_point import MountPoint
from broker.wire.codec import decode_message, encode_message
from broker.wire.packets import Publish, decode, encode, next_frame
from broker.wire.reasons import ClientError, Reason
from router.matching.topic_names import check_topic_filter, is_topic_name, matches, parse_shared
from router.sessions.replay_subscription import split_replay

LEVELS = st.sampled_from(("", "a", "b", "$", "$own", "$SYS", "$share", "$replay", "é", "SYS", "share", "+x"))
PREFIXES = (
    st.lists(st.sampled_from(("a", "b", "é", "", "SYS", "$x", "share", "plant")), min_size=1, max_size=3)
    .map(lambda levels: "/".join(levels) + "/")
    .filter(lambda prefix: mount_point_problem(prefix) is None)
)
MOUNT_POINTS = PREFIXES.map(lambda prefix: MountPoint(prefix.encode()))
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map(lambda levels: "/".join(levels).encode()).filter(is_topic_name)
FILTERS = st.lists(st.one_of(LEVELS, st.sampled_from(("+", "#"))), min_size=1, max_size=4).map(
    lambda levels: "/".join(levels).encode()
)
PROPERTIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.just(1),
        "message_expiry_interval": st.just(60),
        "content_type": st.just("x/y"),
        "response_topic": NAMES.map(bytes.decode),
        "correlation_data": st.binary(max_size=3),
        "user_property": st.lists(st.tuples(st.just("\b"), st.text("\b\x01a", max_size=4)), min_size=1, max_size=2),
    },
)


def is_own(name: bytes) -> bool:
    return name.split(b"/")[0] in (b"$SYS", b"$replay")


@given(MOUNT_POINTS, NAMES)
def test_what_a_client_says_is_what_it_sees(mount_point: Any, name: bytes) -> None:
    mounted = mount_point.mounted(name)
    if is_own(name):
        assert mounted == name  # refused as it is anywhere
        return
    assert mounted.removeprefix(b"$").startswith(mount_point.prefix)
    assert len(mounted) == len(name) + len(mount_point.prefix)
    assert mount_point.seen(mounted) == name


@given(MOUNT_POINTS, st.one_of(NAMES, st.tuples(PREFIXES, NAMES).map(lambda both: both[0].encode() + both[1])))
def test_a_name_of_the_broker_is_one_name_here_or_none(mount_point: Any, name: bytes) -> None:
    seen = mount_point.seen(name)
    if seen is not None:
        assert is_topic_name(seen)
        assert mount_point.mounted(seen) == name or is_own(seen)


@given(MOUNT_POINTS, FILTERS, NAMES)
def test_a_topic_filter_matches_what_it_matches_without_a_mount_point(
    mount_point: Any, topic_filter: bytes, name: bytes
) -> None:
    # Proves: [MQTT-4.7.2-1]
    if topic_filter.startswith((b"$share/", b"$replay/")) or is_own(name):
        return
    mounted = mount_point.mounted_filter(topic_filter)
    if check_topic_filter(topic_filter) is not None:
        assert check_topic_filter(mounted) is not None  # it is refused in the same way
        return
    assert check_topic_filter(mounted) is None
    assert matches(mounted, mount_point.mounted(name)) == matches(topic_filter, name)


@given(MOUNT_POINTS, FILTERS, st.one_of(NAMES, st.tuples(PREFIXES, NAMES).map(lambda both: both[0].encode() + both[1])))
def test_a_topic_filter_matches_nothing_that_has_another_name_here(
    mount_point: Any, topic_filter: bytes, name: bytes
) -> None:
    # Proves: [MQTT-4.7.2-1]
    mounted = mount_point.mounted_filter(topic_filter)
    if check_topic_filter(topic_filter) is None and not topic_filter.startswith((b"$share/", b"$replay/")):
        assert not is_own(mounted)
        seen = mount_point.seen(name)
        assert not matches(mounted, name) or seen is None or matches(topic_filter, seen)


@example(MountPoint(b"a/"), b"g", b"$replay")
@given(MOUNT_POINTS, st.sampled_from((b"g", b"", b"+", b"$SYS", b"-1h")), st.one_of(FILTERS, st.just(b"")))
def test_what_is_shared_or_replayed_is_mounted_or_no_topic_filter(mount_point: Any, name: bytes, inner: bytes) -> None:
    shared = mount_point.mounted_filter(b"$share/" + name + b"/" + inner)
    try:
        parsed = parse_shared(shared)
    except ValueError:
        parsed = None
    if parsed is not None and check_topic_filter(parsed[1]) is None and not parsed[1].startswith(b"$replay/"):
        assert parsed[0] == name  # a share name is everybody's
        assert parsed[1].removeprefix(b"$").startswith(mount_point.prefix)
    replayed = split_replay(mount_point.mounted_filter(b"$replay/" + name + b"/" + inner))
    if (
        replayed is not None
        and check_topic_filter(replayed[1]) is None
        and replayed[1].split(b"/")[0] not in (b"$share", b"$replay")
    ):
        assert replayed[0] == name.decode()
        assert replayed[1].removeprefix(b"$").startswith(mount_point.prefix)


@given(MOUNT_POINTS, NAMES, PROPERTIES, st.integers(0, 2), st.booleans())
def test_a_message_comes_back_out_as_it_went_in(
    mount_point: Any, name: bytes, properties: dict[str, Any], qos: int, has_alias: bool
) -> None:
    given_properties = {**properties, "topic_alias": 3} if has_alias else properties
    frame = encode(Publish(name, b"payload", qos, False, False, 7 if qos else 0, given_properties), 5)
    message, _, _ = decode_message(frame, 5, 1000)
    entered = mount_point.entered(message)
    assert entered.topic_name == mount_point.mounted(name)
    inside = published(encode_message(entered, 5, 7, qos, False, False, now_ms=1000))
    wish = properties.get("response_topic")
    assert inside.properties == (
        properties if wish is None else {**properties, "response_topic": mount_point.mounted(wish.encode()).decode()}
    )
    left = mount_point.left(entered)
    if is_own(name):
        assert left is None
        return
    if wish is not None and is_own(wish.encode()):
        properties = {name: value for name, value in properties.items() if name != "response_topic"}
    outside = published(encode_message(left, 5, 7, qos, False, False, now_ms=1000))
    assert (outside.topic, outside.payload, outside.properties) == (name, b"payload", properties)


def published(frame: bytes) -> Publish:
    taken = next_frame(bytearray(frame))
    assert taken is not None
    packet = decode(*taken, 5)
    assert isinstance(packet, Publish)
    return packet


def test_a_response_topic_that_has_no_name_here_is_left_out() -> None:
    mount_point = MountPoint(b"one/")
    frame = encode(
        Publish(
            b"one/x",
            b"",
            properties={"response_topic": "two/answers", "message_expiry_interval": 9, "user_property": [("a", "b")]},
        ),
        5,
    )
    left = mount_point.left(decode_message(frame, 5, 1000)[0])
    assert left is not None
    assert published(encode_message(left, 5, 0, 0, False, False, now_ms=3000)).properties == {
        "message_expiry_interval": 7,
        "user_property": [("a", "b")],
    }


@pytest.mark.parametrize(
    "name", [b"one", b"one/", b"$one/", b"two/x", b"$two/x", b"one/$own", b"$SYS/broker/uptime", b"x", b"$"]
)
def test_these_have_no_name_under_one(name: bytes) -> None:
    assert MountPoint(b"one/").seen(name) == (b"$" if name == b"$one/" else None)


def test_a_name_that_is_too_long_behind_the_prefix_is_the_clients_fault() -> None:
    mount_point = MountPoint(b"one/")
    assert len(mount_point.mounted(bytes(65_531).replace(b"\0", b"x"))) == 65_535
    with pytest.raises(ClientError) as refused:
        mount_point.mounted(b"x" * 65_532)
    assert refused.value.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    ("mount_point", "words"),
    [
        ("plant", "ends with /"),
        ("a/+/", "without"),
        ("#/", "without"),
        ("$SYS/", "begins with neither"),
        ("SYS/", "begins with neither"),
        ("share/g/", "begins with neither"),
        ("replay/", "begins with neither"),
        ("shoal/", "begins with neither"),
        ("shoal/x/", "begins with neither"),
        ("a\0/", "without"),
    ],
)
def test_a_mount_point_under_which_names_would_mean_something_else_is_refused(mount_point: str, words: str) -> None:
    problem = mount_point_problem(mount_point)
    assert problem is not None
    assert words in problem
