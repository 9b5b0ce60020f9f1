"""Keys of retained messages: unlike topics have unlike keys, and no jump of a filter passes over a topic it matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.matching.topic_names import matches
from router.retained.keys import KEY_BYTES_MAX, PREFIX_BYTES, KeyFilter, is_cut, key_of

# Bytes below and above the separator; levels that make names longer than a key.
levels = st.sampled_from([b"", b"a", b"a!", b"a\x01", b"b", b"$S", b"ab", b"L" * 300, b"L" * 299 + b"M", b"M" * 470])
topic_names = st.lists(levels, min_size=1, max_size=5).map(b"/".join).filter(bool)
topic_filters = st.tuples(
    st.lists(st.one_of(levels, st.just(b"+")), max_size=5), st.sampled_from([[], [b"#"]])
).map(lambda parts: b"/".join(parts[0] + parts[1])).filter(bool)  # fmt: skip


@given(one=topic_names, other=topic_names)
def test_keys_fit_differ_and_are_in_the_order_of_levels(one: bytes, other: bytes) -> None:
    assert 1 <= len(key_of(one)) <= KEY_BYTES_MAX
    assert (key_of(one) == key_of(other)) == (one == other)
    assert is_cut(key_of(one)) == (len(one) > PREFIX_BYTES)
    if not is_cut(key_of(one)) and not is_cut(key_of(other)):
        assert (key_of(one) < key_of(other)) == (one.split(b"/") < other.split(b"/"))


@given(topic_filter=topic_filters, names=st.sets(topic_names, max_size=30))
def test_going_from_target_to_target_meets_every_topic_that_matches(topic_filter: bytes, names: set[bytes]) -> None:
    """The walk of the index, over a sorted list."""
    by_key = {key_of(name): name.replace(b"/", b"\0") for name in names}
    keys = sorted(by_key)
    wanted = KeyFilter(topic_filter)
    at = next((index for index, key in enumerate(keys) if key >= wanted.first), len(keys))
    found = set()
    while at < len(keys):
        name = by_key[keys[at]]
        target = wanted.target(name)
        if target is name:
            found.add(name.replace(b"\0", b"/"))
        elif not is_cut(keys[at]):
            if not target:
                break
            assert keys[at] < target
            assert len(target) <= KEY_BYTES_MAX
            at = next((index for index, key in enumerate(keys) if key >= target), len(keys))
            continue
        at += 1
    assert found == {name for name in names if matches(topic_filter, name)}


def test_a_filter_jumps_over_what_is_below_a_level_that_it_does_not_want() -> None:
    wanted = KeyFilter(b"a/+/c")
    assert wanted.first == b"a"
    assert wanted.target(b"a") == b"a\0"
    assert wanted.target(b"a\0b") == b"a\0b\0c"
    assert wanted.target(b"a\0b\0d\0e") == b"a\0b\1"
    assert wanted.target(b"b") == b""
    assert wanted.target(b"A") == b"a"


def test_a_leading_wildcard_jumps_over_dollar_topics() -> None:
    # Proves: [MQTT-4.7.2-1]
    for topic_filter in (b"#", b"+", b"+/a"):
        assert KeyFilter(topic_filter).target(b"$SYS\0a") == b"%"
    assert KeyFilter(b"$SYS/#").target(b"$SYS\0a") == b"$SYS\0a"


def test_a_malformed_filter_is_refused_here() -> None:
    with pytest.raises(ValueError, match="#"):
        KeyFilter(b"a/#/b")
