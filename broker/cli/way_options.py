"""Options that say where a broker is and what is spoken there, under the names that mosquitto_pub gives them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from broker.cli.common import WEBSOCKET_PATH
from broker.cli.mqtt_url import PORTS, URLS, MqttUrl, Way, parse_url

if TYPE_CHECKING:
    from broker.transport.tls_client import ClientContext

# Each of these says that TLS is meant.
TLS_OPTIONS = {
    "tls_use_os_certs": "--tls-use-os-certs", "cafile": "--cafile", "capath": "--capath", "cert": "--cert",
    "key": "--key", "insecure": "--insecure", "tls_alpn": "--tls-alpn", "tls_version": "--tls-version",
    "ciphers": "--ciphers", "psk": "--psk", "psk_identity": "--psk-identity",
}  # fmt: skip
OF_CERTIFICATES = ("tls_use_os_certs", "cafile", "capath", "cert", "insecure")

_FILE = click.Path(dir_okay=False)
WAY_OPTIONS = (
    click.option(
        "--url",
        metavar="URL",
        help=f"Where the broker is, in place of -h and -p: {URLS}. USER:PASSWORD@ "
        "may stand before HOST. Without PORT it is 1883, 8883, 8083 or 8084, and without PATH /mqtt.",
    ),
    click.option(
        "-L",
        "url_with_topic",
        metavar="URL",
        help="The same with the topic in it, percent-encoded: "
        "mqtts://USER:PASSWORD@HOST:PORT/TOPIC, in place of -h, -p, -u, -P and -t.",
    ),
    click.option("-h", "--host", help="The broker's host.  [default: localhost]"),
    click.option(
        "-p",
        "--port",
        type=click.IntRange(1, 0xFFFF),
        help="The broker's port.  [default: 1883, with TLS 8883, with --ws 8083, with both 8084]",
    ),
    click.option("--unix", metavar="PATH", help="The broker's Unix socket, in place of -h and -p."),
    click.option("--ws", is_flag=True, help="Speak WebSocket with HOST."),
    click.option("--ws-path", metavar="PATH", help=f"Where WebSocket is spoken.  [default: {WEBSOCKET_PATH}]"),
    click.option("--cafile", type=_FILE, help="TLS: who may have signed the broker's certificate, PEM."),
    click.option("--capath", type=click.Path(file_okay=False), help="TLS: a folder of them, of `openssl rehash`."),
    click.option(
        "--tls-use-os-certs",
        is_flag=True,
        help="TLS: trust whom the system trusts. So it is with port 8883 and mqtts:// or wss://, too.",
    ),
    click.option("--cert", type=_FILE, help="TLS: our own certificate with its chain, PEM."),
    click.option("--key", type=_FILE, help="TLS: its key, PEM. A password is asked for."),
    click.option(
        "--insecure",
        is_flag=True,
        help="TLS: the broker's certificate may be for another host. Whoever has one can pretend to be it.",
    ),
    click.option("--tls-version", type=click.Choice(["tlsv1.2", "tlsv1.3"]), help="TLS: the oldest version to speak."),
    click.option("--ciphers", metavar="NAMES", help="TLS: cipher suites, by OpenSSL's names, with colons between."),
    click.option("--tls-alpn", metavar="NAME", help="TLS: the protocol to offer by ALPN."),
    click.option("--psk", metavar="HEXADECIMAL", help="TLS: a key that the broker has, too, in place of certificates."),
    click.option("--psk-identity", metavar="NAME", help="TLS: what the broker knows that key by."),
)


def way_of(options: dict[str, Any]) -> MqttUrl:
    """Return where the broker is. Raises UsageError if the options contradict one another."""
    places = {"--url": options["url"], "-L": options["url_with_topic"], "--unix": options["unix"]}
    given = [name for name, value in places.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} both say where the broker is: give one")
    if given:
        for name, value in (("-h", options["host"]), ("-p", options["port"]), ("--ws", options["ws"] or None)):
            if value is not None:
                raise click.UsageError(f"{given[0]} says where the broker is: {name} does not go with it")
        url = _parsed(given[0], places[given[0]])
    else:
        url = MqttUrl(_place(options))
    way = url.way
    if not way.is_tls:
        for name, option in TLS_OPTIONS.items():
            if options[name]:
                raise click.UsageError(f"{option} needs TLS: mqtts:// or wss://")
    if options["ws_path"] is not None:
        if not way.is_websocket:
            raise click.UsageError("--ws-path needs WebSocket: --ws, ws:// or wss://")
        if way.path:
            raise click.UsageError("the URL has a path: --ws-path does not go with it")
        path = _parsed("--ws-path", f"ws://x{options['ws_path']}").way.path
        if not path.startswith("/"):
            raise click.BadParameter("begins with /", param_hint="--ws-path")
        way = Way(way.transport, way.host, way.port, path)
    return MqttUrl(way, url.user, url.password, url.topic)


def check_password(options: dict[str, Any], url: MqttUrl) -> bytes | None:
    """Return the password; one in the environment counts only where no other is given."""
    typed = click.get_current_context().get_parameter_source("password") == ParameterSource.COMMANDLINE
    if url.user is not None and options["user"] is not None:
        raise click.UsageError("the URL names a user: -u does not go with it")
    if url.password is not None:
        if typed:
            raise click.UsageError("the URL has a password: -P does not go with it")
        return url.password
    return None if options["password"] is None else os.fsencode(options["password"])


def tls_context(options: dict[str, Any], way: Way) -> ClientContext | None:
    """Return what connections are made with; None without TLS. Raises UsageError if a file cannot be used."""
    if not way.is_tls:
        return None
    from broker.transport.tls_client import ClientContext
    from broker.transport.tls_words import TlsOptionError

    psk, psk_identity = _psk(options)
    if (options["cert"] is None) != (options["key"] is None):
        raise click.UsageError("--cert and --key go together")
    alpn = options["tls_alpn"]
    if alpn is not None and not 0 < len(os.fsencode(alpn)) < 256:
        raise click.BadParameter("has 1 to 255 bytes", param_hint="--tls-alpn")
    try:
        return ClientContext(
            cafile=options["cafile"],
            capath=options["capath"],
            certfile=options["cert"],
            keyfile=options["key"],
            ask=lambda: _key_password(options["key"]),
            insecure=options["insecure"],
            alpn=None if alpn is None else os.fsencode(alpn),
            only_1_3=options["tls_version"] == "tlsv1.3",
            ciphers=options["ciphers"],
            psk=psk,
            psk_identity=psk_identity,
        )
    except TlsOptionError as error:
        raise click.BadParameter(str(error), param_hint=f"--{error.option}") from None


def _parsed(option: str, text: str) -> MqttUrl:
    try:
        if option == "--unix":
            return MqttUrl(Way("unix", path=text))
        return parse_url(text, with_topic=option == "-L")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _place(options: dict[str, Any]) -> Way:
    """Return what -h, -p and --ws say; TLS is meant where an option of it is given, and at a port that is for it."""
    websocket = options["ws"]
    tls = any(options[name] for name in TLS_OPTIONS) or options["port"] == PORTS["wss" if websocket else "tls"]
    transport = ("wss" if tls else "ws") if websocket else ("tls" if tls else "tcp")
    host = "localhost" if options["host"] is None else options["host"].removeprefix("[").removesuffix("]")
    return Way(transport, host, options["port"] or PORTS[transport])


def _psk(options: dict[str, Any]) -> tuple[bytes | None, bytes | None]:
    from broker.transport.tls_words import PSK_BYTES_MAX, PSK_IDENTITY_BYTES_MAX

    if (options["psk"] is None) != (options["psk_identity"] is None):
        raise click.UsageError("--psk and --psk-identity go together")
    if options["psk"] is None:
        return None, None
    for name in OF_CERTIFICATES:
        if options[name]:
            raise click.UsageError(f"--psk is in place of certificates: {TLS_OPTIONS[name]} does not go with it")
    try:
        key = bytes.fromhex(options["psk"])
    except ValueError:
        key = b""
    if not 0 < len(key) <= PSK_BYTES_MAX:
        raise click.BadParameter(f"is 1 to {PSK_BYTES_MAX} bytes in hexadecimal", param_hint="--psk")
    identity = os.fsencode(options["psk_identity"])
    if not 0 < len(identity) <= PSK_IDENTITY_BYTES_MAX:
        raise click.BadParameter(f"has 1 to {PSK_IDENTITY_BYTES_MAX} bytes", param_hint="--psk-identity")
    return key, identity


def _key_password(keyfile: str) -> bytes:
    """Ask a person; what is on standard input may be messages."""
    import getpass

    try:
        with open("/dev/tty", "rb"):
            pass
    except OSError:
        raise click.BadParameter(
            f"{keyfile} has a password, and there is no terminal to ask for it", param_hint="--key"
        ) from None
    return os.fsencode(getpass.getpass(f"Password of {keyfile}: "))
