"""Any bytes parse or close that one connection with a reason, whole and cut anywhere, with the same result."""

import itertools
import re

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire.packets import Connect, Publish, Subscribe, Will, encode, subscription
from tests.support.conversation import MemoryBroker, config_for
from tests.support.doubles import QuickAuthenticator
from tests.support.script import Script
from tests.support.strategies import packets_of

CONFIG = config_for(Script(path=None, versions=(), lines=[]))  # type: ignore[arg-type]


def outcome_of(version: int | None, stream: bytes, cuts: list[int]) -> tuple[bytes, str | None, dict[str, int]]:
    """Return what a client gets for a stream that arrives cut at the given places, and how the connection ended."""
    result: list[tuple[bytes, str | None, dict[str, int]]] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(CONFIG, nursery, None, None, QuickAuthenticator())
            connection = broker.hub.connect()
            hello = encode(Connect(version, b"c"), version) if version is not None else b""
            for piece in (hello, *pieces_of(stream, cuts)):
                if piece and not connection.is_closing:
                    connection.feed_bytes(piece)
                    await broker.settle()
            ended = connection.close_reason
            # An assigned client identifier is chance.
            output = re.sub(rb"auto-[0-9a-f]{20}", b"auto", connection.take_output())
            result.append((output, ended, dict(broker.controller.ends)))
            nursery.cancel_scope.cancel()

    trio.run(run)
    return result[0]


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


versions = st.sampled_from((None, 4, 5))
noise = st.binary(max_size=60)
valid = st.sampled_from((4, 5)).flatmap(
    lambda version: st.lists(packets_of(version), max_size=4).map(
        lambda some: b"".join(encode(packet, version) for packet in some)
    )
)
plausible = st.lists(
    st.sampled_from(
        (
            encode(Publish(b"a", b"x"), 4),
            encode(Publish(b"a", b"x", 1, False, False, 1), 4),
            encode(Publish(b"a", b"x", 2, False, False, 1), 5),
            encode(Subscribe(1, (subscription(b"a", 2),)), 4),
            encode(Subscribe(1, (subscription(b"a", 2),)), 5),
            b"\xc0\0",
            b"\x62\x02\0\x01",
            b"\x40\x02\0\x01",
            b"\xe0\0",
        )
    ),
    max_size=6,
).map(b"".join)
streams = st.one_of(noise, valid, plausible, st.tuples(plausible, noise).map(b"".join))


@settings(max_examples=150)
@given(versions, streams, st.lists(st.integers(0, 400), max_size=6))
def test_any_bytes_whole_and_cut_anywhere_give_the_same(version: int | None, stream: bytes, cuts: list[int]) -> None:
    whole = outcome_of(version, stream, [])
    assert "internal_error" not in whole[2], whole
    assert outcome_of(version, stream, cuts) == whole


def test_a_stream_cut_at_every_byte_gives_the_same() -> None:
    stream = (
        encode(Subscribe(1, (subscription(b"a", 2),)), 5)
        + encode(Publish(b"a", b"x" * 200, 2, True, False, 1), 5)
        + b"\x62\x02\0\x01"
        + b"\xc0\0"
        + b"\xf0\0"
    )
    assert outcome_of(5, stream, list(range(len(stream)))) == outcome_of(5, stream, [])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_connect_that_ends_early_ends_its_client_alone(version: int) -> None:
    # One of six bytes, just the protocol name, once ended the worker.
    body = encode(Connect(version, b"c", True, 60, Will(b"w", b"x"), "user", b"pw"), version)[2:]
    for length in range(len(body)):
        _, reason, _ = outcome_of(None, bytes((0x10, length)) + body[:length], [])
        assert reason in ("malformed_packet", "unsupported_protocol_version"), (length, reason)


@pytest.mark.parametrize(
    ("stream", "reason", "words"),
    [
        # A ClientHello begins like a CONNECT with flags: once it was taken for one.
        (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", "tls_on_plain_port", b"\x15\x03\x01\x00\x02\x02\x28"),
        (b"\x16\x03\x03\x01", "tls_on_plain_port", b"\x15\x03\x01\x00\x02\x02\x28"),
        (b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", "http_on_plain_port", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"SSH-2.0-x\r\n", "protocol_error", b""),
    ],
)
def test_another_protocol_is_answered_in_its_own_words(stream: bytes, reason: str, words: bytes) -> None:
    # Proves: [MQTT-3.1.0-1]
    output, ended, counts = outcome_of(None, stream, [])
    assert (output[: len(words)], ended, counts) == (words, reason, {reason: 1})
    assert bool(output) == bool(words)
    assert outcome_of(None, stream, list(range(len(stream)))) == (output, ended, counts)


def test_a_connect_with_flags_is_malformed() -> None:
    # Proves: [MQTT-2.1.3-1]
    hello = encode(Connect(4, b"c"), 4)
    for flags in range(1, 16):
        assert outcome_of(None, bytes((0x10 | flags,)) + hello[1:], [])[1] == "malformed_packet"
