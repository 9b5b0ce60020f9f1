"""TLS: who is let in and under which name, and what is said of a handshake that fails."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from broker import logs
from broker.config.listener import Listener
from broker.config.loader import Config, Log, Shutdown
from broker.config.start_error import StartError
from broker.transport.listener import Entrance
from broker.transport.tls_context import set_ticket_keys
from broker.wire.packets import Connack, Connect, Disconnect, Pingreq, Publish, Suback, Subscribe, encode, subscription
from broker.wire.reasons import Reason
from broker.worker.worker import Worker, open_broker
from tests.support.certificates import Certificates, certificates
from tests.support.conversation import SocketClient, decode, open_tls

TIMEOUT_S = 20
CERTIFICATES = certificates()


@contextlib.asynccontextmanager
async def broker(*listeners: Listener, **more: Any) -> AsyncIterator[Worker]:
    """Run a broker with these listeners."""
    async with open_broker(Config(listen=(), listener=listeners, shutdown=Shutdown(drain_s=0.5), **more)) as worker:
        with trio.fail_after(TIMEOUT_S):
            yield worker


async def connected(port: int, context: ssl.SSLContext | None = None, **connect: Any) -> tuple[SocketClient, Connack]:
    """Connect with TLS and MQTT 5.0; returns the client and the answer."""
    client = SocketClient(await open_tls(port, context=context))
    await client.send(encode(Connect(**{"version": 5, "client_identifier": b"c", **connect}), 5), False)
    frame = await client.receive()
    assert frame is not None
    answer = decode(*frame, 5)
    assert isinstance(answer, Connack)
    return client, answer


async def ended(worker: Worker) -> str:
    """Return how the last connection ended, once there is none any more."""
    while not worker.controller.ends or worker.reactor.connection_count:  # noqa: ASYNC110  (the reactor knows no trio)
        await trio.sleep(0.01)
    return list(worker.controller.ends)[-1]


def trusting(**more: Any) -> Listener:
    """Return a listener that asks clients for a certificate of the authority."""
    return CERTIFICATES.listener(cafile=str(CERTIFICATES.cafile), require_certificate=True, **more)


async def shaken(port: int, context: ssl.SSLContext) -> OSError | None:
    """Try a handshake, and to read; returns what went wrong at the client's end."""

    def try_it() -> OSError | None:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as stream:
            try:
                with context.wrap_socket(stream, server_hostname="localhost") as client:
                    client.recv(1)
            except OSError as error:
                return error
        return None

    return await trio.to_thread.run_sync(try_it)


def context_of(certificate: tuple[str, str] | None = None, **settings: Any) -> ssl.SSLContext:
    """Return a client's context, with attributes set."""
    context = CERTIFICATES.client_context(certificate)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


def old_context() -> ssl.SSLContext:
    context = context_of()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def cipher_context() -> ssl.SSLContext:
    context = context_of(maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("AES128-SHA256")
    return context


EXPIRED = CERTIFICATES.issue("expired", "expired.example", common_name="expired", days=-1)
STRANGERS = Certificates()
STRANGER = STRANGERS.issue("stranger", "stranger.example", common_name="stranger")

FAILURES = {
    "older version": (old_context, "tls_nothing_in_common", "older versions"),
    "no cipher in common": (cipher_context, "tls_nothing_in_common", "no cipher suite in common"),
    "no certificate": (context_of, "tls_no_certificate", "sent no certificate"),
    "expired": (lambda: context_of(EXPIRED), "tls_certificate_refused", "certificate has expired"),
    "of another authority": (lambda: context_of(STRANGER), "tls_certificate_refused", "unable to get local issuer"),
    "our certificate not trusted": (ssl.create_default_context, "tls_refused_by_client", "who signed our certificate"),
}


@pytest.mark.parametrize(("context", "reason", "words"), FAILURES.values(), ids=FAILURES.keys())
async def test_a_handshake_that_fails_ends_for_one_reason_and_says_why(
    context: Any, reason: str, words: str, tmp_path: Path
) -> None:
    logs.configure(Log(file=str(tmp_path / "log"), format="json"))
    async with broker(trusting()) as worker:
        assert await shaken(worker.addresses[0].port, context()) is not None
        assert await ended(worker) == reason
    logs.flush(10)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    (line,) = [line for line in lines if line["event"] == "connection_ended"]
    assert words in line["detail"]
    assert line["client"].startswith("127.0.0.1:")


FIRST_BYTES = {
    "a CONNECT": (encode(Connect(4, b"c"), 4), "plain_on_tls_port", b"\x15\x03"),
    "an HTTP request": (b"GET / HTTP/1.1\r\n\r\n", "plain_on_tls_port", b"\x15\x03"),
    "nothing that is known": (bytes(range(200, 250)), "plain_on_tls_port", b"\x15\x03"),
    "a broken hello": (b"\x16\x03\x01\x00\x20" + bytes(32), "tls_handshake_failed", b"\x15\x03"),
}


@pytest.mark.parametrize(("sent", "reason", "answer"), FIRST_BYTES.values(), ids=FIRST_BYTES.keys())
async def test_what_is_no_tls_ends_with_its_own_reason(sent: bytes, reason: str, answer: bytes) -> None:
    async with broker(CERTIFICATES.listener()) as worker:
        stream = await trio.open_tcp_stream("127.0.0.1", worker.addresses[0].port)
        await stream.send_all(sent)
        received = b""
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    received += data
        assert received[:2] == answer
        assert await ended(worker) == reason


async def test_an_endless_handshake_ends() -> None:
    async with broker(CERTIFICATES.listener()) as worker:
        stream = await trio.open_tcp_stream("127.0.0.1", worker.addresses[0].port)
        hello = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + bytes(16_380)
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(hello)
        assert await ended(worker) == "tls_handshake_failed"


@pytest.mark.parametrize(
    ("field", "name"), {"cert.cn": "device-7", "cert.san.dns": "d7.example", "cert.san.email": "d7@example.org"}.items()
)
async def test_a_client_has_the_names_that_its_certificate_gives_it(field: str, name: str) -> None:
    certificate = CERTIFICATES.issue("named", "d7.example", "d7@example.org", common_name="device-7")
    async with broker(trusting(username_from=field, client_id_from=field)) as worker:
        client, answer = await connected(
            worker.addresses[0].port,
            CERTIFICATES.client_context(certificate),
            client_identifier=b"other",
            user_name="root",
        )
        assert answer.reason == Reason.SUCCESS
        (info,) = await worker.clients()
        assert (info.client_identifier, info.principal and info.principal.user_name) == (name, name)
        await client.cut()


@pytest.mark.parametrize("common_name", [None, "a/b", "a+b", "#", "x\0y"])
@pytest.mark.parametrize("setting", ["username_from", "client_id_from"])
async def test_without_a_name_that_can_be_one_a_client_is_refused_whatever_its_connect_says(
    setting: str, common_name: str | None
) -> None:
    certificate = CERTIFICATES.issue("nameless", "d7.example", common_name=common_name)
    async with broker(trusting(**{setting: "cert.cn"})) as worker:
        client, answer = await connected(
            worker.addresses[0].port,
            CERTIFICATES.client_context(certificate),
            client_identifier=b"other",
            user_name="root",
        )
        await client.cut()
        assert answer.reason == Reason.NOT_AUTHORIZED
        assert not worker.router.sessions


async def test_who_proves_nothing_is_refused_where_that_is_asked() -> None:
    listener = CERTIFICATES.listener(
        cafile=str(CERTIFICATES.cafile),
        require_certificate=False,
        allow_anonymous=False,
        psk_file=str(psk_file(CERTIFICATES.folder)),
    )
    async with broker(listener) as worker:
        port = worker.addresses[0].port
        client, answer = await connected(port)
        await client.cut()
        assert answer.reason == Reason.NOT_AUTHORIZED
        client, answer = await connected(port, CERTIFICATES.client_context(CERTIFICATES.issue("some", "some.example")))
        await client.cut()
        assert answer.reason == Reason.SUCCESS


def psk_file(folder: Path) -> Path:
    """Write pre-shared keys to a file."""
    path = folder / "keys.psk"
    path.write_text("# keys\ndevice-7:0123456789abcdef\n", encoding="ascii")
    return path


async def test_a_client_of_mosquitto_comes_in_by_its_pre_shared_key(tmp_path: Path) -> None:
    listener = Listener(
        address="tls://127.0.0.1:0", psk_file=str(psk_file(tmp_path)), psk_hint="here", username_from="psk.identity"
    )
    async with broker(listener) as worker:
        port = str(worker.addresses[0].port)
        command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", port, "-t", "t", "-m", "m", "-q", "1", "--psk-identity"]
        done = await trio.run_process([*command, "device-7", "--psk", "0123456789ABCDEF"], check=False)
        assert done.returncode == 0
        for identity, key in (("device-7", "00"), ("device-8", "0123456789abcdef")):
            done = await trio.run_process([*command, identity, "--psk", key], check=False, capture_stderr=True)
            assert done.returncode != 0
        assert set(worker.controller.ends) <= {
            "client_disconnect",
            "tls_unknown_key",
            "tls_handshake_failed",
            "tls_refused_by_client",
        }


async def test_a_server_name_chooses_among_certificates_and_the_key_that_a_client_takes() -> None:
    others = CERTIFICATES.issue("others", "other.example", "*.wild.example")
    rsa = CERTIFICATES.issue("rsa", "localhost", rsa=True)
    ecdsa = CERTIFICATES.server
    listener = Listener(
        address="tls://127.0.0.1:0", certfile=(ecdsa[0], rsa[0], others[0]), keyfile=(ecdsa[1], rsa[1], others[1])
    )
    async with broker(listener) as worker:
        for asked, found in {
            "localhost": "localhost",
            "other.example": "other.example",
            "OTHER.example": "other.example",
            "a.wild.example": "other.example",
            "unknown.example": "localhost",
        }.items():
            context = context_of(check_hostname=False)
            stream = await trio.open_tcp_stream("127.0.0.1", worker.addresses[0].port)
            secured = trio.SSLStream(stream, context, server_hostname=asked)
            await secured.do_handshake()
            certificate = secured.getpeercert()
            assert certificate is not None
            assert found in [name for _, name in certificate["subjectAltName"]]
            await trio.aclose_forcefully(secured)
        context = context_of(maximum_version=ssl.TLSVersion.TLSv1_2)
        context.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
        stream = await open_tls(worker.addresses[0].port, context=context)
        await stream.do_handshake()
        assert stream.cipher()[0] == "ECDHE-RSA-AES128-GCM-SHA256"
        await trio.aclose_forcefully(stream)


async def resumed(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None, host: str = "127.0.0.1"
) -> tuple[bool, Any]:
    """Connect with a former session; returns whether it was taken, and the session to come back with."""
    raw = socket.create_connection((host, port), TIMEOUT_S)
    with context.wrap_socket(
        raw, server_hostname="localhost", do_handshake_on_connect=False, session=session
    ) as client:

        def talk() -> tuple[bool, Any]:
            client.do_handshake()
            client.sendall(encode(Connect(4, b"r"), 4))
            assert client.recv(4) == b"\x20\x02\x00\x00"
            return bool(client.session_reused), client.session

        return await trio.to_thread.run_sync(talk)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_taken_up_again_with_the_key_of_a_worker_and_its_former_one_only(
    version: ssl.TLSVersion,
) -> None:
    context = context_of(maximum_version=version)
    keys = [bytes([number]) * 80 for number in range(3)]
    async with broker(CERTIFICATES.listener()) as worker:
        port = worker.addresses[0].port
        await trio.testing.wait_all_tasks_blocked()  # it has set keys of its own
        set_ticket_keys(keys[0])
        taken, session = await resumed(port, context, None)
        assert not taken
        taken, _ = await resumed(port, context, session)
        assert taken
        set_ticket_keys(keys[1], keys[0])
        taken, _ = await resumed(port, context, session)
        assert taken
        set_ticket_keys(keys[2], keys[1])
        taken, _ = await resumed(port, context, session)
        assert not taken


async def test_a_session_of_a_listener_without_certificates_is_no_pass_for_one_with_them() -> None:
    context = context_of(maximum_version=ssl.TLSVersion.TLSv1_2)
    async with broker(CERTIFICATES.listener(), trusting(address="tls://127.0.0.2:0")) as worker:
        _, session = await resumed(worker.addresses[0].port, context, None)
        with pytest.raises(OSError, match="alert handshake failure"):
            await resumed(worker.addresses[1].port, context, session, "127.0.0.2")
        assert await ended(worker) == "tls_no_certificate"


async def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    good, bad = (CERTIFICATES.issue(name, f"{name}.example") for name in ("good", "bad"))
    crl = revocation_list(tmp_path, bad[0])
    async with broker(trusting(crlfile=str(crl))) as worker:
        port = worker.addresses[0].port
        client, _ = await connected(port, CERTIFICATES.client_context(good))
        await client.cut()
        assert await shaken(port, CERTIFICATES.client_context(bad)) is not None
        assert await ended(worker) == "tls_certificate_refused"


def revocation_list(folder: Path, *certificates: str) -> Path:
    """Have the authority revoke some certificates; returns the file."""
    (folder / "index.txt").write_text("", encoding="ascii")
    key = folder / "ca.key"
    CERTIFICATES.authority.private_key_pem.write_to_path(key)
    config = folder / "ca.cnf"
    config.write_text(
        f"[ca]\ndefault_ca = d\n[d]\ndatabase = {folder}/index.txt\ndefault_md = sha256\ndefault_crl_days = 5\n"
        f"certificate = {CERTIFICATES.cafile}\nprivate_key = {key}\n",
        encoding="ascii",
    )
    for certificate in certificates:
        leaf = folder / "leaf.crt"
        first, end, _ = Path(certificate).read_text(encoding="ascii").partition("-----END CERTIFICATE-----\n")
        leaf.write_text(first + end, encoding="ascii")
        subprocess.run(["openssl", "ca", "-config", config, "-revoke", leaf], check=True, capture_output=True)
    path = folder / "ca.crl"
    subprocess.run(["openssl", "ca", "-config", config, "-gencrl", "-out", path], check=True, capture_output=True)
    return path


async def test_large_messages_come_whole_and_what_is_not_read_holds_up_its_sender_only() -> None:
    payload = bytes(itertools.islice(itertools.cycle(range(251)), 1_500_000))
    async with broker(CERTIFICATES.listener(), Listener(address="tcp://127.0.0.1:0")) as worker:
        port = worker.addresses[0].port
        reader, _ = await connected(port, client_identifier=b"reader")
        await reader.send(encode(Subscribe(1, (subscription(b"t", 1),)), 5), False)
        frame = await reader.receive()
        assert frame is not None
        assert isinstance(decode(*frame, 5), Suback)
        writer, _ = await connected(port, client_identifier=b"writer")
        for number in range(1, 6):
            await writer.send(encode(Publish(b"t", payload, qos=1, packet_identifier=number), 5), False)
        for _ in range(5):
            frame = await writer.receive()
            assert frame is not None
        for _ in range(5):
            frame = await reader.receive()
            assert frame is not None
            packet = decode(*frame, 5)
            assert isinstance(packet, Publish)
            assert packet.payload == payload
        for client in (reader, writer):
            await client.cut()


async def test_the_end_is_said_in_the_words_of_tls_too() -> None:
    async with broker(CERTIFICATES.listener()) as worker:
        stream = await open_tls(worker.addresses[0].port)
        await stream.send_all(encode(Connect(5, b"c"), 5))
        await stream.receive_some()
        worker.stop()
        data = b""
        while piece := await stream.receive_some():  # an end without close_notify would be an error
            data += piece
        packet = decode(data[0], data[2:], 5)
        await trio.aclose_forcefully(stream)
        assert isinstance(packet, Disconnect)
        assert packet.reason == Reason.SERVER_SHUTTING_DOWN


WRONG_FILES = {
    "no certificate": ({"certfile": ("/nowhere.crt",)}, "certfile /nowhere.crt cannot be read: No such file"),
    "no key": ({"keyfile": ("/nowhere.key",)}, "keyfile /nowhere.key cannot be read"),
    "the key of another": ({"keyfile": (EXPIRED[1],)}, "is not the key of"),
    "what is no certificate": ({"certfile": (__file__,)}, "cannot be used"),
    "no authority": ({"cafile": "/nowhere.crt", "require_certificate": True}, "/nowhere.crt cannot be read"),
    "no list": ({"cafile": str(CERTIFICATES.cafile), "crlfile": str(CERTIFICATES.cafile)}, "crlfile .* cannot be used"),
    "unknown ciphers": ({"ciphers": "NOTHING"}, "No cipher suite"),
    "a line that is none": ({"psk_file": __file__}, "line 1: expected IDENTITY:KEY"),
}


@pytest.mark.parametrize(("settings", "words"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_a_file_that_cannot_be_used_is_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartError, match=words):
        Entrance(0, CERTIFICATES.listener(**settings), 16_384)


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", CERTIFICATES.server[1], "-aes256", "-passout", "pass:secret", "-out", path],
        check=True,
        capture_output=True,
    )
    with pytest.raises(StartError, match="a key with a password cannot"):
        Entrance(0, CERTIFICATES.listener(keyfile=(str(path),)), 16_384)


async def test_a_listener_allows_less_than_the_broker_and_says_so() -> None:
    listener = CERTIFICATES.listener(max_packet_size_bytes=500, maximum_qos=1, connections_max=1)
    async with broker(listener, Listener(address="tcp://127.0.0.1:0")) as worker:
        port = worker.addresses[0].port
        client, answer = await connected(port)
        assert (answer.properties["maximum_packet_size"], answer.properties["maximum_qos"]) == (500, 1)
        second, full = await connected(port, client_identifier=b"second")
        await second.cut()
        assert full.reason == Reason.QUOTA_EXCEEDED
        await client.send(encode(Subscribe(1, (subscription(b"t", 2),)), 5), False)
        frame = await client.receive()
        assert frame is not None
        assert decode(*frame, 5).reasons == (Reason.GRANTED_QOS_1,)
        await client.send(encode(Publish(b"t", bytes(600)), 5), False)
        frame = await client.receive()
        assert frame is not None
        assert decode(*frame, 5).reason == Reason.PACKET_TOO_LARGE
        await client.cut()


async def test_what_is_renewed_is_used_from_then_on_and_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    names = ("tls.crt", "tls.key")

    def publish(number: int, certificate: tuple[str, str]) -> None:
        """Put files in place as Kubernetes does: by a symbolic link that changes in one go."""
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        for name, path in zip(names, certificate, strict=True):
            (folder / name).write_bytes(Path(path).read_bytes())
        (tmp_path / "new").symlink_to(folder)
        (tmp_path / "new").rename(tmp_path / "..data")

    async def names_seen() -> list[str]:
        secured = await open_tls(worker.addresses[0].port, context=context_of(check_hostname=False))
        await secured.do_handshake()
        certificate = secured.getpeercert()
        await trio.aclose_forcefully(secured)
        assert certificate is not None
        return [name for _, name in certificate["subjectAltName"]]

    publish(0, CERTIFICATES.server)
    listener = Listener(
        address="tls://127.0.0.1:0",
        certfile=(str(tmp_path / "..data" / names[0]),),
        keyfile=(str(tmp_path / "..data" / names[1]),),
    )
    async with broker(listener) as worker:
        stays, _ = await connected(worker.addresses[0].port, client_identifier=b"stays")
        publish(1, CERTIFICATES.issue("renewed", "renewed.example"))
        while worker.reload.done == 0:  # noqa: ASYNC110  (it looks by itself)
            await trio.sleep(0.05)
        assert await names_seen() == ["renewed.example"]
        publish(2, (CERTIFICATES.server[0], EXPIRED[1]))
        while worker.reload.failed == 0:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert "is not the key of" in str(worker.reload.error)
        assert await names_seen() == ["renewed.example"]
        await stays.send(encode(Pingreq(), 5), False)
        assert await stays.receive() == (0xD0, b"")
        publish(3, CERTIFICATES.server)
        worker.reload.ask()
        while worker.reload.done == 1:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert worker.reload.error is None
        assert "localhost" in await names_seen()
        await stays.cut()
