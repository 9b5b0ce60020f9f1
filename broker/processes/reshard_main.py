"""Spreading the sessions in a data folder over another number of workers: `python -m broker.processes.reshard_main`.

No worker runs meanwhile. Every worker's log is opened, and what is done is written as records of these logs:

1. What workers owe one another is delivered, so that only clients are owed anything.
2. Each session that is not at home is written into its home's log: what it is, and the messages that wait for it as
   copies, which keep their ids. When that is durable, the session is ended where it was.

It may be killed at any step, and begun anew with this number or another: it knows what was delivered by its id, and a
session that is in two logs counts where it was not at home under the number that was begun with. What is wrong with a
log is found before that number is noted, so a start with the number before is possible then. Workers beyond the new
number keep their folders, with their archives, and have no session: a snapshot says so, and what is before it is the
archive's (broker.storage.retired_logs).
"""

from __future__ import annotations

import secrets
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker import logs
from broker.auth.acl import AllowAll
from broker.config.start_error import StartError
from broker.control.will import PendingWill
from broker.logs import get
from broker.storage.data_folder import note_spread, spread_of, unusable
from broker.storage.folder_check import log_refusal
from broker.storage.retired_logs import compact_left_logs
from broker.storage.worker_folders import worker_folder, workers_of
from broker.storage.worker_log import CommitLog, open_index
from broker.worker.placement import Start, router_name
from broker.worker.terms import ledger
from mesh.placement import Homes
from router.forwarding import Forwarding
from router.log.disk import Disk
from router.log.record_buffer import RecordBuffer
from router.recovery.open_log import Opened, begin, open_log
from router.recovery.session_records import record_owed, record_wishes
from router.router import Router

if TYPE_CHECKING:
    from broker.config.loader import Config
    from router.log.disk import Storage
    from router.log.record_cursor import Cursor
    from router.sessions.session import Session

log = get("adoption")

HomeOf = Callable[[bytes], int]

FLUSH_BYTES: Final = 4_194_304
MAY_BE_SENT: Final = (1, 2)  # states of a delivery whose message may still be needed: queued, sent


class AdoptionError(Exception):
    """Why sessions could not be spread, in one sentence."""


class Books:
    """One worker's log, open, and the router that came out of it."""

    def __init__(
        self,
        config: Config,
        disk: Storage,
        name: bytes,
        number: int,
        now_us: int,
        now_ms: int,
        accept_loss: bool = False,
        flush_bytes: int = FLUSH_BYTES,
        owner: int = 0,
    ) -> None:
        storage = config.storage
        self.flush_bytes = flush_bytes
        self.number = number
        self.name = name
        self.disk = disk
        self.router = Router(ledger(config), retains=False)  # those are in the index, which all share
        self.now_us, self.now_ms = now_us, now_ms
        # Nothing falls due here, so a will is no more than the fields of its record.
        self.opened: Opened = open_log(
            disk,
            self.router,
            worker=number,
            owner=owner,
            make_will=lambda _, *fields: fields,
            make_mark=lambda: secrets.randbits(32),
            now_us=now_us,
            now_ms=now_ms,
            accept_loss=accept_loss,
            durability=storage.durability,
            segment_bytes_max=storage.segment_bytes_max,
        )
        self.log = self.opened.log
        self.router.ledger.bodies = self.log
        self.router.record_into(RecordBuffer(self.log.appended))
        self.records: RecordBuffer = self.router.ledger.records
        self.forwarding = Forwarding(self.router)
        begin(self.router, self.opened)

    def flush_some(self) -> None:
        """Make durable what was recorded, if it has become much."""
        if self.records.size >= self.flush_bytes:
            self.flush()

    def flush(self) -> None:
        """Make durable what was recorded, and let happen what rests on it."""
        if self.records.count:
            self.log.append(self.records)
            while self.log.backlog_bytes:
                if not self.log.commit() and self.log.trouble is not None:
                    raise AdoptionError(f"The log of worker {self.number} cannot be written: {self.log.trouble}.")
            self.router.settle(self.log.durable)

    def close(self) -> None:
        """Make everything durable that was recorded, and close the log."""
        self.flush()
        if not self.log.close():
            raise AdoptionError(f"The log of worker {self.number} cannot be written: {self.log.trouble}.")

    def forget(self, client_identifier: bytes) -> None:
        """End a session, of which nothing follows."""
        self.router.remove_receiver(self.router.sessions.pop(client_identifier))
        self.records.add("ended", self.now_us, client_identifier)

    def cursors(self, wanted: set[int]) -> Iterator[tuple[int, Cursor, int]]:
        """Yield (number, cursor that stands there, the segment's incarnation) of these records, if they are there."""
        stored = self.log.bodies.stored
        if stored is not None:
            for number in sorted(wanted):
                found = stored.cursor(number)
                if found is not None:
                    wanted.discard(number)
                    yield number, found, 0
        reader = self.log.reader()
        numbers = sorted(wanted)
        ends = [header.first_number for header in reader.headers[1:]] + [self.log.appended + 1]
        for index, header in enumerate(reader.headers):
            if bisect_left(numbers, header.first_number) < bisect_left(numbers, ends[index]):
                for cursor in reader.segment_cursors(index):
                    while cursor.step():
                        if cursor.number in wanted:
                            yield cursor.number, cursor, header.incarnation


class Adoption:
    """Spreads the sessions in some logs over workers.

    Args:
        books: of all workers that there were or are to be.
        count: workers that there are to be, 1 or more.
        home_of: the worker of these that a client identifier is at home on.
        begun_home_of: the same in an adoption that was interrupted; None: nothing was.
        begins: called when all logs have been read and what was interrupted is undone: from here on sessions move.

    Raises AdoptionError, OSError.
    """

    def __init__(
        self,
        books: dict[int, Books],
        count: int,
        home_of: HomeOf,
        begun_home_of: HomeOf | None,
        begins: Callable[[], None],
    ) -> None:
        self.books = books
        self.count = count
        self.home_of = home_of
        self.begun_home_of = begun_home_of
        self._begins = begins
        self._by_name = {each.name: each for each in books.values()}
        self.delivered = self.moved = self.messages = self.lost = 0

    def run(self) -> None:
        """Do it all; it is durable when this returns."""
        if self.begun_home_of is not None:
            self._undo_copies(self.begun_home_of)
        for books in self.books.values():
            self._deliver_owed(books)
        for books in self.books.values():
            self._end_fences(books)
        self._begins()
        for books in self.books.values():
            self._move_sessions(books)
            self._forget_leavers(books)
            books.flush()
        for books in self.books.values():
            books.close()

    def _undo_copies(self, begun_home_of: HomeOf) -> None:
        """End what was copied of sessions that are still where they were."""
        there = Counter(name for books in self.books.values() for name in books.router.sessions)
        for client_identifier in sorted(name for name, count in there.items() if count > 1):
            home = self.books.get(begun_home_of(client_identifier))
            if home is not None and client_identifier in home.router.sessions:
                home.forget(client_identifier)
        for books in self.books.values():
            books.flush()

    # What workers owe one another -----------------------------------------------------------------------------------

    def _deliver_owed(self, books: Books) -> None:
        for peer in sorted(books.router.peers.values(), key=lambda peer: peer.number):
            there = self._by_name.get(peer.router_identifier)
            owed = peer.session.owed.deliveries() if there is not None and peer.session.owed is not None else []
            if there is None or not owed:
                continue
            sender = there.forwarding.peer(books.name)
            for number, record, _, _, _, _, identifiers, _ in owed:
                try:
                    message = books.log.bodies.fetch(record, books.now_us, books.now_ms)
                except LookupError:
                    self.lost += 1
                    continue
                self.delivered += there.forwarding.receive_message(
                    sender, message, 1 + number, books.log.incarnation, record, identifiers
                )
                there.flush_some()
            there.flush()
            books.records.add("peer_acknowledged", books.now_us, peer.number, max(delivery[1] for delivery in owed))
        books.flush()

    def _end_fences(self, books: Books) -> None:
        """Nothing is left for links to bring that is older than what a subscription was given."""
        fences = books.router.retaining.fences
        for client_identifier, session in sorted(books.router.sessions.items()):
            for topic_filter, _ in fences.standing(session):
                fences.take_down(session, topic_filter)
                books.records.add("fenced", books.now_us, client_identifier, topic_filter, [])
        books.flush()

    # Sessions -------------------------------------------------------------------------------------------------------

    def _move_sessions(self, books: Books) -> None:
        leaving = {
            client_identifier: self.books[number]
            for client_identifier in sorted(books.router.sessions)
            if (number := self.home_of(client_identifier)) != books.number
        }
        if not leaving:
            return
        copies = self._copy_messages(books, leaving)
        # Subscriptions first: a delivery may name a group, which is there once its first member is.
        for client_identifier, home in leaving.items():
            _write_session(home, books.router, books.router.sessions[client_identifier])
        for client_identifier, home in leaving.items():
            _write_owed(home, books, books.router.sessions[client_identifier], copies)
        for other in self.books.values():
            if other is not books:
                other.flush()
        for client_identifier in leaving:
            books.records.add("ended", books.now_us, client_identifier)
        self.moved += len(leaving)

    def _copy_messages(self, books: Books, leaving: dict[bytes, Books]) -> dict[tuple[int, int], int]:
        """Put what these sessions are owed into the logs of their homes; returns (record, home) -> record there."""
        homes: dict[int, dict[int, Books]] = {}
        for client_identifier, home in leaving.items():
            for delivery in _owed(books.router.sessions[client_identifier]):
                if delivery[4] in MAY_BE_SENT:
                    homes.setdefault(delivery[1], {})[home.number] = home
        copies = {}
        for number, cursor, incarnation in books.cursors(set(homes)):
            for home in homes[number].values():
                origins = {
                    peer.number: 0
                    if peer.router_identifier == home.name
                    else home.forwarding.peer(peer.router_identifier).number
                    for peer in books.router.peers.values()
                }
                origins[0] = home.forwarding.peer(books.name).number
                copies[number, home.number] = home.records.add_copy(
                    cursor, home.now_us, origins[0], incarnation, origins
                )
                self.messages += 1
                home.flush_some()
        return copies

    def _forget_leavers(self, books: Books) -> None:
        """Workers that are there no more want nothing."""
        for peer in books.router.peers.values():
            there = self._by_name.get(peer.router_identifier)
            if there is not None and there.number >= self.count:
                for topic_filter, _, _ in books.router.tree.subscriptions_of(peer.session):
                    books.forwarding.want_no_more(peer, topic_filter)


def _owed(session: Session) -> list[list[Any]]:
    return session.owed.deliveries() if session.owed is not None else []


def _write_session(home: Books, router: Router, session: Session) -> None:
    """Record what a session is in its home's log."""
    add, now_us, client_identifier = home.records.add, home.now_us, session.client_identifier
    if client_identifier in home.router.sessions:
        add("ended", now_us, client_identifier)  # whatever it is of: it is not the one that counts
    add("session", now_us, client_identifier, session.expiry_interval_s)
    record_wishes(home.records, now_us, router, session)


def _write_owed(home: Books, books: Books, session: Session, copies: dict[tuple[int, int], int]) -> None:
    """Record what a session is owed, under the numbers that it had, and that it has no connection."""
    add, now_us, client_identifier = home.records.add, home.now_us, session.client_identifier
    record_owed(
        home.records,
        now_us,
        session,
        [
            [number, copies.get((record, home.number), 0), *rest]
            for number, record, *rest in _owed(session)
            # Whose message is lost is owed no more.
            if rest[2] not in MAY_BE_SENT or (record, home.number) in copies
        ],
    )
    next_number = session.owed.numbers[0] if session.owed is not None else 0
    gone_us = books.opened.detached_us.get(client_identifier, now_us)
    add("detached", gone_us, client_identifier, session.expiry_interval_s, next_number)
    home.flush_some()


def _apply_retained(start: Start, number: int) -> None:
    """Bring into the index of retained messages what only the log of a worker has that will not run."""
    router = Router(ledger(start.config), index=open_index(start.folder_path, number, accept_loss=start.accept_loss))
    store = CommitLog(
        start.config.storage,
        router,
        partial(PendingWill.recovered, AllowAll()),
        start.folder_path,
        worker=number,
        accept_loss=start.accept_loss,
    )
    store.close()


def adopt(start: Start) -> Adoption:
    """Spread the sessions of a data folder over `start.count` workers.

    Raises SegmentError, StartError, AdoptionError, CopyError, OSError.
    """
    folder, count, key = start.folder_path, start.count, start.node.key
    existing = set(workers_of(folder))
    for number in sorted(existing - set(range(count))):
        _apply_retained(start, number)
    now_us, now_ms = time.time_ns() // 1000, time.monotonic_ns() // 1_000_000
    books = {}
    for number in sorted(existing | set(range(count))):
        path = worker_folder(folder, number)
        path.mkdir(mode=0o700, exist_ok=True)
        books[number] = Books(
            start.config,
            Disk(str(path)),
            router_name(start.node, number),
            number,
            now_us,
            now_ms,
            start.accept_loss,
            owner=start.node.owner,
        )
    begun = -(spread_of(folder) or 0)
    adoption = Adoption(
        books,
        count,
        Homes(key, count).home_of,
        Homes(key, begun).home_of if begun > 0 else None,
        lambda: note_spread(folder, -count),
    )
    adoption.run()
    compact_left_logs(folder, count)
    note_spread(folder, count)
    return adoption


def main() -> int:
    """Spread what standard input says, a Start as JSON; returns the exit code, after the reason as the last line."""
    from router.log.segments import SegmentError
    from router.retained.second_copy import CopyError

    start = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    logs.configure(start.config.log)
    started_s = time.monotonic()
    try:
        adoption = adopt(start)
    except (SegmentError, StartError, AdoptionError, CopyError, OSError) as error:
        logs.flush()
        said = log_refusal(start.folder_path, error) if isinstance(error, SegmentError) else error
        print(unusable(start.folder_path, error) if isinstance(error, OSError) else said, file=sys.stderr)
        return 3
    log.info(
        "sessions_spread",
        workers=start.count,
        sessions_moved=adoption.moved,
        messages_copied=adoption.messages,
        messages_delivered=adoption.delivered,
        messages_lost=adoption.lost,
        seconds=round(time.monotonic() - started_s, 3),
    )
    logs.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
