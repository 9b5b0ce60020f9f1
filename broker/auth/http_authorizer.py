"""What clients may do, by a server that is asked over HTTP."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.auth.acl import inner_filter
from broker.auth.http_client import HttpError
from broker.auth.http_contracts import ALLOW, DENY, IGNORE, Question, kept_for
from broker.auth.http_rights import WISHES, Wish, answer_to
from broker.auth.http_servers import HttpServers
from broker.config.http_table import shown_url
from broker.logs import get

if TYPE_CHECKING:
    from broker.auth.principal import Principal
    from broker.config.authorizer import HttpRightsTable

log = get("http_authorizer")

ANSWERS_MAX: Final = 65_536  # that are remembered; 15 MiB
LEAST_S: Final = 1.0  # for which each answer counts; the message path, which remembers them itself, asks as often
TURN_S: Final = 30.0  # for which a client waits until the servers have time for its question

# What is known, as broker.auth.rule_chain has it.
DENIED: Final = 0
ALLOWED: Final = 1
IGNORED: Final = -1
UNKNOWN: Final = -2
UNAVAILABLE: Final = -3
_CODES: Final = {ALLOW: ALLOWED, DENY: DENIED, IGNORE: IGNORED}
_WORDS: Final = {ALLOWED: "allow", DENIED: "deny", UNKNOWN: "not asked yet", UNAVAILABLE: "no answer"}


@dataclass(frozen=True, slots=True)
class Known:
    """An answer, until when it counts, and until when if no server answers; the monotonic clock."""

    code: int
    until_s: float
    stale_until_s: float


class HttpAuthorizer:
    """A member of a RuleChain that asks servers, and remembers what they say for as long as they say.

    It answers at once what it knows. What it does not know has to be asked before, which takes its time. If no server
    answers, an answer that is remembered still counts where server or settings allow it; else it is UNAVAILABLE for a
    second, which is no refusal. So it is if the servers have no time for the question within TURN_S.

    Args:
        number: of its [[authorizer]] table, from 1.
        table: its settings.

    Raises StartError: a file cannot be used.

    Attributes:
        holds: returns whether a client has been granted, as a whole, a topic filter that matches a topic name.
    """

    kind = "http"

    def __init__(self, number: int, table: HttpRightsTable) -> None:
        self.number = number
        self._table = table
        self._key = secrets.token_bytes(64)
        self._generation = 0  # of answers: they count for that in which they were asked for
        self._answers: dict[bytes, Known] = {}
        self._places = trio.CapacityLimiter(table.connections_max)
        self.holds: Callable[[bytes, bytes], bool] = lambda _client_identifier, _topic_name: False
        self._servers = HttpServers(f"authorizer {number}", table, self._failed)

    def __str__(self) -> str:
        return f"authorizer {self.number}, {shown_url(self._table.urls[0])}"

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
            "authorizer": self.number,
            "type": self.kind,
            "url": shown_url(self._table.urls[0]),
            "asked": self._servers.asked,
            "remembered": len(self._answers),
            "failed": self._servers.failures,
            "trouble": self._servers.trouble,
        }

    # Answers ----------------------------------------------------------------------------------------------------------

    def known(self, principal: Principal, action: str, name: bytes, qos: int, retain: bool) -> int:
        """Return what is known of a wish: ALLOWED, DENIED, IGNORED, UNKNOWN or UNAVAILABLE.

        Args:
            action: publish or subscribe.
            name: a topic name; of subscribe, a topic filter.
        """
        known = self._answers.get(self._asked(principal, action, name, qos, retain)[2])
        return known.code if known is not None and self._counts(known) else UNKNOWN

    def may_read(self, principal: Principal, topic_name: bytes) -> bool:
        """Return whether a topic is matched by what a client was granted: servers decide on topic filters."""
        return self.holds(principal.client_identifier, topic_name)

    def allows(self, code: int) -> bool:
        """Return whether an answer allows something."""
        return code == ALLOWED

    def described(self, code: int) -> str:
        """Return an answer in words."""
        return f"{self}: {_WORDS[code]}"

    async def ask(self, principal: Principal, action: str, name: bytes, qos: int, retain: bool) -> None:
        """Have known() know a wish, for a second at least."""
        wish, question, key = self._asked(principal, action, name, qos, retain)
        answered = None
        with trio.move_on_after(TURN_S) as turn:
            async with self._places:
                turn.deadline = math.inf  # from here on a question has its own time
                generation = -1
                while generation != self._generation:  # what was said before a reload counts no more
                    generation = self._generation
                    if self._counts(self._answers.get(key)):
                        return  # somebody else has asked the same
                    answered = await self._servers.ask(
                        question, lambda answer: answer_to(self._table.contract, answer, wish)
                    )
        known = self._answers.get(key)
        now_s = time.monotonic()
        if answered is None:
            if known is not None and now_s < known.stale_until_s:
                self._remember(key, Known(known.code, now_s + LEAST_S, known.stale_until_s))
            else:
                self._remember(key, Known(UNAVAILABLE, now_s + LEAST_S, 0.0))
            return
        result, headers = answered
        fresh_s, stale_s = kept_for(headers, self._table.cache_s, self._table.stale_s)
        fresh_s = max(fresh_s, LEAST_S)
        self._remember(key, Known(_CODES[result], now_s + fresh_s, now_s + fresh_s + stale_s))

    def _asked(
        self, principal: Principal, action: str, name: bytes, qos: int, retain: bool
    ) -> tuple[Wish, Question, bytes]:
        if action == "subscribe":
            name = inner_filter(name)
        wish = Wish(principal, action, name.decode(), qos, retain)
        question = WISHES[self._table.contract][0](wish)
        return (
            wish,
            question,
            hashlib.blake2b(question.body, key=self._key, person=action.encode(), digest_size=32).digest(),
        )

    def _counts(self, known: Known | None) -> bool:
        return known is not None and time.monotonic() < known.until_s

    def _remember(self, key: bytes, known: Known) -> None:
        self._answers.pop(key, None)
        while len(self._answers) >= ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = known

    def _failed(self, url: str, error: HttpError) -> None:
        log.warning("http_authorizer_failed", authorizer=self.number, url=url, what=str(error))
