"""What goes wrong with TLS where we are the client, in words for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.transport.facts import Certificate

PSK_BYTES_MAX: Final = 256
PSK_IDENTITY_BYTES_MAX: Final = 128

# openssl/x509_vfy.h: part of its binary interface.
V_NOT_YET_VALID: Final = 9
V_HAS_EXPIRED: Final = 10
V_SELF_SIGNED: Final = 18
V_OTHER_HOST: Final = 62
V_OTHER_ADDRESS: Final = 64
V_UNTRUSTED: Final = (2, 19, 20, 21)  # no issuer, a root that is not ours, no issuer here, nobody to ask

NO_TLS: Final = "what answers there speaks no TLS"
NO_SUCH_PSK: Final = "the broker does not know our pre-shared key, or knows another one by this identity"
NO_CERTIFICATE: Final = "the broker wants a certificate of ours, or another one"
NOTHING_IN_COMMON: Final = "the broker and we have no cipher suite, or no key exchange, in common"
# What the server's alerts mean, under OpenSSL's names.
ALERTS: Final = {
    "unknown ca": "the broker does not know who signed our certificate",
    "bad certificate": "the broker does not take our certificate",
    "certificate unknown": "the broker does not take our certificate",
    "certificate expired": "to the broker, our certificate has expired",
    "certificate revoked": "to the broker, our certificate was revoked",
    "unsupported certificate": "the broker does not take certificates like ours",
    "certificate required": "the broker wants a certificate of ours",
    "protocol version": "the broker speaks no version of TLS that we speak",
    "no application protocol": "the broker does not know the ALPN name that we offer",
    "unrecognized name": "the broker does not know the name that we call it by",
    "access denied": "the broker refuses us",
}
FAILURES: Final = {
    "unsupported protocol": "the broker speaks older versions of TLS only",
    "wrong ssl version": "the broker speaks older versions of TLS only",
    "no ciphers available": "no cipher suite is left for the versions of TLS that are wanted",
}
# What a server says to a pre-shared key that is not its own, or to an identity that it does not know.
OF_PSK: Final = frozenset(
    {"unknown psk identity", "decrypt error", "bad record mac", "handshake failure", "illegal parameter"}
)


class TlsError(Exception):
    """Why there is no TLS, or no more, as part of a sentence for a person."""


class TlsOptionError(Exception):
    """What cannot be used of the options of a client.

    Attributes:
        option: its name: "cafile", "capath", "cert", "key" or "ciphers".
    """

    def __init__(self, option: str, what: str) -> None:
        super().__init__(what)
        self.option = option


def wrong_certificate(said: Certificate, names: tuple[str, ...], error: int, text: str, depth: int, host: str) -> str:
    """Return what is wrong with a certificate.

    Args:
        names: that it is for, if it is a server's.
        error, text: OpenSSL's number and words for it.
        depth: 0 of the server, more of one that has signed it.
        host: that the server is called by.
    """
    whose = "the broker's certificate" if depth == 0 else f"the certificate of {said.dn}, which signs the broker's,"
    if error in (V_OTHER_HOST, V_OTHER_ADDRESS):
        return f"the broker's certificate is not for {host}, but for {_listed(names)}"
    if error == V_HAS_EXPIRED:
        return f"{whose} has expired on {_utc(said.not_after_s)}"
    if error == V_NOT_YET_VALID:
        return f"{whose} is valid from {_utc(said.not_before_s)} on only"
    if error == V_SELF_SIGNED:
        return f"the broker's certificate is signed by itself ({said.dn}) and not trusted: --cafile says which is"
    if error in V_UNTRUSTED:
        return f"the broker's certificate is signed by {said.issuer}, which is not trusted: --cafile says who is"
    return f"{whose} cannot be used: {text}"


def failure_words(reason: str, with_psk: bool, server_is_known: bool) -> str:
    """Return what OpenSSL's word for a failure means.

    Args:
        with_psk: we have a pre-shared key.
        server_is_known: it happened behind the server's certificate, which was taken.
    """
    before, separator, alert = reason.partition(" alert ")
    if not separator:
        return FAILURES.get(reason, f"OpenSSL says: {before}")
    if with_psk and alert in OF_PSK:
        return NO_SUCH_PSK
    if alert == "handshake failure":
        # In TLS 1.2 that is also what is said to a client that should have a certificate.
        return NO_CERTIFICATE if server_is_known else NOTHING_IN_COMMON
    return ALERTS.get(alert, f"the broker says: {alert}")


def _listed(names: tuple[str, ...]) -> str:
    if not names:
        return "no name at all"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _utc(unix_s: int | None) -> str:
    from datetime import UTC, datetime  # a client whose connection is well needs none of it

    return "an unknown day" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def is_ip_address(host: str) -> bool:
    """Return whether a host is no name."""
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
