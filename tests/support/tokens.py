"""Issuers of tokens: keys, and what is signed with them."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import get_default_algorithms

SECRET = b"a secret of the issuer that is 64 bytes long, as HS512 asks for!"


def private_key(algorithm: str, which: int = 0) -> Any:
    """Return a private key for an algorithm, always the same one of each number."""
    return _made(algorithm, which)


@cache
def _made(algorithm: str, which: int) -> Any:
    if algorithm.startswith("HS"):
        return SECRET + b"%d" % which
    if algorithm[:2] in ("RS", "PS"):
        return rsa.generate_private_key(65_537, 2048)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate() if which != 448 else ed448.Ed448PrivateKey.generate()
    curves: dict[str, Any] = {
        "ES256": ec.SECP256R1,
        "ES384": ec.SECP384R1,
        "ES512": ec.SECP521R1,
        "ES256K": ec.SECP256K1,
    }
    return ec.generate_private_key(curves[algorithm]())


def public_pem(algorithm: str, which: int = 0) -> bytes:
    """Return the public key as PEM."""
    found: bytes = (
        private_key(algorithm, which).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return found


def private_pem(algorithm: str, which: int = 0) -> bytes:
    """Return the private key as PEM."""
    found: bytes = private_key(algorithm, which).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


def jwk(algorithm: str, which: int = 0, **more: Any) -> dict[str, Any]:
    """Return the public key, or the secret, as a JWK."""
    key = private_key(algorithm, which)
    public = key if algorithm.startswith("HS") else key.public_key()
    return {**json.loads(get_default_algorithms()[algorithm].to_jwk(public)), **more}


def jwk_set(*keys: dict[str, Any]) -> bytes:
    """Return a JWK Set."""
    return json.dumps({"keys": keys}).encode()


def token(
    algorithm: str = "ES256",
    which: int = 0,
    *,
    headers: dict[str, Any] | None = None,
    ends_in_s: float = 3600,
    **claims: Any,
) -> bytes:
    """Return a token, for ann unless it says otherwise, which ends in an hour; claims of None are left out."""
    said = {"sub": "ann", "exp": int(time.time() + ends_in_s), **claims}
    said = {name: value for name, value in said.items() if value is not None}
    # Not jwt.encode(), which refuses claims that are wrong.
    return (
        jwt.PyJWS()
        .encode(json.dumps(said).encode(), private_key(algorithm, which), algorithm=algorithm, headers=headers)
        .encode()
    )
