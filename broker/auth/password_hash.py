"""Hashes of passwords as mosquitto's password files have them: `$6$`, `$7$` and argon2id."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.auth.scram import ScramCredentials

KEY_BYTES: Final = 64  # of a hash: SHA-512's, and what mosquitto has argon2id make
SALTS_BYTES: Final = (12, 64)  # of $6$ and $7$: mosquitto 2.0's and 2.1's; it takes no others
ITERATIONS: Final = 210_000
ITERATIONS_MAX: Final = 100_000_000
QUICK_ITERATIONS: Final = 200  # of SHA-512, a tenth of a millisecond; mosquitto 2.0 has 101
# Those of mosquitto 2.1: 46 MiB for each login that is under way.
ARGON2_MEMORY_KIB: Final = 47_104
ARGON2_TIME: Final = 1
ARGON2_LANES: Final = 1
ARGON2_MEMORY_KIB_MAX: Final = 4_194_304
ARGON2_TIME_MAX: Final = 1000
ARGON2_VERSION: Final = 19
# That are written; the first by default.
KINDS: Final = ("argon2id", "sha512-pbkdf2", "scram-sha-256", "scram-sha-512")
SCRAM: Final = b"SCRAM-"  # with which SCRAM credentials begin (RFC 5803)

# fmt: off
_ARGON2ID: Final = re.compile(
    rb"\$argon2id\$v=19\$m=([1-9][0-9]{0,9}),t=([1-9][0-9]{0,9}),p=([1-9][0-9]{0,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
# fmt: on
_PBKDF2: Final = re.compile(rb"\$7\$([1-9][0-9]{0,9})\$([^$]+)\$([^$]+)")
_SHA512: Final = re.compile(rb"\$6\$([^$]+)\$([^$]+)")


class HashError(ValueError):
    """A hash that cannot be used, in words that hold nothing of it: what stands there may be a plain password."""


class PasswordHash:
    """A hash taken apart.

    Args:
        stored: as it stands in the file.

    Raises HashError.
    """

    __slots__ = ("_cost", "_kind", "_salt", "_wanted")

    def __init__(self, stored: bytes) -> None:
        self._cost: tuple[int, ...] = ()
        if stored.startswith(SCRAM):
            credentials = _scram_of(stored)
            self._kind = credentials.method.lower()
            self._cost = (credentials.iterations,)
            self._salt, self._wanted = credentials.salt, credentials.stored_key
            return
        if stored.startswith(b"$argon2id$"):
            found = _matched(_ARGON2ID, stored, "an argon2id hash", "$argon2id$v=19$m=...,t=...,p=...$SALT$HASH")
            self._kind = "argon2id"
            memory_kib, time, lanes = (int(number) for number in found.groups()[:3])
            if lanes > 255 or not 8 * lanes <= memory_kib <= ARGON2_MEMORY_KIB_MAX or time > ARGON2_TIME_MAX:
                raise HashError(
                    f"an argon2id hash with m={memory_kib},t={time},p={lanes}, expected m from 8 times p "
                    f"to {ARGON2_MEMORY_KIB_MAX}, t up to {ARGON2_TIME_MAX} and p up to 255"
                )
            self._cost = memory_kib, time, lanes
            self._salt, self._wanted = (_base64(part + b"=" * (-len(part) % 4)) for part in found.groups()[3:])
            # mosquitto's are 64 bytes long; other programs write 16 and 32 under the same name.
            if not (8 <= len(self._salt) <= 64 and 16 <= len(self._wanted) <= KEY_BYTES):
                raise HashError(
                    f"an argon2id hash of {len(self._wanted)} bytes with a salt of {len(self._salt)}, "
                    "expected 16 to 64 with 8 to 64"
                )
            return
        if stored.startswith(b"$7$"):
            found = _matched(_PBKDF2, stored, "a $7$ hash", "$7$ITERATIONS$SALT$HASH")
            self._kind = "sha512-pbkdf2"
            self._cost = (int(found[1]),)
            if self._cost[0] > ITERATIONS_MAX:
                raise HashError(f"a $7$ hash of {self._cost[0]} iterations, expected up to {ITERATIONS_MAX}")
        elif stored.startswith(b"$6$"):
            found = _matched(_SHA512, stored, "a $6$ hash", "$6$SALT$HASH")
            self._kind = "sha512"
        else:
            raise HashError("no hash that is known, expected $6$, $7$, $argon2id$, or SCRAM credentials")
        self._salt, self._wanted = (_base64(part) for part in found.groups()[-2:])
        if len(self._salt) not in SALTS_BYTES or len(self._wanted) != KEY_BYTES:
            raise HashError(
                f"a {stored[:3].decode()} hash of {len(self._wanted)} bytes with a salt of "
                f"{len(self._salt)}, expected {KEY_BYTES} with 12 or 64"
            )

    @property
    def kind(self) -> str:
        """Its name: "argon2id", "sha512-pbkdf2", "sha512", or a method of SCRAM in lower case."""
        return self._kind

    @property
    def is_quick(self) -> bool:
        """Whether it takes no more than a tenth of a millisecond to try a password."""
        return self._kind == "sha512" or (self._kind != "argon2id" and self._cost[0] <= QUICK_ITERATIONS)

    def fits(self, password: bytes) -> bool:
        """Hash a password, and return whether this is its hash. From any thread: it takes up to tens of ms."""
        if self._kind == "argon2id":
            memory_kib, time, lanes = self._cost
            made = _argon2id(password, self._salt, memory_kib, time, lanes, len(self._wanted))
        elif self._kind.startswith("scram-"):
            made = _scram_key(self._kind.upper(), password, self._salt, self._cost[0])
        elif self._kind == "sha512-pbkdf2":
            made = hashlib.pbkdf2_hmac("sha512", password, self._salt, self._cost[0], KEY_BYTES)
        else:
            # One pass, and not crypt(3)'s, though that has the same mark.
            made = hashlib.sha512(password + self._salt).digest()
        return hmac.compare_digest(made, self._wanted)


def new_hash(password: bytes, kind: str = KINDS[0], iterations: int | None = None) -> bytes:
    """Return a hash of a password as a file has it, with a new salt.

    Args:
        kind: one of KINDS; mosquitto 2.0 knows "sha512-pbkdf2" only, 2.1 argon2id too, and no mosquitto SCRAM.
        iterations: of sha512-pbkdf2, 210,000 if None, and of SCRAM, 15,000: each login costs its client so many.

    Raises HashError: the password cannot be one of SCRAM (RFC 4013).
    """
    if kind.startswith("scram-"):
        return _new_scram(password, kind.upper(), iterations)
    if kind == "argon2id":
        salt = secrets.token_bytes(64)
        made = _argon2id(password, salt, ARGON2_MEMORY_KIB, ARGON2_TIME, ARGON2_LANES, KEY_BYTES)
        return (
            f"$argon2id$v={ARGON2_VERSION}$m={ARGON2_MEMORY_KIB},t={ARGON2_TIME},p={ARGON2_LANES}$".encode()
            + base64.b64encode(salt).rstrip(b"=")
            + b"$"
            + base64.b64encode(made).rstrip(b"=")
        )
    assert kind == "sha512-pbkdf2", kind
    salt = secrets.token_bytes(12)  # the only length that mosquitto 2.0 takes
    iterations = ITERATIONS if iterations is None else iterations
    made = hashlib.pbkdf2_hmac("sha512", password, salt, iterations, KEY_BYTES)
    return b"$7$%d$%b$%b" % (iterations, base64.b64encode(salt), base64.b64encode(made))


def _matched(pattern: re.Pattern[bytes], stored: bytes, what: str, form: str) -> re.Match[bytes]:
    found = pattern.fullmatch(stored)
    if found is None:
        raise HashError(f"{what} that is broken, expected {form}")
    return found


def _base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise HashError("a hash that is broken, expected salt and hash in base64") from None


def _argon2id(password: bytes, salt: bytes, memory_kib: int, time: int, lanes: int, length: int) -> bytes:
    # Here, so that who has no such hash does not load it.
    from argon2.low_level import Type, hash_secret_raw

    return hash_secret_raw(password, salt, time, memory_kib, lanes, length, Type.ID, ARGON2_VERSION)


def _scram_of(stored: bytes) -> ScramCredentials:
    # Imported here and below, so that who has none of these does not load it.
    from broker.auth.scram import ScramCredentials, ScramError

    try:
        return ScramCredentials.from_stored(stored)
    except ScramError as error:
        raise HashError(str(error)) from None


def _scram_key(method: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return the stored key that a password leads to; of what can be no password, bytes that are no key."""
    from broker.auth.scram import ScramCredentials, ScramError

    try:
        return ScramCredentials.from_password(
            password.decode(), salt=salt, iterations=iterations, method=method
        ).stored_key
    except (ScramError, UnicodeDecodeError):
        return b""


def _new_scram(password: bytes, method: str, iterations: int | None) -> bytes:
    from broker.auth.scram import ScramCredentials, ScramError
    from broker.auth.scram_cost import ITERATIONS as SCRAM_ITERATIONS

    try:
        return ScramCredentials.from_password(
            password.decode(), iterations=iterations or SCRAM_ITERATIONS, method=method
        ).to_stored()
    except (ScramError, UnicodeDecodeError):
        raise HashError("a password with characters that SCRAM does not allow (RFC 4013)") from None
