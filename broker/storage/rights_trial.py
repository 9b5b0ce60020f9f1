"""What other rules would have refused: the messages and subscriptions that the log has, judged by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.auth.acl import FailClosed, Grant, inner_filter
from broker.auth.authorizers import tell_time
from broker.auth.coverage import what_is_left
from broker.auth.principal import Principal
from broker.auth.rule import READ, REPLAY, SHARE
from broker.auth.rule_chain import RuleChain
from broker.control.principals import restored
from broker.wire.rendering import text_of
from router.core.receiver import NARROWED_OPTION, QOS_BITS
from router.log.reader import no_progress, open_segments, snapshot_cursors
from router.log.record_kinds import RecordError
from router.log.segments import snapshot_name, snapshot_of
from router.matching.topic_names import is_own, is_state_filter
from router.peers.peer import PEER_PREFIX

if TYPE_CHECKING:
    from broker.auth.rule_set import RuleSet
    from router.log.disk import Storage
    from router.log.reader import Progress
    from router.log.record_cursor import Cursor

ROWS_MAX: Final = 100_000  # pairs of client and topic that are told one by one
REMEMBERED_MAX: Final = 200_000  # answers about publishing
SUBSCRIPTIONS_MAX: Final = 2_000_000  # of one log at a time: some 400 MB
NAMED_MAX: Final = 1_000  # clients that could not be judged
SNAPSHOTS_MAX: Final = 10  # that the broker makes while the newest one is looked for
MINUTE_US: Final = 60_000_000
STATE: Final = frozenset({"principal", "subscribe", "unsubscribe", "ended", "session"})
WHOLE: Final = 2  # of what_is_left()
NOTHING: Final = 0

Record = tuple[str, dict[str, Any], int]  # kind, fields, time


class Key(NamedTuple):
    """What would have been refused: to whom, and what."""

    client: bytes
    user: str | None
    action: str
    name: bytes


class Row:
    """How often, and by what."""

    __slots__ = ("by", "count", "grant", "last_us")

    def __init__(self, grant: Grant, by: str) -> None:
        self.grant, self.by = grant, by
        self.count = 0
        self.last_us = 0


class Trial:
    """Other rules, asked about what has happened.

    Args:
        rule_sets: in the order in which they are asked.
        is_strict: a topic filter is granted as a whole or not at all.
        since_us: what is judged was published, or subscribed to, at that time (µs since 1970) or later.
        users: who clients are of whom the log does not say it, by client identifier: user name and address.

    Attributes:
        rows: what would have been refused, or narrowed.
        beyond: how often, of what has no row because there are too many.
        messages, subscriptions: how many were judged.
        of_the_broker: messages that no client published, which no rule is asked about.
        of_superusers: likewise, messages and subscriptions.
        unknown: messages of each client of whom it is not known who it was, of the first of them; they are not judged.
        unknown_messages, unknown_subscriptions: of all of these.
        unread: subscriptions for which there was no room.
    """

    def __init__(
        self,
        rule_sets: list[RuleSet],
        since_us: int,
        *,
        is_strict: bool = False,
        users: Mapping[str, tuple[str | None, str | None]] | None = None,
    ) -> None:
        self.rows: dict[Key, Row] = {}
        self.beyond = self.messages = self.subscriptions = self.of_the_broker = self.of_superusers = 0
        self.unknown: dict[bytes, int] = {}
        self.unknown_messages = self.unknown_subscriptions = self.unread = 0
        self.since_us = since_us
        self._rule_sets = rule_sets
        self._users = users or {}
        self._chain = RuleChain(rule_sets, is_strict=is_strict, decides_by_qos=True)
        self._acl = FailClosed(self._chain)
        self._used: dict[int, set[int]] = {id(rule_set): set() for rule_set in rule_sets}
        self._remembered: dict[tuple[bytes, bytes | None, bytes, int], Row | bool] = {}
        self._has_times = any(getattr(rule_set.source, "times", ()) for rule_set in rule_sets)
        self._minute = 0

    def unused(self) -> Iterator[str]:
        """Yield in words the rules that have decided about nothing."""
        for rule_set in self._rule_sets:
            used = self._used[id(rule_set)]
            for number in range(rule_set.rule_count):
                if number not in used and not rule_set.rule(number).dangerous:
                    yield rule_set.described(number)

    def published(self, client: bytes, kept: bytes | None, topic: bytes, qos: int, retain: bool, time_us: int) -> None:
        """Judge a message.

        Args:
            kept: the principal as the log has it; None: it does not.
        """
        self._tell_time(time_us)
        asked = client, kept, topic, qos << 1 | retain
        found = self._remembered.get(asked)
        if found is None:
            found = self._judged(client, kept, topic, qos, retain)
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[asked] = found
        self.messages += 1
        if isinstance(found, Row):
            found.count += 1
            found.last_us = max(found.last_us, time_us)
        elif not found:
            self.messages -= 1
            self.unknown_messages += 1
            if client in self.unknown or len(self.unknown) < NAMED_MAX:
                self.unknown[client] = self.unknown.get(client, 0) + 1

    def _judged(self, client: bytes, kept: bytes | None, topic: bytes, qos: int, retain: bool) -> Row | bool:
        """Return the row of a refusal; True: it is allowed; False: it is not known who it was."""
        principal = self._principal(client, kept)
        if principal is None:
            return False
        if principal.superuser:
            self.of_superusers += 1
            return True
        self._note_use(self._chain.deciding(principal, "publish", topic, qos, retain))
        if self._acl.may_publish(principal, topic, qos, retain):
            return True
        decision = self._acl.explain(principal, "publish", topic, qos, retain)
        return self._row(Key(client, principal.user_name, "publish", topic), Grant.REFUSED, decision.by)

    def subscribed(self, client: bytes, kept: bytes | None, topic_filter: bytes, options: int, time_us: int) -> None:
        """Judge a subscription, by the rights of the time at which it was there last."""
        self._tell_time(time_us)
        principal = self._principal(client, kept)
        if principal is None:
            self.unknown_subscriptions += 1
            if len(self.unknown) < NAMED_MAX:
                self.unknown.setdefault(client, 0)
            return
        self.subscriptions += 1
        if principal.superuser:
            self.of_superusers += 1
            return
        qos, inner = options & QOS_BITS, inner_filter(topic_filter)
        self._note_concerned(principal, topic_filter, inner)
        grant = self._acl.may_subscribe(principal, topic_filter, qos)
        if grant == Grant.WHOLE or (grant == Grant.NARROWED and options & NARROWED_OPTION):
            return
        decision = self._acl.explain(principal, "subscribe", topic_filter, qos, False)
        row = self._row(Key(client, principal.user_name, "subscribe", topic_filter), grant, decision.by)
        row.count += 1
        row.last_us = max(row.last_us, time_us)

    def _principal(self, client: bytes, kept: bytes | None) -> Principal | None:
        if kept is not None:
            return restored(client, kept)
        user = self._users.get(text_of(client))
        return None if user is None else Principal(user[0], client, user[1], 0)

    def _row(self, key: Key, grant: Grant, by: str) -> Row:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= ROWS_MAX:
                key, by = Key(b"", None, key.action, b""), "any"
                row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = Row(grant, by)
        return row

    def _note_use(self, rule: tuple[RuleSet, int] | None) -> None:
        if rule is not None and id(rule[0]) in self._used:
            self._used[id(rule[0])].add(rule[1])

    def _note_concerned(self, principal: Principal, topic_filter: bytes, inner: bytes) -> None:
        """Note the rules that decide about a part of a topic filter."""
        beside = SHARE if topic_filter.startswith(b"$share/") else REPLAY if topic_filter.startswith(b"$replay/") else 0
        before: list[tuple[bytes | None, bool]] = []
        for text, _, _, rule_set, number in self._chain.about(principal, READ | beside, inner):
            if what_is_left(inner, [(text, True)])[0] != NOTHING:
                self._note_use((rule_set, number))
            before.append((text, True))
            if what_is_left(inner, before)[0] == WHOLE:
                return  # what comes behind is never heard

    def _tell_time(self, time_us: int) -> None:
        if self._has_times and time_us // MINUTE_US != self._minute:
            self._minute = time_us // MINUTE_US
            if tell_time(self._rule_sets, time_us / 1e6):
                self._remembered.clear()


class LoggedClients:
    """What one log has of its clients, record by record, and what there is to judge of it.

    Args:
        trial: is asked.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._principals: dict[bytes, bytes] = {}
        self._subscriptions: dict[bytes, dict[bytes, int]] = {}
        self._count = 0

    def take_snapshot(self, records: Iterator[Record]) -> None:
        """Take what a snapshot says, if there is anything: what was there until now is that."""
        for number, (kind, fields, time_us) in enumerate(records):
            if number == 0:
                self._subscriptions.clear()
                self._count = 0
            self.take(kind, fields, time_us)

    def take(self, kind: str, fields: Mapping[str, Any], time_us: int) -> None:
        """Take what a record says of a session."""
        client: bytes = fields["client_identifier"]
        if client.startswith(PEER_PREFIX):
            return
        if kind == "principal":
            self._principals[client] = fields["principal"]
        elif kind == "subscribe":
            self._subscribe(client, fields["topic_filter"], fields["options"])
        elif kind == "unsubscribe":
            options = self._subscriptions.get(client, {}).pop(fields["topic_filter"], None)
            if options is not None:
                self._end(client, fields["topic_filter"], options, time_us)
        elif kind == "ended" or fields["expiry_interval_s"] == 0:
            for topic_filter, options in self._subscriptions.pop(client, {}).items():
                self._end(client, topic_filter, options, time_us)
            if kind == "ended":  # who comes by this name next may be another user, of whom the log does not say it
                self._principals.pop(client, None)

    def published(self, fields: Mapping[str, Any], time_us: int) -> None:
        """Take a message."""
        client, trial = fields["publisher"], self._trial
        if is_own(fields["topic_name"]):
            return
        if not client:
            trial.of_the_broker += 1
            return
        kept, topic_name = self._principals.get(client), fields["topic_name"]
        trial.published(client, kept, topic_name, fields["qos"], fields["retain"], time_us)

    def end(self, now_us: int) -> None:
        """Judge the subscriptions that are there now."""
        for client, filters in self._subscriptions.items():
            for topic_filter, options in filters.items():
                self._trial.subscribed(client, self._principals.get(client), topic_filter, options, now_us)

    def _subscribe(self, client: bytes, topic_filter: bytes, options: int) -> None:
        if is_state_filter(topic_filter):
            return
        filters = self._subscriptions.setdefault(client, {})
        if topic_filter not in filters:
            if self._count >= SUBSCRIPTIONS_MAX:
                self._trial.unread += 1
                return
            self._count += 1
        filters[topic_filter] = options

    def _end(self, client: bytes, topic_filter: bytes, options: int, time_us: int) -> None:
        self._count -= 1
        if time_us >= self._trial.since_us:
            self._trial.subscribed(client, self._principals.get(client), topic_filter, options, time_us)


def try_log(disk: Storage, worker: int, trial: Trial, now_us: int, progress: Progress = no_progress) -> list[str]:
    """Have a trial judge what one worker's log has. Returns what could not be read, as sentences.

    The broker may be running. Raises OSError, SegmentError.

    Memory: what is known of clients and subscriptions; one window, or one record if it is larger.
    """
    clients = LoggedClients(trial)
    problems: list[str] = []
    snapshot, cursors = _snapshot(disk)
    segments = open_segments(disk, worker)
    for kind, fields, time_us in _records(cursors[0], None, problems):
        if kind == "principal":  # what is archived before it may be of these clients, and nothing else tells of them
            clients.take(kind, fields, time_us)
    for index, header in enumerate(segments.headers):
        if header.segment >= snapshot:
            clients.take_snapshot(_records(cursors[1], None, problems))
        done = 0
        try:
            for cursor in segments.segment_cursors(index):
                for kind, fields, time_us in _wanted(cursor, trial.since_us, problems):
                    if kind == "accepted":
                        clients.published(fields, time_us)
                    else:
                        clients.take(kind, fields, time_us)
                progress(cursor.base + cursor.offset - done)
                done = cursor.base + cursor.offset
        except FileNotFoundError:
            problems.append(f"{header.name} was removed by the broker meanwhile")
    clients.take_snapshot(_records(cursors[1], None, problems))
    clients.end(now_us)
    return [*(str(damage) for damage in segments.damages if not damage.torn), *problems]


def _snapshot(disk: Storage) -> tuple[int, tuple[Iterator[Cursor], Iterator[Cursor]]]:
    """Return the number of the newest snapshot, 0: there is none; and its cursors, to be gone through twice."""
    for _ in range(SNAPSHOTS_MAX):
        newest = max((segment for name in disk.names() if (segment := snapshot_of(name)) is not None), default=0)
        if not newest:
            return 0, (iter(()), iter(()))
        try:
            # Both have the file open from here on: the broker may remove it.
            return newest, (_begun(disk, newest), _begun(disk, newest))
        except FileNotFoundError as error:  # the broker has made the next one
            removed = error
    raise removed


def _begun(disk: Storage, snapshot: int) -> Iterator[Cursor]:
    cursors = snapshot_cursors(disk, snapshot_name(snapshot))
    return chain((next(cursors),), cursors)


def _records(cursors: Iterator[Cursor], since_us: int | None, problems: list[str]) -> Iterator[Record]:
    for cursor in cursors:
        yield from _wanted(cursor, since_us, problems)


def _wanted(cursor: Cursor, since_us: int | None, problems: list[str]) -> Iterator[Record]:
    """Yield kind, fields and time of the records that matter; messages from a time on, or (None) none."""
    while cursor.step():
        try:
            kind = cursor.kind_name()
            if kind in STATE or (kind == "accepted" and since_us is not None and cursor.time_us >= since_us):
                yield kind, cursor.fields(), cursor.time_us
        except RecordError as error:
            problems.append(f"{error} (at byte {cursor.base + cursor.start} of a file of the log)")
