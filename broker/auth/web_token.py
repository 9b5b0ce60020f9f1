"""JSON Web Tokens (RFC 7519): from the text that a client sends to who it is; pure."""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from broker.auth.token_keys import Keys

HEADER_BYTES_MAX: Final = 8192
NAME_BYTES_MAX: Final = 65_535
PLACEHOLDER: Final = re.compile(r"\$\{(username|clientid)\}")
FOREVER_S: Final = float(1 << 40)  # 36,000 years: what ends later has no end

# Three parts of base64url without padding (RFC 7515, section 3.1): header, claims, signature.
_COMPACT: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_TO_BASE64: Final = bytes.maketrans(b"-_", b"+/")
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")


class TokenError(ValueError):
    """A token that cannot be believed, in words for log and client that hold nothing of it."""


class NoTokenError(TokenError):
    """What was sent is no token: it may be a password."""


class UnknownKeyError(TokenError):
    """None of the keys is the one that the token was signed with: it may be a new one, or another issuer's."""


class RefusedTokenError(TokenError):
    """The signature is that of a key, and what it says does not let the client in."""


class Header(msgspec.Struct, frozen=True):
    """What matters of a token's JOSE header (RFC 7515, section 4)."""

    alg: str
    kid: str | None = None
    crit: Any = None


@dataclass(frozen=True, slots=True)
class Believed:
    """Who a token says that its bearer is.

    Attributes:
        user_name: of the client; None: its CONNECT's, which the token agrees with.
        expires_at_s: when that ends, Unix seconds, with the leeway; None: never.
        claims: all that the token says.
    """

    user_name: str | None
    expires_at_s: float | None
    claims: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRules:
    """What a token has to say.

    Attributes:
        issuers: one of which `iss` is; empty: anybody, or nobody.
        audience: one of which is in `aud`; empty: a token that is for an audience is not for us (RFC 7519, 4.1.3).
        leeway_s: by which clocks may differ.
        user_claim: whose value is the user name; None: the CONNECT's is, and `equal` vouches for it.
        equal: texts by claim, in which ${username} and ${clientid} stand for the client's.
        end_required: whether there has to be an `exp`.
    """

    issuers: tuple[str, ...] = ()
    audience: tuple[str, ...] = ()
    leeway_s: float = 0.0
    user_claim: str | None = "sub"
    equal: Mapping[str, str]
    end_required: bool = True

    def check(self, claims: Mapping[str, Any], now_s: float, user_name: str | None, client_identifier: str) -> Believed:
        """Return who the bearer of a token with these claims is. Raises RefusedTokenError.

        Args:
            now_s: Unix seconds.
            user_name: of the CONNECT; None: there is none.
        """
        expires_at_s = self._end(claims, now_s)
        if self.issuers and claims.get("iss") not in self.issuers:
            raise RefusedTokenError("it is another issuer's")
        self._check_audience(claims.get("aud"))
        for name, template in self.equal.items():
            if "${username}" in template and user_name is None:
                raise RefusedTokenError("the client gives no user name, which it must agree with")
            if claims.get(name) != _filled(template, user_name or "", client_identifier):
                raise RefusedTokenError(f"its claim {name} does not say what it has to")
        if self.user_claim is None:
            return Believed(None, expires_at_s, claims)
        return Believed(_name_in(claims, self.user_claim), expires_at_s, claims)

    def _end(self, claims: Mapping[str, Any], now_s: float) -> float | None:
        not_before_s, issued_s = _time_in(claims, "nbf"), _time_in(claims, "iat")
        for since_s in (not_before_s, issued_s):
            if since_s is not None and since_s - self.leeway_s > now_s:
                raise RefusedTokenError(f"it is not valid yet, for {math.ceil(since_s - self.leeway_s - now_s)} s")
        end_s = _time_in(claims, "exp")
        if end_s is None:
            if self.end_required:
                raise RefusedTokenError("it has no end (exp)")
            return None
        if end_s + self.leeway_s <= now_s:
            raise RefusedTokenError(f"it ended {math.ceil(now_s - end_s)} s ago")
        return end_s + self.leeway_s if end_s < FOREVER_S else None

    def _check_audience(self, audience: object) -> None:
        if audience is None:
            if self.audience:
                raise RefusedTokenError("it is for no audience (aud)")
            return
        listed = audience if isinstance(audience, list) else [audience]
        if not any(one in self.audience for one in listed if isinstance(one, str)):
            raise RefusedTokenError(
                "it is for another audience" if self.audience else "it is for an audience, and the settings name none"
            )


def claims_of(token: bytes, keys: Keys) -> dict[str, Any]:
    """Return what a token says, if one of the keys has signed it.

    Raises:
        NoTokenError: it is none.
        UnknownKeyError: it is signed by none of the keys, as far as one can see.
        RefusedTokenError: it is signed, and is not what a token has to be.

    Cost: that of the signature, and some 7 us.
    """
    parts = _COMPACT.fullmatch(token)
    if parts is None:
        raise NoTokenError("it is no token")
    header = _header_of(parts[1])
    if header.crit is not None:
        raise NoTokenError("a token with extensions that are not known (crit)")
    signature = _decoded(parts[3])
    signed = token[: parts.end(2)]
    for key in keys.of(header.alg, header.kid):
        if key.fits(header.alg, signed, signature):
            break
    else:
        raise UnknownKeyError("its signature is that of none of the keys")
    try:
        claims = msgspec.json.decode(_decoded(parts[2]))
    except (msgspec.DecodeError, NoTokenError, RecursionError, UnicodeDecodeError):
        claims = None
    if not isinstance(claims, dict):
        raise RefusedTokenError("its claims are no JSON object")
    return claims


def looks_like_token(text: bytes) -> bool:
    """Return whether something may be a token, and is no password then."""
    try:
        parts = _COMPACT.fullmatch(text)
        return parts is not None and bool(_header_of(parts[1]))
    except NoTokenError:
        return False


def _header_of(part: bytes) -> Header:
    if len(part) > HEADER_BYTES_MAX:
        raise NoTokenError("it is no token")
    try:
        return _header_decoder.decode(_decoded(part))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise NoTokenError("it is no token") from None


_header_decoder: Final = msgspec.json.Decoder(Header)


def _decoded(part: bytes) -> bytes:
    try:
        return binascii.a2b_base64(part.translate(_TO_BASE64) + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise NoTokenError("it is no token") from None


def _filled(template: str, user_name: str, client_identifier: str) -> str:
    if template == "${clientid}":
        return client_identifier
    return PLACEHOLDER.sub(lambda found: user_name if found[1] == "username" else client_identifier, template)


def _time_in(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a NumericDate, Unix seconds; a number that is written as text counts, as EMQX has it."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise RefusedTokenError(f"its claim {name} is no time")
    return min(float(min(value, 1 << 62)), FOREVER_S)


def _name_in(claims: Mapping[str, Any], claim: str) -> str:
    name = claims.get(claim)
    if not isinstance(name, str) or not name:
        raise RefusedTokenError(f"it names no user ({claim})")
    if "\0" in name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise RefusedTokenError(f"its claim {claim} cannot be a user name")
    return name
