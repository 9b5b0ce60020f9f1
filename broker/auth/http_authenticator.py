"""Who a client is, by a server that is asked over HTTP."""

from __future__ import annotations

import hashlib
import secrets
import ssl
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.auth.http_client import HttpClient, HttpError
from broker.auth.http_contracts import ALLOW, CONTRACTS, IGNORE, Login, Question, Verdict, kept_for, verdict_of
from broker.auth.outcome import Accepted, Ignored, Outcome, Refused
from broker.config.start_error import StartError
from broker.logs import get
from broker.wire.reasons import Reason

if TYPE_CHECKING:
    from broker.auth.enhanced_auth import Exchange
    from broker.config.authenticator import HttpTable
    from broker.wire.packets import Connect

log = get("http_authenticator")

ANSWERS_MAX: Final = 65_536  # that are remembered; 15 MiB
FAILURES_MAX: Final = 5  # one after the other, after which a server is left alone for a while
LEFT_ALONE_S: Final = (1.0, 30.0)  # the first time and at most
WRONG: Final = Refused(Reason.BAD_USER_NAME_OR_PASSWORD)
UNAVAILABLE: Final = Refused(Reason.SERVER_UNAVAILABLE, "who decides on clients does not answer")


@dataclass(slots=True)
class Endpoint:
    """One server, and whether it answers.

    Attributes:
        failures: one after the other.
        left_alone_until_s: trio's clock.
    """

    url: str
    client: HttpClient
    failures: int = 0
    left_alone_until_s: float = 0.0

    def failed(self) -> None:
        """It has not answered, or not as it should; of several questions at the same time it counts once a pause."""
        if trio.current_time() < self.left_alone_until_s:
            return
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            pause_s = min(LEFT_ALONE_S[0] * 2 ** (self.failures - FAILURES_MAX), LEFT_ALONE_S[1])
            self.left_alone_until_s = trio.current_time() + pause_s


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
        self._authorization: tuple[tuple[str, str], ...] = ()
        try:
            self._endpoints = [
                Endpoint(
                    url,
                    HttpClient(
                        url,
                        timeout_s=table.timeout_s,
                        connections_max=table.connections_max,
                        answer_bytes_max=65_536,
                        cafile=table.cafile,
                    ),
                )
                for url in table.urls
            ]
        except (OSError, ssl.SSLError) as error:
            raise StartError(
                f"authenticator {number}: The file {table.cafile} cannot be used: {error.strerror}."
            ) from error
        self.asked = self.remembered = self.failed = 0
        self.use(self.read())

    @property
    def files(self) -> list[str]:
        """What it rests on."""
        return [] if self._table.authorization_file is None else [self._table.authorization_file]

    def read(self) -> str | None:
        """Read what is sent as Authorization. From any thread. Raises StartError."""
        file = self._table.authorization_file
        if file is None:
            return None
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError as error:
            raise StartError(
                f"authenticator {self.number}: The file {file} cannot be read: {error.strerror}."
            ) from error
        except UnicodeDecodeError:
            text = ""
        if not text or not text.isprintable():
            raise StartError(
                f"authenticator {self.number}: The file {file} cannot be used: expected one line such as Bearer TOKEN."
            )
        return text

    def use(self, found: str | None) -> None:
        """From now on, send this. What is remembered is forgotten: an operator wants it so."""
        self._authorization = () if found is None else (("Authorization", found),)
        self._answers.clear()

    async def run(self) -> None:
        """Wait for the end, and close the connections then."""
        try:
            await trio.sleep_forever()
        finally:
            for endpoint in self._endpoints:
                await endpoint.client.aclose()

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {
            "authenticator": self.number,
            "type": self.kind,
            "contract": self._table.contract,
            "asked": self.asked,
            "verified": len(self._answers),
            "failed": self.failed,
            "trouble": ", ".join(one.url for one in self._endpoints if one.failures) or None,
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
        for endpoint in self._in_order():
            self.asked += 1
            try:
                answer = await endpoint.client.ask("POST", question.body, (*question.headers, *self._authorization))
                verdict = verdict_of(self._table.contract, answer)
            except HttpError as error:
                self.failed += 1
                endpoint.failed()
                log.warning("http_failed", authenticator=self.number, url=endpoint.url, what=str(error))
                continue
            endpoint.failures = 0
            self._remember(key, verdict, *kept_for(answer.headers, self._table.cache_s, self._table.stale_s))
            return self._outcome(verdict, connect)
        known = self._answers.get(key)
        if known is not None and trio.current_time() < known.stale_until_s:
            return self._outcome(known.verdict, connect)
        return UNAVAILABLE

    def _in_order(self) -> list[Endpoint]:
        """Return those who are not left alone, the ones that answered last time first."""
        now_s = trio.current_time()
        able = [one for one in self._endpoints if one.failures < FAILURES_MAX or one.left_alone_until_s <= now_s]
        return sorted(able, key=lambda one: one.failures > 0)

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
