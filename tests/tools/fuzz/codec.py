"""The compiled codec beside the decoders in Python: they take and refuse the same packets, but for what is listed here.

An input is a byte that chooses the version, then a PUBLISH or an acknowledgement.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Hashable

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.codec import decode_message, encode_message
from broker.wire.packets import Ack, Connect, Publish, decode, encode, next_frame
from broker.wire.properties import PacketType
from broker.wire.reasons import ClientError, CloseReason
from broker.worker.terms import terms
from router.core.varint import encode_varint
from router.matching.topic_names import is_topic_name
from router.router import Router
from router.sessions.ledger import Ledger
from tests.tools.fuzz import corpus
from tests.tools.fuzz.mutate import mutated_packet
from tests.tools.fuzz.target import Target

ACKS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
PINGRESP = b"\xd0\0"
NOW_MS = 1_000_000


def make(draw: random.Random) -> bytes:
    """Return a PUBLISH or an acknowledgement, mutated."""
    version = draw.choice(corpus.VERSIONS)
    kind = draw.choice((PacketType.PUBLISH, PacketType.PUBLISH, *ACKS))
    if draw.random() < 0.3:
        return b"\x02" + corpus.odd(draw, kind)  # 5.0, see check
    frame = corpus.packet(draw, version, kind)
    return bytes((version,)) + mutated_packet(draw, frame, corpus.packet(draw, version, kind))


def check(data: bytes) -> Hashable:
    """Let both read the first whole packet, and compare."""
    if not data:
        return None
    version = 3 + data[0] % 3
    try:
        frame = next_frame(bytearray(data[1:]))
    except ClientError:
        return None
    if frame is None:
        return None
    first, body = frame
    # In as few bytes as it takes: a longer Remaining Length is refused before the codec is asked.
    whole = bytes((first,)) + encode_varint(len(body)) + body
    if first >> 4 == PacketType.PUBLISH:
        return _check_publish(whole, first, body, version)
    return _check_acknowledgement(whole, first, body, version) if first >> 4 in ACKS else None


def _in_python(first: int, body: bytes, version: int) -> Publish | Ack | ClientError:
    try:
        packet = decode(first, body, version)
    except ClientError as error:
        return error
    assert isinstance(packet, (Publish, Ack))
    return packet


def _check_publish(whole: bytes, first: int, body: bytes, version: int) -> Hashable:
    expected = _in_python(first, body, version)
    try:
        found, identifier, alias = decode_message(whole, version, NOW_MS)
    except ClientError as error:
        if isinstance(expected, Publish):
            _check_only_the_codec_refuses(expected, error)
        return error.clause, str(error)
    if isinstance(expected, ClientError):
        # The characters of a topic name are looked at by whoever reads the route, and an empty one by the alias.
        assert not is_topic_name(found.topic_name), expected
        return "topic", expected.clause
    assert (found.topic_name, found.body, found.quality_of_service, found.retained, identifier) == (
        expected.topic,
        expected.payload,
        expected.qos,
        expected.retain,
        expected.packet_identifier,
    )
    assert alias == expected.properties.get("topic_alias", 0)
    # What goes out again is what came in, but for the publisher's alias.
    sent = encode_message(found, version, identifier, expected.qos, expected.retain, expected.dup, now_ms=NOW_MS)
    frame = next_frame(bytearray(sent))
    assert frame is not None
    if expected.topic:
        kept = {name: value for name, value in expected.properties.items() if name != "topic_alias"}
        assert decode(*frame, version) == dataclasses.replace(expected, properties=kept)
    return version, first, frozenset(expected.properties)


def _check_only_the_codec_refuses(packet: Publish, error: ClientError) -> None:
    """What clients may get but not send, and what the decoders in Python are lenient about."""
    allowed = (
        "subscription_identifier" in packet.properties  # [MQTT-3.3.4-6]
        or error.detail == "PUBLISH ends inside its properties"  # a length of too many bytes
        or error.clause in ("section 2.2.2.2", "MQTT-3.3.2-14")
    )
    assert allowed, (packet, error)


def _check_acknowledgement(whole: bytes, first: int, body: bytes, version: int) -> Hashable:
    """The codec's reader of acknowledgements is reached through a connection that waits for none."""
    if version == 3 and first == 0x6A:
        first = 0x62  # 3.1 lets PUBREL be marked as sent again
    expected = _in_python(first, body, version)
    router = Router(Ledger())
    controller = Controller(Config(), router, Anonymous(), AllowAll())
    hub = Hub(router, controller, Pump(router), now_ms=NOW_MS, **terms(Config()))
    connection = hub.connect()
    connection.feed_bytes(encode(Connect(version, b"c"), version))
    hub.run_turn(NOW_MS)
    connection.take_output()
    connection.feed_bytes(whole + b"\xc0\0")
    hub.run_turn(NOW_MS)
    if isinstance(expected, ClientError):
        assert connection.close_reason in (CloseReason.MALFORMED_PACKET, CloseReason.PROTOCOL_ERROR), expected
    elif connection.is_closing:
        # Variable byte integers of more bytes than it takes pass in Python alone.
        assert connection.close_reason == CloseReason.MALFORMED_PACKET, expected
        assert version == 5, expected
        assert encode(expected, version) != whole, expected
    else:
        assert connection.take_output().endswith(PINGRESP)
    answer = (version, first, str(connection.close_reason), isinstance(expected, Ack) and int(expected.reason))
    connection.close(CloseReason.CONNECTION_LOST)
    hub.run_turn(NOW_MS)
    connection.take_output()
    return answer


TARGET = Target("codec", 1500, make, check)
