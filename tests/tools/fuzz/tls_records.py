"""What a client says in TLS: handshakes with bytes changed, left out and put in, and records behind them.

An input is a script of eight bytes (which flight of an OpenSSL client is changed, where and how; how its pieces come),
and bytes that are put in there. The keys of a handshake are drawn anew each time, so the answers of one input may
differ in what they say; a promise that is broken by one set of keys and not by another is broken all the same.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Hashable

from broker.transport.facts import Facts
from broker.transport.layer import Layers
from broker.transport.tls import Tls
from broker.transport.tls_context import TlsContext
from broker.wire.reasons import ClientError, CloseReason
from tests.support.certificates import certificates
from tests.tools.fuzz.target import Target

SCRIPT_BYTES = 8
FLIGHTS = 6  # of the client: two make the handshake
CHANGED_FLIGHTS = 4
KINDS = ("nothing", "flip", "insert", "cut", "replace", "only")
OPENING_BYTES_MAX = 16_384
PLAIN = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"
REASONS = {reason for reason in CloseReason if reason.startswith("tls_")} | {CloseReason.PLAIN_ON_TLS_PORT}
TOKENS = (
    b"\x16\x03\x01\x00\x05hello",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x14\x03\x03\x00\x01\x01",
    b"\x17\x03\x03\x00\x00",
    b"\x17\x03\x03\x48\x00" + b"x" * 100,
    b"GET / HTTP/1.1\r\n\r\n",
    PLAIN,
    b"\x80\x2e\x01",
    b"\xff" * 40,
)

_CONTEXTS: list[TlsContext] = []


def context_of() -> TlsContext:
    """Return the server's, made once."""
    if not _CONTEXTS:
        made = certificates()
        _CONTEXTS.append(TlsContext(made.listener(cafile=str(made.cafile))))
    return _CONTEXTS[0]


def make(draw: random.Random) -> bytes:
    """Return a script, and what it puts in."""
    put = draw.choice(TOKENS) if draw.random() < 0.6 else draw.randbytes(draw.randrange(1, 60))
    script = (
        draw.randrange(CHANGED_FLIGHTS),
        draw.randrange(len(KINDS)),
        *draw.randbytes(2),
        draw.choice((1, 1, 7, 100, 255)),
        draw.randrange(4),
        draw.randrange(256),
        0,
    )
    return bytes(script) + put


def check(data: bytes) -> Hashable:
    """It ends for one of TLS's reasons, in words, or opens; what was let through is what the client said."""
    flight, change, high, low, size, version, value, _ = data[:SCRIPT_BYTES].ljust(SCRIPT_BYTES, b"\0")
    put = data[SCRIPT_BYTES:]
    stack = Layers([Tls(context_of(), Facts(listener=0), OPENING_BYTES_MAX)], Facts(listener=0))
    client = Client(version)
    passed, close = b"", None
    for number in range(FLIGHTS):
        said = client.talk(stack.take_raw())
        if number == flight % CHANGED_FLIGHTS:
            said = changed(said, change % len(KINDS), high << 8 | low, value, put)
        for start in range(0, len(said), max(size, 1)):
            plain, error = stack.feed(said[start : start + max(size, 1)])
            passed += plain
            if error is not None:
                assert isinstance(error, ClientError), error
                assert error.close in REASONS, error.close
                assert str(error).isprintable()
                close = error.close
                break
        if close is not None:
            break
    assert PLAIN.startswith(passed), passed
    opened, ended = stack.state
    stack.end(close or CloseReason.CONNECTION_LOST)
    stack.close()
    assert stack.feed(b"more") == (b"", None)
    return opened, ended, len(passed) > 0, close


def changed(said: bytes, change: int, place: int, value: int, put: bytes) -> bytes:
    """Return a flight as a hostile client sends it."""
    at = place % (len(said) + 1)
    if KINDS[change] == "flip" and said:
        at = min(at, len(said) - 1)
        return said[:at] + bytes((said[at] ^ (value or 1),)) + said[at + 1 :]
    if KINDS[change] == "insert":
        return said[:at] + put + said[at:]
    if KINDS[change] == "cut":
        return said[:at]
    if KINDS[change] == "replace":
        return said[:at] + put
    return put if KINDS[change] == "only" else said


class Client:
    """OpenSSL's client in memory, which says PLAIN once it can."""

    def __init__(self, version: int) -> None:
        context = certificates().client_context()
        if version == 1:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._open = self._done = False

    def talk(self, heard: bytes) -> bytes:
        """Return what it says to what it hears."""
        self._in.write(heard)
        try:
            if not self._open:
                self._tls.do_handshake()
                self._open = True
            if not self._done:
                self._tls.write(PLAIN)
                self._done = True
            self._tls.read(65_536)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._done = True
        return self._out.read()


TARGET = Target("tls", 300, make, check)
