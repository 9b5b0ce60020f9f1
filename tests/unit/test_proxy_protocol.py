"""The header of the PROXY protocol: what each says, and that any bytes are one or their sender's fault."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.transport.facts import Certificate, Facts
from broker.transport.layer import Layers
from broker.transport.proxies import Proxies, forwarded_for
from broker.transport.proxy_layer import ProxyLayer
from broker.transport.proxy_protocol import HEADER_MAX, ProxyHeader, parse
from broker.wire.reasons import ClientError, CloseReason
from tests.support.proxy_headers import (
    AUTHORITY,
    CLIENT_CERT_CONN,
    CLIENT_CERT_SESS,
    CLIENT_SSL,
    CRC32C,
    FOUR,
    LOCAL,
    NOOP,
    SIGNATURE,
    SIX,
    SSL,
    SSL_CN,
    TCP4,
    TCP6,
    UDP4,
    UNIQUE_ID,
    UNIX_STREAM,
    UNSPEC,
    addresses,
    ssl,
    tlv,
    v2,
)
from tests.support.websockets import cut

PEER = "10.1.2.3:40000"
WITH_CERTIFICATE = CLIENT_SSL | CLIENT_CERT_CONN | CLIENT_CERT_SESS


def whole(data: bytes) -> ProxyHeader:
    found = parse(data)
    assert found is not None
    header, end = found
    assert end == len(data)
    return header


# Version 1: the examples of the text, and its rules ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "address"),
    [
        (b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", "192.168.0.1:56324"),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255:65535"),
        (
            b"PROXY TCP6 ffff:f:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
            "ffff:f:ffff:ffff:ffff:ffff:ffff:ffff:65535",
        ),
        (b"PROXY TCP6 ::1 ::1 0 1883\r\n", "::1:0"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    ],
)
def test_a_line_of_version_1(line: bytes, address: str | None) -> None:
    assert whole(line) == ProxyHeader(address=address)


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\n",
        b"PROXY TCP4  192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 056324 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 65536 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 -1 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 \xb2 443\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 1\r\n",
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 \r\n",
        b"PROXY TCP4 ::1 ::1 56324 443\r\n",
        b"PROXY TCP6 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 192.168.0.256 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 192.168.0.01 192.168.0.11 56324 443\r\n",
        b"PROXY TCP4 example.org 192.168.0.11 56324 443\r\n",
        b"PROXY tcp4 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY UDP4 192.168.0.1 192.168.0.11 56324 443\r\n",
        b"PROXY \r\n",
        b"PROXY UNKNOWNX\r\n",
        b"PROXY TCP4 192.168.0.1\n192.168.0.11 56324 443\r\n",
        b"PROXY UNKNOWN " + b"x" * 100,
        b"proxy UNKNOWN\r\n",
        b"PROXYTCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
    ],
)
def test_a_wrong_line_is_refused(line: bytes) -> None:
    with pytest.raises(ClientError) as refused:
        parse(line)
    assert refused.value.close == CloseReason.PROXY_HEADER_INVALID


def test_a_line_of_version_1_has_at_most_107_bytes() -> None:
    longest = b"PROXY UNKNOWN " + b"x" * (107 - 16) + b"\r\n"
    assert len(longest) == 107
    assert whole(longest) == ProxyHeader()
    with pytest.raises(ClientError):
        parse(longest.replace(b"x", b"xx", 1))


# Version 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (v2(FOUR), "192.0.2.7:51234"),
        (v2(SIX, family=TCP6), "2001:db8::7:51234"),
        (v2(addresses("/run/app.sock", "/run/proxy.sock"), family=UNIX_STREAM), "unix:/run/app.sock"),
        (v2(addresses("", "/run/proxy.sock"), family=UNIX_STREAM), "unix:"),
        (v2(b"\0name".ljust(216, b"\0"), family=UNIX_STREAM), "unix:@name"),
        (v2(b"/\xff".ljust(108, b"\0") + b"/x".ljust(108, b"\0"), family=UNIX_STREAM), "unix:/\\xff"),
        (v2(family=UNSPEC), None),
        (v2(FOUR, family=UDP4), None),
        (v2(family=UNSPEC, command=LOCAL), None),
        # Of LOCAL all is discarded, the family too.
        (v2(FOUR, command=LOCAL), None),
        (v2(b"\xff" * 7, family=0xFF, command=LOCAL), None),
    ],
)
def test_addresses_of_version_2(data: bytes, address: str | None) -> None:
    assert whole(data) == ProxyHeader(address=address)


def test_what_a_tls_proxy_says_of_its_client() -> None:
    header = whole(
        v2(
            FOUR,
            tlv(NOOP, b"\0" * 3),
            tlv(AUTHORITY, "bücher.example".encode()),
            tlv(UNIQUE_ID, b"0A2F:1"),
            ssl(WITH_CERTIFICATE, 0, cn="sensor-ü7".encode()),
            tlv(0xEE, b"a vendor's"),
            checked=True,
        )
    )
    assert header == ProxyHeader(
        address="192.0.2.7:51234",
        tls_version="TLSv1.3",
        tls_cipher="TLS_AES_256_GCM_SHA384",
        server_name="bücher.example",
        unique_id="0A2F:1",
        certificate=Certificate(cn="sensor-ü7"),
    )


@pytest.mark.parametrize(
    ("client", "verify", "cn", "certificate"),
    [
        (CLIENT_SSL | CLIENT_CERT_CONN, 0, b"c", Certificate(cn="c")),
        (CLIENT_SSL | CLIENT_CERT_SESS, 0, b"c", Certificate(cn="c")),  # a resumed session
        (CLIENT_SSL | CLIENT_CERT_CONN, 0, None, Certificate()),  # whose name nobody said
        (CLIENT_SSL, 0, b"c", None),  # 0 of a client that showed none
        (CLIENT_SSL | CLIENT_CERT_CONN, 1, b"c", None),
        (CLIENT_SSL | CLIENT_CERT_SESS, 0xFFFFFFFF, b"c", None),
        (CLIENT_CERT_CONN | CLIENT_CERT_SESS, 0, b"c", None),  # without TLS there is no certificate
        (0, 0, b"c", None),
    ],
)
def test_a_certificate_counts_only_if_it_was_shown_and_checked(
    client: int, verify: int, cn: bytes | None, certificate: Certificate | None
) -> None:
    header = whole(v2(FOUR, ssl(client, verify, cn=cn)))
    assert header.certificate == certificate
    assert header.tls_version == ("TLSv1.3" if client & CLIENT_SSL else None)


def test_a_unique_id_that_is_no_text_is_shown_in_hexadecimal() -> None:
    assert whole(v2(FOUR, tlv(UNIQUE_ID, b"\0\xff"))).unique_id == "00ff"
    assert whole(v2(FOUR, tlv(UNIQUE_ID, b"a\nb"))).unique_id == "610a62"


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 0x01,)) + data[at + 1 :]


def test_a_checksum_covers_the_whole_header() -> None:
    data = v2(FOUR, tlv(UNIQUE_ID, b"id"), checked=True)
    whole(data)
    for at in range(16, len(data) - 7):
        with pytest.raises(ClientError):
            parse(flipped(data, at))
    early = v2(FOUR, tlv(CRC32C, bytes.fromhex("00000000")), tlv(UNIQUE_ID, b"id"))
    with pytest.raises(ClientError, match="checksum"):
        parse(early)


@pytest.mark.parametrize(
    "data",
    [
        v2(FOUR, version=1),
        v2(FOUR, version=3),
        v2(FOUR, command=2),
        v2(FOUR, command=15),
        v2(FOUR, family=0x41),
        v2(FOUR, family=0x13),
        v2(FOUR[:-1]),
        v2(SIX[:-1], family=TCP6),
        v2(b"\0" * 215, family=UNIX_STREAM),
        v2(FOUR, b"\x05"),
        v2(FOUR, b"\x05\0"),
        v2(FOUR, b"\x05\0\x01"),
        v2(FOUR, tlv(UNIQUE_ID, b"x") + b"\0"),
        v2(FOUR, tlv(UNIQUE_ID, b"x" * 129)),
        v2(FOUR, tlv(UNIQUE_ID, b"x"), tlv(UNIQUE_ID, b"y")),
        v2(FOUR, tlv(CRC32C, b"abc")),
        v2(FOUR, tlv(AUTHORITY, b"\xff")),
        v2(FOUR, tlv(SSL, b"\x01\0\0\0")),
        v2(FOUR, tlv(SSL, b"\x07\0\0\0\0" + tlv(SSL_CN, b"a") + tlv(SSL_CN, b"b"))),
        v2(FOUR, tlv(SSL, b"\x07\0\0\0\0" + tlv(SSL_CN, b"a\xff"))),
        v2(FOUR, tlv(SSL, b"\x07\0\0\0\0" + tlv(SSL_CN, b"a")[:-1])),
        v2(FOUR, ssl(WITH_CERTIFICATE, 0, cn=b"a"), ssl(WITH_CERTIFICATE, 0, cn=b"b")),
        v2(FOUR, b"\0" * 4085),
        SIGNATURE[:-1] + b"\r",
        b"\r\n\r\r",
        b"\x10\x0c",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
    ],
)
def test_a_wrong_header_is_refused(data: bytes) -> None:
    with pytest.raises(ClientError) as refused:
        parse(data)
    assert refused.value.close == CloseReason.PROXY_HEADER_INVALID
    assert str(refused.value).isprintable()


def test_the_largest_header_there_may_be() -> None:
    vendor = tlv(0xE0, bytes(4096 - len(FOUR) - 3))
    data = v2(FOUR, vendor)
    assert len(data) == HEADER_MAX
    assert whole(data).address == "192.0.2.7:51234"


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"\x10\x0c\0\x04MQTT", "a CONNECT without a PROXY header"),
        (b"\x16\x03\x01\x02\0", "a TLS ClientHello without a PROXY header"),
    ],
)
def test_who_comes_without_a_header_is_told_apart(data: bytes, wrong: str) -> None:
    for length in range(1, len(data) + 1):
        with pytest.raises(ClientError, match=wrong):
            parse(data[:length])


# However it comes ----------------------------------------------------------------------------------------------------


def outcome(pieces: list[bytes], *, trusted: bool = True) -> tuple[Any, ...]:
    """What a connection learns from pieces, what is passed on, and how it ends."""
    facts = Facts(listener=0)
    layers = Layers([ProxyLayer(Proxies(("10.0.0.0/8",) if trusted else (), is_unix=False), PEER)], facts)
    plain = b""
    for piece in pieces:
        passed, error = layers.feed(piece)
        plain += passed
        if error is not None:
            assert isinstance(error, ClientError), error
            return facts, plain, layers.state, str(error), error.close
    assert layers.take_raw() == b""
    return facts, plain, layers.state, layers.layers() == [], None


def test_nothing_may_come_first_of_all() -> None:
    layers = Layers([], Facts(listener=0))
    much = bytes(1_000_000)  # the buffer that all share is given up again
    assert layers.feed(much) == (much, None)
    assert layers.feed(b"") == (b"", None)
    assert layers.feed(b"x") == (b"x", None)


right = st.one_of(
    st.builds(
        lambda host, port, family: b"PROXY %s %s %s %d 1883\r\n" % (family, host, host, port),
        st.ip_addresses(v=4).map(lambda host: str(host).encode()),
        st.integers(0, 65_535),
        st.just(b"TCP4"),
    ),
    st.builds(
        lambda host, port: b"PROXY TCP6 %s ::1 %d 1883\r\n" % (host, port),
        st.ip_addresses(v=6).map(lambda host: str(host).encode()),
        st.integers(0, 65_535),
    ),
    st.builds(
        lambda text: b"PROXY UNKNOWN" + text + b"\r\n",
        st.one_of(st.just(b""), st.binary(max_size=80).map(lambda text: b" " + text.replace(b"\n", b""))),
    ),
    st.builds(
        lambda family, tlvs, command, checked: v2(
            {TCP4: FOUR, TCP6: SIX, UNIX_STREAM: addresses("/a", "/b"), UNSPEC: b""}[family],
            *tlvs,
            family=family,
            command=command,
            checked=checked,
        ),
        st.sampled_from([TCP4, TCP6, UNIX_STREAM, UNSPEC]),
        st.lists(
            st.one_of(
                st.builds(tlv, st.sampled_from([NOOP, 0x01, 0x30, 0xEE]), st.binary(max_size=30)),
                st.builds(ssl, st.integers(0, 7), st.integers(0, 1), cn=st.one_of(st.none(), st.just(b"cn"))),
            ),
            max_size=3,
        ),
        st.integers(0, 1),
        st.booleans(),
    ),
)
any_bytes = st.one_of(
    right,
    st.builds(
        lambda data, at, byte: data[:at] + bytes((byte,)) + data[at + 1 :],
        right,
        st.integers(0, 60),
        st.integers(0, 255),
    ),
    st.binary(max_size=40),
    st.binary(max_size=300).map(lambda data: SIGNATURE + data),
    st.binary(max_size=120).map(lambda data: b"PROXY " + data),
)


@settings(max_examples=400)
@given(any_bytes, st.binary(max_size=10), st.lists(st.integers(0, 300), max_size=8))
@example(v2(FOUR), b"", [1, 12, 13, 16, 27])
def test_whole_and_cut_anywhere_it_is_the_same(data: bytes, behind: bytes, at: list[int]) -> None:
    data += behind
    assert outcome(cut(data, at)) == outcome([data]) == outcome(cut(data, range(len(data))))


@settings(max_examples=100)
@given(right, st.binary(max_size=50))
def test_what_follows_a_header_goes_on_as_it_is(data: bytes, behind: bytes) -> None:
    try:
        parse(data)
    except ClientError:
        return  # a TLV twice
    facts, plain, state, gone, reason = outcome([data + behind])
    assert (plain, state, gone, reason) == (behind, (True, False), True, None)
    assert facts.proxy == (None if facts.address is None else PEER)
    assert outcome([data, behind])[1] == behind


@settings(max_examples=300)
@given(st.integers(0, 100_000))
def test_any_bytes_are_a_header_or_their_senders_fault(seed: int) -> None:
    draw = random.Random(seed)
    data = draw.choice([b"", SIGNATURE, SIGNATURE + b"\x21\x11", b"PROXY ", b"PROXY TCP4 "]) + draw.randbytes(
        draw.randrange(300)
    )
    try:
        found = parse(data)
    except ClientError as error:
        assert error.close == CloseReason.PROXY_HEADER_INVALID
    else:
        assert found is None or 0 < found[1] <= len(data)
        assert found is not None or len(data) < HEADER_MAX


def test_a_peer_that_is_no_proxy_of_ours_is_refused_by_its_first_byte() -> None:
    assert outcome([], trusted=False)[-1] is None
    facts, plain, _, error, reason = outcome([v2(FOUR) + b"x"], trusted=False)
    assert reason == CloseReason.PROXY_NOT_TRUSTED
    assert (facts, plain) == (Facts(listener=0), b"")
    assert "proxy_from" in error


def test_a_header_that_never_ends_is_not_gathered_for_ever() -> None:
    assert outcome([b"PROXY UNKNOWN "] + [b"x"] * 500)[-1] == CloseReason.PROXY_HEADER_INVALID
    assert outcome([SIGNATURE + b"\x21\x11\xff\xff", b"x" * 70_000])[-1] == CloseReason.PROXY_HEADER_INVALID


# Whose word counts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.255.0.1:5", True),
        ("11.0.0.1:5", False),
        ("2001:db8::9:5", True),
        ("2001:db9::9:5", False),
        ("::1:1883", True),
        ("::ffff:10.0.0.1:5", True),
        ("fe80::1%eth0:5", True),
        ("unix:/run/x", False),
        (None, False),
    ],
)
def test_only_peers_of_proxy_from_are_trusted(peer: str | None, trusted: bool) -> None:
    proxies = Proxies(("10.0.0.0/8", "2001:db8::/32", "::1", "fe80::/10"), is_unix=False)
    assert proxies.trusts(peer) == trusted


def test_who_may_open_a_unix_socket_is_trusted() -> None:
    assert Proxies((), is_unix=True).trusts(None)
    assert not Proxies((), is_unix=True).trusts("10.0.0.1:1")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        (["203.0.113.5"], "203.0.113.5:0"),
        (["203.0.113.5:4711"], "203.0.113.5:4711"),
        (["[2001:db8::5]:4711"], "2001:db8::5:4711"),
        (["2001:db8::5"], "2001:db8::5:0"),
        # What the client says of itself is on the left.
        (["1.2.3.4, 203.0.113.5, 10.0.0.9"], "203.0.113.5:0"),
        (["1.2.3.4", "203.0.113.5 ,10.0.0.9", "10.0.0.8"], "203.0.113.5:0"),
        (["127.0.0.1, 203.0.113.5"], "203.0.113.5:0"),
        (["10.0.0.1, 10.0.0.2"], "10.0.0.1:0"),
        (["unknown"], None),
        (["203.0.113.5, unknown, 10.0.0.2"], "10.0.0.2:0"),
        (["203.0.113.5:99999"], "203.0.113.5:0"),
        ([""], None),
        ([], None),
        ([",,"], None),
    ],
)
def test_of_x_forwarded_for_the_last_that_is_no_proxy_counts(values: list[str], address: str | None) -> None:
    assert forwarded_for(values, Proxies(("10.0.0.0/8",), is_unix=False)) == address
