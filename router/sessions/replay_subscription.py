"""A subscription to stored messages, `$replay/START/FILTER`: what a session remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

from router.log.replay_position import decode_position, is_position, parse_time
from router.matching.topic_names import check_topic_filter

if TYPE_CHECKING:
    from router.sessions.ledger import Ledger
    from router.sessions.session import Session

REPLAY_PREFIX: Final = b"$replay/"
NOT_OF_LOG_PREFIXES: Final = ("$share", "$replay")


class Recorder(Protocol):
    """What these functions need of a Router."""

    ledger: Ledger

    @property
    def recording(self) -> bool:
        """Whether there is a log."""


@dataclass(slots=True)
class ReplaySubscription:
    """How far a session has been given what a topic filter matches in the logs of all workers.

    Args:
        topic_filter: as it was given, which is its name.
        inner_filter: what stored messages have to match.
        options: Subscription Options byte (3.8.3.1); the granted QoS is 0 or 1.
        identifier: subscription identifier, 0 for none.
        numbers: worker -> the number of the record of its log behind which it goes on.
        since_us: in a log that is not among `numbers` it goes on with the first record of this time or later, µs since
            1970; None: with its beginning.
    """

    topic_filter: bytes
    inner_filter: bytes
    options: int
    identifier: int
    numbers: dict[int, int] = field(default_factory=dict)
    since_us: int | None = None

    def fields(self) -> tuple[bytes, int, int, int, list[int]]:
        """Return what the log keeps of it: the fields of `replay_in_logs` behind the client identifier."""
        return (self.topic_filter, self.options, self.identifier, -1 if self.since_us is None else self.since_us,
                list(chain.from_iterable(sorted(self.numbers.items()))))  # fmt: skip

    @classmethod
    def restored(
        cls, topic_filter: bytes, options: int, identifier: int, since_us: int, positions: list[int]
    ) -> ReplaySubscription:
        """Return what fields() was made of. Raises ValueError if nothing was."""
        split = split_replay(topic_filter)
        if split is None or len(positions) % 2 or not all(type(number) is int for number in positions):
            raise ValueError(f"{topic_filter!r} at {positions!r} is no place in stored messages")
        numbers = dict(zip(islice(positions, 0, None, 2), islice(positions, 1, None, 2), strict=True))
        return cls(topic_filter, split[1], options, identifier, numbers, None if since_us < 0 else since_us)


def split_replay(topic_filter: bytes) -> tuple[str, bytes] | None:
    """Return (start, inner filter) of `$replay/START/FILTER`, neither of them checked; None if it has not that form."""
    if not topic_filter.startswith(REPLAY_PREFIX):
        return None
    start, separator, inner_filter = topic_filter[len(REPLAY_PREFIX) :].partition(b"/")
    if not start or not separator or not inner_filter:
        return None
    return start.decode("utf-8", "replace"), inner_filter


def parse_replay(topic_filter: bytes, now_us: int) -> ReplaySubscription:
    """Return what a topic filter that begins with `$replay/` asks for, without its options.

    Args:
        topic_filter: as it was sent.
        now_us: the present, µs since 1970, for times that count from it.

    Raises ValueError with one sentence.
    """
    split = split_replay(topic_filter)
    if split is None:
        raise ValueError("expected $replay/START/TOPIC FILTER")
    start, inner_filter = split
    problem = check_topic_filter(inner_filter)
    if problem is not None:
        raise ValueError(problem)
    if inner_filter.split(b"/", 1)[0].decode() in NOT_OF_LOG_PREFIXES:
        raise ValueError("a topic filter of messages follows the start")
    if is_position(start):
        return ReplaySubscription(topic_filter, inner_filter, 0, 0, decode_position(start))
    return ReplaySubscription(topic_filter, inner_filter, 0, 0, since_us=parse_time(start, now_us))


def remember(router: Recorder, session: Session, subscription: ReplaySubscription) -> None:
    """Have a session remember a subscription, instead of one of the same topic filter if there is one.

    Whoever reads the log gives the messages.
    """
    if session.replays is None:
        session.replays = {}
    session.replays[subscription.topic_filter] = subscription
    note(router, session, subscription)


def note(router: Recorder, session: Session, subscription: ReplaySubscription) -> None:
    """Record how far a session's subscription has come: after a restart it goes on from there."""
    if router.recording and session.durable:
        ledger = router.ledger
        ledger.records.add("replay_in_logs", ledger.now_us, session.client_identifier, *subscription.fields())
