"""The properties of MQTT 5.0 (section 2.2.2): their table, decoding and encoding; and its elementary data types."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from broker.wire.reasons import ClientError, Reason
from broker.wire.user_properties import put_user_properties, take_user_properties
from router.core.varint import encode_varint, find_varint

USER_PROPERTY = 0x26
VARIABLE_BYTE_INTEGER_MAX = 268_435_455


class PacketType(IntEnum):
    """The control packets (section 2.1.2), and WILL: not a packet, but a place where properties may stand."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Kind(IntEnum):
    """How the value of a property is encoded, and the Python type it has here."""

    BYTE = 1  # int
    TWO_BYTES = 2  # int
    FOUR_BYTES = 4  # int
    VARIABLE_BYTE_INTEGER = 5  # int
    UTF8_STRING = 6  # str
    BINARY = 7  # bytes
    UTF8_PAIR = 8  # tuple[str, str]


class Property(NamedTuple):
    """One row of the property table."""

    identifier: int
    name: str
    kind: Kind
    packets: frozenset[PacketType]  # where it may appear
    repeats_in: frozenset[PacketType] = frozenset()  # where it may appear more than once: its value is a list
    minimum: int = 0  # of an integer
    maximum: int = 0xFFFFFFFF
    out_of_range: Reason = Reason.PROTOCOL_ERROR
    clause: str = "section 2.2.2.2"  # broken by a value out of range, or by a repetition


_P = PacketType
_MESSAGE = frozenset({_P.PUBLISH, _P.WILL})
_LIMITS = frozenset({_P.CONNECT, _P.CONNACK})
_CONNECT = frozenset({_P.CONNECT})
_CONNACK = frozenset({_P.CONNACK})
_PUBLISH = frozenset({_P.PUBLISH})
_AUTHENTICATION = frozenset({_P.CONNECT, _P.CONNACK, _P.AUTH})
_ANSWERS = frozenset(
    {_P.CONNACK, _P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK, _P.DISCONNECT, _P.AUTH}
)
_EVERYWHERE = frozenset(set(_P) - {_P.PINGREQ, _P.PINGRESP})

TABLE = (
    Property(0x01, "payload_format_indicator", Kind.BYTE, _MESSAGE, maximum=1, clause="section 3.3.2.3.2"),
    Property(0x02, "message_expiry_interval", Kind.FOUR_BYTES, _MESSAGE, clause="section 3.3.2.3.3"),
    Property(0x03, "content_type", Kind.UTF8_STRING, _MESSAGE, clause="section 3.3.2.3.9"),
    Property(0x08, "response_topic", Kind.UTF8_STRING, _MESSAGE, clause="section 3.3.2.3.5"),
    Property(0x09, "correlation_data", Kind.BINARY, _MESSAGE, clause="section 3.3.2.3.6"),
    Property(
        0x0B,
        "subscription_identifier",
        Kind.VARIABLE_BYTE_INTEGER,
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        repeats_in=_PUBLISH,
        minimum=1,
        maximum=VARIABLE_BYTE_INTEGER_MAX,
        clause="section 3.8.2.1.2",
    ),
    Property(
        0x11,
        "session_expiry_interval",
        Kind.FOUR_BYTES,
        frozenset({_P.CONNECT, _P.CONNACK, _P.DISCONNECT}),
        clause="section 3.1.2.11.2",
    ),
    Property(0x12, "assigned_client_identifier", Kind.UTF8_STRING, _CONNACK, clause="section 3.2.2.3.7"),
    Property(0x13, "server_keep_alive", Kind.TWO_BYTES, _CONNACK, clause="section 3.2.2.3.14"),
    Property(0x15, "authentication_method", Kind.UTF8_STRING, _AUTHENTICATION, clause="section 3.1.2.11.9"),
    Property(0x16, "authentication_data", Kind.BINARY, _AUTHENTICATION, clause="section 3.1.2.11.10"),
    Property(0x17, "request_problem_information", Kind.BYTE, _CONNECT, maximum=1, clause="section 3.1.2.11.7"),
    Property(0x18, "will_delay_interval", Kind.FOUR_BYTES, frozenset({_P.WILL}), clause="section 3.1.3.2.2"),
    Property(0x19, "request_response_information", Kind.BYTE, _CONNECT, maximum=1, clause="section 3.1.2.11.6"),
    Property(0x1A, "response_information", Kind.UTF8_STRING, _CONNACK, clause="section 3.2.2.3.15"),
    Property(
        0x1C, "server_reference", Kind.UTF8_STRING, frozenset({_P.CONNACK, _P.DISCONNECT}), clause="section 3.2.2.3.16"
    ),
    Property(0x1F, "reason_string", Kind.UTF8_STRING, _ANSWERS, clause="section 3.2.2.3.9"),
    Property(0x21, "receive_maximum", Kind.TWO_BYTES, _LIMITS, minimum=1, clause="section 3.1.2.11.3"),
    Property(0x22, "topic_alias_maximum", Kind.TWO_BYTES, _LIMITS, clause="section 3.1.2.11.5"),
    Property(
        0x23,
        "topic_alias",
        Kind.TWO_BYTES,
        _PUBLISH,
        minimum=1,
        out_of_range=Reason.TOPIC_ALIAS_INVALID,
        clause="MQTT-3.3.2-8",
    ),
    Property(0x24, "maximum_qos", Kind.BYTE, _CONNACK, maximum=1, clause="section 3.2.2.3.4"),
    Property(0x25, "retain_available", Kind.BYTE, _CONNACK, maximum=1, clause="section 3.2.2.3.5"),
    Property(0x26, "user_property", Kind.UTF8_PAIR, _EVERYWHERE, repeats_in=_EVERYWHERE),
    Property(0x27, "maximum_packet_size", Kind.FOUR_BYTES, _LIMITS, minimum=1, clause="section 3.1.2.11.4"),
    Property(0x28, "wildcard_subscription_available", Kind.BYTE, _CONNACK, maximum=1, clause="section 3.2.2.3.11"),
    Property(0x29, "subscription_identifier_available", Kind.BYTE, _CONNACK, maximum=1, clause="section 3.2.2.3.12"),
    Property(0x2A, "shared_subscription_available", Kind.BYTE, _CONNACK, maximum=1, clause="section 3.2.2.3.13"),
)

BY_IDENTIFIER = {row.identifier: row for row in TABLE}
BY_NAME = {row.name: row for row in TABLE}


def malformed(clause: str, detail: str) -> ClientError:
    """Return (not raise) the error for bytes that cannot be read as the packet they claim to be."""
    return ClientError(Reason.MALFORMED_PACKET, clause, detail)


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a Variable Byte Integer and the offset behind it.

    An encoding longer than it need be, of at most four bytes, is taken as it stands.

    Raises:
        ClientError: the data ends inside it, or a fifth byte would follow.
    """
    value, end = find_varint(data, offset)
    if end == 0:
        raise malformed("section 1.5.5", "the packet ends inside a variable byte integer")
    if end < 0:
        raise malformed("section 1.5.5", "a variable byte integer of more than four bytes")
    return value, end


def check_utf8(data: bytes) -> bytes:
    """Return the data as it is, if it is well-formed UTF-8 without surrogates and U+0000, else raise ClientError."""
    if data.isascii():
        if 0 not in data:
            return data
        raise malformed("MQTT-1.5.4-2", "U+0000 in a UTF-8 string")
    decode_utf8(data)
    return data


def decode_utf8(data: bytes) -> str:
    """Return a string from well-formed UTF-8 without surrogates and U+0000, else raise ClientError.

    A leading U+FEFF stays [MQTT-1.5.4-3].
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise malformed("MQTT-1.5.4-1", "ill-formed UTF-8") from None
    if "\0" in text:
        raise malformed("MQTT-1.5.4-2", "U+0000 in a UTF-8 string")
    return text


def take_binary(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return binary data with its two-byte length in front, and the offset behind it; ClientError if cut short."""
    start = offset + 2
    if start > len(data):
        raise malformed("section 1.5.6", "the packet ends inside a length")
    end = start + (data[offset] << 8 | data[offset + 1])
    if end > len(data):
        raise malformed("section 1.5.6", "the packet ends inside a string or binary data")
    return data[start:end], end


def put_binary(data: bytes) -> bytes:
    """Return data with its two-byte length in front; at most 65,535 bytes."""
    assert len(data) <= 0xFFFF, len(data)
    return len(data).to_bytes(2, "big") + data


def decode_properties(
    data: bytes, offset: int, packet: PacketType, *, user_properties: bool = True
) -> tuple[dict[str, Any], int]:
    """Return the properties that start at an offset with their length, and the offset behind them.

    Each property is under its name in `TABLE`. What may repeat in this packet has a list as its value, in the order
    received: user_property a list of (name, value), and subscription_identifier in a PUBLISH a list of integers.

    Args:
        user_properties: False: they are checked and left out, where nobody reads them.

    Raises:
        ClientError: MALFORMED_PACKET for what cannot be read or does not belong in this packet, PROTOCOL_ERROR for a
            forbidden repetition or value, TOPIC_ALIAS_INVALID for a Topic Alias of 0.
    """
    if offset < len(data) and data[offset] == 0:
        return {}, offset + 1
    length, offset = decode_varint(data, offset)
    end = offset + length
    if end > len(data):
        raise malformed("section 2.2.2.1", "the properties are longer than the packet")
    data = data[:end]  # so that no value reads past the properties
    properties: dict[str, Any] = {}
    while offset < end:
        if data[offset] == USER_PROPERTY and packet in _EVERYWHERE:
            pairs = properties.setdefault("user_property", []) if user_properties else None
            before, offset = offset, take_user_properties(data, offset, end, pairs)
            if offset != before:
                continue  # else what is wrong with it is said below
        identifier, offset = decode_varint(data, offset)
        row = BY_IDENTIFIER.get(identifier)
        if row is None or packet not in row.packets:
            raise malformed("section 2.2.2.2", f"property 0x{identifier:02x} does not belong in {packet.name}")
        value, offset = _decode_value(row, data, offset)
        name = row.name
        if packet in row.repeats_in:
            properties.setdefault(name, []).append(value)
        elif name in properties:
            raise ClientError(Reason.PROTOCOL_ERROR, row.clause, f"{name} appears twice")
        else:
            properties[name] = value
    return properties, offset


def _decode_value(row: Property, data: bytes, offset: int) -> tuple[Any, int]:
    kind = row.kind
    if kind <= Kind.FOUR_BYTES:  # these three are worth as many bytes as their number says
        end = offset + kind
        if end > len(data):
            raise malformed("section 2.2.2.2", f"the properties end inside {row.name}")
        number = int.from_bytes(data[offset:end], "big")
    elif kind == Kind.VARIABLE_BYTE_INTEGER:
        number, end = decode_varint(data, offset)
    elif kind == Kind.BINARY:
        return take_binary(data, offset)
    elif kind == Kind.UTF8_PAIR:
        first, offset = take_binary(data, offset)
        second, offset = take_binary(data, offset)
        return (decode_utf8(first), decode_utf8(second)), offset
    else:
        raw, end = take_binary(data, offset)
        text = decode_utf8(raw)
        if row.identifier == 0x08 and (not text or "+" in text or "#" in text):
            raise ClientError(
                Reason.PROTOCOL_ERROR,
                "MQTT-3.3.2-14" if text else "MQTT-4.7.3-1",
                "a response_topic that is no topic name",
            )
        return text, end
    if not row.minimum <= number <= row.maximum:
        raise ClientError(row.out_of_range, row.clause, f"{row.name} must not be {number}")
    return number, end


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """Return properties with their length in front, in the order of `TABLE`; user properties in their own order.

    Args:
        properties: as `decode_properties` returns them; whether they belong in the packet is the caller's business.
    """
    if not properties:
        return b"\0"
    block = bytearray()
    for row in sorted((BY_NAME[name] for name in properties), key=_identifier):
        value = properties[row.name]
        if row.identifier == USER_PROPERTY:
            block += put_user_properties(value if isinstance(value, list) else [value])
            continue
        for item in value if isinstance(value, list) else (value,):
            block.append(row.identifier)  # all are below 0x80: one byte
            block += _encode_value(row.kind, item)
    return b"".join((encode_varint(len(block)), block))


def encode_message_block(properties: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return a message's properties without their length, and where in them the value of Message Expiry Interval lies.

    The offset is -1 if there is none. That is how `router.core.message` holds them.
    """
    encoded = encode_properties(properties)
    block = encoded[find_varint(encoded, 0)[1] :]
    if "message_expiry_interval" not in properties:
        return block, -1
    offset = 3 if "payload_format_indicator" in properties else 1  # nothing else goes before it
    assert block[offset - 1] == 0x02, block
    return block, offset


def _identifier(row: Property) -> int:
    return row.identifier


def _encode_value(kind: Kind, value: Any) -> bytes:
    if kind <= Kind.FOUR_BYTES or kind == Kind.VARIABLE_BYTE_INTEGER:
        encoded: bytes = value.to_bytes(int(kind), "big") if kind <= Kind.FOUR_BYTES else encode_varint(value)
        return encoded
    if kind == Kind.BINARY:
        return put_binary(value)
    if kind == Kind.UTF8_PAIR:
        return put_binary(value[0].encode()) + put_binary(value[1].encode())
    return put_binary(value.encode())
