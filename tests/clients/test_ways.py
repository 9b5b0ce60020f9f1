"""`shoal pub` and `shoal sub` by every way into our broker: what comes through, and what is said when nothing does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wsproto
from click.testing import CliRunner, Result

from broker.cli.pubsub import pub, sub
from broker.wire import packets
from broker.wire.reasons import Reason
from tests.clients.drivers.base import ANSWER_TIMEOUT_S
from tests.clients.drivers.processes import Announcements, Program
from tests.clients.drivers.shoal_driver import SHOAL
from tests.support.all_ways import OTHERS, PSK, TRUST, Ways, own
from tests.support.process import ROOT, BrokerProcess

ROUND_TRIPS = ["tcp", "unix", "ws", "tls", "wss", "certificate", "psk"]


@pytest.fixture(scope="module", params=[1, 3], ids=["one_worker", "three_workers"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Ways, dict[str, int]]]:
    """A broker with listeners of all kinds."""
    with (
        Ways() as ways,
        BrokerProcess(
            tmp_path_factory.mktemp("ways"), "--config", str(ways.configuration()), "--workers", str(request.param)
        ) as broker,
    ):
        yield ways, ways.ports(broker)


def subscribed(options: tuple[str, ...], *arguments: str) -> Program:
    """Start `shoal sub`, and wait until it has subscribed; what it writes is in its `said`."""
    said = Announcements()
    program = Program([*SHOAL, "sub", "-d", *options, *arguments], said.lines.put, cwd=ROOT)
    program.said = said  # type: ignore[attr-defined]
    said.wait_for(b"subscribed to")
    return program


def published(options: tuple[str, ...], *arguments: str, **given: object) -> None:
    done = subprocess.run(
        [*SHOAL, "pub", *options, *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=ANSWER_TIMEOUT_S,
        **given,
    )  # type: ignore[call-overload]
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("way", ROUND_TRIPS)
def test_what_is_published_by_a_way_arrives_by_it(world: tuple[Ways, dict[str, int]], way: str, unique: str) -> None:
    ways, ports = world
    options = ways.options(way, ports)
    program = subscribed(options, "-t", unique, "-q", "2", "-C", "4")
    large = b"x" * 200_000
    published(options, "-t", unique, "-q", "2", "-l", input=b"one\n" + large + b"\ntwo\n")
    published(options, "-t", unique, "-m", "three")
    for expected in (b"one", large, b"two", b"three"):
        assert program.said.lines.get(timeout=ANSWER_TIMEOUT_S) == expected + b"\n"  # type: ignore[attr-defined]
    program.end()
    assert program.process.returncode == 0


def test_a_url_has_all_that_is_needed(world: tuple[Ways, dict[str, int]], unique: str) -> None:
    ports = world[1]
    url = f"mqtts://ad%61:s%20ecret@localhost:{ports['tls']}/{unique}/%C3%BC"
    program = subscribed(TRUST, "-L", url, "-C", "1", "-v")
    published(TRUST, "-L", url, "-m", "hello")
    assert program.said.wait_for(b"hello") == f"{unique}/\u00fc hello\n".encode()  # type: ignore[attr-defined]
    program.end()


def run(*arguments: str, command: object = pub) -> Result:
    more = ["-t", "a", "-m", "x"] if command is pub else ["-t", "a"]
    return CliRunner().invoke(command, [*more, *arguments])  # type: ignore[arg-type]


SAID = {
    "unknown authority": (
        "tls",
        "mqtts",
        (),
        "TLS with {at} failed: the broker's certificate is signed by OU=Testing CA",
    ),
    "another authority": (
        "tls",
        "mqtts",
        ("--cafile", str(OTHERS.cafile)),
        "which is not trusted: --cafile says who is.",
    ),
    "another name": (
        "other name",
        "mqtts",
        TRUST,
        "TLS with {at} failed: the broker's certificate is not for "
        "localhost, but for other.example, second.example and 192.0.2.7.",
    ),
    "expired": ("expired", "mqtts", TRUST, "TLS with {at} failed: the broker's certificate has expired on 20"),
    "insecure is about the name only": ("expired", "mqtts", (*TRUST, "--insecure"), "has expired on 20"),
    "TLS on a plain port": ("tcp", "mqtts", TRUST, "TLS with {at} failed: what answers there speaks no TLS."),
    "TLS on a port of WebSocket": ("ws", "mqtts", TRUST, "TLS with {at} failed: what answers there speaks no TLS."),
    "plain on a TLS port": ("tls", "mqtt", (), "the broker at {at} speaks TLS there: mqtts://."),
    "plain on a port of WebSocket": (
        "ws",
        "mqtt",
        (),
        "what answers at {at} speaks HTTP (400 Bad Request): ws://, if it is a broker.",
    ),
    "TLS without WebSocket": (
        "wss",
        "mqtts",
        TRUST,
        "what answers at {at} speaks HTTP (400 Bad Request): wss://, if it is a broker.",
    ),
    "WebSocket on a plain port": (
        "tcp",
        "ws",
        (),
        "there is no WebSocket at {at}: at /mqtt it answers 400 Bad Request: This port speaks MQTT over plain TCP",
    ),
    "WebSocket on a TLS port": (
        "wss",
        "ws",
        (),
        "there is no WebSocket at {at}: what answers there speaks TLS: wss://.",
    ),
    "WebSocket in TLS at a port without": (
        "tls",
        "wss",
        TRUST,
        "there is no WebSocket at {at}: at /mqtt it answers 400 Bad Request",
    ),
    "another path": (
        "ws",
        "ws",
        ("--ws-path", "/here"),
        "there is no WebSocket at {at}: at /here it answers 404 Not Found: a WebSocket is opened at /mqtt, /ws, /.",
    ),
    "no cipher suite in common": (
        "tls",
        "mqtts",
        (*TRUST, "--ciphers", "AES128-SHA256:TLS_AES_128_CCM_SHA256"),
        "the broker and we have no cipher suite, or no key exchange, in common.",
    ),
    "no certificate": ("certificate", "mqtts", TRUST, "TLS with {at} failed: the broker wants a certificate of ours."),
    "a certificate of another authority": (
        "certificate",
        "mqtts",
        (*TRUST, *own("stranger", of=OTHERS)),
        "the broker does not know who signed our certificate.",
    ),
    "a certificate that has expired": (
        "certificate",
        "mqtts",
        (*TRUST, *own("expired-client", days=-1)),
        "to the broker, our certificate has expired.",
    ),
    "another key": ("psk", "mqtts", ("--psk", "00", "--psk-identity", "device-7"), "does not know our pre-shared key"),
    "an identity that is not known": (
        "psk",
        "mqtts",
        ("--psk", "0123456789abcdef", "--psk-identity", "x"),
        "does not know our pre-shared key",
    ),
    "a key of TLS 1.2": (
        "psk",
        "mqtts",
        ("--psk", "00", "--psk-identity", "device-7", "--ciphers", "PSK-AES128-GCM-SHA256"),
        "does not know our pre-shared key",
    ),
    "a key where certificates are used": ("tls", "mqtts", PSK, "does not know our pre-shared key"),
    "certificates where keys are used": ("psk", "mqtts", TRUST, "have no cipher suite, or no key exchange, in common."),
}


@pytest.mark.parametrize(("listener", "scheme", "options", "words"), SAID.values(), ids=SAID.keys())
def test_what_is_wrong_is_one_sentence(
    world: tuple[Ways, dict[str, int]], listener: str, scheme: str, options: tuple[str, ...], words: str
) -> None:
    at = f"localhost:{world[1][listener]}"
    result = run("--url", f"{scheme}://{at}", *options)
    assert result.exit_code == 1, result.output
    assert words.format(at=at) in result.stderr
    assert result.stderr.startswith("shoal: ")
    assert result.stderr.endswith(".\n")
    assert result.stderr.count("\n") == 1


def test_insecure_leaves_the_name_unchecked(world: tuple[Ways, dict[str, int]]) -> None:
    assert run("--url", f"mqtts://localhost:{world[1]['other name']}", *TRUST, "--insecure").exit_code == 0


def test_a_socket_that_is_not_there_is_one_sentence() -> None:
    result = run("--unix", "/no/such/socket")
    assert result.stderr == "shoal: no broker answers at /no/such/socket (no such file or directory).\n"
    assert run("--unix", "/" + "x" * 200).stderr.endswith("(af_unix path too long).\n")


# Servers that are no broker ------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Callable[..., int]]:
    """Start a server that answers each connection, in turn, with some bytes and closes it; returns its port."""
    listeners, threads = [], []

    def start(*answers: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            for answer in answers:
                with listener.accept()[0] as connection:
                    connection.recv(65536)
                    if answer is None:  # nothing, until the client has had enough
                        connection.recv(65536)
                    else:
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(ANSWER_TIMEOUT_S)
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize(
    ("scheme", "answer", "words"),
    [
        (
            "mqtts",
            b"",
            "TLS with {at} failed: what answers there closed the connection at once, as one without TLS does.",
        ),
        ("mqtts", b"220 mail\r\n", "TLS with {at} failed: what answers there speaks no TLS."),
        ("mqtts", b"\x16\x03\x03", "TLS with {at} failed: what answers there closed the connection in the handshake."),
        ("mqtts", None, "the broker did not answer the TLS handshake within 0.2 seconds."),
        (
            "ws",
            b"",
            "there is no WebSocket at {at}: what answers there closed the connection, as one without WebSocket does.",
        ),
        ("ws", None, "the broker did not answer the request for a WebSocket within 0.2 seconds."),
        ("ws", b"220 mail\r\n\r\n", "there is no WebSocket at {at}: what answers there speaks no HTTP."),
        (
            "ws",
            b"HTTP/1.1 302 Found\r\nLocation: https://else\r\n\r\n",
            "there is no WebSocket at {at}: at /mqtt it answers 302 Found, go to https://else.",
        ),
        (
            "ws",
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\n\r\nnobody\nis there",
            "there is no WebSocket at {at}: at /mqtt it answers 502 Bad Gateway: nobody.",
        ),
        ("ws", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 20_000, "at /mqtt it answers 200 OK."),
        ("mqtt", b"\x15\x03\x03\x00\x02\x02\x46", "the broker at {at} speaks TLS there: mqtts://."),
        ("mqtt", None, "the broker did not answer CONNECT within 0.2 seconds."),
    ],
)
def test_what_is_no_broker_is_one_sentence(
    server: Callable[..., int], scheme: str, answer: bytes | None, words: str
) -> None:
    at = f"127.0.0.1:{server(answer)}"
    result = run("--url", f"{scheme}://{at}", "--timeout", "0.2" if answer is None else "20")
    assert (result.exit_code, result.stderr) == (1, f"shoal: {words.format(at=at)}\n") or words in result.stderr


# Coming again --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ROUND_TRIPS)
def test_sub_comes_again_by_the_way_that_it_came(way: str, tmp_path: Path) -> None:
    with Ways() as ways, BrokerProcess(tmp_path, "--config", str(ways.configuration())) as first:
        ports = ways.ports(first)
        program = subscribed(
            ways.options(way, ports), "-t", "t", "-q", "1", "-i", "me", "--session-expiry-interval", "99"
        )
        first.kill()
        said = program.said  # type: ignore[attr-defined]
        said.wait_for(b"connecting again")
        again = Again(tmp_path, "--config", str(ways.configuration(ports)))
        again.port_before = ports["tcp"]
        with again:
            said.wait_for(b"connected again to")
            published(ways.options(way, ports), "-t", "t", "-q", "1", "-m", "after all")
            assert said.wait_for(b"after") == b"after all\n"
            program.end(signal.SIGINT)
            assert program.process.returncode == 130


class Again(BrokerProcess):
    """A broker at the plain port of one before it."""

    port_before = 0

    def command(self) -> list[str]:
        return [
            f"tcp://127.0.0.1:{self.port_before}" if part == "tcp://127.0.0.1:0" else part for part in super().command()
        ]


def test_a_proxy_whose_broker_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.cli.pubsub.RECONNECT_S", 0.001)
    listener = socket.create_server(("127.0.0.1", 0))

    def speak(connection: socket.socket, *answers: packets.Packet) -> None:
        """Open a WebSocket, and answer each packet with one."""
        websocket = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        buffer = bytearray()
        left = list(answers)
        while left:
            data = connection.recv(65536)
            assert data
            websocket.receive_data(data)
            for event in websocket.events():
                if isinstance(event, wsproto.events.Request):
                    connection.sendall(websocket.send(wsproto.events.AcceptConnection(subprotocol="mqtt")))
                elif isinstance(event, wsproto.events.BytesMessage):
                    buffer += event.data
            while packets.next_frame(buffer) is not None:
                connection.sendall(websocket.send(wsproto.events.BytesMessage(packets.encode(left.pop(0), 5))))

    def serve() -> None:
        with listener.accept()[0] as connection:
            speak(connection, packets.Connack(), packets.Suback(1, (Reason.GRANTED_QOS_0,)))
        for status in (b"502 Bad Gateway", b"503 Service Unavailable"):
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        with listener.accept()[0] as connection:
            speak(connection, packets.Connack(), packets.Suback(2, (Reason.GRANTED_QOS_0,)))
        with listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        port = listener.getsockname()[1]
        result = run("--url", f"ws://127.0.0.1:{port}", command=sub)
        thread.join(ANSWER_TIMEOUT_S)
    said = result.stderr.splitlines()
    assert [line.partition(" at ")[0] for line in said] == [
        "shoal: the broker closed the connection; connecting again.",
        f"shoal: connected again to 127.0.0.1:{port}.",
        "shoal: the broker closed the connection; connecting again.",
        "shoal: there is no WebSocket",
    ], said
    assert result.exit_code == 1


def test_the_password_of_a_key_needs_a_terminal(tmp_path: Path) -> None:
    certificate = own()[1]
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", own()[3], "-out", locked],
        check=True,
        capture_output=True,
    )
    done = subprocess.run(
        [*SHOAL, "pub", "-t", "a", "-m", "x", "--cert", certificate, "--key", str(locked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 2
    assert "has a password, and there is no terminal to ask for it" in done.stderr
    assert os.fspath(locked) in done.stderr
