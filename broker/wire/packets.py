"""The control packets, both ways, for MQTT 3.1 (level 3), 3.1.1 (4) and 5.0 (5).

The broker's own PUBLISH and acknowledgements go through the compiled codec; they are here for clients. Topic names
and topic filters are UTF-8 bytes, checked here for form and length only; wildcards in a filter are the business of
router.matching.topic_names. Where a packet has `properties`, they are as `properties.decode_properties` returns them,
and empty before 5.0. The packets are not to be changed after they are made, their dicts included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from broker.wire.packet_parts import (
    decode_head,
    frame,
    head,
    take_packet_identifier,
    take_subscription,
    take_topic_filter,
)
from broker.wire.packet_types import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    subscription,
)
from broker.wire.properties import (
    PacketType,
    check_utf8,
    decode_properties,
    decode_utf8,
    encode_properties,
    malformed,
    put_binary,
    take_binary,
)
from broker.wire.reasons import ClientError, ConnectReturn, Reason, connect_return
from router.core.varint import find_varint

__all__ = [
    "Ack",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Publish",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "decode",
    "decode_auth",
    "decode_connect",
    "decode_disconnect",
    "encode",
    "encode_connack",
    "encode_fitting",
    "may_carry",
    "next_frame",
    "subscription",
]

# Which reason codes a packet may carry (the table in the section of each packet), as values.
_ACK_CODES = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_CODES = frozenset((0x00, 0x92))
_SUBACK_CODES = frozenset((0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
_SUBACK_CODES_3 = frozenset((0, 1, 2, 0x80))
_UNSUBACK_CODES = frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
_CONNACK_CODES = frozenset((0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F))
_DISCONNECT_CODES = frozenset(
    (0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3))
)
_AUTH_CODES = frozenset((0x00, 0x18, 0x19))
_NORMAL_DISCONNECT = Disconnect()

_ACKS: Mapping[PacketType, tuple[int, frozenset[int], str]] = {  # first byte, reason codes, clause
    PacketType.PUBACK: (0x40, _ACK_CODES, "MQTT-3.4.2-1"),
    PacketType.PUBREC: (0x50, _ACK_CODES, "MQTT-3.5.2-1"),
    PacketType.PUBREL: (0x62, _RELEASE_CODES, "MQTT-3.6.2-1"),
    PacketType.PUBCOMP: (0x70, _RELEASE_CODES, "MQTT-3.7.2-1"),
}

# The whole variable header up to and with the protocol level, for the three versions we speak.
_LEVEL_5 = b"\0\x04MQTT\x05"
_LEVEL_4 = b"\0\x04MQTT\x04"
_LEVEL_3 = b"\0\x06MQIsdp\x03"
# A bridge sets the level's high bit; it is a convention of brokers, not of the standard.
_LEVEL_4_BRIDGE = b"\0\x04MQTT\x84"
_LEVEL_3_BRIDGE = b"\0\x06MQIsdp\x83"


# ---------------------------------------------------------------------------------------------------------- decoding


def next_frame(buffer: bytearray) -> tuple[int, bytes] | None:
    """Take one whole packet from the front of a buffer: its first byte and its body; None if it is not whole yet.

    Raises:
        ClientError: the Remaining Length is longer than four bytes.
    """
    if len(buffer) < 2:
        return None
    length, position = find_varint(buffer, 1)
    if position < 0:
        raise malformed("section 2.1.4", "a Remaining Length of more than four bytes")
    if position == 0 or len(buffer) < position + length:
        return None
    first_byte, body = buffer[0], bytes(buffer[position : position + length])
    del buffer[: position + length]
    return first_byte, body


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """Return the packet whose fixed header starts with `first_byte` and whose remaining bytes are `body`.

    Args:
        version: the connection's protocol level, 3, 4 or 5; a CONNECT brings its own.

    Raises:
        ClientError: nothing else, whatever the bytes.
    """
    packet_type = first_byte >> 4
    if packet_type == PacketType.PUBLISH:
        return _decode_publish(first_byte, body, version)
    if first_byte not in _DECODERS:
        if packet_type == 0:
            raise malformed("section 2.1.2", "a packet of the reserved type 0")
        raise malformed("MQTT-2.1.3-1", f"reserved flags of {PacketType(packet_type).name} are 0x{first_byte & 15:x}")
    return _DECODERS[first_byte](body, version)


def decode_connect(body: bytes) -> Connect:
    """Return the CONNECT of a packet's remaining bytes, of any version.

    An empty client identifier is returned as it stands: whether it may be is for the handshake to say.

    Raises:
        ClientError: UNSUPPORTED_PROTOCOL_VERSION for another protocol or level, else what is wrong.
    """
    if body.startswith(_LEVEL_4):
        version, position = 4, 7
    elif body.startswith(_LEVEL_5):
        version, position = 5, 7
    elif body.startswith(_LEVEL_3):
        version, position = 3, 9
    elif body.startswith(_LEVEL_4_BRIDGE):
        version, position = 4, 7
    elif body.startswith(_LEVEL_3_BRIDGE):
        version, position = 3, 9
    else:
        raise _other_protocol(body)
    bridge = body[position - 1] >= 0x80
    size = len(body)
    if size < position + 3:
        raise malformed("section 3.1.2", "the CONNECT ends inside its variable header")
    flags = body[position]
    keep_alive_s = body[position + 1] << 8 | body[position + 2]
    position += 3
    if flags & 0x01:
        raise malformed("MQTT-3.1.2-3", "the reserved flag of CONNECT is set")
    if version == 5:
        properties, position = decode_properties(body, position, PacketType.CONNECT)
        if "authentication_data" in properties and "authentication_method" not in properties:
            raise ClientError(Reason.PROTOCOL_ERROR, "section 3.1.2.11.10", "authentication data without a method")
    else:
        properties = {}

    start = position + 2
    if start > size:
        raise malformed("MQTT-3.1.3-3", "the CONNECT has no client identifier")
    position = start + (body[position] << 8 | body[position + 1])
    if position > size:
        raise malformed("MQTT-3.1.3-3", "the CONNECT ends inside its client identifier")
    client_identifier = check_utf8(body[start:position])

    will = user_name = password = None
    if flags & 0xFC:
        if flags & 0x3C:
            will, position = _decode_will(body, position, flags, version)
        if flags & 0x80:
            raw, position = take_binary(body, position)
            user_name = decode_utf8(raw)
        if flags & 0x40:
            if version != 5 and not flags & 0x80:
                raise malformed("MQTT3-3.1.2-22", "a password without a user name")
            password, position = take_binary(body, position)
    if position != size:
        raise malformed("section 3.1.3", "bytes behind the end of CONNECT")
    return Connect(
        version, client_identifier, flags & 0x02 != 0, keep_alive_s, will, user_name, password, properties, bridge
    )


def _other_protocol(body: bytes) -> ClientError:
    name, position = take_binary(body, 0)
    if position == len(body):
        return malformed("section 3.1.2", "the CONNECT ends before its protocol level")
    if name in (b"MQTT", b"MQIsdp"):
        return ClientError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-2", f"protocol level {body[position]} is not supported"
        )
    return ClientError(Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-1", "the protocol name is not MQTT")


def _decode_will(body: bytes, position: int, flags: int, version: int) -> tuple[Will | None, int]:
    qos = flags >> 3 & 3
    if not flags & 0x04:
        if qos:
            raise malformed("MQTT-3.1.2-11", "a Will QoS without a will")
        if flags & 0x20:
            raise malformed("MQTT-3.1.2-13", "Will Retain without a will")
        return None, position
    if qos == 3:
        raise malformed("MQTT-3.1.2-12", "a Will QoS of 3")
    properties: Properties = {}
    delay_interval_s = 0
    if version == 5:
        properties, position = decode_properties(body, position, PacketType.WILL)
        delay_interval_s = properties.pop("will_delay_interval", 0)
    topic, position = take_binary(body, position)
    _check_topic_name(topic)
    payload, position = take_binary(body, position)
    return Will(topic, payload, qos, flags & 0x20 != 0, properties, delay_interval_s), position


def _check_topic_name(topic: bytes) -> None:
    check_utf8(topic)
    if not topic:
        raise malformed("MQTT-4.7.3-1", "an empty topic name")
    if b"+" in topic or b"#" in topic:
        raise ClientError(Reason.TOPIC_NAME_INVALID, "MQTT-3.3.2-2", "a wildcard in a topic name")


def _decode_publish(first_byte: int, body: bytes, version: int) -> Publish:
    qos = first_byte >> 1 & 3
    dup = first_byte & 0x08 != 0
    if qos == 3:
        raise malformed("MQTT-3.3.1-4", "a PUBLISH with QoS 3")
    if dup and not qos:
        raise malformed("MQTT-3.3.1-2", "DUP on a QoS 0 PUBLISH")
    topic, position = take_binary(body, 0)
    packet_identifier = 0
    if qos:
        packet_identifier, position = take_packet_identifier(body, position)
    properties: Properties = {}
    if version == 5:
        properties, position = decode_properties(body, position, PacketType.PUBLISH)
    if topic or version != 5:
        _check_topic_name(topic)
    elif "topic_alias" not in properties:
        raise ClientError(Reason.PROTOCOL_ERROR, "section 3.3.2.1", "neither a topic name nor a topic alias")
    return Publish(topic, body[position:], qos, first_byte & 1 != 0, dup, packet_identifier, properties)


def _reason(value: int, allowed: frozenset[int], clause: str) -> Reason:
    if value not in allowed:
        raise ClientError(Reason.PROTOCOL_ERROR, clause, f"reason code 0x{value:02x} does not belong in this packet")
    return Reason(value)


def _at_end(body: bytes, position: int) -> None:
    if position != len(body):
        raise malformed("section 2.1.4", "bytes behind the end of the packet")


def _decode_connack(body: bytes, version: int) -> Connack:
    if len(body) < 2:
        raise malformed("section 3.2.2", "the CONNACK ends inside its variable header")
    if body[0] > 1:
        raise malformed("MQTT-3.2.2-1", "a reserved flag of CONNACK is set")
    session_present = body[0] == 1 and version > 3  # a reserved byte in 3.1
    if version == 5:
        reason = _reason(body[1], _CONNACK_CODES, "MQTT-3.2.2-8")
        properties, position = decode_properties(body, 2, PacketType.CONNACK)
        _at_end(body, position)
        return Connack(session_present, reason, properties)
    if body[1] > ConnectReturn.NOT_AUTHORIZED:
        raise ClientError(Reason.PROTOCOL_ERROR, "section 3.2.2.3", f"return code {body[1]} is reserved")
    _at_end(body, 2)
    return Connack(session_present, ConnectReturn(body[1]))


def _ack_decoder(packet_type: PacketType, allowed: frozenset[int], clause: str) -> Callable[[bytes, int], Ack]:
    def decode_ack(body: bytes, version: int) -> Ack:
        packet_identifier, position = take_packet_identifier(body, 0)
        if version != 5 or len(body) == 2:
            _at_end(body, position)
            return Ack(packet_type, packet_identifier)
        reason = _reason(body[2], allowed, clause)
        properties: Properties = {}
        if len(body) > 3:
            properties, position = decode_properties(body, 3, packet_type)
            _at_end(body, position)
        return Ack(packet_type, packet_identifier, reason, properties)

    return decode_ack


def _decode_subscribe(body: bytes, version: int) -> Subscribe:
    packet_identifier, properties, position = decode_head(body, version, PacketType.SUBSCRIBE)
    subscriptions = []
    while position < len(body):
        taken, position = take_subscription(body, position, version)
        subscriptions.append(taken)
    if not subscriptions:
        raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.8.3-2", "a SUBSCRIBE without a topic filter")
    return Subscribe(packet_identifier, tuple(subscriptions), properties)


def _decode_suback(body: bytes, version: int) -> Suback:
    packet_identifier, properties, position = decode_head(body, version, PacketType.SUBACK)
    allowed = _SUBACK_CODES if version == 5 else _SUBACK_CODES_3
    reasons = tuple(_reason(value, allowed, "MQTT-3.9.3-2") for value in body[position:])
    if not reasons:
        raise malformed("section 3.9.3", "a SUBACK without a reason code")
    return Suback(packet_identifier, reasons, properties)


def _decode_unsubscribe(body: bytes, version: int) -> Unsubscribe:
    packet_identifier, properties, position = decode_head(body, version, PacketType.UNSUBSCRIBE)
    topic_filters = []
    while position < len(body):
        topic_filter, position = take_topic_filter(body, position)
        topic_filters.append(topic_filter)
    if not topic_filters:
        raise ClientError(Reason.PROTOCOL_ERROR, "MQTT-3.10.3-2", "an UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_identifier, tuple(topic_filters), properties)


def _decode_unsuback(body: bytes, version: int) -> Unsuback:
    packet_identifier, position = take_packet_identifier(body, 0)
    if version != 5:
        _at_end(body, position)
        return Unsuback(packet_identifier)
    properties, position = decode_properties(body, position, PacketType.UNSUBACK)
    reasons = tuple(_reason(value, _UNSUBACK_CODES, "MQTT-3.11.3-2") for value in body[position:])
    if not reasons:
        raise malformed("section 3.11.3", "an UNSUBACK without a reason code")
    return Unsuback(packet_identifier, reasons, properties)


def _decode_pingreq(body: bytes, version: int) -> Pingreq:
    _at_end(body, 0)
    return Pingreq()


def _decode_pingresp(body: bytes, version: int) -> Pingresp:
    _at_end(body, 0)
    return Pingresp()


def decode_disconnect(body: bytes, version: int, *, user_properties: bool = True) -> Disconnect:
    """Return a DISCONNECT; its user properties may be left out where no caller reads them."""
    if version != 5:
        _at_end(body, 0)
    if not body:
        return _NORMAL_DISCONNECT
    reason = _reason(body[0], _DISCONNECT_CODES, "MQTT-3.14.2-1")
    if len(body) == 1:
        return Disconnect(reason)
    properties, position = decode_properties(body, 1, PacketType.DISCONNECT, user_properties=user_properties)
    _at_end(body, position)
    return Disconnect(reason, properties)


def decode_auth(body: bytes, version: int, *, user_properties: bool = True) -> Auth:
    """Return an AUTH; its user properties may be left out where no caller reads them."""
    if version != 5:
        raise malformed("section 2.1.2", "a packet of type 15, reserved before 5.0")
    if not body:
        return Auth()
    reason = _reason(body[0], _AUTH_CODES, "MQTT-3.15.2-1")
    properties, position = decode_properties(body, 1, PacketType.AUTH, user_properties=user_properties)
    _at_end(body, position)
    if "authentication_method" not in properties:
        raise ClientError(Reason.PROTOCOL_ERROR, "section 3.15.2.2.2", "an AUTH without an authentication method")
    return Auth(reason, properties)


_DECODERS: dict[int, Callable[[bytes, int], Packet]] = {  # by the only first byte that the packet may have
    0x10: lambda body, version: decode_connect(body),
    0x20: _decode_connack,
    0x82: _decode_subscribe,
    0x90: _decode_suback,
    0xA2: _decode_unsubscribe,
    0xB0: _decode_unsuback,
    0xC0: _decode_pingreq,
    0xD0: _decode_pingresp,
    0xE0: decode_disconnect,
    0xF0: decode_auth,
    **{first: _ack_decoder(packet_type, codes, clause) for packet_type, (first, codes, clause) in _ACKS.items()},
}


# ---------------------------------------------------------------------------------------------------------- encoding


def encode(packet: Packet, version: int) -> bytes:
    """Return the whole frame of a packet as a protocol level has it.

    What the level does not know (properties, reason codes, subscription options before 5.0) is left out. The packet
    must be valid: lengths, QoS and packet identifiers are asserted, not reported.
    """
    return _ENCODERS[type(packet)](packet, version)


def encode_connack(
    version: int, session_present: bool, reason: Reason | ConnectReturn, properties: Mapping[str, Any]
) -> bytes:
    """Return a whole CONNACK; before 5.0 with the nearest return code and without properties."""
    if version == 5:
        return frame(0x20, bytes((session_present, reason)) + encode_properties(properties))
    code = reason if isinstance(reason, ConnectReturn) else connect_return(reason)
    # The byte of Session Present was reserved in 3.1.
    return bytes((0x20, 2, session_present and version == 4, code))


def encode_fitting(packet: Connack | Disconnect | Auth, version: int, packet_bytes_max: int) -> bytes:
    """Return the frame of a packet, without Reason String and User Properties if it would be too large with them.

    Returns nothing if it is too large even so: such a packet is not sent [MQTT-3.2.2-19], [MQTT-3.14.2-3].
    """
    frame = encode(packet, version)
    if len(frame) > packet_bytes_max:
        fewer = {
            name: value for name, value in packet.properties.items() if name not in ("reason_string", "user_property")
        }
        frame = encode(replace(packet, properties=fewer), version)
    return frame if len(frame) <= packet_bytes_max else b""


def may_carry(packet_type: PacketType, reason: Reason) -> bool:
    """Return whether a CONNACK or a DISCONNECT of 5.0 may carry a reason code."""
    return reason in (_CONNACK_CODES if packet_type == PacketType.CONNACK else _DISCONNECT_CODES)


def _encode_connect(packet: Connect, version: int) -> bytes:
    assert packet.version == version, packet
    will = packet.will
    flags = packet.clean_start << 1 | (packet.user_name is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        assert will.qos in (0, 1, 2), will
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    body = bytearray({5: _LEVEL_5, 4: _LEVEL_4, 3: _LEVEL_3}[version])
    if packet.bridge:
        assert version < 5, packet
        body[-1] |= 0x80
    body.append(flags)
    body += packet.keep_alive_s.to_bytes(2, "big")
    if version == 5:
        body += encode_properties(packet.properties)
    body += put_binary(packet.client_identifier)
    if will is not None:
        if version == 5:
            delay = {"will_delay_interval": will.delay_interval_s} if will.delay_interval_s else {}
            body += encode_properties({**will.properties, **delay})
        body += put_binary(will.topic) + put_binary(will.payload)
    if packet.user_name is not None:
        body += put_binary(packet.user_name.encode())
    if packet.password is not None:
        assert version == 5 or packet.user_name is not None, "a password needs a user name before 5.0"
        body += put_binary(packet.password)
    return frame(0x10, bytes(body))


def _encode_connack(packet: Connack, version: int) -> bytes:
    return encode_connack(version, packet.session_present, packet.reason, packet.properties)


def _encode_publish(packet: Publish, version: int) -> bytes:
    assert packet.qos in (0, 1, 2), packet.qos
    body = put_binary(packet.topic)
    if packet.qos:
        body += head(packet.packet_identifier, packet.properties, version)
    elif version == 5:
        body += encode_properties(packet.properties)
    return frame(0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain, body + packet.payload)


def _encode_ack(packet: Ack, version: int) -> bytes:
    first_byte = _ACKS[packet.type][0]
    if version != 5 or (packet.reason == Reason.SUCCESS and not packet.properties):
        return frame(first_byte, head(packet.packet_identifier, {}, 4))
    body = head(packet.packet_identifier, {}, 4) + bytes((packet.reason,))
    return frame(first_byte, body + encode_properties(packet.properties) if packet.properties else body)


def _encode_subscribe(packet: Subscribe, version: int) -> bytes:
    body = head(packet.packet_identifier, packet.properties, version)
    for each in packet.subscriptions:
        body += put_binary(each.topic_filter) + bytes((each.options if version == 5 else each.qos,))
    return frame(0x82, body)


def _reason_bytes(reasons: Iterable[Reason], version: int) -> bytes:
    if version == 5:
        return bytes(reasons)
    return bytes(min(reason, Reason.UNSPECIFIED_ERROR) for reason in reasons)  # the only failure before 5.0


def _encode_suback(packet: Suback, version: int) -> bytes:
    body = head(packet.packet_identifier, packet.properties, version)
    return frame(0x90, body + _reason_bytes(packet.reasons, version))


def _encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    body = head(packet.packet_identifier, packet.properties, version)
    return frame(0xA2, body + b"".join(map(put_binary, packet.topic_filters)))


def _encode_unsuback(packet: Unsuback, version: int) -> bytes:
    body = head(packet.packet_identifier, packet.properties, version)
    return frame(0xB0, body + bytes(packet.reasons) if version == 5 else body)


def _encode_disconnect(packet: Disconnect, version: int) -> bytes:
    if version != 5 or (packet.reason == Reason.NORMAL_DISCONNECTION and not packet.properties):
        return b"\xe0\0"
    properties = encode_properties(packet.properties) if packet.properties else b""
    return frame(0xE0, bytes((packet.reason,)) + properties)


def _encode_auth(packet: Auth, version: int) -> bytes:
    assert version == 5, version
    if packet.reason == Reason.SUCCESS and not packet.properties:
        return b"\xf0\0"
    return frame(0xF0, bytes((packet.reason,)) + encode_properties(packet.properties))


_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    Connect: _encode_connect,
    Connack: _encode_connack,
    Publish: _encode_publish,
    Ack: _encode_ack,
    Subscribe: _encode_subscribe,
    Suback: _encode_suback,
    Unsubscribe: _encode_unsubscribe,
    Unsuback: _encode_unsuback,
    Pingreq: lambda packet, version: b"\xc0\0",
    Pingresp: lambda packet, version: b"\xd0\0",
    Disconnect: _encode_disconnect,
    Auth: _encode_auth,
}
