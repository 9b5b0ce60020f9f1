"""Retained messages on their way to those who have subscribed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.reactor.connection import Connection
    from router.core.message import Message
    from router.core.receiver import Receiver
    from router.retained.link_waits import Ids
    from router.retained.scan import RetainedScan
    from router.router import Router

SLICE_MESSAGES = 64  # read from the index at a time: well below a millisecond
SLICE_BYTES = 65_536
SLICE_MESSAGES_BUSY = 4  # ... while messages are published, which wait for it
SLICE_BYTES_BUSY = 8_192
PASSED_OVER_MAX = 256  # of what its client may not read, at a time
WAITING_MAX = 262_144  # messages in memory that wait for one client: with so many, no filter asks for more


class Asked:
    """What one topic filter has asked for.

    Attributes:
        messages: that are here, from `at` on; those before it were given.
        scan: reads more of them; None: they are kept in memory, and all are here.
        qos: granted; identifier: Subscription Identifier, 0 for none.
    """

    __slots__ = ("at", "identifier", "messages", "qos", "scan")

    def __init__(self, retained: list[Message] | RetainedScan, qos: int, identifier: int) -> None:
        self.scan = None if isinstance(retained, list) else retained
        self.messages = retained if isinstance(retained, list) else []
        self.at = 0
        self.qos = qos
        self.identifier = identifier


class Backlog:
    """The retained messages that one client's subscriptions have asked for and that it has not been given.

    Those that are kept in memory are here at once; those on disk are read in slices, the next one when nothing is here.
    A topic filter that asks again is given all that it asks for anew, and no more what it was still to get: so there is
    no more of this than the client has subscriptions.

    Attributes:
        scans: by topic filter, those that are not at their end.
        pending: messages that are here.
    """

    # As small as can be: when many clients come back at once, each has one of these until its turn to read comes.
    __slots__ = ("_ended", "_here", "_reader", "_router", "pending", "scans")

    def __init__(self, router: Router, reader: Receiver) -> None:
        self._reader = reader
        self._ended = False
        self._router = router
        self._here: dict[bytes, Asked] = {}  # those with messages that are here
        self.scans: dict[bytes, Asked] = {}
        self.pending = 0

    def __bool__(self) -> bool:
        return bool(self._here or self.scans)

    @property
    def is_full(self) -> bool:
        """So much waits that nothing more may be asked for."""
        return self.pending >= WAITING_MAX

    def add(self, topic_filter: bytes, retained: list[Message] | RetainedScan, qos: int, identifier: int) -> None:
        """Add what Router.subscribe() returned for a subscription."""
        self._put(topic_filter, Asked(retained, qos, identifier))

    def _put(self, topic_filter: bytes, asked: Asked) -> None:
        self.drop(topic_filter)
        if asked.scan is not None and not asked.scan.done:
            self.scans[topic_filter] = asked
        if asked.at < len(asked.messages):
            self._here[topic_filter] = asked
            self.pending += len(asked.messages) - asked.at

    def drop(self, topic_filter: bytes) -> None:
        """A subscription has ended, or asks anew."""
        self.scans.pop(topic_filter, None)
        asked = self._here.pop(topic_filter, None)
        if asked is not None:
            self.pending -= len(asked.messages) - asked.at

    def grade(self, topic_filter: bytes, qos: int, identifier: int) -> None:
        """What a topic filter has asked for goes out under other terms."""
        for asked in (self.scans.get(topic_filter), self._here.get(topic_filter)):
            if asked is not None:
                asked.qos, asked.identifier = qos, identifier

    def asked_for(self) -> list[tuple[bytes, bool]]:
        """Return each topic filter that is yet to be given something, and whether its subscription was there before."""
        return [(topic_filter, False) for topic_filter in self._here if topic_filter not in self.scans] + [
            (topic_filter, asked.scan is not None and asked.scan.is_standing)
            for topic_filter, asked in self.scans.items()
        ]

    @property
    def is_standing(self) -> bool:
        """Whether anything is for a subscription that was there before: that has what links have yet to bring live."""
        return any(asked.scan is not None and asked.scan.is_standing for asked in self.scans.values())

    def begin(self) -> None:
        """Begin to read for new subscriptions as the SUBACK leaves, and no later: all routers have them now.

        What is published from here on comes live, so none of it may count as what was there before. What is one look-up
        is read at once, unless it may be lost yet.
        """
        self._begin(None)

    def begin_standing(self, reached: Ids) -> None:
        """Begin to read for subscriptions that were there before: what links have brought, up to these records."""
        self._begin(reached)

    def _begin(self, reached: Ids | None) -> None:
        for topic_filter, asked in list(self.scans.items()):
            assert asked.scan is not None
            if asked.scan.is_standing == (reached is not None):
                asked.scan.begin(reached)
                if asked.scan.is_exact and not asked.scan.is_early:
                    self._read(topic_filter, asked, busy=False)

    def look(self) -> None:
        """What came ahead of its record is in a log now, or lost, or of a worker that is not waited for."""
        for asked in self.scans.values():
            assert asked.scan is not None
            asked.scan.look()

    def join(self, later: Backlog) -> None:
        """Add what another SUBSCRIBE has asked for."""
        for topic_filter in {**later._here, **later.scans}:
            self.drop(topic_filter)
        self._here.update(later._here)
        self.scans.update(later.scans)
        self.pending += later.pending

    def read_on(self, busy: bool = False) -> None:
        """Read a slice of the first scan, a short one if busy; it may give nothing although there is more."""
        topic_filter = next(iter(self.scans))
        self._read(topic_filter, self.scans[topic_filter], busy)

    def _read(self, topic_filter: bytes, asked: Asked, busy: bool) -> None:
        limit, bytes_max = (SLICE_MESSAGES_BUSY, SLICE_BYTES_BUSY) if busy else (SLICE_MESSAGES, SLICE_BYTES)
        ledger = self._router.ledger
        scan = asked.scan
        assert scan is not None
        messages = scan.next_slice(limit, ledger.now_us, ledger.now_ms, bytes_max)
        if messages:
            asked.messages = asked.messages[asked.at :] + messages
            asked.at = 0
            self._here[topic_filter] = asked
            self.pending += len(messages)
        if scan.done:
            del self.scans[topic_filter]

    def next(self) -> tuple[Message, int, int, RetainedScan | None] | None:
        """Return the next message that is here, with QoS, Subscription Identifier and scan; take() takes it.

        What may not be read is passed over, so much at a time; None although something is here says: go on later.
        """
        tree = self._router.tree
        for _ in range(PASSED_OVER_MAX):
            first = next(iter(self._here.items()), None)
            if first is None:
                return None
            topic_filter, asked = first
            message = asked.messages[asked.at]
            if tree.may_send(self._reader, topic_filter, message.topic_name):
                return message, asked.qos, asked.identifier, asked.scan
            self.take()
        return None

    def take(self) -> None:
        """Take what next() returned."""
        topic_filter, asked = next(iter(self._here.items()))
        asked.at += 1
        self.pending -= 1
        if asked.at == len(asked.messages):
            asked.messages, asked.at = [], 0
            del self._here[topic_filter]

    def is_current(self, message: Message, scan: RetainedScan | None) -> bool:
        """Return whether a message is still its topic's; a newer one came live, and this one is passed over."""
        if self._ended:
            return True
        if scan is not None:
            return scan.is_current(message)
        return self._router.retained_message(message.topic_name) is message

    def end(self) -> None:
        """The index will be closed: nothing more is read, and what has been read is as good as it is now."""
        self.scans.clear()
        for topic_filter, asked in list(self._here.items()):
            messages = [message for message in asked.messages[asked.at :] if self.is_current(message, asked.scan)]
            self.drop(topic_filter)
            if messages:
                kept = Asked(messages, asked.qos, asked.identifier)
                kept.scan = asked.scan
                self._here[topic_filter] = kept
                self.pending += len(messages)
        self._ended = True


class HeldBacklogs:
    """The backlogs that wait for links or records, by connection: what a subscription has asked for ends with it.

    That a subscription stands when the wait is over does not say that it is the one that asked: its client may have
    ended it and have subscribed again meanwhile. What it was to get then may be older than what came live since.
    """

    def __init__(self) -> None:
        # By topic filter, and whether it is for a subscription that was there before: the one that asked last.
        self._of: dict[Connection, dict[tuple[bytes, bool], Backlog]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def hold(self, connection: Connection, backlog: Backlog) -> list[tuple[bytes, bool]]:
        """A backlog begins to wait. Returns what release() is to be given."""
        found = backlog.asked_for()
        for topic_filter, is_standing in found:
            self._drop(connection, topic_filter, is_standing)
            if not is_standing:
                self._drop(connection, topic_filter, True)  # of the subscription that this one came after
            self._of.setdefault(connection, {})[topic_filter, is_standing] = backlog
        return found

    def end(self, connection: Connection, topic_filter: bytes) -> None:
        """A subscription ends: what it was to get is not sent any more."""
        self._drop(connection, topic_filter, False)
        self._drop(connection, topic_filter, True)

    def _drop(self, connection: Connection, topic_filter: bytes, is_standing: bool) -> None:
        backlog = self._of.get(connection, {}).pop((topic_filter, is_standing), None)
        if backlog is not None:
            backlog.drop(topic_filter)

    def release(self, connection: Connection, backlog: Backlog, held: list[tuple[bytes, bool]]) -> None:
        """A backlog waits no more."""
        others = self._of.get(connection, {})
        for key in held:
            if others.get(key) is backlog:
                del others[key]
        if not others:
            self._of.pop(connection, None)
