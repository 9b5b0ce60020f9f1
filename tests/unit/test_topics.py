"""Topic names, topic filters, and the rule by which one matches the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.matching.topic_names import check_topic_filter, is_topic_name, is_utf8, matches, parse_shared


@given(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_utf8_is_what_python_decodes_except_for_null(data):
    # Proves: [MQTT-1.5.4-1] [MQTT-1.5.4-2]
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        assert not is_utf8(data)
    else:
        assert is_utf8(data) == (b"\0" not in data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\0",
    ],
    ids=bytes.hex,
)
@pytest.mark.parametrize("before", range(9))
def test_an_ill_formed_sequence_is_found_wherever_it_lies(data, before):
    assert not is_utf8(b"a" * before + data)
    assert not is_utf8(b"a" * before + data + b"a" * 9)
    assert not is_topic_name(b"a" * before + data + b"a" * 9)


@pytest.mark.parametrize(
    "character",
    ["\x01", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "\ufeff"],
)
@pytest.mark.parametrize("before", range(9))
def test_every_length_of_sequence_is_accepted_wherever_it_lies(character, before):
    data = b"a" * before + character.encode() + b"a" * 9
    assert is_utf8(data)
    assert is_topic_name(data)


@given(st.text(alphabet="ab/+#$é\0", max_size=24))
def test_a_topic_name_has_no_wildcards(text):
    # Proves: [MQTT-3.3.2-2] [MQTT-4.7.1-1] [MQTT-4.7.0-1]
    assert is_topic_name(text.encode()) == (text != "" and not set(text) & set("+#\0"))


def test_a_topic_has_1_to_65535_bytes():
    # Proves: [MQTT-4.7.3-1] [MQTT-4.7.3-3]
    assert not is_topic_name(b"")
    assert is_topic_name(b"a" * 65535)
    assert not is_topic_name(b"a" * 65536)
    assert check_topic_filter(b"") is not None
    assert check_topic_filter(b"a" * 65535) is None
    assert check_topic_filter(b"a" * 65536) is not None


@pytest.mark.parametrize(
    "topic_filter",
    [b"#", b"+", b"/", b"//", b"+/+", b"/+", b"a/#", b"a/+/b", b"+/b/#", b"$SYS/#", b"a b", "é/+".encode()],
)
def test_a_well_formed_filter_has_nothing_wrong(topic_filter):
    assert check_topic_filter(topic_filter) is None


@pytest.mark.parametrize(
    "topic_filter", [b"a#", b"#/a", b"a/#/b", b"##", b"#/", b"a/b#", b"a+", b"+a/b", b"a/++", b"+#", b"a\0b", b"\xff"]
)
def test_a_wildcard_fills_its_level_and_hash_is_the_last(topic_filter):
    # Proves: [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-2]
    assert check_topic_filter(topic_filter) is not None


def test_a_shared_filter_is_taken_apart():
    assert parse_shared(b"$share/g/a/+") == (b"g", b"a/+")
    assert parse_shared(b"$share/g//a") == (b"g", b"/a")
    assert parse_shared(b"$shared/g/a") is None
    assert parse_shared(b"$share") is None
    assert parse_shared(b"a/$share/g") is None


@pytest.mark.parametrize(
    "topic_filter", [b"$share/", b"$share//a", b"$share/g", b"$share/g/", b"$share/g+/a", b"$share/#", b"$share/+/a"]
)
def test_a_malformed_shared_filter_is_refused(topic_filter):
    # Proves: [MQTT-4.8.2-1] [MQTT-4.8.2-2]
    with pytest.raises(ValueError):  # noqa: PT011  (the one that is raised here)
        parse_shared(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "expected"),
    [
        (b"sport/tennis/#", b"sport/tennis", True),
        (b"sport/#", b"sport", True),
        (b"#", b"a/b", True),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"a/b", b"a/B", False),
        (b"a/", b"a", False),
        (b"+/tennis/#", b"sport/tennis/x/y", True),
        (b"a/+/c", b"a/b/d", False),
        (b"a/b/#", b"a", False),
    ],
)
def test_the_examples_of_the_standard(topic_filter, topic_name, expected):
    # Proves: [MQTT-4.7.1-1] [MQTT-4.7.1-2]
    assert matches(topic_filter, topic_name) is expected


def test_dollar_topics_need_a_literal_first_level():
    # Proves: [MQTT-4.7.2-1]
    assert not matches(b"#", b"$SYS/broker/clients")
    assert not matches(b"+/monitor/Clients", b"$SYS/monitor/Clients")
    assert matches(b"$SYS/#", b"$SYS/broker/clients")
    assert matches(b"$SYS/+", b"$SYS/uptime")
    assert matches(b"a/#", b"a/$b")
