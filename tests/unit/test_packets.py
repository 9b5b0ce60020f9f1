"""The control packets, both ways, for 3.1, 3.1.1 and 5.0."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.wire import packets as p
from broker.wire.properties import PacketType
from broker.wire.reasons import (
    ClientError,
    CloseReason,
    ConnectReturn,
    Reason,
    connect_return,
    disconnect_reason_to_close,
    reason_to_close,
)
from tests.support.strategies import connects, versions, versions_and_packets


def frame(packet, version):
    """A packet's first byte and body, as a reader of the stream would have them."""
    buffer = bytearray(p.encode(packet, version))
    first_byte, body = p.next_frame(buffer)
    assert not buffer
    return first_byte, body


def refused(first_byte, body, version, reason, clause):
    with pytest.raises(ClientError) as caught:
        p.decode(first_byte, body, version)
    assert (caught.value.reason, caught.value.clause) == (reason, clause), caught.value
    return caught.value


@given(versions_and_packets)
def test_what_is_encoded_is_decoded_to_the_same(version_and_packet):
    version, packet = version_and_packet
    assert p.decode(*frame(packet, version), version) == packet


@given(versions_and_packets)
def test_a_packet_cut_anywhere_is_a_client_error_or_another_packet(version_and_packet):
    version, packet = version_and_packet
    first_byte, body = frame(packet, version)
    for cut in range(len(body)):
        try:
            shorter = p.decode(first_byte, body[:cut], version)
        except ClientError as error:
            assert error.reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
        else:
            assert shorter != packet


@given(versions.flatmap(connects))
def test_a_connect_cut_anywhere_is_malformed(connect):
    body = frame(connect, connect.version)[1]
    for cut in range(len(body)):
        with pytest.raises(ClientError) as caught:
            p.decode_connect(body[:cut])
        assert caught.value.reason == Reason.MALFORMED_PACKET


@given(versions.flatmap(connects), st.binary(min_size=1, max_size=3))
def test_bytes_behind_the_end_of_a_connect_are_malformed(connect, behind):
    with pytest.raises(ClientError) as caught:
        p.decode_connect(frame(connect, connect.version)[1] + behind)
    assert caught.value.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("first_byte", [0x20, 0x40, 0x50, 0x62, 0x70, 0xB0, 0xC0, 0xD0, 0xE0])
def test_bytes_behind_the_end_of_other_packets_are_malformed(first_byte):
    body = {0x20: b"\0\0", 0xC0: b"", 0xD0: b"", 0xE0: b""}.get(first_byte, b"\0\x01")
    p.decode(first_byte, body, 4)
    refused(first_byte, body + b"x", 4, Reason.MALFORMED_PACKET, "section 2.1.4")


@given(st.integers(0, 255), st.binary(max_size=80), versions)
@example(0x10, b"", 4)
@example(0x10, b"\0\x04MQTT\x05\xff\0\0\0\0\0", 5)
def test_any_bytes_are_a_packet_or_a_client_error(first_byte, body, version):
    try:
        packet = p.decode(first_byte, body, version)
    except ClientError as error:
        assert error.reason >= 0x80
        assert error.clause
        assert error.detail
    else:
        again = frame(packet, packet.version if isinstance(packet, p.Connect) else version)
        assert p.decode(*again, version) == packet


@given(versions_and_packets, st.data())
def test_a_packet_with_one_changed_byte_is_a_packet_or_a_client_error(version_and_packet, data):
    version, packet = version_and_packet
    first_byte, body = frame(packet, version)
    if body:
        changed = bytearray(body)
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        try:
            p.decode(first_byte, bytes(changed), version)
        except ClientError:
            pass


@given(st.lists(versions_and_packets, max_size=4), st.integers(1, 7))
def test_frames_are_taken_whole_however_they_arrive(sent, piece):
    stream = b"".join(p.encode(packet, version) for version, packet in sent)
    buffer = bytearray()
    received = []
    for start in range(0, len(stream), piece):
        buffer += stream[start : start + piece]
        while (taken := p.next_frame(buffer)) is not None:
            received.append(taken)
    assert not buffer
    assert received == [frame(packet, version) for version, packet in sent]


def test_a_remaining_length_of_five_bytes_is_malformed():
    with pytest.raises(ClientError):
        p.next_frame(bytearray(b"\x30\xff\xff\xff\xff\x01"))


# ------------------------------------------------------------------------------------------------------------ CONNECT


def connect_body(protocol=b"\0\x04MQTT\x04", flags=0x02, rest=b"\0\x01c", properties=b""):
    return protocol + bytes((flags, 0, 60)) + properties + rest


def test_the_three_versions_are_told_apart():
    # Proves: [MQTT-3.1.2-1]
    assert p.decode_connect(connect_body(b"\0\x06MQIsdp\x03")).version == 3
    assert p.decode_connect(connect_body()).version == 4
    assert p.decode_connect(connect_body(b"\0\x04MQTT\x05", properties=b"\0")).version == 5


@pytest.mark.parametrize(
    ("protocol", "clause"),
    [
        (b"\0\x04MQTT\x03", "MQTT-3.1.2-2"),
        (b"\0\x04MQTT\x06", "MQTT-3.1.2-2"),
        (b"\0\x04MQTT\x85", "MQTT-3.1.2-2"),
        (b"\0\x06MQIsdp\x04", "MQTT-3.1.2-2"),
        (b"\0\x04mqtt\x04", "MQTT-3.1.2-1"),
        (b"\0\x04HTTP\x01", "MQTT-3.1.2-1"),
    ],
)
def test_another_protocol_or_level_is_an_unsupported_version(protocol, clause):
    # Proves: [MQTT-3.1.2-2] [MQTT-3.1.2-1]
    error = refused(0x10, connect_body(protocol), 4, Reason.UNSUPPORTED_PROTOCOL_VERSION, clause)
    assert error.close == CloseReason.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("flags", "clause"),
    [
        (0x03, "MQTT-3.1.2-3"),  # the reserved flag
        (0x0A, "MQTT-3.1.2-11"),  # Will QoS without a will
        (0x22, "MQTT-3.1.2-13"),  # Will Retain without a will
        (0x1E, "MQTT-3.1.2-12"),  # Will QoS 3
    ],
)
def test_connect_flags_that_contradict_each_other_are_malformed(flags, clause):
    # Proves: [MQTT-3.1.2-3] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13] [MQTT3-3.1.2-11]
    refused(0x10, connect_body(flags=flags), 4, Reason.MALFORMED_PACKET, clause)
    body = connect_body(b"\0\x04MQTT\x05", flags, properties=b"\0")
    refused(0x10, body, 5, Reason.MALFORMED_PACKET, clause)


def test_a_password_without_a_user_name_is_for_5_0_only():
    # Proves: [MQTT3-3.1.2-22]
    rest = b"\0\x01c" + b"\0\x02pw"
    refused(0x10, connect_body(flags=0x42, rest=rest), 4, Reason.MALFORMED_PACKET, "MQTT3-3.1.2-22")
    connect = p.decode_connect(connect_body(b"\0\x04MQTT\x05", 0x42, rest, b"\0"))
    assert (connect.user_name, connect.password) == (None, b"pw")


def test_the_fields_of_a_payload_must_be_there_when_their_flags_are_set():
    # Proves: [MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19]
    for flags in (0x06, 0x82, 0xC2):
        with pytest.raises(ClientError) as caught:
            p.decode_connect(connect_body(flags=flags))
        assert caught.value.reason == Reason.MALFORMED_PACKET


def test_an_empty_user_name_is_not_a_missing_one():
    connect = p.decode_connect(connect_body(flags=0xC2, rest=b"\0\x01c" + b"\0\0" + b"\0\0"))
    assert (connect.user_name, connect.password) == ("", b"")


def test_a_will_has_its_delay_beside_its_properties():
    will = p.Will(b"gone", b"bye", 1, True, {"content_type": "text"}, 7)
    connect = p.decode_connect(frame(p.Connect(5, b"c", will=will), 5)[1])
    assert connect.will == will
    assert "will_delay_interval" not in connect.will.properties


def test_a_will_topic_with_a_wildcard_is_an_invalid_topic_name():
    body = frame(p.Connect(4, b"c", will=p.Will(b"a/+/b")), 4)[1]
    refused(0x10, body, 4, Reason.TOPIC_NAME_INVALID, "MQTT-3.3.2-2")


def test_authentication_data_needs_a_method():
    body = frame(p.Connect(5, b"c", properties={"authentication_data": b"x"}), 5)[1]
    refused(0x10, body, 5, Reason.PROTOCOL_ERROR, "section 3.1.2.11.10")


def test_a_client_identifier_must_be_well_formed_utf8():
    # Proves: [MQTT-3.1.3-4]
    refused(0x10, connect_body(rest=b"\0\x01\xff"), 4, Reason.MALFORMED_PACKET, "MQTT-1.5.4-1")
    assert p.decode_connect(connect_body(rest=b"\0\x02\xc3\xa9")).client_identifier == "é".encode()


def test_an_empty_client_identifier_is_left_to_the_handshake():
    for flags in (0x00, 0x02):
        assert p.decode_connect(connect_body(flags=flags, rest=b"\0\0")).client_identifier == b""


# ------------------------------------------------------------------------------------------------------ fixed header


@pytest.mark.parametrize("version", [3, 4, 5])
def test_reserved_flags_of_the_fixed_header_are_malformed(version):
    # Proves: [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1]
    for first_byte in range(0x10, 0x100):
        packet_type = PacketType(first_byte >> 4)
        required = 2 if packet_type in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else 0
        if packet_type != PacketType.PUBLISH and first_byte & 15 != required:
            refused(first_byte, b"", version, Reason.MALFORMED_PACKET, "MQTT-2.1.3-1")


def test_reserved_packet_types_are_malformed():
    refused(0x00, b"", 5, Reason.MALFORMED_PACKET, "section 2.1.2")
    refused(0xF0, b"", 4, Reason.MALFORMED_PACKET, "section 2.1.2")


# ----------------------------------------------------------------------------------------------------------- PUBLISH


def test_a_publish_of_qos_3_is_malformed():
    # Proves: [MQTT-3.3.1-4]
    refused(0x36, b"\0\x01t\0\x01", 4, Reason.MALFORMED_PACKET, "MQTT-3.3.1-4")


def test_dup_at_qos_0_is_malformed():
    # Proves: [MQTT-3.3.1-2]
    refused(0x38, b"\0\x01t", 4, Reason.MALFORMED_PACKET, "MQTT-3.3.1-2")


def test_a_topic_name_has_no_wildcards():
    # Proves: [MQTT-3.3.2-2]
    for topic in (b"+", b"a/#"):
        body = b"\0" + bytes((len(topic),)) + topic
        refused(0x30, body, 4, Reason.TOPIC_NAME_INVALID, "MQTT-3.3.2-2")


def test_an_empty_topic_name_needs_an_alias():
    # Proves: [MQTT-4.7.3-1]
    refused(0x30, b"\0\0", 4, Reason.MALFORMED_PACKET, "MQTT-4.7.3-1")
    refused(0x30, b"\0\0\0", 5, Reason.PROTOCOL_ERROR, "section 3.3.2.1")
    publish = p.decode(0x30, b"\0\0\x03\x23\0\x05", 5)
    assert publish == p.Publish(b"", properties={"topic_alias": 5})


@pytest.mark.parametrize("first_byte", [0x32, 0x34, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2])
def test_a_packet_identifier_of_0_is_a_protocol_error(first_byte):
    # Proves: [MQTT-2.2.1-3]
    topic = b"\0\x01t" if first_byte < 0x40 else b""
    refused(first_byte, topic + b"\0\0", 4, Reason.PROTOCOL_ERROR, "MQTT-2.2.1-3")


def test_an_acknowledgement_may_leave_out_what_says_nothing():
    for body in (b"\0\x07", b"\0\x07\0", b"\0\x07\0\0"):
        assert p.decode(0x40, body, 5) == p.Ack(PacketType.PUBACK, 7)
    assert p.encode(p.Ack(PacketType.PUBACK, 7), 5) == b"\x40\x02\0\x07"
    assert p.encode(p.Ack(PacketType.PUBREC, 7, Reason.QUOTA_EXCEEDED), 5) == b"\x50\x03\0\x07\x97"
    assert p.encode(p.Ack(PacketType.PUBREC, 7, Reason.QUOTA_EXCEEDED), 4) == b"\x50\x02\0\x07"


def test_a_reason_code_that_does_not_belong_in_the_packet_is_a_protocol_error():
    # Proves: [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT-3.14.2-1] [MQTT-3.15.2-1]
    refused(0x40, b"\0\x07\x01", 5, Reason.PROTOCOL_ERROR, "MQTT-3.4.2-1")
    refused(0x50, b"\0\x07\x92", 5, Reason.PROTOCOL_ERROR, "MQTT-3.5.2-1")
    refused(0x62, b"\0\x07\x80", 5, Reason.PROTOCOL_ERROR, "MQTT-3.6.2-1")
    refused(0x70, b"\0\x07\x10", 5, Reason.PROTOCOL_ERROR, "MQTT-3.7.2-1")
    refused(0xE0, b"\x01", 5, Reason.PROTOCOL_ERROR, "MQTT-3.14.2-1")
    refused(0xF0, b"\x80\0", 5, Reason.PROTOCOL_ERROR, "MQTT-3.15.2-1")


# ------------------------------------------------------------------------------------------- SUBSCRIBE, UNSUBSCRIBE


@pytest.mark.parametrize(("version", "head"), [(4, b"\0\x01"), (5, b"\0\x01\0")])
def test_a_subscribe_or_unsubscribe_without_a_topic_filter_is_a_protocol_error(version, head):
    # Proves: [MQTT-3.8.3-2] [MQTT-3.10.3-2]
    refused(0x82, head, version, Reason.PROTOCOL_ERROR, "MQTT-3.8.3-2")
    refused(0xA2, head, version, Reason.PROTOCOL_ERROR, "MQTT-3.10.3-2")


@pytest.mark.parametrize(
    ("version", "options", "reason", "clause"),
    [
        (4, 0x03, Reason.MALFORMED_PACKET, "MQTT3-3.8.3-4"),
        (4, 0x04, Reason.MALFORMED_PACKET, "MQTT3-3.8.3-4"),
        (3, 0x81, Reason.MALFORMED_PACKET, "MQTT3-3.8.3-4"),
        (5, 0x40, Reason.MALFORMED_PACKET, "MQTT-3.8.3-5"),
        (5, 0x80, Reason.MALFORMED_PACKET, "MQTT-3.8.3-5"),
        (5, 0x03, Reason.PROTOCOL_ERROR, "section 3.8.3.1"),
        (5, 0x30, Reason.PROTOCOL_ERROR, "section 3.8.3.1"),
    ],
)
def test_subscription_options_outside_the_standard_are_refused(version, options, reason, clause):
    # Proves: [MQTT-3.8.3-5] [MQTT3-3.8.3-4]
    head = b"\0\x01\0" if version == 5 else b"\0\x01"
    refused(0x82, head + b"\0\x01t" + bytes((options,)), version, reason, clause)


def test_no_local_on_a_shared_subscription_is_a_protocol_error():
    # Proves: [MQTT-3.8.3-4]
    body = frame(p.Subscribe(1, (p.subscription(b"$share/g/t", no_local=True),)), 5)[1]
    refused(0x82, body, 5, Reason.PROTOCOL_ERROR, "MQTT-3.8.3-4")


def test_an_empty_topic_filter_is_malformed():
    # Proves: [MQTT-4.7.3-1]
    refused(0x82, b"\0\x01\0\0\0", 4, Reason.MALFORMED_PACKET, "MQTT-4.7.3-1")
    refused(0xA2, b"\0\x01\0\0", 4, Reason.MALFORMED_PACKET, "MQTT-4.7.3-1")


def test_subscription_options_are_read_bit_by_bit():
    body = b"\0\x01\0" + b"\0\x01t" + bytes((0x2E,))
    assert p.decode(0x82, body, 5).subscriptions == (p.Subscription(b"t", 0x2E, 2, True, True, 2),)


def test_before_5_0_a_suback_knows_one_failure():
    # Proves: [MQTT3-3.9.3-2]
    suback = p.Suback(1, (Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED))
    assert p.encode(suback, 4) == b"\x90\x04\0\x01\x01\x80"


# ---------------------------------------------------------------------------------------------- CONNACK, DISCONNECT


def test_a_connack_is_in_the_words_of_its_version():
    assert p.encode_connack(5, True, Reason.SUCCESS, {}) == b"\x20\x03\x01\0\0"
    assert p.encode_connack(4, True, Reason.SUCCESS, {"receive_maximum": 3}) == b"\x20\x02\x01\0"
    assert p.encode_connack(3, True, Reason.SUCCESS, {}) == b"\x20\x02\0\0"
    assert p.encode_connack(4, False, Reason.NOT_AUTHORIZED, {}) == b"\x20\x02\0\x05"
    assert p.encode_connack(4, False, ConnectReturn.IDENTIFIER_REJECTED, {}) == b"\x20\x02\0\x02"


def test_the_first_byte_of_a_connack_says_nothing_in_3_1():
    assert p.decode(0x20, b"\x01\x00", 3) == p.Connack(False, ConnectReturn.ACCEPTED)
    assert p.decode(0x20, b"\x01\x00", 4) == p.Connack(True, ConnectReturn.ACCEPTED)


def test_a_disconnect_before_5_0_has_no_body():
    assert p.encode(p.Disconnect(Reason.SERVER_SHUTTING_DOWN), 4) == b"\xe0\0"
    refused(0xE0, b"\0", 4, Reason.MALFORMED_PACKET, "section 2.1.4")
    assert p.decode(0xE0, b"\x04", 5) == p.Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE)


def test_an_auth_without_a_method_is_a_protocol_error():
    refused(0xF0, b"\x18\0", 5, Reason.PROTOCOL_ERROR, "section 3.15.2.2.2")


# ------------------------------------------------------------------------------------------------------------ reasons


def test_every_failure_has_a_return_code_of_3_1_1_that_is_a_failure():
    for reason in Reason:
        if reason >= 0x80:
            assert connect_return(reason) != ConnectReturn.ACCEPTED
    assert connect_return(Reason.SUCCESS) == ConnectReturn.ACCEPTED
    assert connect_return(Reason.BANNED) == ConnectReturn.NOT_AUTHORIZED


def test_every_failure_has_its_own_close_reason():
    for reason in Reason:
        if reason >= 0x80:
            close = reason_to_close(reason)
            ours = (Reason.UNSPECIFIED_ERROR, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            assert (close == CloseReason.INTERNAL_ERROR) == (reason in ours)
            assert disconnect_reason_to_close(reason) == CloseReason.CLIENT_DISCONNECT_WITH_ERROR
    assert disconnect_reason_to_close(Reason.SUCCESS) == CloseReason.CLIENT_DISCONNECT
    assert disconnect_reason_to_close(Reason.DISCONNECT_WITH_WILL_MESSAGE) == CloseReason.CLIENT_DISCONNECT_WITH_WILL


def test_a_client_error_names_clause_and_close_reason():
    error = ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.0-2", "second CONNECT")
    assert str(error) == "second CONNECT [MQTT-3.1.0-2]"
    assert error.close == CloseReason.PROTOCOL_ERROR
    silent = ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.1.0-1", "no CONNECT", CloseReason.CONNECT_TIMEOUT)
    assert silent.close == CloseReason.CONNECT_TIMEOUT
