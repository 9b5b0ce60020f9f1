"""What can be set for one listener: an address, what is spoken there, and rules of its own."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from broker.config.limit import ClientLimit

CertificateField = Literal[
    "cert.cn", "cert.dn", "cert.san.dns", "cert.san.uri", "cert.san.email", "cert.sha256", "psk.identity"
]
SCHEMES = ("tcp", "tls", "ws", "wss", "unix")


class Address(Struct, frozen=True):
    """Where to listen or connect.

    Attributes:
        host: a name or an IP address, IPv6 without brackets; "" at a Unix socket.
        port: 0..65535; 0 at a Unix socket.
        scheme: "tcp", "tls", "ws", "wss" or "unix".
        path: of a Unix socket, else "".
    """

    host: str
    port: int
    scheme: str = "tcp"
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken there."""
        return self.scheme in ("tls", "wss")

    @property
    def is_websocket(self) -> bool:
        """Whether WebSocket is spoken there."""
        return self.scheme in ("ws", "wss")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Any host name but localhost counts as reachable."""
        if self.scheme == "unix" or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Return the address that `tcp://HOST:PORT`, the same with tls, ws or wss, or `unix://PATH` names.

    Raises ValueError with one sentence if it names none.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"expected tcp://HOST:PORT, tls://, ws://, wss:// or unix://PATH, found {text!r}")
    if scheme == "unix":
        if not rest or "\0" in rest:
            raise ValueError(f"expected a path behind unix:// in {text!r}")
        return Address("", 0, scheme, rest)
    host, separator, port = rest.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"expected a port from 0 to 65535 at the end of {text!r}")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError(f"expected an IPv6 address between the brackets of {text!r}") from None
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"expected brackets around the IPv6 address in {text!r}")
    if not host or any(character.isspace() or character in "/@[]?#" for character in host):
        raise ValueError(f"expected a host name or an IP address in {text!r}")
    return Address(host, int(port), scheme)


def http_address(text: str) -> Address:
    """Return the address that `HOST:PORT`, or a port of this machine alone, names. Raises ValueError."""
    if text.isascii() and text.isdigit():
        text = f"127.0.0.1:{text}"
    if "://" in text:
        raise ValueError(f"expected HOST:PORT, without what is spoken there, found {text!r}")
    return msgspec.structs.replace(parse_address(f"tcp://{text}"), scheme="http")


class Listener(ClientLimit, frozen=True, kw_only=True):
    """One address to listen on, with rules of its own; what is not given is as for the whole broker."""

    address: Annotated[
        str,
        Meta(
            min_length=1,
            description="tcp://HOST:PORT, tls://, ws://, wss:// or unix://PATH; IPv6 in brackets, port 0 takes any "
            "free port. Usual ports are 1883, 8883 with TLS, 8083 with WebSocket, 8084 with both.",
            examples=["tls://0.0.0.0:8883"],
        ),
    ]
    allow_anonymous: Annotated[
        bool | None,
        Meta(
            description="Whether clients that prove nothing may come in here; unset: as allow_anonymous of the broker.",
            examples=[False],
        ),
    ] = None
    connections_max: Annotated[
        int, Meta(ge=0, le=10_000_000, description="Connections open at once by this listener; 0 for any number.")
    ] = 0
    connects_per_second_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="CONNECTs by this listener that a worker accepts in a second, after a burst of twice as many; "
            "0 for any number.",
        ),
    ] = 0
    max_packet_size_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=268_435_460,
            description="Largest packet that a client may send here, if that is less than "
            "mqtt.max_packet_size_bytes; 0 for no limit of its own.",
        ),
    ] = 0
    maximum_qos: Annotated[
        int, Meta(ge=0, le=2, description="Highest QoS here, if that is less than mqtt.maximum_qos.")
    ] = 2
    mount_point: Annotated[
        str,
        Meta(
            max_length=1_000,
            description="What stands in front of all topic names here, and is not seen by clients; it ends with /.",
            examples=["plant-1/"],
        ),
    ] = ""
    mode: Annotated[str, Meta(min_length=1, max_length=4, description="Permissions of a Unix socket, octal.")] = "660"
    group: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Group that a Unix socket belongs to; unset: the broker's.", examples=["mqtt"]),
    ] = None
    proxy_protocol: Annotated[
        bool, Meta(description="Whether each connection begins with a header of the PROXY protocol, version 1 or 2.")
    ] = False
    proxy_from: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses and networks of proxies whose word counts: the PROXY protocol's, and "
            "X-Forwarded-For's of WebSocket. Unix sockets are trusted.",
            examples=[["10.0.0.0/8", "::1"]],
        ),
    ] = ()
    certfile: Annotated[
        tuple[str, ...],
        Meta(
            description="Certificates with their chains, PEM: one of each kind of key, or for each server name; the "
            "first is used where a client names none that fits.",
            examples=[["ecdsa.crt", "rsa.crt"]],
        ),
    ] = ()
    keyfile: Annotated[
        tuple[str, ...],
        Meta(
            description="Private keys of these certificates, PEM, in the same order.",
            examples=[["ecdsa.key", "rsa.key"]],
        ),
    ] = ()
    cafile: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Certificates that sign those of clients, PEM.", examples=["clients-ca.crt"]),
    ] = None
    capath: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Folder of such certificates, prepared by `openssl rehash`.", examples=["clients-ca.d"]),
    ] = None
    crlfile: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Lists of revoked certificates, PEM.", examples=["clients.crl"]),
    ] = None
    crl_check: Annotated[
        Literal["leaf", "chain"],
        Meta(description="Whether the client's certificate alone must not be revoked, or each of its chain."),
    ] = "leaf"
    verify_depth: Annotated[
        int, Meta(ge=0, le=100, description="Certificates between a client's and the one that is trusted, at most.")
    ] = 9
    require_certificate: Annotated[
        bool, Meta(description="Whether a client must have a certificate; else one that it sends is checked.")
    ] = False
    min_version: Annotated[Literal["1.2", "1.3"], Meta(description="Oldest version of TLS.")] = "1.2"
    ciphers: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Cipher suites of TLS 1.2, as OpenSSL names them.", examples=["ECDHE+AESGCM"]),
    ] = None
    ciphersuites: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Cipher suites of TLS 1.3, as OpenSSL names them.", examples=["TLS_AES_128_GCM_SHA256"]),
    ] = None
    psk_file: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Pre-shared keys, a line IDENTITY:HEXADECIMAL for each (TLS 1.2).", examples=["keys.psk"]),
    ] = None
    psk_hint: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)] | None,
        Meta(description="What a client is told so that it picks its pre-shared key.", examples=["shoal"]),
    ] = None
    username_from: Annotated[
        CertificateField | None,
        Meta(
            description="Field of the certificate that is the client's user name, whatever its CONNECT says; who has "
            "no such field is refused.",
            examples=["cert.cn"],
        ),
    ] = None
    client_id_from: Annotated[
        CertificateField | None,
        Meta(
            description="Field of the certificate that is the client identifier, likewise.", examples=["cert.san.uri"]
        ),
    ] = None
    tls_keylog: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="File that the keys of all connections are written to, so that Wireshark can read them. Who "
            "has it can read everything.",
            examples=["keys.log"],
        ),
    ] = None
    authenticators: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Names of the [[authenticator]] tables that are asked about clients here, in this order; "
            "unset: all of them, in the order of the tables.",
            examples=[["devices"]],
        ),
    ] = None
    authorizers: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Names of the [[authorizer]] tables that say what clients here may do, in this order; unset: "
            "all of them, in the order of the tables; an empty list: clients may do everything.",
            examples=[["plant"]],
        ),
    ] = None
    websocket_paths: Annotated[
        tuple[str, ...], Meta(min_length=1, description="Paths at which a WebSocket is opened.")
    ] = ("/mqtt", "/ws", "/")
    websocket_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Web pages that may open one, by their origin; none given: all.",
            examples=[["https://app.example.org"]],
        ),
    ] = ()
    websocket_subprotocol_required: Annotated[
        bool, Meta(description="Whether a client must offer a subprotocol of MQTT [MQTT-6.0.0-3].")
    ] = True

    @property
    def where(self) -> Address:
        """The address, taken apart."""
        return parse_address(self.address)
