"""Who a client is, by a server that is asked over HTTP."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.auth.http_client import HttpError
from broker.auth.http_contracts import ALLOW, CONTRACTS, IGNORE, Login, Question, Verdict, kept_for, verdict_of
from broker.auth.http_servers import HttpServers
from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.config.authenticator import HttpTable
    from broker.wire.packets import Connect

log = get("http_authenticator")

ANSWERS_MAX: Final = 65_536  # that are remembered; 15 MiB
WRONG: Final = Refused(Reason.BAD_USER_NAME_OR_PASSWORD)
UNAVAILABLE: Final = Refused(Reason.SERVER_UNAVAILABLE, "who decides on clients does not answer")


@dataclass(frozen=True, slots=True)
class Remembered:
    """An answer, until when it counts, and until when if no server answers; trio's clock."""

    verdict: Verdict
    until_s: float
    stale_until_s: float


class HttpAuthenticator:
    """Asks servers, the first of the settings that answers. What they say is remembered for as long as they say.

    A server that fails again and again is left alone for a while; if none answers, an answer that is remembered still
    counts where server or settings allow it, and else the client is told that the server is unavailable: that is no
    reason for a device to give up its credentials.

    Args:
        number: of its [[authenticator]] table, from 1.
        table: its settings.

    Raises StartError: a file cannot be used.
    """

    kind = "http"

    def __init__(self, number: int, table: HttpTable) -> None:
        self.number = number
        self._table = table
        self._key = secrets.token_bytes(64)
        self._answers: dict[bytes, Remembered] = {}
        self._generation = 0  # of answers: those of before a reload are not remembered behind it
        self.remembered = 0
        self._servers = HttpServers(f"authenticator {number}", table, self._failed)

    @property
    def files(self) -> list[str]:
        """What it rests on."""
        return self._servers.files

    def read(self) -> str | None:
        """Read what is sent as Authorization. From any thread. Raises StartError."""
        return self._servers.read()

    def use(self, found: str | None) -> None:
        """From now on, send this. What is remembered is forgotten: an operator wants it so."""
        self._servers.use(found)
        self._generation += 1
        self._answers.clear()

    async def run(self) -> None:
        """Wait for the end, and close the connections then."""
        await self._servers.run()

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {
            "authenticator": self.number,
            "type": self.kind,
            "contract": self._table.contract,
            "asked": self._servers.asked,
            "verified": len(self._answers),
            "failed": self._servers.failures,
            "trouble": self._servers.trouble,
        }

    def authenticate(self, connect: Connect, exchange: Exchange) -> Outcome | Ignored | Awaitable[Outcome | Ignored]:
        """Decide on a CONNECT: at once, where the answer is remembered; else when it is there."""
        if exchange.method is not None or exchange.again:
            return Ignored()
        try:
            password = None if connect.password is None else connect.password.decode()
        except UnicodeDecodeError:
            return Ignored()  # no contract can say it
        question = CONTRACTS[self._table.contract][0](_login_of(connect, password, exchange))
        key = hashlib.blake2b(question.body, key=self._key, digest_size=32).digest()
        known = self._answers.get(key)
        if known is not None and trio.current_time() < known.until_s:
            self.remembered += 1
            return self._outcome(known.verdict, connect)
        return self._ask(question, key, connect)

    async def _ask(self, question: Question, key: bytes, connect: Connect) -> Outcome | Ignored:
        generation = self._generation
        answered = await self._servers.ask(question, partial(verdict_of, self._table.contract))
        if answered is not None:
            verdict, headers = answered
            if generation == self._generation:
                self._remember(key, verdict, *kept_for(headers, self._table.cache_s, self._table.stale_s))
            return self._outcome(verdict, connect)
        known = self._answers.get(key)
        if known is not None and trio.current_time() < known.stale_until_s:
            return self._outcome(known.verdict, connect)
        return UNAVAILABLE

    def _failed(self, url: str, error: HttpError) -> None:
        log.warning("http_failed", authenticator=self.number, url=url, what=str(error))

    def _remember(self, key: bytes, verdict: Verdict, fresh_s: float, stale_s: float) -> None:
        self._answers.pop(key, None)
        if fresh_s + stale_s <= 0:
            return
        while len(self._answers) >= ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        now_s = trio.current_time()
        self._answers[key] = Remembered(verdict, now_s + fresh_s, now_s + fresh_s + stale_s)

    def _outcome(self, verdict: Verdict, connect: Connect) -> Outcome | Ignored:
        if verdict.result == IGNORE:
            return Ignored()
        if verdict.result != ALLOW or (verdict.expires_at_s is not None and verdict.expires_at_s <= time.time()):
            return WRONG
        return Accepted(
            verdict.user_name or connect.user_name,
            groups=verdict.groups,
            superuser=verdict.superuser,
            rules=verdict.rules,
            expires_at_s=verdict.expires_at_s,
        )


def _login_of(connect: Connect, password: str | None, exchange: Exchange) -> Login:
    host, _, port = (exchange.peer or "").rpartition(":")
    facts = exchange.facts
    certificate = None if facts is None else facts.certificate
    return Login(
        connect.client_identifier.decode(),
        connect.user_name,
        password,
        connect.version,
        connect.clean_start,
        host or None,
        int(port) if port.isdigit() else None,
        0 if facts is None else facts.listener,
        None if certificate is None else certificate.cn,
        None if certificate is None else certificate.dn,
    )
