"""Rules on trial: asked beside those that count, whenever these are asked, and only counted."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from broker.auth.acl import Grant
from broker.logs import get
from broker.wire.rendering import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.auth.principal import Principal
    from broker.auth.rule_chain import RuleChain

log = get("acl")

ROWS_MAX: Final = 1_000  # of user, action and topic
RULES_MAX: Final = 1_000
SHOWN_CHARACTERS_MAX: Final = 200  # of a name or topic that is kept
LOGGED_S: Final = 10.0  # between two lines of the log

REFUSED, NARROWED, ALLOWED = "refused", "narrowed", "allowed"


class Shadow:
    """Rules on trial, and how their answers differ from those that count.

    An answer that is remembered is not asked for again: what is counted is a client and a topic name or filter, and not
    each message. Nothing here decides, and what fails here refuses nobody.

    Args:
        chain: as the rules that count, with the files on trial in the place of others.
        clock: seconds, monotonic.

    Attributes:
        refused: answers that would be a no, or narrower.
        allowed: answers that would be a yes, or wider.
    """

    def __init__(self, chain: RuleChain, clock: Callable[[], float] = time.monotonic) -> None:
        self.chain = chain
        self.refused = self.allowed = 0
        self._clock = clock
        self._rows: dict[tuple[str, str | None, str, str], _Row] = {}
        self._beyond = 0
        self._rules: Counter[tuple[str, str]] = Counter()
        self._since_s = clock()
        self._logged_s = -LOGGED_S
        self._not_logged = 0

    def begin_anew(self) -> None:
        """Count from nothing: the rules are others."""
        self.refused = self.allowed = self._beyond = 0
        self._rows.clear()
        self._rules.clear()
        self._since_s = self._clock()

    def published(self, principal: Principal, topic_name: bytes, qos: int, retain: bool, allowed: bool) -> None:
        """Compare an answer about a PUBLISH."""
        try:
            if self.chain.may_publish(principal, topic_name, qos, retain) != allowed:
                self._note(ALLOWED if not allowed else REFUSED, principal, "publish", topic_name, qos, retain)
        except Exception:
            log.exception("shadow_failed")

    def read(self, principal: Principal, topic_name: bytes, allowed: bool) -> None:
        """Compare an answer about a topic of a subscription that is narrowed."""
        try:
            if self.chain.may_read(principal, topic_name) != allowed:
                self._note(ALLOWED if not allowed else REFUSED, principal, "read", topic_name)
        except Exception:
            log.exception("shadow_failed")

    def subscribed(self, principal: Principal, topic_filter: bytes, qos: int, granted: Grant) -> None:
        """Compare an answer about a SUBSCRIBE, the topic filter without $share and $replay."""
        try:
            would_be = self.chain.may_subscribe(principal, topic_filter, qos)
            if would_be != granted:
                verdict = ALLOWED if would_be > granted else NARROWED if would_be == Grant.NARROWED else REFUSED
                self._note(verdict, principal, "subscribe", topic_filter, qos)
        except Exception:
            log.exception("shadow_failed")

    def used(self, principal: Principal, topic_filter: bytes, allowed: bool) -> None:
        """Compare an answer about $share or $replay, whatever is subscribed by it."""
        try:
            if self.chain.may_use(principal, topic_filter) != allowed:
                self._note(ALLOWED if not allowed else REFUSED, principal, "subscribe", topic_filter)
        except Exception:
            log.exception("shadow_failed")

    def _note(
        self, verdict: str, principal: Principal, action: Any, name: bytes, qos: int = 0, retain: bool = False
    ) -> None:
        by = self.chain.explain(principal, action, name, qos, retain).by[:SHOWN_CHARACTERS_MAX]
        if verdict == ALLOWED:
            self.allowed += 1
        else:
            self.refused += 1
        if (verdict, by) in self._rules or len(self._rules) < RULES_MAX:
            self._rules[verdict, by] += 1
        user = None if principal.user_name is None else principal.user_name[:SHOWN_CHARACTERS_MAX]
        topic = text_of(name[: 4 * SHOWN_CHARACTERS_MAX])[:SHOWN_CHARACTERS_MAX]
        key = verdict, user, action, topic
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                self._beyond += 1
            else:
                row = self._rows[key] = _Row()
        client = text_of(principal.client_identifier[: 4 * SHOWN_CHARACTERS_MAX])[:SHOWN_CHARACTERS_MAX]
        if row is not None:
            row.count += 1
            row.by, row.client = by, client
        if verdict != ALLOWED:
            self._say(verdict, client, user, action, topic, by)

    def _say(self, verdict: str, client: str, user: str | None, action: str, topic: str, by: str) -> None:
        now_s = self._clock()
        if now_s < self._logged_s + LOGGED_S:
            self._not_logged += 1
            return
        log.info(
            "shadow_would_refuse",
            verdict=verdict,
            client=client,
            user=user,
            action=action,
            topic=topic,
            decided_by=by,
            not_logged=self._not_logged,
        )
        self._logged_s, self._not_logged = now_s, 0

    def describe(self) -> dict[str, Any]:
        """Return what an operator sees of it."""
        return {
            "for_s": round(self._clock() - self._since_s, 1),
            "refused": self.refused,
            "allowed": self.allowed,
            "beyond": self._beyond,
            "rules": [
                {"verdict": verdict, "decided_by": by, "count": count} for (verdict, by), count in self._rules.items()
            ],
            "rows": [
                {
                    "verdict": verdict,
                    "user": user,
                    "action": action,
                    "topic": topic,
                    "client": row.client,
                    "decided_by": row.by,
                    "count": row.count,
                }
                for (verdict, user, action, topic), row in self._rows.items()
            ],
        }


class _Row:
    """How often, who it was last, and what would decide."""

    __slots__ = ("by", "client", "count")

    def __init__(self) -> None:
        self.count = 0
        self.by = self.client = ""
