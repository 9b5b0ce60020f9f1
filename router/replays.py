"""A subscription to stored messages, `$replay/START/FILTER`: what a session remembers of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from router.router import Router
    from router.session import Session

REPLAY_PREFIX: Final = b"$replay/"


@dataclass(slots=True)
class ReplaySubscription:
    """How far a session has been given what a topic filter matches in the log.

    Args:
        topic_filter: as it was given, which is its name.
        inner_filter: what stored messages have to match.
        options: Subscription Options byte (3.8.3.1); the granted QoS is 0 or 1.
        identifier: subscription identifier, 0 for none.
        number: the number of the record behind which it goes on.
        since_us: it goes on with the first record of this time or later instead, µs since 1970; None: `number` counts.
    """

    topic_filter: bytes
    inner_filter: bytes
    options: int
    identifier: int
    number: int = 0
    since_us: int | None = None

    def fields(self) -> tuple[bytes, int, int, int, int]:
        """Return what the log keeps of it, in the order of the record's fields behind the client identifier."""
        return (self.topic_filter, self.options, self.identifier, self.number,
                -1 if self.since_us is None else self.since_us)  # fmt: skip

    @classmethod
    def restored(
        cls, topic_filter: bytes, options: int, identifier: int, number: int, since_us: int
    ) -> ReplaySubscription:
        """Return what fields() was made of."""
        split = split_replay(topic_filter)
        assert split is not None, topic_filter
        return cls(topic_filter, split[1], options, identifier, number, None if since_us < 0 else since_us)


def split_replay(topic_filter: bytes) -> tuple[str, bytes] | None:
    """Return (start, inner filter) of `$replay/START/FILTER`, neither of them checked; None if it has not that form."""
    if not topic_filter.startswith(REPLAY_PREFIX):
        return None
    start, separator, inner_filter = topic_filter[len(REPLAY_PREFIX) :].partition(b"/")
    if not start or not separator or not inner_filter:
        return None
    return start.decode("utf-8", "replace"), inner_filter


def remember(router: Router, session: Session, subscription: ReplaySubscription) -> None:
    """Have a session remember a subscription, instead of one of the same topic filter if there is one.

    Whoever reads the log gives the messages.
    """
    if session.replays is None:
        session.replays = {}
    session.replays[subscription.topic_filter] = subscription
    note(router, session, subscription)


def note(router: Router, session: Session, subscription: ReplaySubscription) -> None:
    """Record how far a session's subscription has come: after a restart it goes on from there."""
    if router.recording and session.durable:
        ledger = router.ledger
        ledger.records.add("replay", ledger.now_us, session.client_identifier, *subscription.fields())
