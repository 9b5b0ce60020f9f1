"""Logins that were verified a moment ago, so that a client that comes back costs microseconds."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from typing import Final

KEY_BYTES: Final = 64
DIGEST_BYTES: Final = 32
BUCKET_DIGESTS: Final = 8
BUCKET_BYTES: Final = BUCKET_DIGESTS * DIGEST_BYTES
BUCKETS: Final = 16_384  # 131,072 logins, 4 MiB; what is not used takes none
BYTES: Final = KEY_BYTES + BUCKETS * BUCKET_BYTES
EMPTY: Final = bytes(DIGEST_BYTES)


class VerifiedLogins:
    """Remembers keyed digests: of a user, the user's hash in the file, and the password that fitted it.

    A hash that has changed, or another password, is not what is remembered. The key is random, and lies with the
    digests in memory that is in no file and no core. The workers of a broker share it; it outlives each of them, and
    not the broker.

    Digests lie in buckets, by their first bytes. Nothing is locked: a digest that two workers write at the same time is
    nobody's, and its users are hashed once more.

    Args:
        descriptor: of the memory, which shared_memory() made; None: memory of its own.
        buckets: less of it, for tests.
    """

    __slots__ = ("_buckets", "_key", "_memory", "added")

    def __init__(self, descriptor: int | None = None, buckets: int = BUCKETS) -> None:
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, BYTES)
        self._memory.madvise(mmap.MADV_DONTDUMP)
        self._buckets = buckets
        self.added = 0
        if descriptor is None:
            self._memory[:KEY_BYTES] = secrets.token_bytes(KEY_BYTES)
        # Copied with its state for each digest, which is quicker than to begin with the key.
        self._key = hashlib.blake2b(key=self._memory[:KEY_BYTES], digest_size=DIGEST_BYTES)

    def has(self, user: str, stored: bytes, password: bytes) -> bool:
        """Return whether this password has fitted this user's hash before."""
        digest = self._digest(user, stored, password)
        at = self._bucket_of(digest)
        # Who asks does not know the key, so what differs first in two digests tells nothing.
        return self._memory.find(digest, at, at + BUCKET_BYTES) >= 0

    def add(self, user: str, stored: bytes, password: bytes) -> None:
        """Remember that a password fitted a user's hash; where there is no place, another login is forgotten."""
        digest = self._digest(user, stored, password)
        at = self._bucket_of(digest)
        if self._memory.find(digest, at, at + BUCKET_BYTES) >= 0:
            return
        places = range(at, at + BUCKET_BYTES, DIGEST_BYTES)
        empty = (place for place in places if self._memory[place : place + DIGEST_BYTES] == EMPTY)
        place = next(empty, places[digest[-1] % BUCKET_DIGESTS])
        self._memory[place : place + DIGEST_BYTES] = digest
        self.added += 1

    def _bucket_of(self, digest: bytes) -> int:
        return KEY_BYTES + int.from_bytes(digest[:4]) % self._buckets * BUCKET_BYTES

    def _digest(self, user: str, stored: bytes, password: bytes) -> bytes:
        name = user.encode()
        digest = self._key.copy()
        # With their lengths, so that no two triples are one text.
        digest.update(b"%d %d %b%b%b" % (len(name), len(stored), name, stored, password))
        return digest.digest()


def shared_memory() -> int:
    """Return the descriptor of memory that several VerifiedLogins share, with a new key. Raises OSError."""
    descriptor = os.memfd_create("shoal-logins", os.MFD_CLOEXEC)
    os.truncate(descriptor, BYTES)
    os.pwrite(descriptor, secrets.token_bytes(KEY_BYTES), 0)
    return descriptor
