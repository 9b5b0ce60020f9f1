"""Mutations: bytes flipped, cut, spliced, repeated, and the lengths in front of fields changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from router.core.varint import encode_varint

INTERESTING = (0x00, 0x01, 0x02, 0x0F, 0x10, 0x23, 0x26, 0x2B, 0x2F, 0x7F, 0x80, 0xC0, 0xED, 0xF4, 0xFF)
TOKENS = (
    b"#",
    b"+",
    b"/",
    b"$share/",
    b"$SYS/",
    b"\0",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xef\xbb\xbf",
    b"\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x01",
    b"\0\0",
    b"\0\x04MQTT\x05",
    b"\0\x04MQTT\x04",
    b"\0\x06MQIsdp\x03",
    b"\x23\0\x01",
    b"\x26\0\x01a\0\x01b",
    b"\x0b\x01",
    b"\x02\0\0\0\0",
    b"\x11\xff\xff\xff\xff",
)
LARGEST = 20_000  # bytes of one mutated input: what is longer finds no more and takes longer


def flip(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Flip one bit."""
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def set_byte(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Set one byte to a value at which something changes."""
    data[draw.randrange(len(data))] = draw.choice(INTERESTING)


def cut(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Cut the end off."""
    del data[draw.randrange(len(data) + 1) :]


def drop(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Take some bytes out."""
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 1, 2, 3, 8, 50))]


def insert(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Put bytes in that mean something somewhere."""
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.choice(TOKENS)


def repeat(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Repeat a stretch some times."""
    start = draw.randrange(len(data))
    stretch = data[start : start + draw.choice((1, 2, 5, 20, 200))]
    data[start:start] = stretch * draw.choice((1, 1, 2, 10, 100))


def splice(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Go on with the end of another input."""
    if other:
        data[draw.randrange(len(data) + 1) :] = other[draw.randrange(len(other)) :]


def change_length(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Change two bytes as if they were the length of the field behind them."""
    if len(data) < 2:
        return
    at = draw.randrange(len(data) - 1)
    length = int.from_bytes(data[at : at + 2], "big")
    left = len(data) - at - 2
    changed = draw.choice((length + 1, length - 1, 0, 0xFFFF, left, left + 1, max(left - 1, 0)))
    data[at : at + 2] = (changed & 0xFFFF).to_bytes(2, "big")


def change_varint(draw: random.Random, data: bytearray, other: bytes) -> None:
    """Write a variable byte integer over a byte: the length of properties, or of the rest of the packet."""
    at = draw.randrange(len(data))
    left = len(data) - at - 1
    value = draw.choice((left, left + 1, max(left - 1, 0), 0, 127, 128, 16_384, 268_435_455))
    data[at : at + 1] = encode_varint(value)


MUTATIONS: Sequence[Callable[[random.Random, bytearray, bytes], None]] = (
    flip,
    flip,
    set_byte,
    set_byte,
    cut,
    drop,
    insert,
    repeat,
    splice,
    change_length,
    change_length,
    change_varint,
)


def mutated(draw: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Return bytes with one to four mutations; `other` is what may be spliced in."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        if found:
            draw.choice(MUTATIONS)(draw, found, other)
    return bytes(found[:LARGEST])


def body_of(frame: bytes) -> bytes:
    """Return what follows the fixed header of a whole valid packet."""
    end = 1
    while frame[end] >= 0x80:
        end += 1
    return frame[end + 1 :]


def mutated_packet(draw: random.Random, frame: bytes, other: bytes) -> bytes:
    """Return a packet with a mutated body, mostly with the Remaining Length that fits it, so that it is looked into."""
    if draw.random() < 0.2:
        return mutated(draw, frame, other)
    body = mutated(draw, body_of(frame), body_of(other))
    first = frame[0] ^ (1 << draw.randrange(4) if draw.random() < 0.1 else 0)
    return bytes((first,)) + encode_varint(len(body)) + body
