"""What happened to the last messages on a topic for a client, as far as state and log can tell.

Nothing is remembered for this: what the session is owed is looked up in its queue, and what was accepted, left out or
dropped is read back from the log. What rested on no record left no trace; who wants to know about that looks on while
it happens (broker.control.tracing).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.admin.pagination import QueryError, Row
from broker.admin.route_query import receiver_row, topic_of
from broker.admin.session_history import ACCEPTED, FORWARDED, plain_filters, read_history, records
from broker.admin.why_merge import LAST_DEFAULT
from broker.reactor import introspection
from broker.wire.rendering import options_fields, payload_fields, text_of, timestamp
from router.core.message import message as make_message
from router.log.read_cache import LogWindows
from router.log.record_scan import Scan

if TYPE_CHECKING:
    from broker.admin.worker_view import WorkerView
    from router.log.record_cursor import Cursor
    from router.peers.peer import Peer
    from router.sessions.session import Session

LAST_MAX: Final = 100
RECORDS_FIRST: Final = 2_000  # looked at from the end of the log; then four times as many, and so on
SPAN_MAX: Final = 1_000_000  # records: no further back
LOOKED_AT_MAX: Final = 100_000  # messages on the topic among them
DELIVERIES_MAX: Final = 200_000
DELIVERIES_PER_STEP: Final = 2_000
HISTORY_MAX: Final = 50_000  # records that are looked at for what became of messages
FILTERS_MAX: Final = 1_000  # subscriptions of the client that count for it
PAYLOAD_SHOWN: Final = 64


async def explain(queries: WorkerView, arguments: Row) -> Row:
    """Return what is known of the last messages on a topic for a client.

    Args:
        arguments: client, topic, last (how many messages).
    """
    topic, last = why_arguments(arguments)
    session = queries.session_of(arguments)
    tree = queries.router.tree
    row = receiver_row(queries, session, topic, make_message(topic, b"", 2), None)
    matched = introspection.matching(tree, topic, session)
    connection = session.connection
    answer: Row = {
        "client": arguments["client"], "topic": arguments["topic"], "worker": queries.number,
        "connected": session.connected,
        "session_expiry_interval_s": session.expiry_interval_s,
        "filters": [{"topic_filter": text_of(topic_filter), **options_fields(options, identifier)}
                    for topic_filter, options, identifier in matched],
        "would_be": _would_be(row, matched), "decided_by": None if row is None else row.get("decided_by"),
        **introspection.queue_of(session),
        "dropped": {} if connection is None else connection.dropped(),
    }  # fmt: skip
    await trio.lowlevel.checkpoint()
    owed = await owed_by_record(session, topic)
    async with reading_log(queries) as windows:
        answer["log"] = windows is not None
        answer["messages"] = [] if windows is None else await _told_by_log(queries, windows, session, topic, last, owed)
    answer["unlogged"] = [_state(delivery) for (record, delivery) in owed.items() if record <= 0][:last]
    return answer


def why_arguments(arguments: Row) -> tuple[bytes, int]:
    """Return topic name and number of messages of a question. Raises QueryError."""
    topic = topic_of(arguments)
    last = arguments.get("last", LAST_DEFAULT)
    if not 1 <= last <= LAST_MAX:
        raise QueryError(400, "bad_argument", f"last is 1 to {LAST_MAX}, not {last}.")
    return topic, last


@asynccontextmanager
async def reading_log(queries: WorkerView) -> AsyncIterator[LogWindows | None]:
    """Read a worker's log within the block, None if it has none. What cannot be read becomes a QueryError."""
    store = queries.worker.store
    if store is None:
        yield None
        return
    windows = LogWindows(store.log)
    try:
        yield windows
    except OSError as error:
        raise QueryError(503, "log_unreadable", f"The log cannot be read now: {error.strerror}.") from None
    finally:
        windows.close()


def _would_be(row: Row | None, matched: list[Any]) -> str:
    if not matched:
        return "no_subscription"
    return str(row["outcome"]) if row is not None else "shared_subscription"


async def owed_by_record(session: Session, topic: bytes) -> dict[int, Any]:
    """Return what the session is owed by the number of its record; what is in memory only, under 0 and below."""
    found: dict[int, Any] = {}
    place = 0
    looked_at = 0
    while looked_at < DELIVERIES_MAX:
        deliveries, place = introspection.deliveries(session, place, DELIVERIES_PER_STEP)
        for delivery in deliveries:
            if delivery[5]:
                found[delivery[5]] = delivery
            elif delivery[8] == topic:
                found[-len(found)] = delivery
        looked_at += DELIVERIES_PER_STEP
        await trio.lowlevel.checkpoint()
        if not place:
            break
    return found


def _state(delivery: tuple[Any, ...]) -> Row:
    number, identifier, state, qos = delivery[:4]
    words = {"queued": "queued", "sent": "sent_not_acknowledged", "released": "received_not_complete"}
    return {
        "fate": words[state],
        "delivery": number,
        "qos_granted": qos,
        **({} if state == "queued" else {"packet_identifier": identifier}),
    }


async def last_messages(
    queries: WorkerView, windows: LogWindows, topic: bytes, last: int, *, accepted_only: bool = False
) -> list[Any]:
    """Return the last messages on a topic that the log has, oldest first: (record, time in µs, message, origin).

    Those that another worker accepted are among them, if they came here, unless only those are asked for that were
    accepted here. The origin is the number of that worker's `peer` record and the message's record there, or (0, 0).
    Raises OSError.
    """
    ledger = queries.router.ledger
    end = windows.readable
    span = RECORDS_FIRST
    while True:
        first = max(1, end - span + 1)
        found: deque[Any] = deque(maxlen=last)
        async for cursor in records(windows, first, LOOKED_AT_MAX, Scan(topic, accepted_only=accepted_only)):
            if cursor.kind in (ACCEPTED, FORWARDED):
                found.append(
                    (
                        cursor.number,
                        cursor.time_us,
                        cursor.message(ledger.now_us, ledger.now_ms),
                        _origin(cursor) if cursor.kind == FORWARDED else (0, 0),
                    )
                )
        if len(found) == last or first == 1 or span >= SPAN_MAX:
            return list(found)
        span *= 4


def _origin(cursor: Cursor) -> tuple[int, int]:
    fields = cursor.fields()
    return fields["origin"], fields["n"]


async def _told_by_log(
    queries: WorkerView, windows: LogWindows, session: Session, topic: bytes, last: int, owed: dict[int, Any]
) -> list[Row]:
    """Return the last messages on a topic, each with what became of it for the session. Raises OSError."""
    found = await last_messages(queries, windows, topic, last)
    if not found:
        return []
    subscriptions, _ = introspection.subscriptions_below(
        queries.router.tree, session, session.subscription_count, FILTERS_MAX
    )
    filters = plain_filters(subscriptions)
    first = max(found[0][0], windows.readable - HISTORY_MAX)
    history = await read_history(
        windows, session.client_identifier, filters, len(filters) < len(subscriptions), first, HISTORY_MAX + FILTERS_MAX
    )
    deliveries = session.owed
    end_number = deliveries.numbers[1] if deliveries is not None else 0
    numbers = history.numbers(end_number, {record: delivery[0] for record, delivery in owed.items() if record > 0})
    peers = {peer.number: peer for peer in queries.router.peers.values()}
    rows = []
    for record, time_us, message, (origin, record_there) in found:
        row: Row = {
            "record": record,
            "time": timestamp(time_us),
            "qos": message.quality_of_service,
            "retain": message.retained,
            **_published_at(queries, peers.get(origin), record_there),
            **payload_fields(message.body, PAYLOAD_SHOWN),
        }
        if record in owed:
            row |= _state(owed.pop(record))
        elif message.quality_of_service == 0 or not history.wants_qos(topic):
            row["fate"] = "qos0_not_recorded" if history.matches(topic) else "not_subscribed"
        else:
            row |= history.fate(record, numbers, bool(session.shifts))
        rows.append(row)
    return rows


def _published_at(queries: WorkerView, peer: Peer | None, record_there: int) -> Row:
    """Return the worker where a message was accepted, by its number or, of another node, its router's name."""
    if peer is None:
        return {"worker": queries.number}
    return {
        "worker": peer.worker if peer.shares_node else text_of(peer.router_identifier),
        **({"record_there": record_there} if record_there else {}),
    }
