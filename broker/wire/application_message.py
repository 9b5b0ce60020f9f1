"""Application messages as Python code in this process gives and gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.wire.properties import (
    BY_NAME,
    VARIABLE_BYTE_INTEGER_MAX,
    Kind,
    PacketType,
    Property,
    decode_properties,
    decode_varint,
    encode_message_block,
)
from router.core.message import message as make_message
from router.core.receiver import encode_options
from router.core.varint import encode_varint
from router.matching.topic_names import check_topic_filter, is_topic_name, parse_shared

if TYPE_CHECKING:
    from router.core.message import Message

STRING_BYTES_MAX = 65_535
HEADER_BYTES_MAX = 2 + 2 + 4  # of a PUBLISH beside topic name, properties and payload: lengths, identifier
NOT_A_PUBLISHER_S = frozenset({"topic_alias", "subscription_identifier"})
RETAIN_HANDLING_MAX = 2


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """An application message as an in-process client receives it.

    Attributes:
        topic_name: where it was published.
        payload: the bytes published.
        qos: granted, 0 to 2; never above the published one.
        retain: as it reaches this subscriber: true for a retained message that a subscription asked for, and for a
            later one if the subscription has Retain As Published.
        subscription_identifiers: of all subscriptions of this client that it matched, as far as they have one.
        message_expiry_interval: seconds left when it was taken, rounded up; None if it does not expire.
    """

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    subscription_identifiers: tuple[int, ...] = ()
    message_expiry_interval: int | None = None
    _property_block: bytes = field(default=b"", repr=False)

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of MQTT 5.0 that its publisher set, by name; decoded anew by each access, yours to change.

        Names are the standard's in lower case, as in `content_type`; `user_property` is a list of pairs.
        """
        if not self._property_block:
            return {}
        block = encode_varint(len(self._property_block)) + self._property_block
        properties, _ = decode_properties(block, 0, PacketType.PUBLISH)
        properties.pop("topic_alias", None)  # the publisher's connection's, not the message's
        if self.message_expiry_interval is not None:
            properties["message_expiry_interval"] = self.message_expiry_interval
        return properties


def received(message: Message, qos: int, retain: bool, identifiers: tuple[int, ...], now_ms: int) -> ReceivedMessage:
    """Return a router's message as its subscriber sees it at a time, monotonic ms."""
    expires_ms = message.expires_at_ms
    left_s = -((now_ms - expires_ms) // 1000) if expires_ms else None
    return ReceivedMessage(
        message.topic_name.decode(), message.body, qos, retain, identifiers, left_s, message.property_block
    )


def decode_identifiers(encoded: bytes) -> tuple[int, ...]:
    """Return the Subscription Identifiers of a delivery: 0x0B and the number, repeated."""
    identifiers = []
    offset = 0
    while offset < len(encoded):
        identifier, offset = decode_varint(encoded, offset + 1)
        identifiers.append(identifier)
    return tuple(identifiers)


# What a user gives: checked here, with a ValueError that says which argument is wrong and why -------------------------


def build(
    topic_name: bytes, payload: bytes, qos: int, retain: bool, properties: Mapping[str, Any] | None, now_ms: int
) -> Message:
    """Return an owned message, published now, monotonic ms, from what check_message() returned."""
    if not properties:
        return make_message(topic_name, payload, qos, retain, b"", -1, now_ms, 0)
    block, expiry_offset = encode_message_block(properties)
    expiry_s = properties.get("message_expiry_interval")
    expires_ms = 0 if expiry_s is None else now_ms + expiry_s * 1000
    return make_message(topic_name, payload, qos, retain, block, expiry_offset, now_ms, expires_ms)


def check_message(
    topic_name: str, payload: bytes | bytearray | memoryview, qos: int, properties: Mapping[str, Any] | None
) -> tuple[bytes, bytes]:
    """Check what is to be published. Returns the topic name as UTF-8, and the payload as bytes of our own."""
    topic = check_topic_name("topic_name", topic_name)
    check_number("qos", qos, 0, 2)
    size = len(topic) + HEADER_BYTES_MAX
    if properties:
        _check_properties(properties)
        size += len(encode_message_block(properties)[0])
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"payload is bytes, not {type(payload).__name__}")
    owned = bytes(payload)
    if size + len(owned) > VARIABLE_BYTE_INTEGER_MAX:
        raise ValueError(f"payload: {len(owned):,} bytes are more than a packet holds")
    return topic, owned


def check_string(where: str, text: str, bytes_min: int = 0) -> bytes:
    """Return a string as the UTF-8 that goes on the wire: up to 65,535 bytes without U+0000."""
    if not isinstance(text, str):
        raise TypeError(f"{where} is a str, not {type(text).__name__}")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: a surrogate has no UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{where}: no U+0000")
    if not bytes_min <= len(encoded) <= STRING_BYTES_MAX:
        raise ValueError(f"{where}: {bytes_min} to {STRING_BYTES_MAX:,} bytes of UTF-8, not {len(encoded):,}")
    return encoded


def check_topic_name(where: str, topic_name: str) -> bytes:
    """Return a topic name as UTF-8."""
    encoded = check_string(where, topic_name, 1)
    if not is_topic_name(encoded):
        raise ValueError(f"{where} {topic_name!r}: a topic name has no + and no #")
    return encoded


def check_filter(topic_filter: str) -> tuple[bytes, bytes | None]:
    """Return a topic filter as UTF-8, and the filter behind $share/name/ if it is a shared one."""
    encoded = check_string("topic_filter", topic_filter, 1)
    try:
        problem = check_topic_filter(encoded)
        shared = parse_shared(encoded) if problem is None else None
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise ValueError(f"topic_filter {topic_filter!r}: {problem}")
    return encoded, None if shared is None else shared[1]


def check_options(
    shared: bool,
    qos: int,
    no_local: bool,
    retain_as_published: bool,
    retain_handling: int,
    subscription_identifier: int | None,
) -> int:
    """Return the Subscription Options byte (3.8.3.1)."""
    check_number("qos", qos, 0, 2)
    check_number("retain_handling", retain_handling, 0, RETAIN_HANDLING_MAX)
    if subscription_identifier is not None:
        check_number("subscription_identifier", subscription_identifier, 1, VARIABLE_BYTE_INTEGER_MAX)
    if no_local and shared:
        raise ValueError("no_local: not with a shared subscription")  # [MQTT-3.8.3-4]
    options: int = encode_options(qos, bool(no_local), bool(retain_as_published), retain_handling)
    return options


def check_number(where: str, number: int, least: int, most: int) -> int:
    """Return a number that lies in its range."""
    if not isinstance(number, int):
        raise TypeError(f"{where} is an int, not {type(number).__name__}")
    if not least <= number <= most:
        raise ValueError(f"{where} is {least} to {most:,}, not {number:,}")
    return number


def _check_properties(properties: Mapping[str, Any]) -> None:
    for name, value in properties.items():
        row = BY_NAME.get(name)
        if row is None or PacketType.PUBLISH not in row.packets or name in NOT_A_PUBLISHER_S:
            known = sorted(
                row.name
                for row in BY_NAME.values()
                if PacketType.PUBLISH in row.packets and row.name not in NOT_A_PUBLISHER_S
            )
            raise ValueError(f"properties: {name!r} is none of {', '.join(known)}")
        where = f"properties[{name!r}]"
        if name == "response_topic":
            check_topic_name(where, value)
        else:
            _check_value(where, row, value)


def _check_value(where: str, row: Property, value: Any) -> None:
    if row.kind <= Kind.FOUR_BYTES:
        check_number(where, value, row.minimum, row.maximum)
    elif row.kind == Kind.UTF8_STRING:
        check_string(where, value)
    elif row.kind == Kind.BINARY:
        if not isinstance(value, bytes):
            raise TypeError(f"{where} is bytes, not {type(value).__name__}")
        if len(value) > STRING_BYTES_MAX:
            raise ValueError(f"{where}: up to {STRING_BYTES_MAX:,} bytes, not {len(value):,}")
    else:
        assert row.kind == Kind.UTF8_PAIR, row
        if not isinstance(value, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            raise TypeError(f"{where} is a list of (name, value)")
        for index, pair in enumerate(value):
            check_string(f"{where}[{index}] name", pair[0])
            check_string(f"{where}[{index}] value", pair[1])
