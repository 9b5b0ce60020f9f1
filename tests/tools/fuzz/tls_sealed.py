"""What a client says in TLS 1.3 behind its handshake, sealed with the right keys: hostile records that are authentic.

An input is a byte (how large the pieces are that come) and orders of four bytes each: what to seal or to do, and with
what. The keys are drawn anew each time; what the broker must make of the orders is known from a model of RFC 8446,
4.6.3, 5 and 6.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from broker.transport.facts import Facts
from broker.transport.layer import Layers
from broker.transport.tls import Tls
from broker.wire.reasons import ClientError, CloseReason
from tests.support.tls_records import ALERT, DATA, HANDSHAKE, RecordsEnd, key_update
from tests.tools.fuzz.target import Target
from tests.tools.fuzz.tls_records import OPENING_BYTES_MAX, context_of

ORDERS = ("data", "alert", "update", "handshake", "kind", "no type", "changed", "plain", "update, key kept", "answer")
CONTENT_MAX = 16_384
BODY_MAX = CONTENT_MAX + 256
TAG = 16
KEY_UPDATE = 24
CLOSE_NOTIFY, USER_CANCELED = 0, 90
LENGTHS = (
    0,
    1,
    2,
    15,
    16,
    100,
    1023,
    1024,
    1025,
    CONTENT_MAX - 1,
    CONTENT_MAX,
    CONTENT_MAX + 1,
    CONTENT_MAX + 255,
    CONTENT_MAX + 256,
)
WRONG = CloseReason.TLS_RECORD_WRONG


def make(draw: random.Random) -> bytes:
    """Return some orders, mostly such that it goes on behind them."""
    orders = bytes((draw.choice((0, 0, 1, 5, 64, 255)),))
    for _ in range(draw.randrange(1, 10)):
        order = (
            ORDERS.index(draw.choice(("data", "update", "answer")))
            if draw.random() < 0.6
            else draw.randrange(len(ORDERS))
        )
        values = (draw.randrange(256), draw.choice((0, 0, 1, 2, 24, 90, draw.randrange(256))), draw.randrange(256))
        orders += bytes((order, *values))
    return orders


class Expected:
    """What a server makes of records that are authentic.

    Attributes:
        passed: what it lets through.
        ended: the client has said that no more comes.
        close: why the connection ends; None: it does not.
    """

    def __init__(self) -> None:
        self.passed = b""
        self.ended = False
        self.close: CloseReason | None = None
        self.updates = 0  # of the client's key
        self._message = b""  # a handshake message, as far as it has come

    def take(self, inner: bytes) -> None:
        """Take the plain text of a record, with its type and padding."""
        if self.ended or self.close is not None:
            return
        typed = inner.rstrip(b"\0")
        kind, content = (typed[-1], typed[:-1]) if typed else (0, b"")
        if len(inner) + TAG > BODY_MAX or len(content) > CONTENT_MAX:
            self.close = WRONG
        elif kind == DATA and not self._message:
            self.passed += content
        elif kind == ALERT and not self._message and len(content) == 2:
            self.ended = content[1] == CLOSE_NOTIFY
            if content[1] not in (CLOSE_NOTIFY, USER_CANCELED):
                self.close = CloseReason.TLS_REFUSED_BY_CLIENT
        elif kind == HANDSHAKE and content:
            self._take_message(content)
        else:
            self.close = WRONG

    def _take_message(self, content: bytes) -> None:
        message = self._message = self._message + content
        if len(message) > 5 or message[0] != KEY_UPDATE:
            self.close = WRONG
        elif len(message) == 5:
            self._message = b""
            if message[1:4] != b"\0\0\1" or message[4] > 1:
                self.close = WRONG
            else:
                self.updates += 1


class Hostile:
    """A client that has made its handshake and obeys orders."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._end = RecordsEnd(layers)
        self._end.received.open(layers.take_raw())  # the ticket
        self._updates = 0  # of the key that it seals with
        self.expected = Expected()

    def said(self, order: str, first: int, second: int, third: int) -> bytes:
        """Return what it says to an order, and have the model take it."""
        if order == "data":
            return self._sealed(bytes(index % 251 for index in range(LENGTHS[first % len(LENGTHS)])), DATA, third)
        if order == "alert":
            return self._sealed(bytes((first, second, 0, 0))[: third % 4 or 2], ALERT)
        if order == "handshake":
            return self._sealed(bytes((KEY_UPDATE if first % 2 else first, 0, 0, 1, second))[: third % 7], HANDSHAKE)
        if order == "kind":
            return self._sealed(bytes(second), first)
        if order == "no type":
            return self._sealed(b"", 0, LENGTHS[first % len(LENGTHS)])
        if order == "changed":
            record = self._sealed(bytes(first), DATA, takes=False)
            at = 5 + (second << 8 | third) % (len(record) - 5)
            self._fails()
            return record[:at] + bytes((record[at] ^ 0x40,)) + record[at + 1 :]
        if order == "plain":
            self._fails()
            return bytes((first if first != DATA else ALERT, 3, 3, second, third)) + bytes(second << 8 | third)
        if order == "answer":
            self._answer(LENGTHS[first % len(LENGTHS)])
            return b""
        record = self._sealed(key_update(first % 2 == 1), HANDSHAKE, padding=third)
        if order == "update":
            self._end.sent.next_key()
            self._updates += 1
        return record

    def _sealed(self, content: bytes, kind: int, padding: int = 0, takes: bool = True) -> bytes:
        inner = content + bytes((kind,)) + bytes(padding)
        if takes:
            if self._updates == self.expected.updates:
                self.expected.take(inner)
            else:
                self._fails()
        return self._end.sent.seal_inner(inner)

    def _fails(self) -> None:
        if not self.expected.ended and self.expected.close is None:
            self.expected.close = WRONG

    def _answer(self, length: int) -> None:
        """Have the broker say something, and hear it: with the key that it has by now."""
        self._layers.put(bytes(length))
        heard = self._end.received.open(self._layers.take_raw())
        assert b"".join(content for kind, content in heard if kind == DATA) == bytes(length)
        assert all(kind == DATA or content == key_update(False) for kind, content in heard)

    def hear_the_end(self) -> None:
        """Hear why the connection ends: by a fatal alert, if it is the client's fault."""
        heard = self._end.received.open(self._layers.take_raw())
        if self.expected.close is WRONG:
            ((kind, alert),) = heard
            assert (kind, alert[0], len(alert)) == (ALERT, 2, 2)
        else:
            assert heard == []


def check(data: bytes) -> Hashable:
    """What comes through, whether it ends and why is what the model says, in whatever pieces the records come."""
    size = data[0] if data else 0
    stack = Layers([Tls(context_of(), Facts(listener=0), OPENING_BYTES_MAX)], Facts(listener=0))
    client = Hostile(stack)
    expected = client.expected
    passed, close = b"", None
    for at in range(1, len(data) - 3, 4):
        said = client.said(ORDERS[data[at] % len(ORDERS)], *data[at + 1 : at + 4])
        step = size * 64 if size > 1 else size or max(len(said), 1)
        for start in range(0, len(said), step):
            plain, error = stack.feed(said[start : start + step])
            passed += plain
            if error is not None:
                assert isinstance(error, ClientError), error
                assert str(error).isprintable()
                close = error.close
                break
        assert (passed, close, stack.state[1]) == (expected.passed, expected.close, expected.ended)
        if close is not None:
            client.hear_the_end()
            break
    stack.close()
    return close, expected.ended, expected.updates, len(passed).bit_length()


TARGET = Target("tls_sealed", 150, make, check)
