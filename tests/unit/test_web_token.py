"""Tokens and keys: what is believed, what is refused, and in which words."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.token_keys import TRIED_MAX, Key, Keys, UnusableKeyError, keys_in, keys_of_set, secret_in
from broker.auth.web_token import ClaimRules, NoTokenError, RefusedTokenError, TokenError, UnknownKeyError, claims_of
from broker.config.authenticator import PUBLIC_ALGORITHMS, SECRET_ALGORITHMS
from tests.support.certificates import certificates
from tests.support.tokens import jwk, jwk_set, private_key, private_pem, public_pem, token

NOW_S = 1_800_000_000.0
RULES = ClaimRules(equal={})


def keys_of(*names: str) -> Keys:
    return Keys(key for name in names for key in keys_in(public_pem(name), PUBLIC_ALGORITHMS))


def part(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


# Signatures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", PUBLIC_ALGORITHMS)
def test_what_a_public_key_has_signed_is_believed_and_nothing_else(algorithm: str) -> None:
    made = token(algorithm, level=7)
    for keys in (keys_of(algorithm), Keys(keys_of_set(jwk_set(jwk(algorithm)), PUBLIC_ALGORITHMS))):
        assert claims_of(made, keys)["level"] == 7
        with pytest.raises(UnknownKeyError):
            claims_of(token(algorithm, 1), keys)
        header, claims, signature = made.split(b".")
        for forged in (
            b".".join((header, part({"sub": "root"}), signature)),
            b".".join((part({"alg": algorithm, "typ": "x"}), claims, signature)),
            b".".join((header, claims, part(b"\0" * 64))),
            b".".join((header, claims, part(b"\0"))),
        ):
            with pytest.raises(UnknownKeyError):
                claims_of(forged, keys)
    with pytest.raises(UnknownKeyError):
        claims_of(made, Keys())


@pytest.mark.parametrize("algorithm", SECRET_ALGORITHMS)
def test_what_a_secret_has_signed_is_believed_and_nothing_else(algorithm: str) -> None:
    secret = private_key(algorithm)
    for key in (
        secret_in(secret, (algorithm,)),
        secret_in(secret + b"\r\n", (algorithm,)),
        keys_in(json.dumps(jwk(algorithm)).encode(), (algorithm,))[0],
    ):
        assert claims_of(token(algorithm), Keys([key]))["sub"] == "ann"
        assert secret.decode() not in repr(key)
        with pytest.raises(UnknownKeyError):
            claims_of(token(algorithm, 1), Keys([key]))


def test_a_token_signed_by_the_public_key_as_a_secret_is_not_believed() -> None:
    # The oldest forgery of all: HS256 with the text of the public key, which everybody has.
    pem = public_pem("RS256")
    head, body = part({"alg": "HS256"}), part({"sub": "root"})
    forged = b".".join(
        (
            head,
            body,
            part(jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(head + b"." + body, pem)),
        )
    )
    for allowed in (PUBLIC_ALGORITHMS, (*PUBLIC_ALGORITHMS, *SECRET_ALGORITHMS)):
        with pytest.raises(UnknownKeyError):
            claims_of(forged, Keys(keys_in(pem, allowed)))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS1", "", "RS256", "ES384"])
def test_an_algorithm_that_is_not_allowed_is_not_believed(algorithm: str) -> None:
    signature = token("ES256").split(b".")[2]
    with pytest.raises(UnknownKeyError):
        claims_of(b".".join((part({"alg": algorithm}), part({"sub": "root"}), signature)), keys_of("ES256"))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"secret",
        b"a.b",
        b"a.b.c",
        b"a.b.c.d",
        b"..",
        b"\xff.\xff.\xff",
        b"a=.b.c",
        part([]) + b".e30.AA",
        part({"alg": 1}) + b".e30.AA",
        part({}) + b".e30.AA",
        part({"alg": "ES256", "kid": 5}) + b".e30.AA",
        part(b"{" * 5000) + b".e30.AA",
        part(b"[" * 5000) + b".e30.AA",
        part({"alg": "ES256", "x": "y" * 9000}) + b".e30.AA",
        part({"alg": "ES256", "crit": ["b64"]}) + b".e30.AA",
        part({"alg": "ES256", "crit": []}) + b".e30.AA",
        part({"alg": "ES256"}) + b".e30.A",
        token() + b"\n",
        b" " + token(),
        token().replace(b".", b"..", 1),
    ],
)
def test_what_is_no_token_may_be_a_password(text: bytes) -> None:
    with pytest.raises(NoTokenError):
        claims_of(text, keys_of("ES256"))


@pytest.mark.parametrize("claims", [b"", b"[]", b'"x"', b"{", b"\xff", b"[" * 30_000, b'{"a":' * 30_000, b"null"])
def test_claims_that_are_no_object_are_refused_though_they_are_signed(claims: bytes) -> None:
    made = jwt.PyJWS().encode(claims, private_key("ES256"), algorithm="ES256").encode()
    with pytest.raises((RefusedTokenError, NoTokenError)):  # NoTokenError: an empty part
        claims_of(made, keys_of("ES256"))


@given(
    st.binary(max_size=300)
    | st.lists(st.binary(max_size=60), min_size=3, max_size=3).map(lambda parts: b".".join(part(one) for one in parts))
)
def test_any_bytes_are_a_token_error(data: bytes) -> None:
    with pytest.raises(TokenError):
        claims_of(data, keys_of("ES256"))


# Keys ---------------------------------------------------------------------------------------------------------------


def test_a_token_that_names_its_key_is_tried_with_that_one_alone() -> None:
    tried: list[str | None] = []

    class Counting(Key):
        def fits(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
            tried.append(self.identifier)
            return super().fits(algorithm, signed, signature)

    found = keys_of_set(jwk_set(*(jwk("ES256", number, kid=f"k{number}") for number in range(12))), ("ES256",))
    keys = Keys(Counting(key.identifier, key.algorithms, key.prepared) for key in found)
    assert claims_of(token(which=11, headers={"kid": "k11"}), keys)
    assert tried == ["k11"]
    for headers in ({"kid": "k5"}, {"kid": "another"}, None):  # another key's name, nobody's, and none
        tried.clear()
        with pytest.raises(UnknownKeyError):
            claims_of(token(which=11, headers=headers), keys)
        assert tried == {"k5": ["k5"], "another": []}.get(
            (headers or {}).get("kid", ""), [f"k{number}" for number in range(TRIED_MAX)]
        )
    tried.clear()
    assert claims_of(token(which=2), keys)  # names none: they are tried in their order
    assert tried == ["k0", "k1", "k2"]


def test_a_key_without_a_name_is_tried_for_a_name_that_no_key_has() -> None:
    keys = keys_of("ES256")
    assert claims_of(token(headers={"kid": "whatever"}), keys)


def test_a_file_of_pem_may_have_several_keys_certificates_among_them() -> None:
    certificate, key = (Path(file).read_bytes() for file in certificates().server)
    data = b"words\n" + certificate + public_pem("RS256") + public_pem("EdDSA") + b"# end\n"
    keys = Keys(keys_in(data, PUBLIC_ALGORITHMS))
    assert keys.count == 2 + certificate.count(b"BEGIN")
    for algorithm in ("RS256", "EdDSA"):
        assert claims_of(token(algorithm), keys)
    assert claims_of(jwt.encode({"sub": "ann"}, key, algorithm="ES256").encode(), keys)


def test_keys_of_a_set_that_are_for_something_else_are_passed_over() -> None:
    good = jwk("ES256", kid="good")
    others = [
        jwk("ES256", 1, use="enc"),
        jwk("ES256", 1, key_ops=["sign"]),
        {"kty": "new"},
        {"kty": 5},
        {},
        {"kty": "EC"},
        {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"},
        jwk("ES256", 1, alg="ES384"),
        jwk("ES256", 1, kid=5),
        {**good, "y": good["x"]},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "oct", "k": "c2hvcnQ"},
        {"kty": "oct"},
        {"kty": "oct", "k": 5},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "RSA", "n": 5, "e": []},
        {"kty": "EC", "x": 1, "y": 2},
        jwk("ES256", 1, alg=5),
        jwk("ES256", 1, key_ops=5),
        jwk("ES256", 1, key_ops=[[]]),
    ]
    assert [key.identifier for key in keys_of_set(jwk_set(*others, good), PUBLIC_ALGORITHMS)] == ["good"]
    for other in others:
        with pytest.raises(UnusableKeyError, match="no key that can be used"):
            keys_of_set(jwk_set(other), PUBLIC_ALGORITHMS)


@pytest.mark.parametrize(("data", "allowed", "said"), [
    (b"", PUBLIC_ALGORITHMS, "neither PEM"),
    (b"ssh-ed25519 AAAA", PUBLIC_ALGORITHMS, "neither PEM"),
    (private_pem("ES256"), PUBLIC_ALGORITHMS, "a private key"),
    (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", PUBLIC_ALGORITHMS, "public key that cannot be"),
    (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", PUBLIC_ALGORITHMS, "certificate that cannot"),
    (public_pem("RS256"), ("ES256",), "an RSA key, which is for RS256 RS384"),
    (public_pem("ES384"), ("ES256",), "a key on the curve secp384r1, which is for ES384"),
    (b"{", PUBLIC_ALGORITHMS, "no JSON"),
    (b"{" * 9000, PUBLIC_ALGORITHMS, "no JSON"),
    (b'{"keys": 5}', PUBLIC_ALGORITHMS, "neither a JWK nor"),
    (b'{"keys": []}', PUBLIC_ALGORITHMS, "it is empty"),
    (jwk_set(*[{}] * 1001), PUBLIC_ALGORITHMS, "1001 keys"),
    (jwk_set({**jwk("RS256"), "d": "AQAB"}), PUBLIC_ALGORITHMS, "a private key"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_in_words(data: bytes, allowed: tuple[str, ...], said: str) -> None:
    with pytest.raises(UnusableKeyError, match=re.escape(said)):
        keys_in(data, allowed)


def test_a_signature_has_one_form() -> None:
    # Numbers of one byte less than they may have are written with a zero in front.
    while True:
        header, claims, signature = token().split(b".")
        raw = base64.urlsafe_b64decode(signature + b"==")
        if raw[32] == 0:
            break
    assert claims_of(b".".join((header, claims, part(raw))), keys_of("ES256"))
    for other in (raw[:32] + raw[33:], raw + b"\0", b"\0" + raw, raw[:32], b"\0"):
        with pytest.raises(UnknownKeyError):
            claims_of(b".".join((header, claims, part(other))), keys_of("ES256"))


@pytest.mark.parametrize(("algorithm", "least"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_is_as_long_as_the_hash(algorithm: str, least: int) -> None:
    assert secret_in(b"x" * least + b"\n", (algorithm,)).algorithms == (algorithm,)
    for data in (b"x" * (least - 1), b"x" * (least - 1) + b"\n", b""):
        with pytest.raises(UnusableKeyError, match=f"expected {least} or more for {algorithm}"):
            secret_in(data, (algorithm,))


def test_a_short_key_of_rsa_is_refused() -> None:
    pem = rsa.generate_private_key(65_537, 1024).public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1)
    with pytest.raises(UnusableKeyError, match="an RSA key of 1024 bits, expected 2048 or more"):
        keys_in(pem, PUBLIC_ALGORITHMS)


def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(UnusableKeyError, match="a secret of 10 bytes, expected 64 or more") as caught:
        secret_in(b"emqxsecret", SECRET_ALGORITHMS)
    assert "emqxsecret" not in str(caught.value)


# Claims -------------------------------------------------------------------------------------------------------------


def checked(rules: ClaimRules, user_name: str | None = "ann", /, **claims: Any) -> Any:
    return rules.check({"sub": "ann", "exp": NOW_S + 60, **claims}, NOW_S, user_name, "meter-7")


@pytest.mark.parametrize(("rules", "claims", "said"), [
    ({}, {}, None),
    ({}, {"exp": NOW_S}, "it ended 0 s ago"),
    ({}, {"exp": NOW_S - 35}, "it ended 35 s ago"),
    ({}, {"exp": NOW_S + 1}, None),
    ({"leeway_s": 10}, {"exp": NOW_S - 9}, None),
    ({"leeway_s": 10}, {"exp": NOW_S - 10}, "it ended 10 s ago"),
    ({}, {"exp": None}, "it has no end"),
    ({"end_required": False}, {"exp": None}, None),
    ({}, {"exp": str(int(NOW_S + 60))}, None),
    ({}, {"exp": "tomorrow"}, "its claim exp is no time"),
    ({}, {"exp": True}, "its claim exp is no time"),
    ({}, {"exp": -5}, "its claim exp is no time"),
    ({}, {"exp": [NOW_S + 60]}, "its claim exp is no time"),
    ({}, {"exp": 10**400}, None),
    ({}, {"exp": 1e300}, None),
    ({}, {"nbf": NOW_S}, None),
    ({}, {"nbf": NOW_S + 5}, "it is not valid yet, for 5 s"),
    ({"leeway_s": 5}, {"nbf": NOW_S + 5}, None),
    ({}, {"iat": NOW_S + 5}, "it is not valid yet, for 5 s"),
    ({}, {"iat": "x"}, "its claim iat is no time"),
    ({"issuers": ("a", "b")}, {"iss": "b"}, None),
    ({"issuers": ("a",)}, {"iss": "A"}, "it is another issuer's"),
    ({"issuers": ("a",)}, {}, "it is another issuer's"),
    ({"issuers": ("a",)}, {"iss": ["a"]}, "it is another issuer's"),
    ({}, {"iss": "whoever"}, None),
    ({"audience": ("mqtt",)}, {"aud": "mqtt"}, None),
    ({"audience": ("mqtt", "x")}, {"aud": ["y", 5, "x"]}, None),
    ({"audience": ("mqtt",)}, {"aud": "http"}, "it is for another audience"),
    ({"audience": ("mqtt",)}, {}, "it is for no audience"),
    ({"audience": ("mqtt",)}, {"aud": {"mqtt": 1}}, "it is for another audience"),
    ({}, {"aud": "mqtt"}, "it is for an audience, and the settings name none"),
    ({"equal": {"client": "${clientid}"}}, {"client": "meter-7"}, None),
    ({"equal": {"client": "${clientid}"}}, {"client": "meter-8"}, "its claim client does not say"),
    ({"equal": {"client": "${clientid}"}}, {}, "its claim client does not say"),
    ({"equal": {"client": "x/${clientid}"}}, {"client": "x/meter-7"}, None),
    ({"equal": {"u": "${username}"}}, {"u": "ann"}, None),
    ({"equal": {"u": "${username}"}}, {"u": "bob"}, "its claim u does not say"),
    ({"equal": {"tenant": "acme"}}, {"tenant": "acme"}, None),
    ({"equal": {"tenant": "acme"}}, {"tenant": ["acme"]}, "its claim tenant does not say"),
    ({}, {"sub": ""}, "it names no user (sub)"),
    ({}, {"sub": 5}, "it names no user (sub)"),
    ({}, {"sub": None}, "it names no user (sub)"),
    ({"user_claim": "name"}, {}, "it names no user (name)"),
    ({"user_claim": "name"}, {"name": "bob"}, None),
    ({}, {"sub": "a\0b"}, "its claim sub cannot be a user name"),
    ({}, {"sub": "a" * 65_536}, "its claim sub cannot be a user name"),
])  # fmt: skip
def test_what_a_token_has_to_say(rules: dict[str, Any], claims: dict[str, Any], said: str | None) -> None:
    made = ClaimRules(**{"equal": {}, **rules})
    if said is None:
        believed = checked(made, **claims)
        assert believed.user_name == {"name": "bob"}.get(made.user_claim or "", "ann")
        return
    with pytest.raises(RefusedTokenError, match=re.escape(said)):
        checked(made, **claims)


def test_the_end_is_that_of_the_token_with_the_leeway() -> None:
    assert checked(RULES).expires_at_s == NOW_S + 60
    assert checked(ClaimRules(equal={}, leeway_s=5)).expires_at_s == NOW_S + 65
    assert checked(ClaimRules(equal={}, end_required=False), exp=None).expires_at_s is None
    assert checked(RULES, exp=1e300).expires_at_s is None


def test_the_user_name_of_the_connect_counts_where_the_token_vouches_for_it() -> None:
    rules = ClaimRules(user_claim=None, equal={"u": "${username}"})
    assert checked(rules, u="ann").user_name is None
    with pytest.raises(RefusedTokenError, match="the client gives no user name"):
        checked(rules, None, u="")
