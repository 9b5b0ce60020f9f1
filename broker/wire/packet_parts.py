"""Parts that several control packets have, both ways: packet identifier and properties, topic filters, frames."""

from __future__ import annotations

from broker.wire.packet_types import Properties, Subscription
from broker.wire.properties import (
    VARIABLE_BYTE_INTEGER_MAX,
    PacketType,
    check_utf8,
    decode_properties,
    encode_properties,
    malformed,
    take_binary,
)
from broker.wire.reasons import ClientError, Reason
from router.core.receiver import RESERVED_BITS
from router.core.receiver import decode_options as decode_options_byte
from router.core.varint import encode_varint


def take_packet_identifier(body: bytes, position: int) -> tuple[int, int]:
    """Return the packet identifier at a position, and the position behind it; ClientError if there is none."""
    if position + 2 > len(body):
        raise malformed("section 2.2.1", "the packet ends before its packet identifier")
    packet_identifier = body[position] << 8 | body[position + 1]
    if packet_identifier == 0:
        raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-2.2.1-3", "a packet identifier of 0")
    return packet_identifier, position + 2


def decode_head(
    body: bytes, version: int, packet_type: PacketType, *, user_properties: bool = True
) -> tuple[int, Properties, int]:
    """Return packet identifier and properties of a SUBSCRIBE, UNSUBSCRIBE or SUBACK, and where its payload begins."""
    packet_identifier, position = take_packet_identifier(body, 0)
    if version != 5:
        return packet_identifier, {}, position
    properties, position = decode_properties(body, position, packet_type, user_properties=user_properties)
    return packet_identifier, properties, position


def take_subscription(body: bytes, position: int, version: int) -> tuple[Subscription, int]:
    """Return what a SUBSCRIBE has at a position, and the position behind it; ClientError if it is malformed."""
    topic_filter, position = take_topic_filter(body, position)
    if position == len(body):
        raise malformed("section 3.8.3", "the SUBSCRIBE ends before the options of a topic filter")
    return decode_options(topic_filter, body[position], version), position + 1


def take_topic_filter(body: bytes, position: int) -> tuple[bytes, int]:
    """Return the topic filter at a position, and the position behind it; ClientError if it is malformed."""
    topic_filter, position = take_binary(body, position)
    if not topic_filter:
        raise malformed("MQTT-4.7.3-1", "an empty topic filter")
    return check_utf8(topic_filter), position


def decode_options(topic_filter: bytes, options: int, version: int) -> Subscription:
    """Return a subscription of a topic filter and the byte behind it (3.8.3.1); ClientError if that is malformed."""
    if version != 5:
        if options > 2:
            raise malformed("MQTT3-3.8.3-4", "reserved bits beside a topic filter, or QoS 3")
        return Subscription(topic_filter, options, options)
    if options & RESERVED_BITS:
        raise malformed("MQTT-3.8.3-5", "reserved bits in subscription options")
    qos, no_local, retain_as_published, retain_handling = decode_options_byte(options)
    if qos == 3:
        raise ClientError(Reason.PROTOCOL_ERROR, "section 3.8.3.1", "a Maximum QoS of 3")
    if retain_handling == 3:
        raise ClientError(Reason.PROTOCOL_ERROR, "section 3.8.3.1", "a Retain Handling of 3")
    if no_local and topic_filter.startswith(b"$share/"):
        raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.8.3-4", "No Local on a shared subscription")
    return Subscription(topic_filter, options, qos, no_local, retain_as_published, retain_handling)


def frame(first_byte: int, body: bytes) -> bytes:
    """Return a packet of its first byte and what lies behind its Remaining Length."""
    assert len(body) <= VARIABLE_BYTE_INTEGER_MAX, len(body)
    return b"".join((bytes((first_byte,)), encode_varint(len(body)), body))


def head(packet_identifier: int, packet_properties: Properties, version: int) -> bytes:
    """Return packet identifier and, in 5.0, properties."""
    assert 1 <= packet_identifier <= 0xFFFF, packet_identifier
    encoded = packet_identifier.to_bytes(2, "big")
    return encoded + encode_properties(packet_properties) if version == 5 else encoded


def encode_codes(first_byte: int, packet_identifier: int, codes: bytes, version: int) -> bytes:
    """Return a SUBACK or UNSUBACK without properties of its reason codes, which are the version's; maybe of none."""
    return frame(first_byte, head(packet_identifier, {}, version) + codes)
