"""`shoal pub` and `shoal sub` by every way into another broker: mosquitto, as Debian has it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.pubsub import pub, sub
from tests.support.all_ways import OTHERS, OURS, PSK, TRUST, own
from tests.support.front_ends import program

START_TIMEOUT_S = 20.0
TRIES = 5  # another program may take a port between our look and mosquitto's
NAMES = ("tcp", "ws", "tls", "wss", "certificate", "psk", "expired")


def configuration(folder: Path, ports: dict[str, int]) -> str:
    """Return mosquitto's settings."""
    ours, expired = OURS.server, OURS.issue("expired-mosquitto", "localhost", days=-1)

    def pair(files: tuple[str, str]) -> str:
        return f"certfile {files[0]}\nkeyfile {files[1]}\n"

    of = {
        "tcp": "",
        "ws": "protocol websockets\n",
        "tls": pair(ours),
        "wss": f"protocol websockets\n{pair(ours)}",
        "certificate": f"{pair(ours)}cafile {OURS.cafile}\nrequire_certificate true\n",
        "psk": f"psk_hint here\npsk_file {folder}/keys.psk\n",
        "expired": pair(expired),
    }
    user = "user root\n" if os.geteuid() == 0 else ""
    return (
        f"per_listener_settings true\n{user}"
        + "".join(f"listener {ports[name]} 127.0.0.1\nallow_anonymous true\n{of[name]}" for name in NAMES)
        + f"listener 0 {folder}/s\nallow_anonymous true\n"
    )


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[dict[str, int]]:
    """Run it; gives its ports by the name of the way."""
    binary = program("mosquitto")
    (folder / "keys.psk").write_text("device-7:0123456789abcdef\n", encoding="ascii")
    for _ in range(TRIES):
        with contextlib.ExitStack() as held:
            found = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in NAMES]
            ports = {name: one.getsockname()[1] for name, one in zip(NAMES, found, strict=True)}
        (folder / "m.conf").write_text(configuration(folder, ports), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([binary, "-c", str(folder / "m.conf")], stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        said = ""
        while process.poll() is None and "running" not in said:
            assert time.monotonic() < deadline, said
            time.sleep(0.02)
            said = (folder / "log").read_text(errors="replace")
        if process.poll() is None:
            break
    else:
        raise AssertionError(said)
    try:
        yield ports
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Path, dict[str, int]]]:
    with tempfile.TemporaryDirectory(prefix="shoal-mosquitto-") as folder, mosquitto(Path(folder)) as ports:
        yield Path(folder), ports


def options(way: str, folder: Path, ports: dict[str, int]) -> list[str]:
    """Return what leads to a listener, in the words of mosquitto_pub where it has them."""
    port = str(ports.get(way, 0))
    return {
        "tcp": ["-h", "127.0.0.1", "-p", port],
        "unix": ["--unix", f"{folder}/s"],
        "ws": ["--ws", "-h", "127.0.0.1", "-p", port],
        "wss": ["--ws", "-p", port, *TRUST],
        "tls": ["-p", port, *TRUST],
        "certificate": ["-p", port, *TRUST, *own()],
        "psk": ["-p", port, *PSK],
    }[way]


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("way", ["tcp", "unix", "ws", "wss", "tls", "certificate", "psk"])
def test_what_is_published_by_a_way_arrives_by_it(world: tuple[Path, dict[str, int]], way: str, version: str) -> None:
    where = [*options(way, *world), "-V", version]
    topic = f"t/{way}/{version}"
    payload = "x" * 100_000
    sent = CliRunner().invoke(pub, [*where, "-t", topic, "-m", payload, "-r", "-q", "2"])
    assert (sent.exit_code, sent.output) == (0, "")
    got = CliRunner().invoke(sub, [*where, "-t", topic, "-C", "1", "-q", "2"])
    assert (got.exit_code, got.output) == (0, payload + "\n")


SAID = {
    "unknown authority": (
        "tls",
        "mqtts",
        ("--cafile", str(OTHERS.cafile)),
        "which is not trusted: --cafile says who is.",
    ),
    "expired": ("expired", "mqtts", TRUST, "the broker's certificate has expired on 20"),
    "TLS on a plain port": ("tcp", "mqtts", TRUST, "closed the connection at once, as one without TLS does"),
    "TLS on a port of WebSocket": ("ws", "mqtts", TRUST, "what answers there speaks no TLS."),
    "plain on a TLS port": ("tls", "mqtt", (), "closed the connection before it answered CONNECT"),
    "plain on a port of WebSocket": ("ws", "mqtt", (), "speaks HTTP (403 Forbidden): ws://, if it is a broker."),
    "TLS without WebSocket": ("wss", "mqtts", TRUST, "speaks HTTP (403 Forbidden): wss://, if it is a broker."),
    "WebSocket on a plain port": ("tcp", "ws", (), "closed the connection, as one without WebSocket does"),
    "WebSocket in TLS at a port without": ("tls", "wss", TRUST, "closed the connection, as one without WebSocket does"),
    "no certificate": ("certificate", "mqtts", TRUST, "the broker wants a certificate of ours."),
    "a certificate of another authority": (
        "certificate",
        "mqtts",
        (*TRUST, *own("stranger", of=OTHERS)),
        "the broker does not know who signed our certificate.",
    ),
    "another key": ("psk", "mqtts", ("--psk", "00", "--psk-identity", "device-7"), "does not know our pre-shared key"),
    "no cipher suite in common": (
        "tls",
        "mqtts",
        (*TRUST, "--ciphers", "AES128-SHA256:TLS_AES_128_CCM_SHA256"),
        "the broker and we have no cipher suite, or no key exchange, in common.",
    ),
}


@pytest.mark.parametrize(("listener", "scheme", "more", "words"), SAID.values(), ids=SAID.keys())
def test_what_is_wrong_is_one_sentence(
    world: tuple[Path, dict[str, int]], listener: str, scheme: str, more: tuple[str, ...], words: str
) -> None:
    url = f"{scheme}://localhost:{world[1][listener]}"
    result = CliRunner().invoke(pub, ["-t", "a", "-m", "x", "--url", url, *more])
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
