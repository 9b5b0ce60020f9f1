"""The client's end of TLS 1.3 records, by another library than the broker's (RFC 8446, 5 and 7)."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from broker.transport.layer import Layers

ALERT, HANDSHAKE, DATA = 21, 22, 23
CLOSE_NOTIFY = b"\1\0"
SUITES = {
    "TLS_AES_128_GCM_SHA256": (AESGCM, hashes.SHA256(), 16),
    "TLS_AES_256_GCM_SHA384": (AESGCM, hashes.SHA384(), 32),
    "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, hashes.SHA256(), 32),
}


def key_update(asks: bool) -> bytes:
    """Return a KeyUpdate, which asks for the other end's next key or not."""
    return b"\x18\0\0\1" + bytes((asks,))


class Direction:
    """One direction of a connection: numbers, keys, and what comes after them."""

    def __init__(self, suite: str, secret: bytes) -> None:
        self._cipher, self._digest, self._key_length = SUITES[suite]
        self._take(secret)

    def _expanded(self, label: bytes, length: int) -> bytes:
        named = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes((len(named),)) + named + b"\0"
        return HKDFExpand(self._digest, length, info).derive(self._secret)

    def _take(self, secret: bytes) -> None:
        self._secret = secret
        self._aead = self._cipher(self._expanded(b"key", self._key_length))
        self._iv = int.from_bytes(self._expanded(b"iv", 12), "big")
        self._number = 0

    def next_key(self) -> None:
        """Go on with the next key."""
        self._take(self._expanded(b"traffic upd", self._digest.digest_size))

    def _nonce(self) -> bytes:
        self._number += 1
        return (self._iv ^ (self._number - 1)).to_bytes(12, "big")

    def seal(self, kind: int, content: bytes, padding: int = 0) -> bytes:
        """Return a record."""
        return self.seal_inner(content + bytes((kind,)) + bytes(padding))

    def seal_inner(self, inner: bytes) -> bytes:
        """Return a record with this plain text, type and padding included."""
        header = b"\x17\3\3" + (len(inner) + 16).to_bytes(2, "big")
        return header + self._aead.encrypt(self._nonce(), inner, header)

    def open(self, records: bytes) -> list[tuple[int, bytes]]:
        """Return type and content of records."""
        found = []
        while records:
            end = 5 + int.from_bytes(records[3:5], "big")
            header, body, records = records[:5], records[5:end], records[end:]
            inner = self._aead.decrypt(self._nonce(), body, header).rstrip(b"\0")
            found.append((inner[-1], inner[:-1]))
            if inner[-1] == HANDSHAKE and inner[0] == key_update(False)[0]:
                self.next_key()
        return found


class RecordsEnd:
    """A client that has made its handshake by Python's `ssl`, and goes on by hand.

    Attributes:
        sent: what the client seals.
        received: what the client opens.
    """

    def __init__(self, layers: Layers) -> None:
        with tempfile.TemporaryDirectory() as folder:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.keylog_filename = str(Path(folder) / "keys")
            to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(to_client, from_client)
            for _ in range(3):
                try:
                    client.do_handshake()
                except ssl.SSLWantReadError:
                    pass
                _, error = layers.feed(from_client.read())
                assert error is None
                if not layers.state[0]:
                    to_client.write(layers.take_raw())
            assert layers.state[0], "the handshake is over"
            lines = (Path(folder) / "keys").read_text(encoding="ascii").splitlines()
        secrets = {line.split()[0]: bytes.fromhex(line.split()[2]) for line in lines if not line.startswith("#")}
        chosen = client.cipher()
        assert chosen is not None
        self.sent = Direction(chosen[0], secrets["CLIENT_TRAFFIC_SECRET_0"])
        self.received = Direction(chosen[0], secrets["SERVER_TRAFFIC_SECRET_0"])
