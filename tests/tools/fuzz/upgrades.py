"""The HTTP request that opens a WebSocket: any bytes are answered in HTTP, or are the beginning of a request.

An input is what a client sends.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.transport.facts import Facts
from broker.transport.proxies import Proxies
from broker.transport.upgrade import HEAD_BYTES_MAX, PHRASES, Upgrade, Upgrades
from broker.wire.reasons import CloseReason
from tests.support.websockets import cut, request
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

UPGRADES = Upgrades(("/mqtt", "/"), ("https://app.example.org",), True, Proxies(("10.0.0.0/8",), is_unix=False))
PEER = "10.0.0.1:5000"
FIELDS = {
    "upgrade": ("websocket", "h2c", "h2c, WebSocket", None),
    "connection": ("Upgrade", "keep-alive, upgrade", "close", None),
    "sec_websocket_key": ("dGhlIHNhbXBsZSBub25jZQ==", "short", None),
    "sec_websocket_version": ("13", "8", "13, 8", None),
    "sec_websocket_protocol": ("mqtt", "chat, mqttv5", "chat", None),
    "origin": (None, "https://app.example.org", "null"),
    "x_forwarded_for": (None, "203.0.113.5", "[2001:db8::1]:5, 10.0.0.2", ",", "unknown, 1.2.3.4:x"),
    "content_length": (None, None, None, "0", "5", "-1"),
    "transfer_encoding": (None, None, None, "chunked"),
    "host": ("x", "x", None),
}
TOKENS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b": ",
    b" ",
    b"GET",
    b"HTTP/1.0",
    b"Host: y\r\n",
    b"\0",
    b"\xff",
    b",",
    b"x" * 9000,
)


def make(draw: random.Random) -> bytes:
    """Return a request, with fields right and wrong, mutations, and frames behind it."""
    fields = {name: draw.choice(values) if draw.random() < 0.2 else values[0] for name, values in FIELDS.items()}
    data = request(draw.choice(("/mqtt", "/mqtt", "/", "/?x", "/other", "http://x/mqtt", "*")), **fields)
    if draw.random() < 0.4:
        data = mutated(draw, data)
    if draw.random() < 0.3:
        at = draw.randrange(len(data) + 1)
        data = data[:at] + draw.choice(TOKENS) + data[at:]
    return data + draw.choice((b"", b"\x82\x80abcd", b"\r\n"))


def check(data: bytes) -> Hashable:
    """It is answered as a whole, and by the same words however it comes."""
    whole = outcome(cut(data, ()))
    if len(data) <= HEAD_BYTES_MAX:
        assert outcome(cut(data, range(len(data)))) == whole
    return whole[:2]


def outcome(pieces: list[bytes]) -> tuple[int, str, str | None, int]:
    """Return the status, 0: no answer; the words of a refusal; the address that it told; and how long it was."""
    facts = Facts(listener=0)
    upgrade = Upgrade(UPGRADES, facts, PEER)
    taken = 0
    for piece in pieces:
        taken += len(piece)
        answered = upgrade.receive(piece)
        if answered is None:
            assert taken <= HEAD_BYTES_MAX, "more than a request may have"
            continue
        if answered.error is None:
            assert answered.data.startswith(b"HTTP/1.1 101 ")
            assert answered.data.endswith(b"\r\n\r\n")
            assert b"\r\nSec-WebSocket-Accept: " in answered.data
            assert 0 <= answered.behind <= len(piece)
            assert facts.proxy == (None if facts.address is None else PEER)
            return 101, "", facts.address, taken - answered.behind
        assert facts.address is None
        assert str(answered.error).isprintable()
        if answered.error.close == CloseReason.TLS_ON_PLAIN_PORT:
            return 1, answered.error.detail, None, 0
        assert answered.error.close == CloseReason.WEBSOCKET_REFUSED
        status = int(answered.data[9:12])
        assert status in PHRASES
        assert b"\r\n\r\n" in answered.data
        return status, answered.error.detail, None, 0
    return 0, "", None, 0


TARGET = Target("upgrades", 700, make, check)
