"""Hypothesis strategies for control packets and their properties, of any version."""

from __future__ import annotations

from hypothesis import strategies as st

from broker.wire import packets as p
from broker.wire.properties import TABLE, Kind, PacketType
from broker.wire.reasons import ConnectReturn, Reason

# Surrogates have no UTF-8 form, and U+0000 is forbidden [MQTT-1.5.4-1, -2].
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
topic_texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0+#"), min_size=1, max_size=20)
topic_names = topic_texts.map(str.encode)
topic_filters = topic_names.filter(lambda name: not name.startswith(b"$share/"))
payloads = st.binary(max_size=40)
packet_identifiers = st.integers(1, 0xFFFF)
versions = st.sampled_from((3, 4, 5))
_KIND_MAXIMUM = {Kind.BYTE: 0xFF, Kind.TWO_BYTES: 0xFFFF}


def _value(row):
    if row.kind == Kind.UTF8_STRING:
        return topic_texts if row.name == "response_topic" else texts
    if row.kind == Kind.BINARY:
        return st.binary(max_size=20)
    if row.kind == Kind.UTF8_PAIR:
        return st.tuples(texts, texts)
    return st.integers(row.minimum, min(row.maximum, _KIND_MAXIMUM.get(row.kind, row.maximum)))


def properties_of(packet_type, without=()):
    """Any valid properties of a packet type, except those named in `without`."""
    optional = {
        row.name: st.lists(_value(row), min_size=1, max_size=3) if packet_type in row.repeats_in else _value(row)
        for row in TABLE
        if packet_type in row.packets and row.name not in without
    }
    return st.fixed_dictionaries({}, optional=optional)


def _reasons(codes):
    return st.sampled_from(sorted(codes)).map(Reason)


@st.composite
def wills(draw, version):
    return p.Will(
        draw(topic_names),
        draw(payloads),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(properties_of(PacketType.WILL, {"will_delay_interval"})) if version == 5 else {},
        draw(st.integers(0, 0xFFFFFFFF)) if version == 5 else 0,
    )


@st.composite
def connects(draw, version):
    properties = draw(properties_of(PacketType.CONNECT)) if version == 5 else {}
    if "authentication_method" not in properties:
        properties.pop("authentication_data", None)
    user_name = draw(st.none() | texts)
    password = draw(st.none() | st.binary(max_size=20)) if version == 5 or user_name is not None else None
    return p.Connect(
        version,
        draw(texts).encode(),
        draw(st.booleans()),
        draw(st.integers(0, 0xFFFF)),
        draw(st.none() | wills(version)),
        user_name,
        password,
        properties,
    )


@st.composite
def publishes(draw, version):
    qos = draw(st.integers(0, 2))
    properties = draw(properties_of(PacketType.PUBLISH)) if version == 5 else {}
    topic = b"" if "topic_alias" in properties and draw(st.booleans()) else draw(topic_names)
    return p.Publish(
        topic,
        draw(payloads),
        qos,
        draw(st.booleans()),
        qos > 0 and draw(st.booleans()),
        draw(packet_identifiers) if qos else 0,
        properties,
    )


@st.composite
def acks(draw, version):
    packet_type = draw(st.sampled_from((PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)))
    if version != 5:
        return p.Ack(packet_type, draw(packet_identifiers))
    return p.Ack(
        packet_type, draw(packet_identifiers), draw(_reasons(p._ACKS[packet_type][1])), draw(properties_of(packet_type))
    )


def subscriptions(version):
    if version != 5:
        return st.builds(p.subscription, topic_filters, st.integers(0, 2))
    return st.builds(
        p.subscription,
        topic_filters,
        st.integers(0, 2),
        no_local=st.booleans(),
        retain_as_published=st.booleans(),
        retain_handling=st.integers(0, 2),
    )


@st.composite
def auths(draw):
    reason = draw(_reasons(p._AUTH_CODES))
    properties = draw(properties_of(PacketType.AUTH))
    if reason or properties:
        properties.setdefault("authentication_method", "method")
    return p.Auth(reason, properties)


def packets_of(version):
    """Any valid packet of a version, from either side."""

    def properties(packet_type):
        return properties_of(packet_type) if version == 5 else st.just({})

    kinds = [
        connects(version),
        st.builds(
            p.Connack,
            st.booleans() if version != 3 else st.just(False),
            _reasons(p._CONNACK_CODES) if version == 5 else st.sampled_from(ConnectReturn),
            properties(PacketType.CONNACK),
        ),
        publishes(version),
        acks(version),
        st.builds(
            p.Subscribe,
            packet_identifiers,
            st.lists(subscriptions(version), min_size=1, max_size=4).map(tuple),
            properties(PacketType.SUBSCRIBE),
        ),
        st.builds(
            p.Suback,
            packet_identifiers,
            st.lists(_reasons(p._SUBACK_CODES if version == 5 else p._SUBACK_CODES_3), min_size=1).map(tuple),
            properties(PacketType.SUBACK),
        ),
        st.builds(
            p.Unsubscribe,
            packet_identifiers,
            st.lists(topic_filters, min_size=1, max_size=4).map(tuple),
            properties(PacketType.UNSUBSCRIBE),
        ),
        st.builds(
            p.Unsuback,
            packet_identifiers,
            st.lists(_reasons(p._UNSUBACK_CODES), min_size=1).map(tuple) if version == 5 else st.just(()),
            properties(PacketType.UNSUBACK),
        ),
        st.builds(p.Pingreq),
        st.builds(p.Pingresp),
    ]
    if version == 5:
        kinds += [st.builds(p.Disconnect, _reasons(p._DISCONNECT_CODES), properties(PacketType.DISCONNECT)), auths()]
    else:
        kinds.append(st.builds(p.Disconnect))
    return st.one_of(kinds)


versions_and_packets = versions.flatmap(lambda version: st.tuples(st.just(version), packets_of(version)))
