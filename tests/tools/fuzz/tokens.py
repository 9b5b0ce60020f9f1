"""Tokens and files of keys: any bytes are who somebody is, or an error; nobody is believed whom no key has signed for.

An input is a line that says which it is, `token` or `keys`, and what it is.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Hashable

from broker.auth.token_keys import Keys, UnusableKeyError, keys_in
from broker.auth.web_token import ClaimRules, TokenError, claims_of
from broker.config.authenticator import PUBLIC_ALGORITHMS, SECRET_ALGORITHMS
from tests.support.tokens import jwk, jwk_set, private_key, public_pem, token
from tests.tools.fuzz.mutate import mutated
from tests.tools.fuzz.target import Target

NOW_S = 1_800_000_000.0
ALGORITHMS = ("ES256", "EdDSA", "RS256", "HS256")
ALL = (*PUBLIC_ALGORITHMS, *SECRET_ALGORITHMS)
RULES = (
    ClaimRules(equal={}, end_required=False),
    ClaimRules(equal={"client": "${clientid}"}, leeway_s=5),
    ClaimRules(equal={"user": "${username}"}, user_claim=None, issuers=("me",), audience=("mqtt", "x")),
)
VALUES = (
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    10**400,
    NOW_S,
    NOW_S + 60,
    str(int(NOW_S) + 60),
    "",
    "ann",
    "c",
    "me",
    "mqtt",
    ["mqtt", 5],
    {},
    "a\0b",
    "x" * 300,
    "é",
    [[]],
)
NAMES = ("sub", "exp", "nbf", "iat", "iss", "aud", "client", "user", "acl")
HEADERS = ({}, {"kid": "a"}, {"kid": ""}, {"crit": ["b64"]}, {"typ": "at+jwt"}, {"x": "y" * 9000})
TOKENS = (b".", b"..", b"=", b"ey", b"\0", b'"', b"{", b"null", b"kid", b"none")
FILES = (
    public_pem("ES256"),
    public_pem("RS256"),
    jwk_set(jwk("ES256", kid="a"), jwk("EdDSA"), jwk("HS256")),
    b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    b"{}",
    json.dumps(jwk("RS256")).encode(),
)


def keys() -> Keys:
    """Return keys of every kind, of which a token of another one is not believed."""
    found = [key for name in ALGORITHMS[:3] for key in keys_in(public_pem(name), ALL)]
    return Keys([*found, *keys_in(json.dumps(jwk("HS256")).encode(), ALL)])


KEYS = keys()


def make(draw: random.Random) -> bytes:
    """Return a token with strange claims, mutated or not, or a file of keys."""
    if draw.random() < 0.3:
        data = draw.choice((b"", b"\n")).join(draw.choices(FILES, k=draw.choice((1, 1, 2))))
        return b"keys\n" + (mutated(draw, data) if draw.random() < 0.7 else data)
    claims = {name: draw.choice(VALUES) for name in draw.sample(NAMES, draw.randrange(len(NAMES)))}
    made = token(
        draw.choice(ALGORITHMS),
        draw.choice((0, 0, 0, 1)),
        headers=draw.choice(HEADERS),
        **{"sub": "ann", "exp": NOW_S + 60, **claims},
    )
    if draw.random() < 0.3:
        at = draw.randrange(len(made) + 1)
        made = made[:at] + draw.choice(TOKENS) + made[at:]
    return b"token\n" + (mutated(draw, made) if draw.random() < 0.4 else made)


def check(data: bytes) -> Hashable:
    """Read it; nothing is believed that does not end in a signature of one of the keys."""
    kind, _, data = data.partition(b"\n")
    if kind == b"keys":
        try:
            return tuple(sorted(str(key.algorithms) for key in keys_in(data, ALL)))
        except UnusableKeyError as error:
            assert str(error).isprintable()
            return str(error)[:40]
    try:
        claims = claims_of(data, KEYS)
    except TokenError as error:
        assert str(error).isprintable()
        return str(error)
    header, body, signature = data.split(b".")
    assert is_signed(json.loads(base64.urlsafe_b64decode(header + b"==")), header + b"." + body, signature)
    said = []
    for rules in RULES:
        try:
            believed = rules.check(claims, NOW_S, "ann", "c")
        except TokenError as error:
            assert str(error).isprintable()
            said.append(str(error)[:20])
        else:
            assert believed.expires_at_s is None or believed.expires_at_s > NOW_S
            assert believed.user_name is None or believed.user_name
            said.append("believed")
    return tuple(said)


def is_signed(header: dict[str, object], signed: bytes, signature: bytes) -> bool:
    """Return whether the library itself says so, by another way than ours."""
    from jwt import PyJWS

    key = private_key(str(header["alg"]))
    public = key if isinstance(key, bytes) else key.public_key()
    PyJWS().decode_complete(signed + b"." + signature, public, algorithms=list(ALGORITHMS))
    return True


TARGET = Target("tokens", 1200, make, check)
