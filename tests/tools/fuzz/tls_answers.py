"""A server's side of a TLS handshake and some records, with bytes changed on their way to our client.

An input is a list of changes, four bytes each: where, in two bytes, what to do, and with what. A handshake is never the
same twice, so the bytes themselves cannot be the input.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.transport.tls_client import ClientContext, TlsClient
from broker.transport.tls_words import TlsError
from tests.support.certificates import certificates
from tests.support.tls_server import TlsServer, server_context
from tests.tools.fuzz.target import Target

CONTEXT = ClientContext(cafile=str(certificates().cafile))
SERVER = server_context(certificates().server)
SAID = bytes(range(256)) * 80


def make(draw: random.Random) -> bytes:
    """Return some changes."""
    return b"".join(
        draw.choice((draw.randrange(12), draw.randrange(300), draw.randrange(25_000))).to_bytes(2, "big")
        + draw.randbytes(2)
        for _ in range(draw.choice((0, 1, 1, 2, 5)))
    )


def check(script: bytes) -> Hashable:
    """What comes through is what the server has said, or the beginning of it, whatever was changed."""
    server, client = TlsServer(SERVER), TlsClient(CONTEXT, "localhost")
    received = bytearray()
    words = None
    passed = 0
    try:
        for turn in range(4):
            data = server.feed(client.take())
            if turn == 1:
                data += server.say(SAID) if server.opened else b""
            changed = _changed(data, script, passed)
            passed += len(data)
            received += client.receive(changed)
    except TlsError as error:
        words = str(error)
        client.take()
    assert SAID.startswith(received)
    assert words is None or words.isprintable()
    assert client.opened or not received
    if not script:
        assert (words, len(received)) == (None, len(SAID))
    return words, client.opened, len(received).bit_length()


def _changed(data: bytes, script: bytes, passed: int) -> bytes:
    """Return the bytes with the changes that are for them: each is of one byte, or takes some out, or puts some in."""
    result = bytearray(data)
    for at in range(0, len(script) - 3, 4):
        where = int.from_bytes(script[at : at + 2], "big") - passed
        how, what = script[at + 2] % 4, script[at + 3]
        if 0 <= where < len(result):
            if how <= 1:
                result[where] ^= what
            elif how == 2:
                del result[where : where + what]
            else:
                result[where:where] = bytes((what,))
    return bytes(result)


TARGET = Target("tls_answers", 200, make, check)
