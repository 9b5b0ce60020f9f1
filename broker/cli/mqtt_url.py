"""Where a broker is, as a person writes it: mqtts://user:password@host:port/topic and its like."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

TRANSPORTS: Final = {"mqtt": "tcp", "tcp": "tcp", "mqtts": "tls", "tls": "tls", "ws": "ws", "wss": "wss"}
PORTS: Final = {"tcp": 1883, "tls": 8883, "ws": 8083, "wss": 8084}
URLS: Final = "mqtt[s]://HOST[:PORT], ws[s]://HOST[:PORT][/PATH] or unix:///PATH"
_HALF_ENCODED = re.compile("%(?![0-9A-Fa-f]{2})")
_NOT_IN_PATH = re.compile(r"[^!-~]")


@dataclass(frozen=True)
class Way:
    """How to get to a broker.

    Attributes:
        transport: "tcp", "tls", "ws", "wss" or "unix".
        host: a name or an IP address, IPv6 without brackets; "" of a Unix socket.
        port: 1..65535; 0 of a Unix socket.
        path: of a Unix socket, or where WebSocket is spoken ("" if nobody has said so); else "".
    """

    transport: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.transport == "unix":
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken."""
        return self.transport in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        """Whether WebSocket is spoken."""
        return self.transport in ("ws", "wss")


@dataclass(frozen=True)
class MqttUrl:
    """What a URL says.

    Attributes:
        user: decoded; None: it names none.
        password: decoded, any bytes; None: it has none.
        topic: decoded; "" where none may be.
    """

    way: Way
    user: str | None = None
    password: bytes | None = None
    topic: str = ""


def parse_url(text: str, *, with_topic: bool = False) -> MqttUrl:
    """Return what a URL says. Raises ValueError with one sentence, without its full stop and the password.

    Args:
        with_topic: what is behind HOST:PORT/ is a topic, as in `mosquitto_pub -L`; else it is the path of a WebSocket.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if separator and scheme == "unix":
        if with_topic:
            raise ValueError("a Unix socket has no place for a topic: use --url unix://PATH and -t")
        if not rest.startswith("/") or "\0" in rest:
            raise ValueError(f"expected an absolute path behind unix:// in {text!r}")
        return MqttUrl(Way("unix", path=rest))
    if not separator or scheme not in TRANSPORTS:
        raise ValueError(f"expected {URLS}, found {_without_password(text)!r}")
    transport = TRANSPORTS[scheme]
    authority, slash, behind = rest.partition("/")
    user, password, place = _user(authority)
    host, port = _host_and_port(place, PORTS[transport])
    if with_topic:
        if not behind:
            raise ValueError(f"expected a topic behind {scheme}://{place}/")
        return MqttUrl(Way(transport, host, port), user, password, _text("the topic", behind))
    if transport in ("ws", "wss"):
        path = slash + behind
        if _NOT_IN_PATH.search(path):
            raise ValueError(f"the path {path!r} has a blank or a letter that a URL cannot have: percent-encode it")
        return MqttUrl(Way(transport, host, port, path.partition("#")[0]), user, password)
    if behind:
        raise ValueError(f"what is /{behind} in {scheme}://? A topic goes with -t, or with -L in place of --url")
    return MqttUrl(Way(transport, host, port), user, password)


def _user(authority: str) -> tuple[str | None, bytes | None, str]:
    """Return user, password, and what is behind them."""
    before, at, place = authority.rpartition("@")
    if not at:
        return None, None, place
    user, colon, password = before.partition(":")
    return _text("the user", user) if user else None, _decoded("the password", password) if colon else None, place


def _host_and_port(place: str, usual_port: int) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, behind = place[1:].partition("]")
        if not bracket or not _is_ipv6(host):
            raise ValueError(f"expected an IPv6 address between the brackets of {place!r}")
        colon, port = behind[:1], behind[1:]
        if behind and colon != ":":
            raise ValueError(f"expected a port behind the brackets of {place!r}")
    else:
        host, colon, port = place.partition(":")
        if ":" in port and _is_ipv6(place):
            raise ValueError(f"expected brackets around the IPv6 address {place!r}")
    bare = host.partition("%")[0] if place.startswith("[") else host  # an IPv6 address may have a zone
    if not bare or any(character.isspace() or character in "/@[]?#%\\" for character in bare):
        raise ValueError(f"expected a host name or an IP address, found {host!r}")
    if not colon:
        return host, usual_port
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 0xFFFF):
        raise ValueError(f"expected a port from 1 to 65535, found {port!r}")
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _decoded(what: str, text: str) -> bytes:
    if _HALF_ENCODED.search(text):
        raise ValueError(f"{what} has a % that is not followed by two hexadecimal digits: write %25")
    return unquote_to_bytes(text.encode(errors="surrogateescape"))


def _text(what: str, text: str) -> str:
    try:
        return _decoded(what, text).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{what} is not UTF-8") from None


def _without_password(text: str) -> str:
    """Return a URL, or what should have been one, without what may be a password."""
    _, at, behind = text.rpartition("@")
    return f"...@{behind}" if at else text
