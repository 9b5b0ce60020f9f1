"""Certificates for tests: an authority, servers and clients, made anew in each process that asks."""

from __future__ import annotations

import functools
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from broker.config.listener import Listener


class Certificates:
    """An authority and what it has signed, as PEM files in a folder of its own.

    Attributes:
        folder: where the files are.
        authority: who signs.
        cafile: its certificate.
    """

    def __init__(self) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="shoal-certificates-")
        self.folder = Path(self._held.name)
        self.authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.cafile = self.folder / "ca.crt"
        self.authority.cert_pem.write_to_path(self.cafile)

    def issue(
        self, name: str, *identities: str, common_name: str | None = None, days: float = 30, rsa: bool = False
    ) -> tuple[str, str]:
        """Sign a certificate; returns the files of the certificate and its key.

        Args:
            name: of the files.
            identities: alternative names: host names, e-mail addresses, IP addresses.
            common_name: of the subject.
            days: for which it is valid, from a day ago on; negative: it has expired.
            rsa: its key is of RSA, not of an elliptic curve.
        """
        now = datetime.now(UTC)
        issued = self.authority.issue_cert(
            *identities,
            common_name=common_name,
            not_before=now - timedelta(days=400),
            not_after=now + timedelta(days=days),
            key_type=trustme.KeyType.RSA if rsa else trustme.KeyType.ECDSA,
        )
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return str(certificate), str(key)

    @functools.cached_property
    def server(self) -> tuple[str, str]:
        """A server's certificate and key, for localhost."""
        return self.issue("server", "localhost", "127.0.0.1")

    def listener(self, address: str = "tls://127.0.0.1:0", **more: object) -> Listener:
        """Return a listener with TLS that has the server's certificate."""
        certificate, key = self.server
        return Listener(**{"address": address, "certfile": (certificate,), "keyfile": (key,), **more})

    def client_context(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Return what a client connects with: it trusts the authority, and may have a certificate and key."""
        context = ssl.create_default_context(cafile=self.cafile)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


@functools.cache
def certificates() -> Certificates:
    """Return those of this process."""
    return Certificates()
