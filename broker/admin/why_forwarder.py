"""What a worker did for another one with the last messages on a topic that it accepted: its part of why.

As there, nothing is remembered for this: what the other worker is owed is looked up, the rest is read from the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.admin.session_history import ACCEPTED, DECISIONS_BEFORE, records
from broker.admin.why_receiver import (
    HISTORY_MAX,
    PAYLOAD_SHOWN,
    last_messages,
    owed_by_record,
    reading_log,
    why_arguments,
)
from broker.reactor import introspection
from broker.wire.rendering import options_fields, payload_fields, text_of, timestamp
from router.core.message import message as make_message
from router.log.record_kinds import BY_NAME, RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.admin.pagination import Row
    from broker.admin.worker_view import WorkerView
    from router.log.read_cache import LogWindows
    from router.log.record_cursor import Cursor
    from router.peers.peer import Peer

_COPY: Final = BY_NAME["copy"].number
_SHARED_PICK: Final = BY_NAME["shared_pick"].number
_ACKNOWLEDGED: Final = BY_NAME["peer_acknowledged"].number
_WISHES: Final = {BY_NAME["subscribe"].number, BY_NAME["unsubscribe"].number}


async def explain_passing(queries: WorkerView, arguments: Row) -> Row:
    """Return what is known here of the last messages on a topic that clients of this worker published.

    Args:
        arguments: topic, last; worker, the number of the one where they are wanted.
    """
    topic, last = why_arguments(arguments)
    router = queries.router
    peer = next(
        (peer for peer in router.peers.values() if peer.shares_node and peer.worker == arguments["worker"]), None
    )
    if peer is None:
        return {"worker": queries.number, "link": None, "filters": [], "messages": [], "unlogged": []}
    session = peer.session
    mesh = queries.worker.mesh
    neighbour = mesh.neighbours.get(peer.router_identifier) if mesh is not None else None
    matched = introspection.matching(router.tree, topic, session)
    owed = await owed_by_record(session, topic)
    answer: Row = {
        "worker": queries.number, "link": neighbour.link.state if neighbour is not None else None,
        "filters": [{"topic_filter": text_of(topic_filter), **options_fields(options & 0x03, 0),
                     "kept": not options & introspection.PASSING_INTEREST} for topic_filter, options, _ in matched],
        "would_be": introspection.outcome(session, make_message(topic, b"", 1), 1) if matched else "not_wanted",
        **introspection.queue_of(session),
    }  # fmt: skip
    async with reading_log(queries) as windows:
        answer["messages"] = (
            [] if windows is None else await _told_by_log(queries, windows, peer, topic, last, owed, answer["link"])
        )
    answer["unlogged"] = [
        {"fate": "waits_for_worker" if delivery[2] == "queued" else "on_its_way", "qos_granted": 1}
        for record, delivery in owed.items()
        if record <= 0
    ][:last]
    return answer


@dataclass(slots=True)
class Passed:
    """What the log says of what a peer was owed.

    Args:
        number: of its `peer` record.
        client_identifier: of the session that stands for it.

    Attributes:
        sent: record of an accepted message -> the records under which the peer was owed it.
        wished: the last record of a change of what it wants.
    """

    number: int
    client_identifier: bytes
    sent: dict[int, list[int]] = field(default_factory=dict)
    wished: int = 0
    _acknowledged: list[tuple[int, bool]] = field(default_factory=list)  # up to which record, and by the peer itself
    _copy: int = 0
    _picked: list[int] = field(default_factory=list)

    def take(self, cursor: Cursor) -> None:
        """Take in the record that a cursor stands at."""
        kind = cursor.kind
        if kind == ACCEPTED:
            named = [cursor.number] if self.number in cursor.fields()["peers"] else []
            self.sent[cursor.number] = named + self._picked
            self._picked = []
        elif kind == _COPY:
            self._copy = cursor.number
        elif kind == _SHARED_PICK:
            if cursor.fields()["client_identifier"] == self.client_identifier:
                self._picked = [*self._picked, self._copy]
        elif kind == _ACKNOWLEDGED:
            fields = cursor.fields()
            if fields["peer"] == self.number:
                # A peer answers for messages. Who forgets it does so for all that there is, behind its last wish's end.
                self._acknowledged.append((fields["record"], self.wished != fields["record"]))
        elif kind in _WISHES and cursor.fields()["client_identifier"] == self.client_identifier:
            self.wished = cursor.number

    def fates(self, record: int, owed: dict[int, Any], link: str | None, wanted: bool) -> Iterator[tuple[int, Row]]:
        """Yield what became of an accepted message for the peer: under which record it was owed, 0 if it was not."""
        sent = self.sent.get(record, [])
        if not sent:
            # A durable wish is in the log, so if it stood when this was accepted, there was no room.
            reason = "peer_gone" if wanted and record > self.wished else "not_wanted"
            yield 0, {"fate": "not_passed_on", "reason": reason}
        for owed_as in sent:
            if owed_as in owed:
                waits = owed[owed_as][2] == "queued"
                yield owed_as, {"fate": "waits_for_worker", "reason": link} if waits else {"fate": "on_its_way"}
                continue
            by_peer = next((by_peer for until, by_peer in self._acknowledged if until >= owed_as), True)
            yield owed_as, {"fate": "passed_on"} if by_peer else {"fate": "dropped", "reason": "peer_gone"}


async def _told_by_log(
    queries: WorkerView,
    windows: LogWindows,
    peer: Peer,
    topic: bytes,
    last: int,
    owed: dict[int, Any],
    link: str | None,
) -> list[Row]:
    found = await last_messages(queries, windows, topic, last, accepted_only=True)
    if not found:
        return []
    passed = Passed(peer.number, peer.session.client_identifier)
    first = max(found[0][0], windows.readable - HISTORY_MAX)
    async for cursor in records(windows, max(1, first - DECISIONS_BEFORE), HISTORY_MAX + DECISIONS_BEFORE):
        try:
            passed.take(cursor)
        except RecordError:
            continue
    matched = introspection.matching(queries.router.tree, topic, peer.session)
    wanted = any(options & 0x03 and not options & introspection.PASSING_INTEREST for _, options, _ in matched)
    rows = []
    for record, time_us, message, _ in found:
        row: Row = {
            "record": record,
            "time": timestamp(time_us),
            "qos": message.quality_of_service,
            "retain": message.retained,
            **payload_fields(message.body, PAYLOAD_SHOWN),
        }
        if message.quality_of_service == 0:
            rows.append({**row, "owed_as": 0, "fate": "qos0_not_recorded" if matched else "not_subscribed"})
        elif record < first:
            rows.append({**row, "owed_as": record, "fate": "unknown"})
        else:
            rows += [{**row, "owed_as": owed_as, **fate} for owed_as, fate in passed.fates(record, owed, link, wanted)]
    return rows
