"""Records of TLS 1.3 behind the handshake, against another implementation of them."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.transport.facts import Facts
from broker.transport.layer import Layers
from broker.transport.listener import Entrance
from broker.transport.records import set_records_per_key
from broker.wire.reasons import ClientError, CloseReason
from tests.support.certificates import certificates
from tests.support.tls_records import ALERT, CLOSE_NOTIFY, DATA, HANDSHAKE, SUITES, RecordsEnd, key_update

OPENING_BYTES_MAX = 16384
RECORD = 16384
TICKET = 4
TIMEOUT_S = 20


def server(suite: str = "TLS_AES_256_GCM_SHA384", **settings: object) -> Layers:
    """Return the layers of a connection that has just come to a listener with TLS."""
    entrance = Entrance(0, certificates().listener(ciphersuites=suite, **settings), OPENING_BYTES_MAX)
    facts = Facts(listener=0)
    return Layers(entrance.layers(facts, None), facts)


def connected(suite: str = "TLS_AES_256_GCM_SHA384") -> tuple[Layers, RecordsEnd]:
    """Return both ends of a connection whose handshake is over, and whose client has its ticket."""
    layers = server(suite)
    client = RecordsEnd(layers)
    assert layers.layers()[0].records is not None
    ((kind, content),) = client.received.open(layers.take_raw())
    assert (kind, content[0]) == (HANDSHAKE, TICKET)
    return layers, client


def let_through(layers: Layers, data: bytes) -> bytes:
    """Return what the layers let through of what came."""
    received, error = layers.feed(data)
    assert error is None
    return received


def fails(layers: Layers, data: bytes) -> ClientError:
    """Return the error that what came raises."""
    _, error = layers.feed(data)
    assert isinstance(error, ClientError)
    return error


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 1023, 1024, 1025, RECORD, RECORD + 1, 100_000])
def test_bytes_go_both_ways(suite: str, length: int) -> None:
    layers, client = connected(suite)
    data = bytes(index % 251 for index in range(length))
    for _ in range(2):
        layers.put(data)
        records = client.received.open(layers.take_raw())
        assert b"".join(content for _, content in records) == data
        assert all(kind == DATA and len(content) <= RECORD for kind, content in records)
        cut = [data[at : at + RECORD] for at in range(0, len(data), RECORD)]
        assert let_through(layers, b"".join(client.sent.seal(DATA, part) for part in cut)) == data


@given(
    pieces=st.lists(st.binary(max_size=3000), max_size=4),
    padding=st.integers(0, 300),
    cuts=st.lists(st.integers(0, 12_000), max_size=20),
)
def test_records_may_come_in_any_pieces_and_padded(pieces: list[bytes], padding: int, cuts: list[int]) -> None:
    layers, client = connected()
    records = b"".join(client.sent.seal(DATA, piece, padding) for piece in pieces)
    bounds = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts)})
    parts = [records[first:last] for first, last in itertools.pairwise(bounds)]
    assert b"".join(let_through(layers, part) for part in parts) == b"".join(pieces)


def test_records_may_come_byte_by_byte() -> None:
    layers, client = connected()
    records = client.sent.seal(DATA, b"one") + client.sent.seal(HANDSHAKE, key_update(False))
    client.sent.next_key()
    records += client.sent.seal(DATA, b"two") + client.sent.seal(ALERT, CLOSE_NOTIFY)
    assert b"".join(let_through(layers, records[at : at + 1]) for at in range(len(records))) == b"onetwo"
    assert layers.state == (True, True)


def test_the_client_changes_its_key() -> None:
    # RFC 8446, 4.6.3: ours is changed if it asks for that, before our next data, however often it asked until then.
    layers, client = connected()
    for asks in (False, True, True, False):
        assert let_through(layers, client.sent.seal(HANDSHAKE, key_update(asks))) == b""
        client.sent.next_key()
        assert let_through(layers, client.sent.seal(DATA, b"mine")) == b"mine"
    assert layers.take_raw() == b""
    layers.put(b"ours")
    layers.put(b"more")
    assert client.received.open(layers.take_raw()) == [(HANDSHAKE, key_update(False)), (DATA, b"ours"), (DATA, b"more")]


def test_a_key_update_may_come_in_two_records() -> None:
    layers, client = connected()
    message = key_update(True)
    let_through(layers, client.sent.seal(HANDSHAKE, message[:2]) + client.sent.seal(HANDSHAKE, message[2:]))
    client.sent.next_key()
    assert let_through(layers, client.sent.seal(DATA, b"new")) == b"new"


@contextlib.contextmanager
def records_per_key(number: int) -> Iterator[None]:
    """Have keys changed that early until the block ends."""
    before = set_records_per_key(number)
    try:
        yield
    finally:
        set_records_per_key(before)


def test_a_key_is_not_used_for_too_many_records() -> None:
    # RFC 8446, 5.5
    with records_per_key(4):
        layers, client = connected()
        for _ in range(8):
            layers.put(b"x")
        kinds = [kind for kind, _ in client.received.open(layers.take_raw())]
    # The ticket was the first with the first key.
    assert kinds == [DATA, DATA, DATA, HANDSHAKE, DATA, DATA, DATA, DATA, HANDSHAKE, DATA]


def test_a_close_notify_ends_it_and_is_sent_at_the_end() -> None:
    layers, client = connected()
    assert let_through(layers, client.sent.seal(ALERT, b"\1\x5a")) == b""  # user_canceled: one follows
    assert layers.state == (True, False)
    after = client.sent.seal(DATA, b"last") + client.sent.seal(ALERT, CLOSE_NOTIFY) + client.sent.seal(DATA, b"late")
    assert let_through(layers, after) == b"last"
    assert layers.state == (True, True)
    layers.end(CloseReason.CLIENT_DISCONNECT)
    assert client.received.open(layers.take_raw()) == [(ALERT, CLOSE_NOTIFY)]


def test_an_alert_of_the_client_ends_it() -> None:
    layers, client = connected()
    error = fails(layers, client.sent.seal(ALERT, b"\2\x14"))
    assert (error.close, error.detail) == (CloseReason.TLS_REFUSED_BY_CLIENT, "the client says: TLS alert 20")
    assert layers.take_raw() == b""


def changed(record: bytes) -> bytes:
    """Return a record whose last byte is another one."""
    return record[:-1] + bytes((record[-1] ^ 1,))


FAULTS = {
    "a changed byte": (20, lambda sent: changed(sent.seal(DATA, b"x" * 100))),
    "a record again": (20, lambda sent: 2 * sent.seal(DATA, b"x")),
    "a record left out": (20, lambda sent: sent.seal(DATA, b"x")[:0] + sent.seal(DATA, b"y")),
    "shorter than its tag": (20, lambda sent: b"\x17\3\3\0\x10" + bytes(16)),
    "plain change_cipher_spec": (10, lambda sent: b"\x14\3\3\0\1\1"),
    "plain handshake": (10, lambda sent: b"\x16\3\3\0\1\1"),
    "plain alert": (10, lambda sent: b"\x15\3\3\0\2\1\0"),
    "a long record": (22, lambda sent: b"\x17\3\3" + (RECORD + 257).to_bytes(2, "big")),
    "much content": (22, lambda sent: sent.seal(DATA, bytes(RECORD + 1))),
    "no type": (10, lambda sent: sent.seal_inner(bytes(10))),
    "a type that is not known": (10, lambda sent: sent.seal(99, b"x")),
    "no alert in an alert": (50, lambda sent: sent.seal(ALERT, b"\1")),
    "two alerts in one": (50, lambda sent: sent.seal(ALERT, 2 * CLOSE_NOTIFY)),
    "no handshake message": (10, lambda sent: sent.seal(HANDSHAKE, b"")),
    "a ClientHello": (10, lambda sent: sent.seal(HANDSHAKE, b"\1\0\0\1\0")),
    "a long handshake message": (10, lambda sent: sent.seal(HANDSHAKE, b"\x18" + bytes(500))),
    "two KeyUpdates in one record": (10, lambda sent: sent.seal(HANDSHAKE, 2 * key_update(False))),
    "a KeyUpdate of another length": (50, lambda sent: sent.seal(HANDSHAKE, b"\x18\0\0\2\0")),
    "a KeyUpdate that asks for 2": (47, lambda sent: sent.seal(HANDSHAKE, b"\x18\0\0\1\2")),
    "data within a KeyUpdate": (10, lambda sent: sent.seal(HANDSHAKE, b"\x18") + sent.seal(DATA, b"x")),
    "an alert within a KeyUpdate": (10, lambda sent: sent.seal(HANDSHAKE, b"\x18") + sent.seal(ALERT, CLOSE_NOTIFY)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_may_not_come_is_answered_by_an_alert(name: str) -> None:
    layers, client = connected()
    if name == "a record left out":
        client.sent.seal(DATA, b"lost")
    alert, made = FAULTS[name]
    error = fails(layers, made(client.sent))
    assert error.close is CloseReason.TLS_RECORD_WRONG
    assert client.received.open(layers.take_raw()) == [(ALERT, bytes((2, alert)))]


def test_former_keys_are_not_taken_any_more() -> None:
    layers, client = connected()
    layers_too, client_too = connected()
    for of, end in ((layers, client), (layers_too, client_too)):
        let_through(of, end.sent.seal(HANDSHAKE, key_update(False)))
    assert fails(layers, client.sent.seal(DATA, b"old")).close is CloseReason.TLS_RECORD_WRONG
    client_too.sent.next_key()
    assert let_through(layers_too, client_too.sent.seal(DATA, b"new")) == b"new"


def test_tls_1_2_stays_with_openssl() -> None:
    layers = server()
    context = ssl.create_default_context(cafile=str(certificates().cafile))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, from_client, server_hostname="localhost")
    for _ in range(3):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        let_through(layers, from_client.read())
        to_client.write(layers.take_raw())
    client.do_handshake()
    assert layers.layers()[0].records is None
    client.write(b"twelve")
    assert let_through(layers, from_client.read()) == b"twelve"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing: apt-get install openssl")
@pytest.mark.parametrize("suite", [*SUITES, "TLS_AES_128_CCM_SHA256"])
def test_openssl_and_we_understand_each_other(suite: str) -> None:
    # CCM is too rare for records of our own. What s_client is told by K and k are KeyUpdates, K with one of ours.
    layers = server(suite)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        subprocess.Popen(
            [
                "openssl",
                "s_client",
                "-connect",
                f"127.0.0.1:{listening.getsockname()[1]}",
                "-tls1_3",
                "-ciphersuites",
                suite,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as client,
    ):
        assert client.stdin is not None
        assert client.stdout is not None
        with listening.accept()[0] as connection:
            connection.settimeout(TIMEOUT_S)
            for line in (b"one\n", b"K\n", b"two\n", b"k\n", b"three\n"):
                client.stdin.write(line)
                client.stdin.flush()
                received = b""
                while True:
                    data = connection.recv(65_536)
                    assert data
                    received += let_through(layers, data)
                    connection.sendall(layers.take_raw())
                    if received == line or line in (b"K\n", b"k\n"):  # s_client forgets what comes with these
                        break
                layers.put(b"<" + line)
                connection.sendall(layers.take_raw())
            assert (layers.layers()[0].records is None) == ("CCM" in suite)
            layers.end(CloseReason.CLIENT_DISCONNECT)
            connection.sendall(layers.take_raw())
            said = client.stdout.read()
    for line in (b"<one\n", b"<K\n", b"<two\n", b"<k\n", b"<three\n"):
        assert line in said
