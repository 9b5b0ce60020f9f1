"""Who a client is, by a password file: mosquitto's, which `shoal passwd` and mosquitto_passwd write."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.auth.password_hash import PasswordHash
from broker.auth.password_lines import PasswordLineError, PasswordLines
from broker.auth.verified_logins import VerifiedLogins
from broker.config.start_error import StartError
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.wire.packets import Connect

log = get("password_file")

WRONG = Refused(Reason.BAD_USER_NAME_OR_PASSWORD)


class PasswordFile:
    """Accepts users of a file by their passwords, and refuses a wrong one; who is not in the file is ignored.

    A user who is not there costs as much hashing as one who is, if all other authenticators ignore the client too: by
    the time that a refusal takes, they cannot be told apart.

    Args:
        number: of its [[authenticator]] table, from 1.
        file: its path.
        hashing: how many passwords are hashed at once, in threads.

    Raises StartError: the file cannot be used.

    Attributes:
        files: what it rests on.
        verified: logins that need no hashing.
    """

    kind = "password_file"

    def __init__(self, number: int, file: str, hashing: trio.CapacityLimiter) -> None:
        self.number = number
        self.files = [file]
        self.verified = VerifiedLogins()
        self._hashing = hashing
        self._key = secrets.token_bytes(64)
        self._hashes: Mapping[str, bytes] = {}
        self._stored: tuple[bytes, ...] = ()
        self.use(self.read())

    def read(self) -> PasswordLines:
        """Read the file, and return what it says. From any thread. Raises StartError."""
        (file,) = self.files
        try:
            lines = PasswordLines(Path(file).read_bytes())
        except OSError as error:
            raise StartError(f"authenticator {self.number}: The password file {file} cannot be read: {error.strerror}. "
                             f"`shoal passwd {file} USER` makes one.") from error
        except PasswordLineError as error:
            raise StartError(
                f"authenticator {self.number}: The password file {file} cannot be used: {error}.") from None
        if any(PasswordHash(stored).kind == "argon2id" for stored in lines.hashes.values()):
            import argon2.low_level  # noqa: F401  (here, and not at the first login)
        return lines

    def use(self, lines: PasswordLines) -> None:
        """From now on, let in who is in these lines. Clients that are connected stay."""
        if lines.skipped:
            log.warning("password_lines_skipped", file=self.files[0], lines=lines.skipped[:20],
                        count=len(lines.skipped), what="there is no colon in them, so they are no users")
        self._hashes = lines.hashes
        self._stored = lines.stored

    async def run(self) -> None:
        """Nothing has to be done beside the answers."""

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {"authenticator": self.number, "type": self.kind, "file": self.files[0], "users": len(self._hashes),
                "verified": len(self.verified)}

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Ignored | Awaitable[Outcome]:
        """Decide on a CONNECT: at once, where the login was verified before; else when its password has been hashed."""
        user, password = connect.user_name, connect.password
        if user is None or exchange.method is not None:
            return Ignored()
        stored = self._hashes.get(user)
        if stored is None:
            return self._ignored(user, password)
        if password is None:
            return WRONG
        if self.verified.has(user, stored, password):
            return Accepted(user)
        return self._verify(user, stored, password)

    async def _verify(self, user: str, stored: bytes, password: bytes) -> Outcome:
        if not await self._fits(stored, password):
            return WRONG
        if self._hashes.get(user) != stored:
            return WRONG             # the file was read again meanwhile, and the user has another password, or is gone
        self.verified.add(user, stored, password)
        return Accepted(user)

    def _ignored(self, user: str, password: bytes | None) -> Ignored:
        if password is None or not self._stored:
            return Ignored()
        # Always the same hash for one name, as for a user who is there; among many names, each as often as in the file.
        chosen = hashlib.blake2b(user.encode(), key=self._key, digest_size=8).digest()
        stored = self._stored[int.from_bytes(chosen) % len(self._stored)]
        return Ignored(partial(self._fits, stored, password))

    async def _fits(self, stored: bytes, password: bytes) -> bool:
        return await trio.to_thread.run_sync(hash_fits, stored, password, limiter=self._hashing)


def hash_fits(stored: bytes, password: bytes) -> bool:
    """Return whether a password fits a hash; the one place at which a login costs time."""
    return PasswordHash(stored).fits(password)
