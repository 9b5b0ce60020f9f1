"""Headers of the PROXY protocol, as a proxy makes them: the byte layout of its text, not of our parser."""

from __future__ import annotations

import ipaddress
import struct

from router.log.crc32c import checksum

SIGNATURE = bytes.fromhex("0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A")
LOCAL, PROXY = 0, 1
UNSPEC, TCP4, UDP4, TCP6, UDP6, UNIX_STREAM = 0x00, 0x11, 0x12, 0x21, 0x22, 0x31
AUTHORITY, CRC32C, NOOP, UNIQUE_ID, SSL = 0x02, 0x03, 0x04, 0x05, 0x20
SSL_VERSION, SSL_CN, SSL_CIPHER, SSL_KEY_ALGORITHM = 0x21, 0x22, 0x23, 0x25
CLIENT_SSL, CLIENT_CERT_CONN, CLIENT_CERT_SESS = 1, 2, 4


def tlv(kind: int, value: bytes) -> bytes:
    """Return a type, a length and a value."""
    return struct.pack("!BH", kind, len(value)) + value


def ssl(
    client: int,
    verify: int,
    *,
    version: bytes | None = b"TLSv1.3",
    cn: bytes | None = None,
    cipher: bytes | None = b"TLS_AES_256_GCM_SHA384",
) -> bytes:
    """Return the TLV about the client's TLS."""
    subs = [(SSL_VERSION, version), (SSL_CN, cn), (SSL_KEY_ALGORITHM, b"RSA2048"), (SSL_CIPHER, cipher)]
    return tlv(
        SSL, struct.pack("!BI", client, verify) + b"".join(tlv(kind, text) for kind, text in subs if text is not None)
    )


def addresses(source: str, destination: str, source_port: int = 0, destination_port: int = 0) -> bytes:
    """Return the addresses of two IP endpoints, or of two Unix sockets."""
    if source.startswith("/") or source == "":
        return source.encode().ljust(108, b"\0") + destination.encode().ljust(108, b"\0")
    packed = [ipaddress.ip_address(host).packed for host in (source, destination)]
    return b"".join(packed) + struct.pack("!HH", source_port, destination_port)


def v2(
    block: bytes = b"", *tlvs: bytes, family: int = TCP4, command: int = PROXY, version: int = 2, checked: bool = False
) -> bytes:
    """Return a header of version 2.

    Args:
        checked: with a checksum, behind the other TLVs.
    """
    body = block + b"".join(tlvs) + (tlv(CRC32C, bytes(4)) if checked else b"")
    header = SIGNATURE + struct.pack("!BBH", version << 4 | command, family, len(body)) + body
    return header[:-4] + struct.pack("!I", checksum(header)) if checked else header


FOUR = addresses("192.0.2.7", "192.0.2.1", 51_234, 1883)
SIX = addresses("2001:db8::7", "2001:db8::1", 51_234, 8883)
