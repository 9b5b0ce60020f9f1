"""What the log says became of messages for one session: read from a place to its end, in steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import trio

from broker.wire.rendering import timestamp
from router.core.receiver import NARROWED_OPTION, NO_LOCAL_BIT, QOS_BITS
from router.log.record_cursor import Cursor
from router.log.record_kinds import BY_NAME, RecordError
from router.log.record_scan import Scan, matches
from router.log.segments import END, RECORDS_AT, SHORT

if TYPE_CHECKING:
    from broker.admin.pagination import Row
    from router.log.read_cache import LogWindows

WINDOW_BYTES: Final = 131_072
RECORDS_PER_STEP: Final = 300  # some 2 ms
DECISIONS_BEFORE: Final = 64  # records that may stand before a message's own and belong to it
PACKET_IDENTIFIERS: Final = 65_535
PUBREC: Final = 5
PUBCOMP: Final = 7
FAILED: Final = 0x80

ACCEPTED, FORWARDED = BY_NAME["accepted"].number, BY_NAME["forwarded"].number
ACKNOWLEDGED = BY_NAME["acknowledged"].number
_TOLD = {
    BY_NAME[name].number: name
    for name in ("skipped", "readers", "shared_pick", "dropped", "delivery", "subscribe", "unsubscribe", "ended")
}


async def records(windows: LogWindows, first: int, limit: int, scan: Scan | None = None) -> AsyncIterator[Cursor]:
    """Walk a cursor over what is durable, from record `first` on, `limit` records at most.

    Args:
        limit: records that are looked at; with a scan, those that it finds.
        scan: what is wanted; None: every record.

    Raises OSError.
    """
    headers = list(windows.log.headers)
    place = windows.log.locate(max(1, first))
    readable = windows.readable
    if place is None:
        return
    count = 0
    for header in headers:
        if header.segment < place.segment:
            continue
        begins = header.segment == place.segment
        offset = place.offset if begins else RECORDS_AT
        number = (place.number if begins else header.first_number) - 1
        length = WINDOW_BYTES
        while True:
            try:
                data = windows.read(header, offset, length)
            except FileNotFoundError:
                break  # removed meanwhile
            cursor = Cursor(data, offset, header.mark, number)
            while cursor.step() if scan is None else scan.next(cursor):
                if cursor.number > readable:
                    return
                if cursor.number >= first:
                    yield cursor
                count += 1
                if count == limit:
                    return
                if count % RECORDS_PER_STEP == 0:
                    await trio.lowlevel.checkpoint()
            passed = cursor.base + cursor.offset - offset
            if cursor.status not in (END, SHORT) or (not passed and len(data) < length):
                break
            await trio.lowlevel.checkpoint()
            length = WINDOW_BYTES if passed else max(length * 2, cursor.needed())
            offset += passed
            number = cursor.number


@dataclass(slots=True)
class Owed:
    """One delivery that the session came to owe, in the order of their numbers."""

    record: int


@dataclass(slots=True)
class History:
    """What records say of one session.

    Args:
        client_identifier: the session's.
        filters: its subscriptions now, without those that are shared: topic filter -> options.
        shared: it has shared ones too.

    Attributes:
        since: from this record on its subscriptions have been what they are now.
    """

    client_identifier: bytes
    filters: dict[bytes, int]
    shared: bool = False
    since: int = 0
    owed: list[Owed] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)  # record -> reason
    own: set[int] = field(default_factory=set)  # published by the client, with No Local
    left_out: set[int] = field(default_factory=set)  # it may not read them
    dropped: dict[int, str] = field(default_factory=dict)  # delivery number -> reason
    answers: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    picked_others: set[int] = field(default_factory=set)  # shared: somebody else got it
    wants: dict[bytes, tuple[int, bool, bool]] = field(default_factory=dict)
    _reads: bool = False
    _pending: str = ""
    _picks: int = 0
    _other_picks: int = 0

    def take(self, cursor: Cursor) -> None:
        """Take in the record that a cursor stands at."""
        kind = cursor.kind
        if kind == ACKNOWLEDGED:
            fields = cursor.fields()
            if fields["client_identifier"] == self.client_identifier:
                self.answers.setdefault(fields["packet_identifier"], []).append(
                    (cursor.number, cursor.time_us, fields["packet_type"], fields["reason"])
                )
        elif kind in (ACCEPTED, FORWARDED):
            self._accept(cursor.number, cursor.fields())
        elif kind in _TOLD:
            self._hear(_TOLD[kind], cursor.number, cursor.fields())

    def _accept(self, number: int, fields: Row) -> None:
        granted, only_foreign, narrowed = self._wanted(fields["topic_name"])
        qos = fields["qos"]
        if self._pending:
            self.skipped[number] = self._pending
        elif only_foreign and fields["publisher"] == self.client_identifier:
            self.own.add(number)
        elif min(granted, qos) > 0 and narrowed and not self._reads and not fields["picked"]:
            self.left_out.add(number)
        elif min(granted, qos) > 0 and not fields["picked"]:  # else for members of shared subscriptions only
            self.owed.append(Owed(number))
        self.owed += [Owed(number)] * self._picks
        if self._other_picks and not self._picks:
            self.picked_others.add(number)
        self._pending, self._reads, self._picks, self._other_picks = "", False, 0, 0

    def _wanted(self, topic: bytes) -> tuple[int, bool, bool]:
        known = self.wants.get(topic)
        if known is None:
            options = [option for topic_filter, option in self.filters.items() if matches(topic_filter, topic)]
            known = (
                max((option & QOS_BITS for option in options), default=0),
                bool(options) and all(option & NO_LOCAL_BIT for option in options),
                all(option & NARROWED_OPTION for option in options),
            )
            if len(self.wants) < 10_000:
                self.wants[topic] = known
        return known

    def matches(self, topic: bytes) -> bool:
        """Return whether a subscription of its own, not a shared one, matches a topic name."""
        return any(matches(topic_filter, topic) for topic_filter in self.filters)

    def wants_qos(self, topic: bytes) -> bool:
        """Return whether messages of QoS 1 or 2 on a topic leave a trace of what became of them for the session."""
        return self._wanted(topic)[0] > 0 or self.shared

    def _hear(self, name: str, number: int, fields: Row) -> None:
        if name == "readers":
            self._reads = self.client_identifier in fields["client_identifiers"]
            return
        ours = fields["client_identifier"] == self.client_identifier
        if name == "shared_pick":
            self._picks += ours
            self._other_picks += not ours
        elif not ours:
            return
        elif name == "skipped":
            self._pending = fields["reason"]
        elif name == "dropped":
            self.dropped[fields["number"]] = fields["reason"]
        elif name == "delivery":
            self.owed.append(Owed(fields["record"]))
        elif name in ("subscribe", "unsubscribe"):
            self.since = number
        else:
            assert name == "ended", name
            self.since = number
            self.owed.clear()
            self.dropped.clear()
            self.answers.clear()

    def numbers(self, end_number: int, open_numbers: dict[int, int]) -> dict[int, int]:
        """Return the delivery number of each record that was owed; nothing if that does not fit what is still owed.

        Args:
            end_number: of the next delivery of the session.
            open_numbers: those still owed, by record.
        """
        found = {}
        for index, owed in enumerate(self.owed):
            found[owed.record] = end_number - len(self.owed) + index
        if any(record in found and found[record] != number for record, number in open_numbers.items()):
            return {}
        return found

    def fate(self, record: int, numbers: dict[int, int], shifted: bool) -> Row:
        """Return what became of a message that the session is not owed any more."""
        if record in self.skipped:
            return {"fate": "skipped", "reason": self.skipped[record]}
        if record in self.left_out:
            return {"fate": "not_authorized"}
        if record in self.own:
            return {"fate": "no_local"}
        number = numbers.get(record)
        if number is None or number < 0:
            if record < self.since:
                return {"fate": "earlier"}
            return {"fate": "other_member" if record in self.picked_others else "unknown"}
        if number in self.dropped:
            return {"fate": "dropped", "reason": self.dropped[number], "delivery": number}
        identifier = 1 + number % PACKET_IDENTIFIERS
        if not shifted:
            for answered, time_us, packet_type, reason in self.answers.get(identifier, ()):
                if answered > record:
                    told: Row = {"delivery": number, "packet_identifier": identifier, "answered": timestamp(time_us)}
                    if reason >= FAILED:
                        return {"fate": "refused", "reason": f"0x{reason:02x}", **told}
                    if packet_type != PUBREC:
                        return {"fate": "acknowledged", **told}
        return {"fate": "earlier" if record < self.since else "finished", "delivery": number}


async def read_history(
    windows: LogWindows, client_identifier: bytes, filters: dict[bytes, int], shared: bool, first: int, limit: int
) -> History:
    """Read what the log says of a session from record `first` on. Raises OSError."""
    history = History(client_identifier, filters, shared)
    async for cursor in records(windows, max(1, first - DECISIONS_BEFORE), limit):
        try:
            history.take(cursor)
        except RecordError:
            continue
    return history


def plain_filters(subscriptions: list[tuple[bytes, int, Any]]) -> dict[bytes, int]:
    """Return the options of subscriptions by topic filter, without those that are shared."""
    return {
        topic_filter: options for topic_filter, options, _ in subscriptions if not topic_filter.startswith(b"$share/")
    }
