"""Where options lead, and what is said of those that contradict one another."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from broker.cli import way_options
from broker.cli.mqtt_url import MqttUrl, Way
from broker.cli.pubsub import pub, sub
from tests.support.certificates import certificates

CAFILE = ("--cafile", str(certificates().cafile))


def way(*arguments: str) -> MqttUrl:
    """Return where options lead."""
    found: list[MqttUrl] = []

    @click.command()
    def command(**options: Any) -> None:
        found.append(way_options.way_of(options))

    for option in way_options.WAY_OPTIONS:
        command = option(command)
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Way("tcp", "localhost", 1883)),
        (["-h", "h", "-p", "7"], Way("tcp", "h", 7)),
        (["-h", "[::1]"], Way("tcp", "::1", 1883)),
        (["-p", "8883"], Way("tls", "localhost", 8883)),
        (["--ws"], Way("ws", "localhost", 8083)),
        (["--ws", "-p", "8084"], Way("wss", "localhost", 8084)),
        (["--ws", "-p", "8883"], Way("ws", "localhost", 8883)),
        (["-p", "8084"], Way("tcp", "localhost", 8084)),
        (["--ws", "--insecure"], Way("wss", "localhost", 8084)),
        ([*CAFILE, "-p", "1883"], Way("tls", "localhost", 1883)),
        (["--tls-use-os-certs"], Way("tls", "localhost", 8883)),
        (["--psk", "00"], Way("tls", "localhost", 8883)),
        (["--unix", "s"], Way("unix", path="s")),
        (["--url", "unix:///s"], Way("unix", path="/s")),
        (["--url", "mqtts://h"], Way("tls", "h", 8883)),
        (["--url", "ssl://h"], None),
        (["--url", "tcp://h:8883"], Way("tcp", "h", 8883)),
        (["--url", "ws://h/p"], Way("ws", "h", 8083, "/p")),
        (["--url", "ws://h", "--ws-path", "/p?a=b"], Way("ws", "h", 8083, "/p?a=b")),
        (["-L", "wss://h/t/u", "--ws-path", "/p"], Way("wss", "h", 8084, "/p")),
    ],
)
def test_options_lead_there(arguments: list[str], expected: Way | None) -> None:
    if expected is None:
        with pytest.raises(click.BadParameter):
            way(*arguments)
    else:
        assert way(*arguments).way == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "mqtt://h", "--unix", "s"], "--url and --unix both say where the broker is"),
        (["--url", "mqtt://h", "-L", "mqtt://h/t"], "--url and -L both say where the broker is"),
        (["--url", "mqtt://h", "-p", "1"], "--url says where the broker is: -p does not go with it"),
        (["--unix", "s", "-h", "h"], "--unix says where the broker is: -h does not go with it"),
        (["-L", "mqtt://h/t", "--ws"], "-L says where the broker is: --ws does not go with it"),
        (["--url", "mqtt://h", *CAFILE], "--cafile needs TLS: mqtts:// or wss://"),
        (["--unix", "s", "--insecure"], "--insecure needs TLS"),
        (["--url", "mqtt://h", "--ws-path", "/"], "--ws-path needs WebSocket"),
        (["--url", "ws://h/", "--ws-path", "/"], "the URL has a path"),
        (["--ws", "--ws-path", "mqtt"], "--ws-path: begins with /"),
        (["--ws", "--ws-path", "/a b"], "percent-encode it"),
        (["--psk", "00"], "--psk and --psk-identity go together"),
        (["--psk-identity", "x"], "--psk and --psk-identity go together"),
        (["--psk", "0g", "--psk-identity", "x"], "is 1 to 256 bytes in hexadecimal"),
        (["--psk", "", "--psk-identity", "x"], "is 1 to 256 bytes in hexadecimal"),
        (["--psk", "00", "--psk-identity", ""], "has 1 to 128 bytes"),
        (
            ["--psk", "00", "--psk-identity", "x", *CAFILE],
            "--psk is in place of certificates: --cafile does not go with it",
        ),
        (["--cert", "x"], "--cert and --key go together"),
        (["--key", "x"], "--cert and --key go together"),
        (["--cert", "/no/such", "--key", "/no/such"], "--cert: /no/such: No such file or directory"),
        (["--tls-use-os-certs", "--tls-alpn", ""], "has 1 to 255 bytes"),
        ([*CAFILE, "--ciphers", "X"], "OpenSSL knows no cipher suite in X"),
        (["--url", "mqtt://u@h", "-u", "v"], "the URL names a user: -u does not go with it"),
        (["--url", "mqtt://u:p@h", "-P", "q"], "the URL has a password: -P does not go with it"),
    ],
)
def test_contradictions_are_wrong_usage(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(pub, [*(() if "-L" in arguments else ("-t", "a")), "-n", *arguments])
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.replace("\u2502", " ").split())


@pytest.mark.parametrize("command", [pub, sub])
def test_a_topic_is_needed_once(command: click.Command) -> None:
    more = ["-n"] if command is pub else []
    result = CliRunner().invoke(command, more)
    assert result.exit_code == 2
    assert "give -t TOPIC, or a URL with a topic (-L)" in result.stderr
    if command is pub:
        result = CliRunner().invoke(pub, ["-n", "-L", "mqtt://h/a", "-t", "b"])
        assert "the URL of -L has a topic: -t does not go with it" in result.stderr
        assert "wildcards" in CliRunner().invoke(pub, ["-n", "-L", "mqtt://h/%23"]).stderr
