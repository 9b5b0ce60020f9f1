"""Logins that were verified a moment ago, so that a client that comes back costs microseconds."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

LOGINS_MAX: Final = 65_536  # 10 MiB


class VerifiedLogins:
    """Remembers, by user, a keyed digest of the hash in the file and the password that fitted it.

    A hash that has changed, or another password, is not what is remembered. The key is random, and never leaves the
    process; each worker has its own, and remembers for itself.

    Args:
        logins_max: users that are remembered; beyond it the one remembered first is forgotten.
    """

    __slots__ = ("_digests", "_key", "_logins_max")

    def __init__(self, logins_max: int = LOGINS_MAX) -> None:
        self._key = secrets.token_bytes(64)
        self._digests: dict[str, bytes] = {}
        self._logins_max = logins_max

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, user: str, stored: bytes, password: bytes) -> bool:
        """Return whether this password has fitted this user's hash before."""
        known = self._digests.get(user)
        return known is not None and hmac.compare_digest(known, self._digest(user, stored, password))

    def add(self, user: str, stored: bytes, password: bytes) -> None:
        """Remember that a password fitted a user's hash."""
        self._digests.pop(user, None)
        while len(self._digests) >= self._logins_max:
            del self._digests[next(iter(self._digests))]
        self._digests[user] = self._digest(user, stored, password)

    def _digest(self, user: str, stored: bytes, password: bytes) -> bytes:
        name = user.encode()
        # With their lengths, so that no two triples are one text.
        lengths = len(name).to_bytes(4) + len(stored).to_bytes(4)
        return hashlib.blake2b(lengths + name + stored + password, key=self._key, digest_size=32).digest()
