"""The property table of MQTT 5.0 and the elementary data types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.properties import (
    TABLE,
    VARIABLE_BYTE_INTEGER_MAX,
    Kind,
    PacketType,
    check_utf8,
    decode_properties,
    decode_utf8,
    decode_varint,
    encode_properties,
)
from broker.wire.reasons import ClientError, Reason
from router.core.varint import encode_varint
from tests.support.strategies import properties_of

packet_types = st.sampled_from(sorted(set(PacketType) - {PacketType.PINGREQ, PacketType.PINGRESP}))
types_and_properties = packet_types.flatmap(lambda packet: st.tuples(st.just(packet), properties_of(packet)))


def refused(block, packet, reason):
    """Decode properties that must be refused for this reason; return the error."""
    with pytest.raises(ClientError) as caught:
        decode_properties(encode_varint(len(block)) + block, 0, packet)
    assert caught.value.reason == reason, caught.value
    return caught.value


@given(types_and_properties)
def test_what_is_encoded_is_decoded_to_the_same(packet_and_properties):
    packet, properties = packet_and_properties
    data = encode_properties(properties)
    assert decode_properties(b"xy" + data + b"z", 2, packet) == (properties, 2 + len(data))


@given(types_and_properties)
def test_properties_cut_anywhere_are_malformed(packet_and_properties):
    packet, properties = packet_and_properties
    data = encode_properties(properties)
    for cut in range(len(data)):
        with pytest.raises(ClientError) as caught:
            decode_properties(data[:cut], 0, packet)
        assert caught.value.reason == Reason.MALFORMED_PACKET


@given(types_and_properties)
def test_a_length_that_ends_inside_a_property_is_never_read_past(packet_and_properties):
    packet, properties = packet_and_properties
    block = encode_properties(properties)
    length, start = decode_varint(block, 0)
    for shorter in range(length):
        data = encode_varint(shorter) + block[start:]
        try:
            _, end = decode_properties(data, 0, packet)
        except ClientError as error:
            assert error.reason == Reason.MALFORMED_PACKET
        else:
            assert end == shorter + len(encode_varint(shorter))


@given(st.binary(max_size=60), packet_types)
def test_any_bytes_are_properties_or_a_client_error(data, packet):
    try:
        properties, end = decode_properties(data, 0, packet)
    except ClientError as error:
        assert error.reason >= 0x80
        assert error.clause
    else:
        assert decode_properties(encode_properties(properties), 0, packet)[0] == properties
        assert end <= len(data)


def test_user_properties_keep_their_order_and_their_repetitions():
    # Proves: [MQTT-3.1.3-10] [MQTT-3.3.2-18]
    pairs = [("b", "2"), ("a", "1"), ("b", "2"), ("a", "")]
    for packet in (PacketType.PUBLISH, PacketType.WILL, PacketType.CONNECT):
        assert decode_properties(encode_properties({"user_property": pairs}), 0, packet)[0] == {"user_property": pairs}


def test_properties_are_written_in_the_order_of_the_table():
    data = encode_properties({"content_type": "t", "payload_format_indicator": 1})
    assert data == b"\x06" + b"\x01\x01" + b"\x03\x00\x01t"


def test_every_property_that_may_not_repeat_is_a_protocol_error_when_it_does():
    for row in TABLE:
        value = {Kind.UTF8_STRING: "s", Kind.BINARY: b"b", Kind.UTF8_PAIR: ("k", "v")}.get(row.kind, 1)
        block = encode_properties({row.name: value})[1:] * 2
        for packet in row.packets:
            if packet in row.repeats_in:
                assert decode_properties(encode_varint(len(block)) + block, 0, packet)[0] == {row.name: [value, value]}
            else:
                refused(block, packet, Reason.PROTOCOL_ERROR)


def test_every_property_is_malformed_in_a_packet_it_does_not_belong_to():
    for row in TABLE:
        value = {Kind.UTF8_STRING: "s", Kind.BINARY: b"b", Kind.UTF8_PAIR: ("k", "v")}.get(row.kind, 1)
        for packet in set(PacketType) - row.packets:
            assert refused(encode_properties({row.name: value})[1:], packet, Reason.MALFORMED_PACKET)


@pytest.mark.parametrize(
    ("name", "value", "packet", "reason"),
    [
        ("receive_maximum", 0, PacketType.CONNECT, Reason.PROTOCOL_ERROR),
        ("maximum_packet_size", 0, PacketType.CONNECT, Reason.PROTOCOL_ERROR),
        ("request_problem_information", 2, PacketType.CONNECT, Reason.PROTOCOL_ERROR),
        ("request_response_information", 2, PacketType.CONNECT, Reason.PROTOCOL_ERROR),
        ("payload_format_indicator", 2, PacketType.PUBLISH, Reason.PROTOCOL_ERROR),
        ("topic_alias", 0, PacketType.PUBLISH, Reason.TOPIC_ALIAS_INVALID),
        ("subscription_identifier", 0, PacketType.SUBSCRIBE, Reason.PROTOCOL_ERROR),
        ("maximum_qos", 2, PacketType.CONNACK, Reason.PROTOCOL_ERROR),
    ],
)
def test_a_value_that_the_standard_forbids_is_refused(name, value, packet, reason):
    refused(encode_properties({name: value})[1:], packet, reason)


def test_a_response_topic_with_a_wildcard_is_a_protocol_error():
    # Proves: [MQTT-3.3.2-14]
    for topic in ("a/+", "#"):
        block = encode_properties({"response_topic": topic})[1:]
        assert refused(block, PacketType.PUBLISH, Reason.PROTOCOL_ERROR).clause == "MQTT-3.3.2-14"


def test_an_empty_response_topic_is_a_protocol_error():
    # Proves: [MQTT-4.7.3-1]
    block = encode_properties({"response_topic": ""})[1:]
    for packet in (PacketType.PUBLISH, PacketType.WILL):
        assert refused(block, packet, Reason.PROTOCOL_ERROR).clause == "MQTT-4.7.3-1"


def test_an_unknown_property_is_malformed():
    for identifier in (0x00, 0x04, 0x2B, 0x7F):
        refused(bytes((identifier, 0)), PacketType.CONNECT, Reason.MALFORMED_PACKET)


@given(st.integers(0, VARIABLE_BYTE_INTEGER_MAX))
def test_variable_byte_integers_survive_in_as_few_bytes_as_possible(value):
    # Proves: [MQTT-1.5.5-1]
    data = encode_varint(value)
    assert decode_varint(b"x" + data, 1) == (value, 1 + len(data))
    assert len(data) == 1 or value >= 1 << 7 * (len(data) - 1)


def test_a_variable_byte_integer_of_five_bytes_is_malformed():
    with pytest.raises(ClientError) as caught:
        decode_varint(b"\x80\x80\x80\x80\x01", 0)
    assert caught.value.reason == Reason.MALFORMED_PACKET
    assert decode_varint(b"\x80\x80\x80\x00", 0) == (0, 4)


@pytest.mark.parametrize("data", [b"\xff", b"a\xc3", b"\xc0\x80", b"\xf4\x90\x80\x80"])
def test_ill_formed_utf8_is_malformed(data):
    # Proves: [MQTT-1.5.4-1]
    for check in (check_utf8, decode_utf8):
        with pytest.raises(ClientError) as caught:
            check(data)
        assert caught.value.clause == "MQTT-1.5.4-1"


def test_an_encoded_surrogate_is_malformed():
    # Proves: [MQTT-1.5.4-1]
    for data in (b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\x81\xed\xb0\x80"):
        with pytest.raises(ClientError):
            check_utf8(data)


def test_a_null_character_is_malformed():
    # Proves: [MQTT-1.5.4-2]
    for data in (b"a\0b", "é\0".encode()):
        for check in (check_utf8, decode_utf8):
            with pytest.raises(ClientError) as caught:
                check(data)
            assert caught.value.clause == "MQTT-1.5.4-2"


def test_a_byte_order_mark_is_kept():
    # Proves: [MQTT-1.5.4-3]
    assert decode_utf8(b"\xef\xbb\xbfa") == "\ufeffa"
