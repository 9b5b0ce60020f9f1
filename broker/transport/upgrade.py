"""The HTTP request that opens a WebSocket (RFC 6455, 4.2), and its answer."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import h11

from broker.transport.facts import Facts
from broker.transport.proxies import Proxies, forwarded_for
from broker.wire.reasons import ClientError, CloseReason, Reason

HEAD_BYTES_MAX = 8192
KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
VERSION = b"13"
SUBPROTOCOLS = (b"mqtt", b"mqttv3.1", b"mqttv3.1.1", b"mqttv5", b"mqtt-v3", b"mqtt-v3.1.1", b"mqtt-v5")
# An alert record of TLS 1.0 (RFC 5246, 7.2): fatal, handshake_failure.
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x28"
PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
}
_TOO_LONG = f"the request has more than {HEAD_BYTES_MAX} bytes"


class Answered(NamedTuple):
    """The answer to a request.

    Attributes:
        data: what the client is sent.
        behind: bytes that came behind the request: frames already.
        error: why there is no WebSocket; None: there is one.
    """

    data: bytes
    behind: int
    error: ClientError | None


class RefusedError(Exception):
    """A request that opens no WebSocket here: the HTTP status, and the words for client and log."""

    def __init__(self, status: int, why: str, clause: str, **fields: str) -> None:
        super().__init__(why)
        self.status, self.why, self.clause, self.fields = status, why, clause, fields


class Upgrades:
    """What a listener asks of those who open a WebSocket there.

    Args:
        paths: at which one is opened.
        origins: of the web pages that may; empty: all may, and what is no web page may anyway.
        subprotocol_required: a client has to offer one of MQTT.
        proxies: whose X-Forwarded-For counts.
    """

    def __init__(
        self, paths: Iterable[str], origins: Iterable[str], subprotocol_required: bool, proxies: Proxies
    ) -> None:
        self._paths = frozenset(path.encode() for path in paths)
        self._shown_paths = ", ".join(paths)
        self._origins = frozenset(origin.lower().removesuffix("/").encode() for origin in origins)
        self._subprotocol_required = subprotocol_required
        self._proxies = proxies

    def answer(self, request: h11.Request, facts: Facts, peer: str | None) -> bytes:
        """Return the answer that opens a WebSocket. Raises RefusedError.

        Args:
            facts: a trusted proxy's word about the client's address goes here.
            peer: HOST:PORT of the socket; None at a Unix socket.
        """
        self._check_place(request)
        if b"websocket" not in _tokens(request, b"upgrade"):
            raise _upgrade_required("a WebSocket is opened here, by an HTTP request with Upgrade: websocket", "4.2.1")
        if b"upgrade" not in _tokens(request, b"connection"):
            raise RefusedError(400, "Connection: Upgrade is missing", "RFC 6455, 4.2.1")
        if request.http_version != b"1.1":
            raise RefusedError(400, "a WebSocket is opened by HTTP/1.1", "RFC 6455, 4.2.1")
        if _values(request, b"sec-websocket-version") != [VERSION]:
            raise _upgrade_required("Sec-WebSocket-Version has to be 13", "4.4")
        if _has_content(request):
            raise RefusedError(400, "the request has a body", "RFC 6455, 4.2.1")
        keys = _values(request, b"sec-websocket-key")
        if len(keys) != 1 or not _is_key(keys[0]):
            raise RefusedError(400, "Sec-WebSocket-Key has to be 16 bytes in base64", "RFC 6455, 4.2.1")
        origins = _values(request, b"origin")
        if self._origins and any(origin.lower() not in self._origins for origin in origins):
            raise RefusedError(403, "web pages of this origin may not connect", "RFC 6455, 4.2.2")
        subprotocol = self._choose_subprotocol(request)
        self._tell_address(request, facts, peer)
        return b"".join((
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ",
            base64.b64encode(hashlib.sha1(keys[0] + KEY_SUFFIX, usedforsecurity=False).digest()),
            b"\r\nSec-WebSocket-Protocol: " + subprotocol if subprotocol is not None else b"",
            b"\r\n\r\n",
        ))  # fmt: skip

    def _check_place(self, request: h11.Request) -> None:
        target = request.target
        if target.lower().startswith((b"http://", b"https://")):  # RFC 6455, 4.2.1: it may be a whole URI
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        if target.partition(b"?")[0] not in self._paths:
            raise RefusedError(404, f"a WebSocket is opened at {self._shown_paths}", "RFC 6455, 4.2.2")
        if request.method != b"GET":
            raise RefusedError(405, "a WebSocket is opened by GET", "RFC 6455, 4.2.1", allow="GET")

    def _choose_subprotocol(self, request: h11.Request) -> bytes | None:
        """Return the first of those that the client offers that is MQTT's, to be echoed [MQTT-6.0.0-4]."""
        offered = [part.strip() for value in _values(request, b"sec-websocket-protocol") for part in value.split(b",")]
        for name in offered:
            if name in SUBPROTOCOLS:
                return name
        if any(offered) or self._subprotocol_required:
            raise RefusedError(400, "Sec-WebSocket-Protocol has to offer mqtt", "MQTT-6.0.0-3")
        return None

    def _tell_address(self, request: h11.Request, facts: Facts, peer: str | None) -> None:
        """Believe what a trusted proxy says of the client; the peer may be another proxy's client (PROXY protocol)."""
        nearest = facts.address or peer
        if not self._proxies.trusts(nearest):
            return
        values = [value.decode("ascii", "replace") for value in _values(request, b"x-forwarded-for")]
        address = forwarded_for(values, self._proxies)
        if address is not None:
            facts.address, facts.proxy = address, nearest


class Upgrade:
    """The request of one connection, until it is answered.

    Args:
        upgrades: of its listener.
        facts: of the connection.
        peer: HOST:PORT of the socket; None at a Unix socket.
    """

    def __init__(self, upgrades: Upgrades, facts: Facts, peer: str | None) -> None:
        self._upgrades, self._facts, self._peer = upgrades, facts, peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._received = 0

    def receive(self, data: bytes) -> Answered | None:
        """Take bytes of the client. Returns None as long as its request has not come whole."""
        if self._received == 0 and data[:1] == b"\x16":
            return Answered(
                TLS_ALERT,
                0,
                ClientError(
                    Reason.PROTOCOL_ERROR,
                    "RFC 6455, 4.2.1",
                    "a TLS ClientHello on a port without TLS",
                    CloseReason.TLS_ON_PLAIN_PORT,
                ),
            )
        if self._received == 0 and data[:1] == b"\x10":
            return _refused(
                RefusedError(400, "this port speaks MQTT over WebSocket", "RFC 6455, 4.2.1"),
                "a CONNECT without WebSocket",
            )
        self._received += len(data)
        self._http.receive_data(data)
        is_head = False
        try:
            request = self._http.next_event()
            if request is h11.NEED_DATA:
                return None
            assert isinstance(request, h11.Request), request
            is_head = request.method == b"HEAD"
            behind = len(self._http.trailing_data[0])
            if self._received - behind > HEAD_BYTES_MAX:
                raise RefusedError(431, _TOO_LONG, "RFC 6455, 4.2.1")
            return Answered(self._upgrades.answer(request, self._facts, self._peer), behind, None)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            why = _TOO_LONG if status == 431 else "not an HTTP request"
            return _refused(RefusedError(status if status in PHRASES else 400, why, "RFC 6455, 4.2.1"))
        except RefusedError as refused:
            return _refused(refused, without_body=is_head)


def _refused(refused: RefusedError, detail: str | None = None, *, without_body: bool = False) -> Answered:
    body = f"{refused.why}.\n".encode()
    fields = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}
    fields.update({name.title().replace("_", "-"): value for name, value in refused.fields.items()})
    fields.setdefault("Connection", "close")
    head = (
        f"HTTP/1.1 {refused.status} {PHRASES[refused.status]}\r\n"
        + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        + "\r\n"
    )
    error = ClientError(
        Reason.PROTOCOL_ERROR,
        refused.clause,
        detail or f"{refused.status}: {refused.why}",
        CloseReason.WEBSOCKET_REFUSED,
    )
    return Answered(head.encode() + (b"" if without_body else body), 0, error)


def _upgrade_required(why: str, section: str) -> RefusedError:
    """RFC 9110, 15.5.22: the answer names what to upgrade to; RFC 6455, 4.4: and the version."""
    return RefusedError(
        426,
        why,
        f"RFC 6455, {section}",
        upgrade="websocket",
        connection="Upgrade, close",
        sec_websocket_version=VERSION.decode(),
    )


def _values(request: h11.Request, name: bytes) -> list[bytes]:
    return [bytes(value) for header, value in request.headers if header == name]


def _tokens(request: h11.Request, name: bytes) -> set[bytes]:
    return {part.strip().lower() for value in _values(request, name) for part in value.split(b",")}


def _has_content(request: h11.Request) -> bool:
    return bool(_values(request, b"transfer-encoding")) or any(
        value != b"0" for value in _values(request, b"content-length")
    )


def _is_key(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == 16
    except binascii.Error:
        return False
