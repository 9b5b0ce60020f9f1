"""Valid control packets of every version, drawn by chance and written by our own encoder: what mutation starts from."""

from __future__ import annotations

import random
from typing import Any

from broker.wire import packets as p
from broker.wire.properties import TABLE, Kind, PacketType, Property, encode_properties, put_binary
from broker.wire.reasons import ConnectReturn, Reason
from router.core.varint import encode_varint

VERSIONS = (3, 4, 5)
# Few enough that packets drawn one by one meet each other.
TOPIC_NAMES = (
    *(b"a",) * 3,
    *(b"a/b",) * 3,
    b"a/b/c",
    b"secret/a",
    b"/",
    b"a//c",
    b"$SYS/x",
    "é/ü".encode(),
    b"a/b/c/d/e/f/g/h",
    b"t" * 300,
)
TOPIC_FILTERS = (
    *TOPIC_NAMES,
    *(b"#",) * 3,
    *(b"a/#",) * 3,
    b"+",
    b"+/b",
    b"a/+/c",
    b"/+",
    b"$SYS/#",
    b"$share/g/a/#",
    b"$share/g/a/#",
    b"$share/g/+",
    b"$share/h/#",
)
IDENTIFIERS = (b"", b"c1", b"c1", b"c2", b"c2", b"c3", b"c4", "ü".encode(), b"x" * 20)
REFUSED_IDENTIFIERS = (b"banned", b"moved", b"x" * 30)
TEXTS = ("", "a", "text", "ü\U0001f41f", "y" * 130)
BLOBS = (b"", b"\0", b"blob", bytes(range(256)))
INTERVALS = (0, 1, 30, 0xFFFFFFFE, 0xFFFFFFFF)
FROM_CLIENTS = (
    PacketType.PUBLISH,
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ,
    PacketType.DISCONNECT,
    PacketType.AUTH,
)


def identifier(draw: random.Random) -> int:
    """Return a packet identifier, mostly a small one, so that packets fit each other."""
    return draw.choice((1, 1, 2, 2, 3, 4, 65_535, draw.randint(1, 65_535)))


def payload(draw: random.Random) -> bytes:
    """Return a payload of any size up to a few KiB, mostly small."""
    return draw.randbytes(draw.choice((0, 1, 10, 100, 127, 128, 1000, 5000)))


def _value(draw: random.Random, row: Property) -> Any:
    if row.kind == Kind.UTF8_STRING:
        if row.name == "response_topic":
            return draw.choice(TOPIC_NAMES).decode()
        return draw.choice(("toy", "toy", "other", "")) if row.name == "authentication_method" else draw.choice(TEXTS)
    if row.kind == Kind.BINARY:
        return draw.choice((b"cba", *BLOBS)) if row.name == "authentication_data" else draw.choice(BLOBS)
    if row.kind == Kind.UTF8_PAIR:
        return draw.choice(TEXTS), draw.choice(TEXTS)
    if row.name == "maximum_packet_size":
        return draw.choice((1, 20, 128, 1000, row.maximum))
    largest = min(row.maximum, {Kind.BYTE: 0xFF, Kind.TWO_BYTES: 0xFFFF}.get(row.kind, row.maximum))
    return min(max(row.minimum, draw.choice((0, 1, 2, 3, 128, 1000, largest))), largest)


def properties(draw: random.Random, packet: PacketType, version: int, likely: float = 0.15) -> dict[str, Any]:
    """Return valid properties of a packet type, each with some likelihood; none before 5.0."""
    if version != 5:
        return {}
    found: dict[str, Any] = {}
    for row in TABLE:
        if packet in row.packets and draw.random() < likely:
            found[row.name] = (
                [_value(draw, row) for _ in range(draw.randint(1, 3))]
                if packet in row.repeats_in
                else (_value(draw, row))
            )
    return found


def will(draw: random.Random, version: int) -> p.Will:
    """Return a valid will message."""
    found = properties(draw, PacketType.WILL, version)
    delay_s = found.pop("will_delay_interval", 0)
    return p.Will(draw.choice(TOPIC_NAMES), payload(draw)[:200], draw.randrange(3), draw.random() < 0.3, found, delay_s)


def connect(draw: random.Random, version: int) -> bytes:
    """Return a valid CONNECT."""
    found = properties(draw, PacketType.CONNECT, version, 0.1)
    if "authentication_method" not in found:
        found.pop("authentication_data", None)
    user_name = draw.choice((*(None,) * 10, *("user",) * 7, "", "refuse me"))
    password = b"pw" if user_name is not None and draw.random() < 0.5 else None
    return p.encode(
        p.Connect(
            version,
            draw.choice(IDENTIFIERS if draw.random() < 0.95 else REFUSED_IDENTIFIERS),
            draw.random() < 0.5,
            draw.choice((0, 0, 0, 1, 60, 65_535)),
            will(draw, version) if draw.random() < 0.3 else None,
            user_name,
            password,
            found,
            version < 5 and draw.random() < 0.1,
        ),
        version,
    )


def packet(draw: random.Random, version: int, packet_type: PacketType) -> bytes:
    """Return a valid packet of a type, from either side."""
    if packet_type == PacketType.CONNECT:
        return connect(draw, version)
    return p.encode(_packet(draw, version, packet_type), version)


def _packet(draw: random.Random, version: int, packet_type: PacketType) -> p.Packet:
    found = properties(draw, packet_type, version)
    if packet_type == PacketType.PUBLISH:
        qos = draw.randrange(3)
        found.pop("subscription_identifier", None)  # a client must not send one
        topic = b"" if "topic_alias" in found and draw.random() < 0.5 else draw.choice(TOPIC_NAMES)
        return p.Publish(
            topic,
            payload(draw),
            qos,
            draw.random() < 0.2,
            qos > 0 and draw.random() < 0.2,
            identifier(draw) if qos else 0,
            found,
        )
    if packet_type in p._ACKS:
        reason = draw.choice(sorted(p._ACKS[packet_type][1])) if version == 5 and draw.random() < 0.3 else 0
        return p.Ack(packet_type, identifier(draw), Reason(reason), found)
    if packet_type == PacketType.SUBSCRIBE:
        return p.Subscribe(
            identifier(draw), tuple(_subscription(draw, version) for _ in range(draw.randint(1, 4))), found
        )
    if packet_type == PacketType.UNSUBSCRIBE:
        return p.Unsubscribe(identifier(draw), tuple(draw.choices(TOPIC_FILTERS, k=draw.randint(1, 4))), found)
    if packet_type == PacketType.CONNACK:
        codes = sorted(p._CONNACK_CODES)
        reason = Reason(draw.choice(codes)) if version == 5 else draw.choice(list(ConnectReturn))
        return p.Connack(version > 3 and draw.random() < 0.5, reason, found)
    if packet_type in (PacketType.SUBACK, PacketType.UNSUBACK):
        if packet_type == PacketType.SUBACK:
            codes = sorted(p._SUBACK_CODES if version == 5 else p._SUBACK_CODES_3)
            return p.Suback(identifier(draw), _reasons(draw, codes), found)
        return p.Unsuback(identifier(draw), _reasons(draw, sorted(p._UNSUBACK_CODES)) if version == 5 else (), found)
    if packet_type == PacketType.DISCONNECT:
        code = draw.choice((0, 4, *sorted(p._DISCONNECT_CODES))) if version == 5 else 0
        return p.Disconnect(Reason(code), found)
    if packet_type == PacketType.AUTH:
        found.setdefault("authentication_method", "toy")
        found.setdefault("authentication_data", b"cba")
        return p.Auth(Reason(draw.choice((0x18, 0x18, 0x19, 0))), found)
    return p.Pingresp() if packet_type == PacketType.PINGRESP else p.Pingreq()


def _reasons(draw: random.Random, codes: list[int]) -> tuple[Reason, ...]:
    return tuple(Reason(draw.choice(codes)) for _ in range(draw.randint(1, 4)))


def _subscription(draw: random.Random, version: int) -> p.Subscription:
    topic_filter = draw.choice(TOPIC_FILTERS)
    if version != 5:
        return p.subscription(topic_filter, draw.randrange(3))
    return p.subscription(
        topic_filter,
        draw.randrange(3),
        no_local=draw.random() < 0.2 and not topic_filter.startswith(b"$share/"),
        retain_as_published=draw.random() < 0.3,
        retain_handling=draw.randrange(3),
    )


def from_client(draw: random.Random, version: int) -> bytes:
    """Return a valid packet of a kind that clients send after CONNECT, PUBLISH more often than others."""
    kinds = FROM_CLIENTS[:-1] if version < 5 else FROM_CLIENTS
    weights = (8, 2, 2, 3, 2, 5, 2, 1, 1, 1)[: len(kinds)]
    return packet(draw, version, draw.choices(kinds, weights)[0])


def any_packet(draw: random.Random, version: int) -> bytes:
    """Return a valid packet of any type of a version, from either side."""
    kinds = [kind for kind in PacketType if kind != PacketType.WILL and (kind != PacketType.AUTH or version == 5)]
    return packet(draw, version, draw.choice(kinds))


def odd_block(draw: random.Random, packet_type: PacketType) -> bytes:
    """Return a well-formed block of properties in any order: some twice, some of other packets, some out of range."""
    encoded = []
    for row in draw.choices([row for row in TABLE if packet_type in row.packets] or TABLE, k=draw.randint(0, 3)):
        if draw.random() < 0.1:
            row = draw.choice(TABLE)
        value = _value(draw, row)
        if isinstance(value, int) and draw.random() < 0.3:
            value = draw.choice((0, 1, 2, 0xFF))
        elif row.name == "response_topic" and draw.random() < 0.3:
            value = draw.choice(("", "a/+", "#"))
        encoded.append(encode_properties({row.name: value})[1:])
    if encoded and draw.random() < 0.2:
        encoded.append(draw.choice(encoded))
    block = b"".join(encoded)
    return encode_varint(len(block)) + block


def odd(draw: random.Random, packet_type: PacketType | None = None) -> bytes:
    """Return a 5.0 packet that is well-formed but for what its properties say."""
    kind = packet_type or draw.choice((*FROM_CLIENTS[:7], PacketType.DISCONNECT, PacketType.AUTH, PacketType.CONNECT))
    block = odd_block(draw, kind)
    first = p._ACKS[kind][0] if kind in p._ACKS else kind << 4
    if kind == PacketType.PUBLISH:
        qos = draw.randrange(3)
        first |= qos << 1
        number = identifier(draw).to_bytes(2, "big") if qos else b""
        body = put_binary(draw.choice((b"", *TOPIC_NAMES))) + number + block + b"x"
    elif kind == PacketType.CONNECT:
        flags, last_will = 2, b""
        if draw.random() < 0.3:
            flags, last_will = 6, odd_block(draw, PacketType.WILL) + put_binary(b"a") + put_binary(b"x")
        body = b"\0\x04MQTT\x05" + bytes((flags, 0, 0)) + block + put_binary(draw.choice(IDENTIFIERS)) + last_will
    elif kind in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
        first |= 2
        options = bytes((draw.choice((0, 1, 2, 4, 8, 16, 32, 3, 48, 64)),)) if kind == PacketType.SUBSCRIBE else b""
        body = identifier(draw).to_bytes(2, "big") + block + put_binary(draw.choice(TOPIC_FILTERS)) + options
    else:
        reason = bytes((draw.choice((0, 0, 0x10, 0x18, 0x80, 0x92)),))
        body = (identifier(draw).to_bytes(2, "big") if kind in p._ACKS else b"") + reason + block
    return bytes((first,)) + encode_varint(len(body)) + body
