"""The authenticators of the settings, asked one after the other."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.config.authenticator import DynamicSecurityTable, HttpTable, PasswordFileTable
from broker.config.host_resources import cores_available
from broker.config.listener_check import anonymous_allowed
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.auth.hashing import Hashing
    from broker.auth.verified_logins import VerifiedLogins
    from broker.config.authenticator import Authenticator as Table
    from broker.config.loader import Config
    from broker.wire.packets import Connect

Answer = Outcome | Ignored

NO_METHOD = Refused(Reason.BAD_AUTHENTICATION_METHOD, "no authentication method is known here")
NOBODY = Refused(Reason.NOT_AUTHORIZED, "this listener lets in nobody who does not prove who he is")
UNKNOWN = Refused(Reason.BAD_USER_NAME_OR_PASSWORD)


class Member(Protocol):
    """One authenticator of a chain. When its files change, what they say is read and used again."""

    @property
    def files(self) -> list[str]:
        """What it rests on, now."""

    @property
    def kind(self) -> str:
        """Its type in the settings."""

    def authenticate(self, connect: Connect, exchange: Exchange) -> Answer | Awaitable[Answer]:
        """Decide on a CONNECT, or ignore it. What it raises refuses the client."""

    def read(self) -> Any:
        """Read its files again. From any thread. Raises StartError."""

    def use(self, found: Any) -> None:
        """From now on, decide by what read() has returned."""

    async def run(self) -> None:
        """Do what it does beside its answers, until cancelled; or return, if there is nothing."""

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""


class Chain:
    """An Authenticator that asks others in their order: the first that does not ignore a client decides.

    Who is ignored by all is refused; a client without a user name is let in where anonymous clients may come in. Where
    the listener takes the user name of a certificate, or of a pre-shared key, that has proved who the client is: no
    other proof is asked for.

    Args:
        config: checked settings.
        members: in the order of the settings.
    """

    def __init__(self, config: Config, members: Sequence[Member]) -> None:
        named = {table.name: member for table, member in zip(config.authenticator, members, strict=False)}
        # By listener: those that it names, or all. Behind the listeners, who comes over HTTP.
        self._members = [
            tuple(members)
            if listener.authenticators is None
            else tuple(named[name] for name in listener.authenticators)
            for listener in config.listeners
        ]
        self._members.append(tuple(members))
        self._key = secrets.token_bytes(64)
        self._anonymous = [*(anonymous_allowed(config, listener) is True for listener in config.listeners), False]
        self._proved = [*(listener.username_from is not None for listener in config.listeners), False]

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        """Ask one after the other; at once, as long as they answer at once."""
        facts = exchange.facts
        listener = 0 if facts is None else facts.listener
        if self._proved[listener] and exchange.method is None and not exchange.again:
            return Accepted(connect.user_name)
        return self._ask(connect, exchange, listener, 0, [])

    def _ask(
        self, connect: Connect, exchange: Exchange, listener: int, begin: int, ignored: list[Ignored]
    ) -> Outcome | Awaitable[Outcome]:
        """Ask from member `begin` on; `ignored` is what those before have said."""
        members = self._members[listener]
        for number in range(begin, len(members)):
            answer = members[number].authenticate(connect, exchange)
            if isinstance(answer, Accepted):
                return answer  # most are, and to look for Awaitable takes longer than all of this
            if isinstance(answer, Awaitable):
                return self._ask_on(answer, connect, exchange, listener, number, ignored)
            if not isinstance(answer, Ignored):
                return answer
            ignored.append(answer)
        refusal = next((answer.refusal for answer in ignored if answer.refusal is not None), None)
        if exchange.method is not None:
            proving = next((one.before_refusal for one in ignored if one.before_refusal is not None), None)
            return _refuse_behind(proving, refusal or NO_METHOD) if proving is not None else refusal or NO_METHOD
        if connect.user_name is None:
            may_come = self._anonymous[listener] and not exchange.again
            return refusal or (Accepted(None) if may_come else NOBODY)
        refusal = refusal or UNKNOWN
        hiding = [answer.before_refusal for answer in ignored if answer.before_refusal is not None]
        if hiding:
            # One of them, as a user who is known costs the hashing of one file; the same for one name each time.
            chosen = hashlib.blake2b(connect.user_name.encode(), key=self._key, digest_size=8).digest()
            return _refuse_behind(hiding[int.from_bytes(chosen) % len(hiding)], refusal)
        return refusal

    async def _ask_on(
        self,
        deciding: Awaitable[Answer],
        connect: Connect,
        exchange: Exchange,
        listener: int,
        number: int,
        ignored: list[Ignored],
    ) -> Outcome:
        answer = await deciding
        if not isinstance(answer, Ignored):
            return answer
        outcome = self._ask(connect, exchange, listener, number + 1, [*ignored, answer])
        return await outcome if isinstance(outcome, Awaitable) else outcome


async def _refuse_behind(done_before: Callable[[], Awaitable[object]], refusal: Refused) -> Outcome:
    done = await done_before()
    return done if isinstance(done, Refused) else refusal


def members_of(config: Config, salts: bytes | None = None, logins: int | None = None) -> list[Member]:
    """Return the authenticators of the settings, in their order. Raises StartError: a file cannot be used.

    Passwords are hashed by as many processes as the broker has cores, over all workers.

    Args:
        salts: makes salts for users who do not exist, the same ones in all workers; None: random.
        logins: descriptor of the memory for verified logins that all workers share; None: they are this one's.
    """
    passwords = _passwords(config, logins) if takes_passwords(config) else None
    return [_member_of(number, table, passwords, salts) for number, table in enumerate(config.authenticator, 1)]


def takes_passwords(config: Config) -> bool:
    """Return whether there is an authenticator that hashes passwords."""
    return any(isinstance(table, PasswordFileTable | DynamicSecurityTable) for table in config.authenticator)


def _passwords(config: Config, logins: int | None) -> tuple[Hashing, VerifiedLogins]:
    # Imported here and below, so that a broker loads none of what it does not use.
    from broker.auth.hashing import Hashing
    from broker.auth.verified_logins import VerifiedLogins

    return Hashing(max(1, cores_available() // max(1, config.workers))), VerifiedLogins(logins)


def _member_of(
    number: int, table: Table, passwords: tuple[Hashing, VerifiedLogins] | None, salts: bytes | None
) -> Member:
    if isinstance(table, PasswordFileTable):
        from broker.auth.password_file import PasswordFile

        assert passwords is not None, table
        return PasswordFile(number, table.file, *passwords, salts)
    if isinstance(table, HttpTable):
        from broker.auth.http_authenticator import HttpAuthenticator

        return HttpAuthenticator(number, table)
    if isinstance(table, DynamicSecurityTable):
        from broker.auth.dynamic_security.authenticator import DynamicLogins

        assert passwords is not None, table
        return DynamicLogins(number, table.file, *passwords)
    from broker.auth.token_authenticator import TokenAuthenticator

    return TokenAuthenticator(number, table)


def check_authenticators(config: Config) -> None:
    """Read what the authenticators need, and let go of it: a file that cannot be used ends the start. StartError."""
    if config.workers > 1:
        members_of(config)
