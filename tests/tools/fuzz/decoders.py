"""The packet decoders and the properties: any bytes are a packet, or their sender's fault.

An input is a byte that chooses version and decoder, then the frame or the property block.
"""

from __future__ import annotations

import random
import re
from collections.abc import Hashable

from broker.wire.packets import Ack, Auth, Connack, Disconnect, decode, encode, next_frame
from broker.wire.properties import BY_NAME, PacketType, decode_properties, encode_properties
from broker.wire.reasons import ClientError, CloseReason
from tests.tools.fuzz import corpus
from tests.tools.fuzz.mutate import mutated, mutated_packet
from tests.tools.fuzz.target import Target

LONG_NUMBER = re.compile(rb"[\x80-\xff]\0")  # a variable byte integer of more bytes than it takes
LEFT_OUT = re.compile(LONG_NUMBER.pattern + rb"|\x18\0\0\0\0")  # or a will delay interval of 0
SHORT_FORMS = (Ack, Auth, Disconnect)  # what says nothing may be left out of these
PROPERTIES_ALONE = 0x80  # in the first byte: not a frame, a block of properties


def make(draw: random.Random) -> bytes:
    """Return a packet or a block of properties, mutated."""
    version = draw.choice(corpus.VERSIONS)
    if draw.random() < 0.3:
        packet_type = draw.choice(list(PacketType))
        block = corpus.odd_block(draw, packet_type)
        if draw.random() < 0.5:
            block = mutated(draw, block, corpus.odd_block(draw, packet_type))
        return bytes((PROPERTIES_ALONE | packet_type,)) + block
    if draw.random() < 0.3:
        return b"\x02" + corpus.odd(draw)  # 5.0, see check
    frame = corpus.any_packet(draw, version)
    return bytes((version,)) + mutated_packet(draw, frame, corpus.any_packet(draw, version))


def check(data: bytes) -> Hashable:
    """Decode; what is decoded can be encoded and is decoded to the same; what is not has a reason that can be sent."""
    if not data:
        return None
    if data[0] & PROPERTIES_ALONE:
        return _check_properties(data[1:], PacketType(data[0] & 0x0F))
    return _check_frames(data[1:], 3 + data[0] % 3)


def _check_properties(block: bytes, packet_type: PacketType) -> Hashable:
    try:
        properties, end = decode_properties(block, 0, packet_type)
    except ClientError as error:
        return _fault(error, packet_type in (PacketType.CONNECT, PacketType.WILL))
    assert 0 < end <= len(block)
    for name, value in properties.items():
        row = BY_NAME[name]
        assert packet_type in row.packets, name
        assert isinstance(value, list) == (packet_type in row.repeats_in), name
    encoded = encode_properties(properties)
    assert decode_properties(encoded, 0, packet_type) == (properties, len(encoded))
    assert len(encoded) == end or LONG_NUMBER.search(block), (properties, "left something out")
    return packet_type, frozenset(properties)


def _check_frames(stream: bytes, version: int) -> Hashable:
    buffer = bytearray(stream)
    answer: set[Hashable] = set()
    while True:
        before = len(buffer)
        try:
            frame = next_frame(buffer)
        except ClientError as error:
            return _fault(error, False)
        if frame is None:
            assert len(buffer) == before
            return frozenset(answer)
        assert 2 + len(frame[1]) <= before - len(buffer) <= 5 + len(frame[1])
        try:
            packet = decode(*frame, version)
        except ClientError as error:
            return _fault(error, frame[0] == 0x10), frozenset(answer)
        own = getattr(packet, "version", version)  # a CONNECT brings its own
        again = next_frame(bytearray(encode(packet, own)))
        assert again is not None
        assert decode(*again, own) == packet
        assert len(again[1]) == len(frame[1]) or isinstance(packet, SHORT_FORMS) or LEFT_OUT.search(frame[1]), packet
        answer.add(type(packet).__name__)


def _fault(error: ClientError, connecting: bool) -> Hashable:
    """Check that a client can be told what it did, and the log too."""
    assert isinstance(error.close, CloseReason)
    assert error.close is not CloseReason.INTERNAL_ERROR
    assert str(error).isprintable()
    assert error.clause
    properties = {"reason_string": error.detail}
    last_word = Connack(False, error.reason, properties) if connecting else Disconnect(error.reason, properties)
    frame = next_frame(bytearray(encode(last_word, 5)))
    assert frame is not None
    assert decode(*frame, 5) == last_word
    return error.clause, error.reason, error.detail


TARGET = Target("decoders", 2500, make, check)
