"""Headers of the PROXY protocol: any bytes are one, the beginning of one, or their sender's fault, whole and cut.

An input is how a connection begins.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.transport.facts import Facts
from broker.transport.layer import Layers
from broker.transport.proxies import Proxies
from broker.transport.proxy_layer import ProxyLayer
from broker.transport.proxy_protocol import HEADER_MAX
from broker.wire.reasons import ClientError, CloseReason
from tests.support.proxy_headers import (
    AUTHORITY,
    FOUR,
    NOOP,
    SIX,
    TCP4,
    TCP6,
    UNIQUE_ID,
    UNIX_STREAM,
    UNSPEC,
    addresses,
    ssl,
    tlv,
    v2,
)
from tests.support.websockets import cut
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

PEER = "10.0.0.1:5000"
PROXIES = Proxies(("10.0.0.0/8",), is_unix=False)
LINES = (
    b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 1883\r\n",
    b"PROXY TCP6 2001:db8::7 ::1 51234 1883\r\n",
    b"PROXY UNKNOWN\r\n",
    b"PROXY UNKNOWN anything at all\r\n",
)
BLOCKS = ((TCP4, FOUR), (TCP6, SIX), (UNIX_STREAM, addresses("/run/a", "/run/b")), (UNSPEC, b""), (0x12, FOUR))
SIZES = (1, 2, 3, 16)


def make(draw: random.Random) -> bytes:
    """Return a header, mostly with mutations, and what follows it."""
    if draw.random() < 0.3:
        data = draw.choice(LINES)
    else:
        family, block = draw.choice(BLOCKS)
        tlvs = (
            tlv(NOOP, b"\0" * 3),
            tlv(AUTHORITY, b"example.org"),
            tlv(UNIQUE_ID, draw.randbytes(4)),
            tlv(0xEE, b"x"),
            ssl(draw.randrange(8), draw.choice((0, 0, 1)), cn=draw.choice((None, b"cn", b"\xff"))),
        )
        data = v2(
            block,
            *draw.sample(tlvs, draw.randrange(4)),
            family=family,
            command=draw.choice((0, 1, 1, 1)),
            checked=draw.random() < 0.4,
        )
    return (mutated(draw, data) if draw.random() < 0.8 else data) + draw.choice((b"", b"\x10\x0c", b"\x16\x03\x01"))


def check(data: bytes) -> Hashable:
    """What is learned of it, what goes on behind it, and how it ends is the same however it comes."""
    whole = outcome([data])
    for size in SIZES:
        assert outcome(cut(data, range(0, len(data), size))) == whole, size
    facts, plain, gone, error = whole
    assert data.endswith(plain)
    assert gone or not plain
    assert error is not None or gone or len(data) < HEADER_MAX
    return facts.certificate, facts.address is None, gone, error


def outcome(pieces: list[bytes]) -> tuple[Facts, bytes, bool, str | None]:
    """Return what is known, what was passed on, whether the header is over, and what was wrong with it."""
    facts = Facts(listener=0)
    layers = Layers([ProxyLayer(PROXIES, PEER)], facts)
    plain = b""
    for piece in pieces:
        passed, error = layers.feed(piece)
        plain += passed
        if error is not None:
            assert isinstance(error, ClientError), error
            assert error.close == CloseReason.PROXY_HEADER_INVALID
            assert str(error).isprintable()
            assert facts == Facts(listener=0), "half of a header was believed"
            return facts, plain, False, str(error)
    return facts, plain, not layers.layers(), None


TARGET = Target("proxy", 700, make, check)
