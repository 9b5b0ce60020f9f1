"""Keys that tokens are verified with: from PEM, JWK and JWK Sets (RFC 7517), and secrets of HMAC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import Algorithm, ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from broker.config.authenticator import SECRET_ALGORITHMS

RSA_BITS_MIN: Final = 2048  # RFC 7518, sections 3.3 and 3.5
TRIED_MAX: Final = 8  # keys for one token: each costs a signature
KEYS_MAX: Final = 1000  # of one set
# RFC 7518, section 3.2: a secret is at least as long as the hash.
_SECRET_BYTES_MIN: Final = {f"HS{bits}": bits // 8 for bits in (256, 384, 512)}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE: Final[dict[str, tuple[str, ...]]] = {
    "secp256r1": ("ES256",),
    "secp384r1": ("ES384",),
    "secp521r1": ("ES512",),
    "secp256k1": ("ES256K",),
}
# Bytes of each half of a signature (RFC 7518, section 3.4), and how it is verified.
_ELLIPTIC: Final = {
    "ES256": (32, ECDSA(SHA256())),
    "ES384": (48, ECDSA(SHA384())),
    "ES512": (66, ECDSA(SHA512())),
    "ES256K": (32, ECDSA(SHA256())),
}
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
# What from_jwk() raises for members that are missing, or of another type, or no point of the curve.
BROKEN_JWK: Final = (
    PyJWTError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    UnsupportedAlgorithm,
)
_ALGORITHMS: Final[dict[str, Algorithm]] = get_default_algorithms()


class UnusableKeyError(ValueError):
    """What makes a key useless, in words that hold nothing of it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        identifier: the token's `kid` that it is for; None: it may be any's.
        algorithms: that it is used with, of those that the settings allow.
        prepared: as the algorithms take it.
    """

    identifier: str | None
    algorithms: tuple[str, ...]
    prepared: Any = field(repr=False)

    def fits(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return whether a signature is this key's."""
        elliptic = _ELLIPTIC.get(algorithm)
        try:
            if elliptic is None:
                return _ALGORITHMS[algorithm].verify(signed, self.prepared, signature)
            # As PyJWT does it, and 7 us faster: a tenth of what the signature of ES256 costs.
            size, how = elliptic
            if len(signature) != 2 * size:
                return False
            self.prepared.verify(
                encode_dss_signature(int.from_bytes(signature[:size]), int.from_bytes(signature[size:])), signed, how
            )
        except (InvalidSignature, ValueError):  # ValueError: it is none, in OpenSSL's eyes
            return False
        return True


class Keys:
    """The keys of one authenticator.

    Args:
        keys: in the order in which they are tried.
    """

    __slots__ = ("_any", "_by_identifier", "count")

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._by_identifier: dict[tuple[str, str], list[Key]] = {}
        self._any: dict[str, list[Key]] = {}  # by algorithm: what is tried for a token that names no key
        self.count = 0
        for key in keys:
            self.count += 1
            for algorithm in key.algorithms:
                self._any.setdefault(algorithm, []).append(key)
                if key.identifier is not None:
                    self._by_identifier.setdefault((algorithm, key.identifier), []).append(key)

    def of(self, algorithm: str, identifier: str | None) -> Sequence[Key]:
        """Return the keys that may have signed a token.

        Args:
            identifier: its `kid`; None: it names none.
        """
        named = self._by_identifier.get((algorithm, identifier)) if identifier is not None else None
        if named is not None:
            return named[:TRIED_MAX]
        return [key for key in self._any.get(algorithm, ()) if identifier is None or key.identifier is None][:TRIED_MAX]


def keys_in(data: bytes, allowed: Sequence[str]) -> list[Key]:
    """Return the keys of a file.

    Args:
        data: PEM with public keys or certificates, a JWK, or a JWK Set.
        allowed: algorithms.

    Raises UnusableKeyError: there is none that can be used.
    """
    if data.lstrip()[:1] == b"{":
        return keys_of_set(data, allowed)
    found = [key for block in _PEM.finditer(data) for key in _of_pem(block[1].decode(), block[0], allowed)]
    if not found:
        raise UnusableKeyError("neither PEM with a public key or a certificate, nor a JWK or a JWK Set")
    return found


def keys_of_set(data: bytes, allowed: Sequence[str]) -> list[Key]:
    """Return the keys of a JWK Set, or of one JWK; those that are for something else are passed over [RFC 7517, 5].

    Raises UnusableKeyError: it is none, or there is no key in it that can be used.
    """
    try:
        whole = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise UnusableKeyError("no JSON") from None
    listed = whole.get("keys", [whole]) if isinstance(whole, dict) else None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise UnusableKeyError("neither a JWK nor a JWK Set")
    if len(listed) > KEYS_MAX:
        raise UnusableKeyError(f"a JWK Set of {len(listed)} keys, expected up to {KEYS_MAX}")
    found = []
    why = "it is empty"
    for jwk in listed:
        try:
            found.append(_of_jwk(jwk, allowed))
        except UnusableKeyError as error:
            why = f"the last one is {error}"
    if not found:
        raise UnusableKeyError(f"no key that can be used with {', '.join(allowed)}: {why}")
    return found


def secret_in(data: bytes, allowed: Sequence[str]) -> Key:
    """Return the secret that a file holds, all of it but a line's end behind it. Raises UnusableKeyError."""
    secret = data.removesuffix(b"\n").removesuffix(b"\r")
    wanted = max(_SECRET_BYTES_MIN[name] for name in allowed)
    if len(secret) < wanted:
        raise UnusableKeyError(
            f"a secret of {len(secret)} bytes, expected {wanted} or more for {', '.join(allowed)}: "
            "whoever has one token can try short ones"
        )
    return Key(None, tuple(allowed), secret)


def _of_pem(label: str, block: bytes, allowed: Sequence[str]) -> list[Key]:
    if label.endswith("PRIVATE KEY"):
        raise UnusableKeyError("a private key, expected the public one: `openssl pkey -in FILE -pubout` prints it")
    if label.endswith("PARAMETERS"):
        return []
    try:
        public = (
            x509.load_pem_x509_certificate(block).public_key() if label == "CERTIFICATE" else load_pem_public_key(block)
        )
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableKeyError(f"a {label.lower()} that cannot be read") from None
    return [_public_key(None, public, allowed)]


def _of_jwk(jwk: dict[str, Any], allowed: Sequence[str]) -> Key:
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKeyError("not for signatures")
    identifier = jwk.get("kid")
    if identifier is not None and not isinstance(identifier, str):
        raise UnusableKeyError("one with a kid that is no text")
    only = jwk.get("alg")
    if only is not None:
        allowed = [name for name in allowed if name == only]
    kind = jwk.get("kty")
    if kind == "oct":
        return _shared_key(identifier, jwk, allowed)
    if "d" in jwk:
        raise UnusableKeyError("a private key, expected the public one")
    of_kind: Any = (
        {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}.get(kind) if isinstance(kind, str) else None
    )
    if of_kind is None:
        raise UnusableKeyError("of a kind that is not known")
    try:
        public = of_kind.from_jwk(jwk)
    except BROKEN_JWK:
        raise UnusableKeyError("broken, or on a curve that is not known") from None
    return _public_key(identifier, public, allowed)


def _shared_key(identifier: str | None, jwk: dict[str, Any], allowed: Sequence[str]) -> Key:
    try:
        secret = HMACAlgorithm.from_jwk(jwk)
    except BROKEN_JWK:
        raise UnusableKeyError("broken") from None
    usable = tuple(name for name in allowed if len(secret) >= _SECRET_BYTES_MIN.get(name, 1 << 30))
    if not usable:
        raise UnusableKeyError(f"a secret of {len(secret)} bytes")
    return Key(identifier, usable, secret)


def _public_key(identifier: str | None, public: object, allowed: Sequence[str]) -> Key:
    names: tuple[str, ...]
    if isinstance(public, RSAPublicKey):
        if public.key_size < RSA_BITS_MIN:
            raise UnusableKeyError(f"an RSA key of {public.key_size} bits, expected {RSA_BITS_MIN} or more")
        what, names = "an RSA key", _RSA
    elif isinstance(public, EllipticCurvePublicKey):
        what, names = f"a key on the curve {public.curve.name}", _OF_CURVE.get(public.curve.name, ())
    elif isinstance(public, (Ed25519PublicKey, Ed448PublicKey)):
        what, names = "an Ed25519 or Ed448 key", ("EdDSA",)
    else:
        raise UnusableKeyError("of a kind that signs no tokens")
    usable = tuple(name for name in allowed if name in names)
    if not usable:
        raise UnusableKeyError(f"{what}, which is for {' '.join(names) or 'no algorithm that is known'}")
    return Key(identifier, usable, public)


assert set(SECRET_ALGORITHMS) == set(_SECRET_BYTES_MIN), SECRET_ALGORITHMS
