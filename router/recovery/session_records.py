"""A session as records: in a snapshot, and in the log of another worker that it goes to."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.log.record_buffer import RecordBuffer
    from router.router import Router
    from router.sessions.session import Session

DELIVERIES_PER_RECORD: Final = 500


def record_wishes(records: RecordBuffer, now_us: int, router: Router, session: Session) -> None:
    """Record where a session's client lives, what it subscribes to, what it has replayed, and its will."""
    add, client_identifier = records.add, session.client_identifier
    if session.mount_point:
        add("mounted", now_us, client_identifier, session.mount_point)
    if session.principal is not None:
        add("principal", now_us, client_identifier, session.principal)
    for topic_filter, options, identifier in router.tree.subscriptions_of(session):
        add("subscribe", now_us, client_identifier, topic_filter, options, identifier)
    for replay in (session.replays or {}).values():
        add("replay_in_logs", now_us, client_identifier, *replay.fields())
    if session.will is not None:
        add("will", now_us, client_identifier, *session.will)


def record_fences(records: RecordBuffer, now_us: int, router: Router, session: Session) -> None:
    """Record up to where it was given what other workers retain, as far as their links may have that to bring yet."""
    for topic_filter, reached in router.retaining.fences.standing(session):
        ahead = [(worker, *place) for worker, place in reached.items() if not _has_come(router, worker, *place)]
        numbers = [number for fence in ahead for number in fence]
        if numbers:
            records.add("fenced", now_us, session.client_identifier, topic_filter, numbers)


def _has_come(router: Router, worker: int, incarnation: int, record: int) -> bool:
    # Which of two nodes is ours cannot be told here.
    peers = [peer for peer in router.peers.values() if peer.worker == worker]
    return bool(peers) and all(peer.heard_incarnation >= incarnation and peer.heard >= record for peer in peers)


def record_owed(records: RecordBuffer, now_us: int, session: Session, deliveries: Iterable[list[Any]]) -> None:
    """Record what a session is owed, under the numbers that it has, and what is in doubt of its client's messages.

    Args:
        deliveries: of session.owed, as its deliveries() gives them; none if it was never owed anything.
    """
    add, client_identifier = records.add, session.client_identifier
    if session.owed is not None:
        next_number, end_number = session.owed.numbers
        owed = iter(deliveries)
        some = list(islice(owed, DELIVERIES_PER_RECORD))
        while True:
            # Only the last one brings the numbers to where they were.
            following = list(islice(owed, DELIVERIES_PER_RECORD))
            last = some[-1][0] + 1 if following else end_number
            add("deliveries", now_us, client_identifier, min(next_number, last), last, some)
            if not following:
                break
            some = following
    if session.incoming_messages:
        add("incoming_messages", now_us, client_identifier, session.incoming_messages)
    for first_number, amount in session.shifts:
        add("shifted", now_us, client_identifier, first_number, amount)
