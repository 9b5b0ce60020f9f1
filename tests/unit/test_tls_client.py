"""Our end of TLS as a client, without a socket: Python's `ssl` is the server."""

from __future__ import annotations

import random
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.transport.facts import Certificate
from broker.transport.tls_client import ClientContext, TlsClient
from broker.transport.tls_words import TlsError, TlsOptionError, wrong_certificate
from tests.support.certificates import Certificates, certificates
from tests.support.tls_server import TlsServer, server_context

OURS = certificates()
OTHERS = Certificates()
TRUSTING = ClientContext(cafile=str(OURS.cafile))


class Server(TlsServer):
    """A server that notes the names that it is called by."""

    def __init__(self, pair: tuple[str, str], **settings: Any) -> None:
        context = server_context(pair, **settings)
        self.names: list[str | None] = []
        context.sni_callback = lambda _, name, __: self.names.append(name)
        super().__init__(context)


def shaken(server: Server, client: TlsClient, draw: random.Random | None = None) -> bytes:
    """Have them speak until neither says more, the server's bytes cut anywhere; returns what the client got."""
    received = b""
    while True:
        data = server.feed(client.take())
        if not data:
            return received
        while data:
            size = len(data) if draw is None else draw.choice([1, 5, 100, 4000])
            received += client.receive(data[:size])
            data = data[size:]


def refused(pair: tuple[str, str], host: str = "localhost", context: ClientContext = TRUSTING, **settings: Any) -> str:
    """Return why the client does not take what the server has."""
    with pytest.raises(TlsError) as caught:
        shaken(Server(pair, **settings), TlsClient(context, host))
    return str(caught.value)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.binary(max_size=100), st.sampled_from([0, 1, 16_384, 16_385, 200_000]))
def test_bytes_come_whole_both_ways_however_they_are_cut(draw: random.Random, some: bytes, size: int) -> None:
    server, client = Server(OURS.server), TlsClient(TRUSTING, "localhost")
    shaken(server, client, draw)
    assert client.opened
    assert server.names == ["localhost"]
    client.send(some + b"x" * size)
    client.send(some)
    server.feed(client.take())
    assert server.received == some + b"x" * size + some
    for at in range(0, size, 60_000):
        server.tls.write(b"y" * min(60_000, size - at))
    server.tls.write(some) if some else None
    received = b""
    data = server.outgoing.read()
    while data:
        part = draw.choice([1, 5, 4000, 70_000])
        received += client.receive(data[:part])
        data = data[part:]
    assert received == b"y" * size + some


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x16\x03\x03\x00\x40", b"\x15\x03\x03\x00\x02"]))
def test_any_bytes_of_a_server_are_taken_or_refused(data: bytes, head: bytes) -> None:
    client = TlsClient(TRUSTING, "localhost")
    try:
        assert client.receive(head + data) == b""
    except TlsError:
        pass
    assert not client.opened


NAMES = [
    ("localhost", True),
    ("127.0.0.1", True),
    ("LOCALHOST", True),
    ("localhost.", True),
    ("127.0.0.2", False),
    ("other.example", False),
    ("::1", False),
]


@pytest.mark.parametrize(("host", "fits"), NAMES)
def test_a_certificate_has_to_be_for_the_host_that_is_called(host: str, fits: bool) -> None:
    if fits:
        shaken(Server(OURS.server), client := TlsClient(TRUSTING, host))
        assert client.opened
    else:
        assert refused(OURS.server, host) == (
            f"the broker's certificate is not for {host}, but for localhost and 127.0.0.1"
        )
        shaken(Server(OURS.server), client := TlsClient(ClientContext(cafile=str(OURS.cafile), insecure=True), host))
        assert client.opened


def test_a_wildcard_is_for_one_level() -> None:
    pair = OURS.issue("wild", "*.wild.example")
    shaken(Server(pair), client := TlsClient(TRUSTING, "a.wild.example"))
    assert client.opened
    assert "but for *.wild.example" in refused(pair, "a.b.wild.example")
    assert "but for *.wild.example" in refused(pair, "wild.example")


def test_an_address_is_no_server_name() -> None:
    server = Server(OURS.server)
    shaken(server, TlsClient(TRUSTING, "127.0.0.1"))
    assert server.names == [None]


def test_what_is_wrong_with_a_certificate_is_said_in_words() -> None:
    assert "is signed by OU=Testing CA" in refused(OTHERS.server)
    assert "is signed by OU=Testing CA" in refused(OURS.server, context=ClientContext())
    assert "which is not trusted: --cafile says who is" in refused(OTHERS.server)
    insecure = ClientContext(cafile=str(OURS.cafile), insecure=True)
    assert refused(OTHERS.server, context=insecure) == refused(OTHERS.server)
    expired = refused(OURS.issue("expired", "localhost", days=-1))
    assert expired.startswith("the broker's certificate has expired on 20")
    assert expired.endswith(" UTC")


def test_what_is_wrong_further_up_is_said_of_the_one_that_it_is_wrong_with(tmp_path: Path) -> None:
    pair = [tmp_path / "leaf.pem", tmp_path / "leaf.key"]
    between = OURS.authority.create_child_ca()
    issued = between.issue_cert("localhost")
    pair[0].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(pair[1])
    shaken(Server((str(pair[0]), str(pair[1]))), client := TlsClient(TRUSTING, "localhost"))
    assert client.opened
    # Trusted by itself, without the authority that has signed it.
    alone = tmp_path / "alone.pem"
    between.cert_pem.write_to_path(alone)
    shaken(Server((str(pair[0]), str(pair[1]))), client := TlsClient(ClientContext(cafile=str(alone)), "localhost"))
    assert client.opened


def self_signed(folder: Path, days: int = 2) -> tuple[str, str]:
    certificate, key = folder / "self.crt", folder / "self.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            key,
            "-out",
            certificate,
            "-days",
            str(days),
            "-subj",
            "/CN=localhost",
        ],
        check=True,
        capture_output=True,
    )
    return str(certificate), str(key)


def test_one_that_signed_itself_is_named_and_can_be_trusted(tmp_path: Path) -> None:
    pair = self_signed(tmp_path)
    assert refused(pair) == (
        "the broker's certificate is signed by itself (CN=localhost) and not trusted: --cafile says which is"
    )
    shaken(Server(pair), client := TlsClient(ClientContext(cafile=pair[0]), "localhost"))
    assert client.opened
    assert refused(pair, "other.example", ClientContext(cafile=pair[0])).endswith("but for localhost")


def test_nothing_in_common_is_said_in_words() -> None:
    older = {"minimum_version": ssl.TLSVersion.TLSv1_2, "maximum_version": ssl.TLSVersion.TLSv1_2}
    context = ClientContext(cafile=str(OURS.cafile), only_1_3=True)
    assert refused(OURS.server, context=context, **older) == "the broker speaks no version of TLS that we speak"
    context = ClientContext(cafile=str(OURS.cafile), ciphers="ECDHE-RSA-AES128-GCM-SHA256")
    assert refused(OURS.server, context=context, **older) == (
        "the broker and we have no cipher suite, or no key exchange, in common"
    )
    context = ClientContext(cafile=str(OURS.cafile), alpn=b"mqtt")
    server = Server(OURS.server, set_alpn_protocols=["mqtt"])
    shaken(server, TlsClient(context, "localhost"))
    assert server.tls.selected_alpn_protocol() == "mqtt"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_wants_a_certificate_is_told_from_others(version: ssl.TLSVersion) -> None:
    wanting = {
        "minimum_version": version,
        "maximum_version": version,
        "verify_mode": ssl.CERT_REQUIRED,
        "load_verify_locations": str(OURS.cafile),
    }
    assert "the broker wants a certificate of ours" in refused(OURS.server, **wanting)
    pair = OTHERS.issue("client", "client.example")
    context = ClientContext(cafile=str(OURS.cafile), certfile=pair[0], keyfile=pair[1])
    assert refused(OURS.server, context=context, **wanting) == "the broker does not know who signed our certificate"
    pair = OURS.issue("client", "client.example")
    context = ClientContext(cafile=str(OURS.cafile), certfile=pair[0], keyfile=pair[1])
    shaken(Server(OURS.server, **wanting), client := TlsClient(context, "localhost"))
    assert client.opened


def test_a_goodbye_is_heard_and_said() -> None:
    server, client = Server(OURS.server), TlsClient(TRUSTING, "localhost")
    shaken(server, client)
    client.finish()
    server.incoming.write(client.take())
    assert server.tls.read(10) == b""
    server.tls.unwrap()
    assert client.receive(server.outgoing.read()) == b""
    assert client.ended


def test_a_record_that_was_changed_ends_it() -> None:
    server, client = Server(OURS.server), TlsClient(TRUSTING, "localhost")
    shaken(server, client)
    server.tls.write(b"x" * 100)
    data = bytearray(server.outgoing.read())
    data[-1] ^= 1
    with pytest.raises(TlsError, match="bad record mac"):
        client.receive(bytes(data))


def with_password(folder: Path) -> tuple[str, str]:
    certificate, key = OURS.issue("locked", "client.example")
    locked = folder / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True,
        capture_output=True,
    )
    return certificate, str(locked)


def test_the_password_of_a_key_is_asked_for(tmp_path: Path) -> None:
    certificate, key = with_password(tmp_path)
    ClientContext(certfile=certificate, keyfile=key, ask=lambda: b"secret")
    with pytest.raises(TlsOptionError, match="no key can be read from") as caught:
        ClientContext(certfile=certificate, keyfile=key, ask=lambda: b"wrong")
    assert caught.value.option == "key"

    def nobody() -> bytes:
        raise LookupError("nobody is here")

    with pytest.raises(LookupError, match="nobody is here"):
        ClientContext(certfile=certificate, keyfile=key, ask=nobody)


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({"cafile": "/no/such"}, "cafile", "No such file"),
        ({"capath": "/no/such"}, "capath", "No such file"),
        ({"cafile": OURS.server[1]}, "cafile", "no certificates can be read"),
        ({"certfile": "/no/such", "keyfile": OURS.server[1]}, "cert", "No such file"),
        ({"certfile": OURS.server[1], "keyfile": OURS.server[1]}, "cert", "no certificate can be read"),
        ({"certfile": OURS.server[0], "keyfile": OURS.server[0]}, "key", "no key can be read"),
        ({"certfile": OURS.server[0], "keyfile": OTHERS.server[1]}, "key", "is not the key of"),
        ({"ciphers": "NONSENSE"}, "ciphers", "knows no cipher suite in NONSENSE"),
        ({"ciphers": "TLS_NONSENSE"}, "ciphers", "does not know all of TLS_NONSENSE"),
    ],
)
def test_what_cannot_be_used_is_named(options: dict[str, Any], option: str, words: str) -> None:
    with pytest.raises(TlsOptionError, match=words) as caught:
        ClientContext(**options)
    assert caught.value.option == option


def test_what_is_wrong_with_one_that_signs_is_not_said_of_the_broker() -> None:
    said = Certificate(dn="CN=Between", not_before_s=4_102_444_800, not_after_s=0)
    assert wrong_certificate(said, (), 10, "", 1, "h") == (
        "the certificate of CN=Between, which signs the broker's, has expired on 1970-01-01 00:00 UTC"
    )
    assert wrong_certificate(said, (), 9, "", 0, "h") == (
        "the broker's certificate is valid from 2100-01-01 00:00 UTC on only"
    )
    assert wrong_certificate(said, (), 26, "unsuitable purpose", 0, "h").endswith("cannot be used: unsuitable purpose")
    assert wrong_certificate(said, (), 62, "", 0, "h").endswith("not for h, but for no name at all")
