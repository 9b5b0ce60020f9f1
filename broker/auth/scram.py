"""SCRAM (RFC 5802, RFC 7677) as a method of enhanced authentication (4.12): no password crosses the wire."""

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.auth.outcome import Accepted, Outcome, Refused
from broker.auth.scram_cost import ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN
from broker.wire.reasons import CloseReason, Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.wire.packets import Connect

METHOD = "SCRAM-SHA-256"
METHOD_512 = "SCRAM-SHA-512"
HASHES = {METHOD: "sha256", METHOD_512: "sha512"}  # by method
METHOD_OF_KEY = {32: METHOD, 64: METHOD_512}  # by bytes of a key
SALT_BYTES = 16
NONCE_BYTES = 18  # of randomness in our half of the nonce
MESSAGE_BYTES_MAX = 4096  # of one message of the client's; real ones have about a hundred

# As RFC 5803 has it: method, iterations, salt, stored key and server key.
_STORED = re.compile(
    rb"(SCRAM-SHA-256|SCRAM-SHA-512)\$([1-9][0-9]{0,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
_CLIENT_FIRST = re.compile(
    r"(?P<header>(?:n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authorization>[^,]+))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,]+)*)"
)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,]+)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_ESCAPE = re.compile("=(2C|3D)?")
_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


@dataclass(frozen=True, slots=True)
class ScramCredentials:
    """What a server keeps of a password: enough to check a proof of it, too little to make one.

    Attributes:
        salt: of the password; as long as those of all other users, so that it tells nothing.
        iterations: 4096 or more.
        stored_key, server_key: 32 bytes each, or 64 for SCRAM-SHA-512 (RFC 5802, section 3).
    """

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def method(self) -> str:
        """The method that they are for."""
        return METHOD_OF_KEY[len(self.stored_key)]

    @classmethod
    def from_password(
        cls, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS, method: str = METHOD
    ) -> ScramCredentials:
        """Derive credentials from a password.

        Args:
            password: any text that SASLprep allows (RFC 4013), else ValueError.
            salt: 16 random bytes if None.
            iterations: 4096 or more; a login costs the client so many HMACs, and the server two.
            method: SCRAM-SHA-256 or SCRAM-SHA-512.

        Cost: the iterations, some 10 ms of CPU for the default: when a user is made, not in a running broker.
        """
        assert iterations >= ITERATIONS_MIN, iterations
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(HASHES[method], saslprep(password).encode(), salt, iterations)
        return cls.from_salted(salted, salt, iterations, method)

    @classmethod
    def from_salted(cls, salted: bytes, salt: bytes, iterations: int, method: str) -> ScramCredentials:
        """Derive credentials from a password that has been salted and hashed."""
        name = HASHES[method]
        client_key = hmac.digest(salted, b"Client Key", name)
        return cls(salt, iterations, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name))

    @classmethod
    def from_stored(cls, stored: bytes) -> ScramCredentials:
        """Return the credentials that stand in a file: `SCRAM-SHA-256$4096:SALT$STORED_KEY:SERVER_KEY` (RFC 5803).

        Raises ScramError.
        """
        found = _STORED.fullmatch(stored)
        if found is None:
            raise ScramError("SCRAM credentials that are broken, expected METHOD$ITERATIONS:SALT$STORED_KEY:SERVER_KEY")
        try:
            salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in found.groups()[2:])
        except binascii.Error:
            raise ScramError("SCRAM credentials that are broken, expected salt and keys in base64") from None
        iterations = int(found[2])
        size = hashlib.new(HASHES[found[1].decode()]).digest_size
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramError(
                f"SCRAM credentials of {iterations} iterations, expected {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        if (len(stored_key), len(server_key)) != (size, size) or not 8 <= len(salt) <= 64:
            raise ScramError(
                f"SCRAM credentials with keys of {len(stored_key)} and {len(server_key)} bytes and a salt "
                f"of {len(salt)}, expected {size}, {size} and 8 to 64"
            )
        return cls(salt, iterations, stored_key, server_key)

    def to_stored(self) -> bytes:
        """Return them as a file has them."""
        salt, stored_key, server_key = (
            base64.b64encode(part) for part in (self.salt, self.stored_key, self.server_key)
        )
        return b"%b$%d:%b$%b:%b" % (self.method.encode(), self.iterations, salt, stored_key, server_key)


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

    def __init__(
        self, users: Mapping[str, ScramCredentials], *, secret: bytes | None = None, iterations: int = ITERATIONS
    ) -> None:
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
        return await prove(exchange, METHOD, self.credentials_of)

    def credentials_of(self, user_name: str) -> ScramCredentials:
        """Return a user's credentials, or for an unknown name such as fit no password."""
        known = self._users.get(user_name)
        return unknown_credentials(user_name, self._secret, self._iterations) if known is None else known


async def prove(exchange: Exchange, method: str, credentials_of: Callable[[str], ScramCredentials]) -> Outcome:
    """Ask for a client's proof and check it.

    Args:
        method: SCRAM-SHA-256 or SCRAM-SHA-512.
        credentials_of: returns credentials for that method, for any user name.
    """
    # SASL lets a client leave out its first message; then it is asked for.
    client_first = exchange.data or await exchange.challenge(b"")
    try:
        login = Login(client_first, credentials_of, secrets.token_urlsafe(NONCE_BYTES), method)
        server_final = login.check(await exchange.challenge(login.server_first))
    except ScramError as error:
        return Refused(Reason.NOT_AUTHORIZED, str(error), close=CloseReason.BAD_AUTHENTICATION)
    # One client does not become another on an open connection: its subscriptions are the first one's.
    before = exchange.principal
    if server_final is None or (before is not None and before.user_name != login.user_name):
        return Refused(Reason.NOT_AUTHORIZED, "authentication failed")
    return Accepted(login.user_name, server_final)


def unknown_credentials(user_name: str, secret: bytes, iterations: int, method: str = METHOD) -> ScramCredentials:
    """Return credentials that fit no password, for a name that does not exist: always the same for one name."""
    digest = hmac.digest(secret, user_name.encode(), "sha512")
    key = digest[: hashlib.new(HASHES[method]).digest_size]
    return ScramCredentials(digest[:SALT_BYTES], iterations, key, key)


def name_in(client_first: bytes) -> str | None:
    """Return the user name of a client's first message; None: it is none, or asks for what is not offered."""
    try:
        return saslprep(_unescape(_match(_CLIENT_FIRST, client_first)["name"]))
    except ScramError:
        return None


class ScramError(ValueError):
    """A message, name or password that SCRAM does not know, or a message of another exchange; names no data."""


class Login:
    """The server's half of one exchange; pure.

    Args:
        client_first: the client's first message.
        credentials_of: returns credentials for any user name.
        nonce: our half of the nonce: printable ASCII without a comma, not to be guessed, never used twice.
        method: SCRAM-SHA-256 or SCRAM-SHA-512.

    Raises:
        ScramError: the message is not one of SCRAM, or asks for what is not offered.
    """

    def __init__(
        self, client_first: bytes, credentials_of: Callable[[str], ScramCredentials], nonce: str, method: str = METHOD
    ) -> None:
        first = _match(_CLIENT_FIRST, client_first)
        if first["header"].startswith("p"):
            raise ScramError("channel binding is not offered")
        self.user_name = saslprep(_unescape(first["name"]))
        if first["authorization"] is not None and saslprep(_unescape(first["authorization"])) != self.user_name:
            raise ScramError("authorization as somebody else is not offered")
        self._hash = HASHES[method]
        self._credentials = credentials = credentials_of(self.user_name)
        assert credentials.method == method, credentials.method
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
        signature = hmac.digest(self._credentials.stored_key, messages, self._hash)
        if len(proof) != len(signature):
            raise ScramError("not a SCRAM message")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._credentials.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._credentials.server_key, messages, self._hash))


def saslprep(text: str) -> str:
    """Return a user name or password in the one form in which it is compared (RFC 4013). Raises ScramError."""
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared or any(prohibited(character) for character in prepared for prohibited in _PROHIBITED):
        raise ScramError("an empty name or password, or a character that it may not have")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1]))
    ):
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
