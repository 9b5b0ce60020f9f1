"""What the layers of a connection found out about its client, beside what its CONNECT says."""

from __future__ import annotations

import time

from msgspec import Struct


class Certificate(Struct, frozen=True, kw_only=True):
    """A client's certificate, as far as settings and lists ask for it. It was checked, unless a proxy has sent it.

    Attributes:
        cn: the (last) common name of the subject; None without one.
        dn: the subject as text, RFC 2253; None if only a proxy's word on the common name is known.
        san_dns, san_uri, san_email: the alternative names of each kind, in their order.
        sha256: fingerprint of the certificate, 64 digits in lower case; None as with dn.
        not_before_s, not_after_s: when it is valid, Unix seconds; None as with dn.
        serial: number in hexadecimal; None as with dn.
        issuer: as dn.
    """

    cn: str | None = None
    dn: str | None = None
    san_dns: tuple[str, ...] = ()
    san_uri: tuple[str, ...] = ()
    san_email: tuple[str, ...] = ()
    sha256: str | None = None
    not_before_s: int | None = None
    not_after_s: int | None = None
    serial: str | None = None
    issuer: str | None = None

    def days_left(self) -> int:
        """Return for how many whole days one that was read is still valid; less than 0: it has expired."""
        assert self.not_after_s is not None, "only a proxy's word on its name is known"
        return int((self.not_after_s - time.time()) // 86_400)


class Facts(Struct, kw_only=True):
    """What is known of a client's connection when its CONNECT comes. It travels with the client to its home worker.

    Attributes:
        listener: number of the listener that it came by, in the order of the settings.
        address: HOST:PORT, as a trusted proxy gives it where one is between; None: the socket has it, or none is there.
        proxy: HOST:PORT of that proxy, None without one.
        tls_version, tls_cipher: "TLSv1.3" and the suite's name; None without TLS.
        tls_resumed: the session was a former one's.
        server_name: that the client asked for (SNI), None without one.
        certificate: the client's; None without one.
        psk_identity: of a pre-shared key; None without one.
        unique_id: that a trusted proxy gave the connection; None without one.
    """

    listener: int
    address: str | None = None
    proxy: str | None = None
    tls_version: str | None = None
    tls_cipher: str | None = None
    tls_resumed: bool = False
    server_name: str | None = None
    certificate: Certificate | None = None
    psk_identity: str | None = None
    unique_id: str | None = None
