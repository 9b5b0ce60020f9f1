"""What comes to the port: MQTT, TLS, HTTP, a PROXY header, something else; told apart whole and byte by byte.

An input is the first bytes of a connection.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.auth.acl import AllowAll
from broker.auth.authenticator import Anonymous
from broker.config.loader import Config
from broker.control.controller import OTHER_PROTOCOLS, Controller
from broker.reactor.pump import Pump
from broker.reactor.turn import Hub
from broker.wire.reasons import CloseReason
from broker.worker.terms import terms
from router.router import Router
from router.sessions.ledger import Ledger
from tests.tools.fuzz import corpus
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

CLIENT_HELLO = bytes.fromhex(
    "16030100c8010000c40303" + "5a" * 32 + "20" + "a5" * 32 + "0022130113031302c02bc02fcca9cca8c02cc030c00ac009c013"
    "c014009c009d002f00350100005900000010000e00000b6578616d706c652e6f7267"
)
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE")
OTHERS = (
    CLIENT_HELLO,
    *(method + b" /mqtt HTTP/1.1\r\nHost: example.org\r\nUpgrade: websocket\r\n\r\n" for method in METHODS),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 1883\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\1" * 12,
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"EHLO example.org\r\n",
    b"\x80\x2e\x01\x03\x01",
    b"*1\r\n$4\r\nPING\r\n",
    b"\0" * 40,
)


def make(draw: random.Random) -> bytes:
    """Return how some protocol begins, mutated, or a CONNECT."""
    start = draw.choice(OTHERS) if draw.random() < 0.7 else corpus.connect(draw, draw.choice(corpus.VERSIONS))
    return mutated(draw, start, draw.choice(OTHERS)) if draw.random() < 0.8 else start


def expected_end(data: bytes) -> CloseReason | None:
    """Return how a connection ends that begins with these bytes and no CONNECT; None: it waits, or it is a CONNECT."""
    if len(data) < 2 or (data[0] >> 4 == 1 and data[:2] != b"\x16\x03"):
        return None
    if data[:2] == b"\x16\x03":
        return CloseReason.TLS_ON_PLAIN_PORT
    if data[:2].isalpha() and data[:2].isupper():
        if len(data) < 4:
            return None
        if any((method + b" ")[:4] == data[:4] for method in (*METHODS, b"PRI")):
            return CloseReason.HTTP_ON_PLAIN_PORT
    return CloseReason.PROTOCOL_ERROR


def outcome(pieces: list[bytes]) -> tuple[CloseReason | None, bytes]:
    """Return how a connection ends that sends these pieces, and what it was told."""
    router = Router(Ledger())
    controller = Controller(Config(), router, Anonymous(), AllowAll())
    hub = Hub(router, controller, Pump(router), now_ms=1000, **terms(Config()))
    connection = hub.connect()
    for piece in pieces:
        if not connection.is_closing:
            connection.feed_bytes(piece)
            hub.run_turn(1000)
    reason, told = connection.close_reason, connection.take_output()
    connection.close(CloseReason.CONNECTION_LOST)
    hub.run_turn(1000)
    connection.take_output()
    assert hub.connection_count == 0
    return reason, told


def check(data: bytes) -> Hashable:
    """Compare with the rule in plain words; all at once and byte by byte are the same."""
    data = data[:300]
    reason, told = outcome([data])
    if data[:1] and data[0] >> 4 == 1 and data[:2] != b"\x16\x03":
        return "connect"  # the connection target's business
    expected = expected_end(data)
    assert reason == expected, (reason, expected)
    assert told == (OTHER_PROTOCOLS.get(expected, b"") if expected is not None else b"")
    assert outcome([data[i : i + 1] for i in range(len(data))]) == (reason, told)
    return reason, data[:1]


TARGET = Target("first_bytes", 700, make, check)
