"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as a method of enhanced authentication (4.12): no password crosses the wire."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.auth.outcome import Accepted, Outcome, Refused
from broker.wire.reasons import CloseReason, Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.wire.packets import Connect

METHOD = "SCRAM-SHA-256"
ITERATIONS = 15_000              # of new credentials: each login costs the client so many HMACs
ITERATIONS_MIN = 4096            # RFC 7677, section 4
SALT_BYTES = 16
NONCE_BYTES = 18                 # of randomness in our half of the nonce
MESSAGE_BYTES_MAX = 4096         # of one message of the client's; real ones have about a hundred

_CLIENT_FIRST = re.compile(
    r"(?P<header>(?:n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authorization>[^,]+))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,]+)*)")
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,]+)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)")
_ESCAPE = re.compile("=(2C|3D)?")
_PROHIBITED = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9, stringprep.in_table_a1)


@dataclass(frozen=True, slots=True)
class ScramCredentials:
    """What a server keeps of a password: enough to check a proof of it, too little to make one.

    Attributes:
        salt: of the password; as long as those of all other users, so that it tells nothing.
        iterations: 4096 or more.
        stored_key, server_key: 32 bytes each (RFC 5802, section 3).
    """

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def from_password(cls, password: str, *, salt: bytes | None = None,
                      iterations: int = ITERATIONS) -> ScramCredentials:
        """Derive credentials from a password.

        Args:
            password: any text that SASLprep allows (RFC 4013), else ValueError.
            salt: 16 random bytes if None.
            iterations: 4096 or more; a login costs the client so many HMACs, and the server two.

        Cost: the iterations, some 10 ms of CPU for the default: when a user is made, not in a running broker.
        """
        assert iterations >= ITERATIONS_MIN, iterations
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
        client_key = _hmac(salted, b"Client Key")
        return cls(salt, iterations, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))


class ScramSha256:
    """An Authenticator for clients that name the method SCRAM-SHA-256; all others are refused.

    It answers without waiting for anything but the client, and re-authenticates a client under the name it has.

        users = {"sensor": ScramCredentials.from_password("a long one")}
        async with open_broker(config, authenticator=ScramSha256(users)) as broker:
            ...

    The identity of a client that got in is its user name. A name that does not exist is asked for a proof like any
    other, with a salt that is always the same for it, and fails like a wrong password.

    Args:
        users: credentials by user name, looked up at each login, so it may change meanwhile.
        secret: makes the salts of names that do not exist; random if None. Give the same to every broker that has the
            same users, and keep it over restarts: otherwise the salt that changes tells which names exist.
        iterations: told for names that do not exist: what real users have.
    """

    def __init__(self, users: Mapping[str, ScramCredentials], *, secret: bytes | None = None,
                 iterations: int = ITERATIONS) -> None:
        assert iterations >= ITERATIONS_MIN, iterations
        self._users = users
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._iterations = iterations

    async def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome:
        """Ask for the client's proof and check it. The last message goes along with CONNACK or AUTH."""
        if exchange.method is None:
            return Refused(Reason.NOT_AUTHORIZED, f"{METHOD} is asked for")
        if exchange.method != METHOD:
            return Refused(Reason.BAD_AUTHENTICATION_METHOD, f"{METHOD} is the method known here")
        # SASL lets a client leave out its first message; then it is asked for.
        client_first = exchange.data or await exchange.challenge(b"")
        try:
            login = Login(client_first, self.credentials_of, secrets.token_urlsafe(NONCE_BYTES))
            server_final = login.check(await exchange.challenge(login.server_first))
        except ScramError as error:
            return Refused(Reason.NOT_AUTHORIZED, str(error), close=CloseReason.BAD_AUTHENTICATION)
        # One client does not become another on an open connection: its subscriptions are the first one's.
        before = exchange.principal
        if server_final is None or (before is not None and before.user_name != login.user_name):
            return Refused(Reason.NOT_AUTHORIZED, "authentication failed")
        return Accepted(login.user_name, server_final)

    def credentials_of(self, user_name: str) -> ScramCredentials:
        """Return a user's credentials, or for an unknown name such as fit no password."""
        digest = hmac.digest(self._secret, user_name.encode(), "sha256")
        unknown = ScramCredentials(digest[:SALT_BYTES], self._iterations, digest, digest)
        return self._users.get(user_name, unknown)


class ScramError(ValueError):
    """A message, name or password that SCRAM does not know, or a message of another exchange; names no data."""


class Login:
    """The server's half of one exchange; pure.

    Args:
        client_first: the client's first message.
        credentials_of: returns credentials for any user name.
        nonce: our half of the nonce: printable ASCII without a comma, not to be guessed, never used twice.

    Raises:
        ScramError: the message is not one of SCRAM, or asks for what is not offered.
    """

    def __init__(self, client_first: bytes, credentials_of: Callable[[str], ScramCredentials], nonce: str) -> None:
        first = _match(_CLIENT_FIRST, client_first)
        if first["header"].startswith("p"):
            raise ScramError("channel binding is not offered")
        self.user_name = saslprep(_unescape(first["name"]))
        if first["authorization"] is not None and saslprep(_unescape(first["authorization"])) != self.user_name:
            raise ScramError("authorization as somebody else is not offered")
        self._credentials = credentials = credentials_of(self.user_name)
        self._header = first["header"].encode()
        self._nonce = first["nonce"] + nonce
        salt = base64.b64encode(credentials.salt).decode()
        self.server_first = f"r={self._nonce},s={salt},i={credentials.iterations}".encode()
        self._messages = first["bare"].encode() + b"," + self.server_first + b","

    def check(self, client_final: bytes) -> bytes | None:
        """Return the server's final message if the client has proved that it knows the password, else None.

        Raises:
            ScramError: the message is not one of SCRAM, or not of this exchange.
        """
        final = _match(_CLIENT_FINAL, client_final)
        proof = _base64(final["proof"])
        same = hmac.compare_digest(final["nonce"].encode(), self._nonce.encode())
        if not (same and hmac.compare_digest(_base64(final["binding"]), self._header)):
            raise ScramError("a SCRAM message of another exchange")
        messages = self._messages + final["without_proof"].encode()
        signature = _hmac(self._credentials.stored_key, messages)
        if len(proof) != len(signature):
            raise ScramError("not a SCRAM message")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._credentials.stored_key):
            return None
        return b"v=" + base64.b64encode(_hmac(self._credentials.server_key, messages))


def saslprep(text: str) -> str:
    """Return a user name or password in the one form in which it is compared (RFC 4013). Raises ScramError."""
    mapped = "".join(" " if stringprep.in_table_c12(character) else character
                     for character in text if not stringprep.in_table_b1(character))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared or any(prohibited(character) for character in prepared for prohibited in _PROHIBITED):
        raise ScramError("an empty name or password, or a character that it may not have")
    if any(map(stringprep.in_table_d1, prepared)) and (
            any(map(stringprep.in_table_d2, prepared))
            or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))):
        raise ScramError("a name or password of mixed direction")
    return prepared


def _match(pattern: re.Pattern[str], message: bytes) -> re.Match[str]:
    found = None
    if len(message) <= MESSAGE_BYTES_MAX:
        try:
            found = pattern.fullmatch(message.decode())
        except UnicodeDecodeError:
            pass
    if found is None:
        raise ScramError("not a SCRAM message")
    return found


def _unescape(name: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[1] is None:
            raise ScramError("not a SCRAM message")
        return "," if found[1] == "2C" else "="

    return _ESCAPE.sub(character, name)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("not a SCRAM message") from None


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
