"""The header of the PROXY protocol, versions 1 and 2: what a proxy says of the client whose bytes follow.

https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt is the text whose sections are cited.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from msgspec import Struct

from broker.transport.facts import Certificate, Facts
from broker.wire.reasons import ClientError, CloseReason, Reason
from router.log.crc32c import checksum

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"  # of version 2
V1_BEGINNING = b"PROXY "
V1_LINE_MAX = 107  # bytes, with CR LF
V2_FIXED = 16  # bytes in front of the addresses
V2_BLOCK_MAX = 4096  # bytes of addresses and TLVs
HEADER_MAX = V2_FIXED + V2_BLOCK_MAX
LOCAL, PROXY = 0x20, 0x21  # version 2, and what it asks for
STREAM, INET, INET6, UNIX = 0x1, 0x1, 0x2, 0x3
ADDRESS_BYTES = {INET: 12, INET6: 36, UNIX: 216}
TYPE_AUTHORITY, TYPE_CRC32C, TYPE_UNIQUE_ID, TYPE_SSL = 0x02, 0x03, 0x05, 0x20
SSL_VERSION, SSL_CN, SSL_CIPHER = 0x21, 0x22, 0x23  # within TYPE_SSL
CLIENT_SSL, CLIENT_CERT_CONN, CLIENT_CERT_SESS = 0x01, 0x02, 0x04
UNIQUE_ID_MAX = 128  # bytes (2.2.5)


class ProxyHeader(Struct, kw_only=True):
    """What a header says.

    Attributes:
        address: HOST:PORT of the client, unix:PATH at a Unix socket of the proxy; None: the connection is the proxy's
            own, or it does not know.
        tls_version, tls_cipher: of the client's TLS connection to the proxy; None without one.
        server_name: that the client asked for.
        certificate: the client's, which the proxy has checked.
        unique_id: of the connection, as text, or in hexadecimal if it is none.
    """

    address: str | None = None
    tls_version: str | None = None
    tls_cipher: str | None = None
    server_name: str | None = None
    certificate: Certificate | None = None
    unique_id: str | None = None

    def tell(self, facts: Facts, peer: str | None) -> None:
        """Put what it says into the facts of the connection whose peer, HOST:PORT, sent it."""
        if self.address is not None:
            facts.address = self.address
            facts.proxy = peer
        facts.tls_version, facts.tls_cipher = self.tls_version, self.tls_cipher
        facts.server_name, facts.certificate = self.server_name, self.certificate
        facts.unique_id = self.unique_id


def parse(data: bytes | bytearray) -> tuple[ProxyHeader, int] | None:
    """Return the header that bytes begin with, and how long it is; None if that has not come whole.

    Raises ClientError as soon as the bytes can be no header.
    """
    if data[:1] == b"\r":
        return _parse_v2(data)
    if data[: len(V1_BEGINNING)] == V1_BEGINNING[: len(data)]:
        return _parse_v1(data)
    if data[:1] == b"\x10":
        raise _wrong("section 2", "a CONNECT without a PROXY header")
    if data[:1] == b"\x16":
        raise _wrong("section 2", "a TLS ClientHello without a PROXY header")
    raise _wrong("section 2", f"no PROXY header: it begins with 0x{data[0]:02x}")


def _wrong(clause: str, detail: str) -> ClientError:
    return ClientError(Reason.PROTOCOL_ERROR, f"PROXY protocol, {clause}", detail, CloseReason.PROXY_HEADER_INVALID)


# Version 1 ----------------------------------------------------------------------------------------------------------


def _parse_v1(data: bytes | bytearray) -> tuple[ProxyHeader, int] | None:
    end = data.find(b"\n", 0, V1_LINE_MAX) - 1
    if end < 0:
        if len(data) >= V1_LINE_MAX:
            raise _wrong("section 2.1", f"no end of the line within {V1_LINE_MAX} bytes")
        return None
    if data[end] != 0x0D:
        raise _wrong("section 2.1", "a line that does not end with CR LF")
    try:
        family, *fields = data[len(V1_BEGINNING) : end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise _wrong("section 2.1", "bytes that are not ASCII") from None
    if family == "UNKNOWN":
        return ProxyHeader(), end + 2  # "the receiver must ignore anything presented before the CRLF"
    if family not in ("TCP4", "TCP6"):
        raise _wrong("section 2.1", "neither TCP4 nor TCP6 nor UNKNOWN")
    if len(fields) != 4:
        raise _wrong("section 2.1", f"{len(fields)} fields behind {family}, there are four")
    hosts = []
    for text in fields[:2]:
        try:
            hosts.append(ipaddress.IPv4Address(text) if family == "TCP4" else ipaddress.IPv6Address(text))
        except ValueError:
            raise _wrong("section 2.1", f"an address that is none of {family}") from None
    ports = [_v1_port(text) for text in fields[2:]]
    return ProxyHeader(address=f"{hosts[0]}:{ports[0]}"), end + 2


def _v1_port(text: str) -> int:
    if not text.isdigit() or len(text) > 5 or int(text) > 65_535 or (text[0] == "0" and text != "0"):
        raise _wrong("section 2.1", "a port that is no number from 0 to 65535")
    return int(text)


# Version 2 ----------------------------------------------------------------------------------------------------------


def _parse_v2(data: bytes | bytearray) -> tuple[ProxyHeader, int] | None:
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        raise _wrong("section 2.2", "not the signature of version 2")
    if len(data) >= 13 and data[12] not in (LOCAL, PROXY):
        raise _wrong("section 2.2", f"version and command 0x{data[12]:02x}")
    if len(data) < V2_FIXED:
        return None
    block_bytes = int.from_bytes(data[14:16], "big")
    if block_bytes > V2_BLOCK_MAX:
        raise _wrong("section 2.2", f"{block_bytes} bytes of addresses and TLVs, {V2_BLOCK_MAX} are allowed")
    end = V2_FIXED + block_bytes
    if len(data) < end:
        return None
    if data[12] == LOCAL:
        return ProxyHeader(), end  # "must discard the protocol block including the family"
    family, transport = data[13] >> 4, data[13] & 0x0F
    if family > UNIX or transport > 2:
        raise _wrong("section 2.2", f"address family and protocol 0x{data[13]:02x}")
    address_bytes = ADDRESS_BYTES.get(family, 0)
    if block_bytes < address_bytes:
        raise _wrong("section 2.2", f"{block_bytes} bytes, the addresses take {address_bytes}")
    header = ProxyHeader()
    if transport == STREAM:
        header.address = _v2_address(family, bytes(data[V2_FIXED : V2_FIXED + address_bytes]))
    _read_tlvs(header, bytes(data[:end]), V2_FIXED + address_bytes)
    return header, end


def _v2_address(family: int, block: bytes) -> str | None:
    if family == INET:
        return f"{ipaddress.IPv4Address(block[:4])}:{int.from_bytes(block[8:10], 'big')}"
    if family == INET6:
        return f"{ipaddress.IPv6Address(block[:16])}:{int.from_bytes(block[32:34], 'big')}"
    if family == UNIX:
        path = block[:108].rstrip(b"\0")  # an abstract one begins with a NUL
        return "unix:" + path.decode("utf-8", "backslashreplace").replace("\0", "@")
    return None


def _read_tlvs(header: ProxyHeader, whole: bytes, start: int) -> None:
    seen = set()
    for kind, value, at in _tlvs(whole[start:]):
        if kind in (TYPE_AUTHORITY, TYPE_CRC32C, TYPE_UNIQUE_ID, TYPE_SSL):
            if kind in seen:
                raise _wrong("section 2.2", f"a second TLV of type 0x{kind:02x}")
            seen.add(kind)
        if kind == TYPE_AUTHORITY:
            header.server_name = _text(value, "PP2_TYPE_AUTHORITY")
        elif kind == TYPE_UNIQUE_ID:
            if len(value) > UNIQUE_ID_MAX:
                raise _wrong("section 2.2.5", f"a unique id of {len(value)} bytes, {UNIQUE_ID_MAX} are allowed")
            header.unique_id = _text_or_hexadecimal(value)
        elif kind == TYPE_SSL:
            _read_ssl(header, value)
        elif kind == TYPE_CRC32C:
            at += start
            if len(value) != 4:
                raise _wrong("section 2.2.3", f"a checksum of {len(value)} bytes")
            if checksum(whole[:at] + bytes(4) + whole[at + 4 :]) != int.from_bytes(value, "big"):
                raise _wrong("section 2.2.3", "the checksum is another one")


def _tlvs(block: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield type, value, and where in the block that begins."""
    at = 0
    while at < len(block):
        value_at = at + 3
        end = value_at + int.from_bytes(block[at + 1 : value_at], "big")
        if value_at > len(block) or end > len(block):
            raise _wrong("section 2.2", "a TLV that is longer than what it is in")
        yield block[at], block[value_at:end], value_at
        at = end


def _read_ssl(header: ProxyHeader, value: bytes) -> None:
    """What the proxy's TLS knows. A certificate counts only if one was shown and checked, in this session or before."""
    if len(value) < 5:
        raise _wrong("section 2.2.6", f"{len(value)} bytes of PP2_TYPE_SSL, it has at least 5")
    client, verify = value[0], int.from_bytes(value[1:5], "big")
    texts: dict[int, str] = {}
    for kind, text, _ in _tlvs(value[5:]):
        if kind in (SSL_VERSION, SSL_CN, SSL_CIPHER):
            if kind in texts:
                raise _wrong("section 2.2.6", f"a second TLV of type 0x{kind:02x}")
            texts[kind] = _text(text, "PP2_TYPE_SSL")
    if client & CLIENT_SSL:
        header.tls_version, header.tls_cipher = texts.get(SSL_VERSION), texts.get(SSL_CIPHER)
        if client & (CLIENT_CERT_CONN | CLIENT_CERT_SESS) and verify == 0:
            header.certificate = Certificate(cn=texts.get(SSL_CN))


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _wrong("section 2.2", f"{name} is not UTF-8") from None


def _text_or_hexadecimal(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return text if text.isascii() and text.isprintable() else value.hex()
