"""Who a client is, by a password file: mosquitto's, which `shoal passwd` and mosquitto_passwd write."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.auth.password_lines import PasswordLineError, PasswordLines, difference
from broker.config.start_error import StartError
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.auth.hashing import Hashing
    from broker.auth.verified_logins import VerifiedLogins
    from broker.wire.packets import Connect

log = get("password_file")

WRONG = Refused(Reason.BAD_USER_NAME_OR_PASSWORD)
SCRAM_FAILED = Refused(Reason.NOT_AUTHORIZED, "authentication failed")


class PasswordFile:
    """Accepts users of a file by their passwords, and refuses a wrong one; who is not in the file is ignored.

    A user who is not there costs as much hashing as one who is, if all other authenticators ignore the client too: by
    the time that a refusal takes, they cannot be told apart.

    Args:
        number: of its [[authenticator]] table, from 1.
        file: its path.
        hashing: hashes passwords.
        verified: logins that need no hashing.
        salts: makes SCRAM's salts for names that do not exist, the same ones as in other workers and after a restart:
            otherwise a salt that changes tells that a name does not exist. None: random.

    Raises StartError: the file cannot be used.

    Attributes:
        files: what it rests on.
        hashing: as given.
    """

    kind = "password_file"

    def __init__(
        self, number: int, file: str, hashing: Hashing, verified: VerifiedLogins, salts: bytes | None = None
    ) -> None:
        self.number = number
        self._salts = secrets.token_bytes(32) if salts is None else salts
        self._scram_iterations: Mapping[str, int] = {}
        self.files = [file]
        self._verified = verified
        self.hashing = hashing
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
            raise StartError(
                f"authenticator {self.number}: The password file {file} cannot be read: {error.strerror}. "
                f"`shoal passwd {file} USER` makes one."
            ) from error
        except PasswordLineError as error:
            raise StartError(
                f"authenticator {self.number}: The password file {file} cannot be used: {error}."
            ) from None
        return lines

    def use(self, lines: PasswordLines) -> None:
        """From now on, let in who is in these lines. Clients that are connected stay."""
        if lines.skipped:
            log.warning(
                "password_lines_skipped",
                file=self.files[0],
                lines=lines.skipped[:20],
                count=len(lines.skipped),
                what="there is no colon in them, so they are no users",
            )
        self._hashes = lines.hashes
        self._stored = lines.stored
        self._scram_iterations = lines.scram_iterations

    def users_changed(self, lines: PasswordLines) -> dict[str, Any]:
        """Return in words which users would be others by these lines. From any thread."""
        return difference(self._hashes, lines.hashes, Path(self.files[0]).name)

    async def run(self) -> None:
        """Look after the processes that hash."""
        await self.hashing.run()

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {
            "authenticator": self.number,
            "type": self.kind,
            "file": self.files[0],
            "users": len(self._hashes),
            "verified": self._verified.added,
        }

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Ignored | Awaitable[Outcome]:
        """Decide on a CONNECT: at once, where the login was verified before; else when its password has been hashed."""
        user, password = connect.user_name, connect.password
        if exchange.method is not None:
            return self._prove(exchange, exchange.method)
        if user is None:
            return Ignored()
        stored = self._hashes.get(user)
        if stored is None:
            return self._ignored(user, password)
        if password is None:
            return WRONG
        if self._verified.has(user, stored, password):
            return Accepted(user)
        return self._verify(user, stored, password)

    def _prove(self, exchange: Exchange, method: str) -> Ignored | Awaitable[Outcome]:
        """Have a client prove its password by SCRAM, if there is a user for whom that is kept."""
        if method not in self._scram_iterations:
            return Ignored()
        from broker.auth.scram import name_in

        # Without a first message it cannot be known who it is: the first file with such users asks.
        name = name_in(exchange.data) if exchange.data else None
        if name is None or self._scram_stored(name, method) is not None:
            return self._proved(exchange, method)
        # Another file may know it; if none does, it is asked for a proof all the same.
        return Ignored(partial(self._proved, exchange, method), SCRAM_FAILED)

    async def _proved(self, exchange: Exchange, method: str) -> Outcome:
        from broker.auth.scram import ScramCredentials, prove, unknown_credentials

        asked: list[bytes | None] = []

        def credentials_of(user_name: str) -> ScramCredentials:
            asked.append(stored := self._scram_stored(user_name, method))
            if stored is None:
                return unknown_credentials(user_name, self._salts, self._scram_iterations[method], method)
            return ScramCredentials.from_stored(stored)

        outcome = await prove(exchange, method, credentials_of)
        if isinstance(outcome, Accepted) and self._hashes.get(outcome.identity or "") != asked[0]:
            return SCRAM_FAILED  # the file was read again meanwhile
        return outcome

    def _scram_stored(self, user_name: str, method: str) -> bytes | None:
        """Return what is kept of a user for a method; None: there is no such user."""
        stored = self._hashes.get(user_name)
        return stored if stored is not None and stored.startswith(method.encode() + b"$") else None

    async def _verify(self, user: str, stored: bytes, password: bytes) -> Outcome:
        if not await self.hashing.fits(stored, password):
            return WRONG
        if self._hashes.get(user) != stored:
            return WRONG  # the file was read again meanwhile, and the user has another password, or is gone
        self._verified.add(user, stored, password)
        return Accepted(user)

    def _ignored(self, user: str, password: bytes | None) -> Ignored:
        if password is None or not self._stored:
            return Ignored()
        # Always the same hash for one name, as for a user who is there; among many names, each as often as in the file.
        chosen = hashlib.blake2b(user.encode(), key=self._key, digest_size=8).digest()
        stored = self._stored[int.from_bytes(chosen) % len(self._stored)]
        return Ignored(partial(self.hashing.fits, stored, password))
