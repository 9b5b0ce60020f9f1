"""Retained messages on their way to those who have subscribed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.message import Message
    from router.router import Router

    from router.retained_scan import RetainedScan

SLICE_MESSAGES = 64             # read from the index at a time: well below a millisecond
SLICE_BYTES = 65_536
SLICE_MESSAGES_BUSY = 4         # ... while messages are published, which wait for it
SLICE_BYTES_BUSY = 8_192


class Backlog:
    """The retained messages that one client's subscriptions have asked for and that it has not been given.

    Those that are kept in memory are here at once; those on disk are read in slices, the next one when `messages` is
    empty.

    Attributes:
        messages: with the granted QoS, the Subscription Identifier (0: none), and the scan they came of, if they did.
        scans: those that are not at their end, with the same.
    """

    # As small as can be: when many clients come back at once, each has one of these until its turn to read comes.
    __slots__ = ("_ended", "_router", "messages", "scans")

    def __init__(self, router: Router) -> None:
        self._router = router
        self._ended = False
        self.messages: deque[tuple[Message, int, int, RetainedScan | None]] = deque()
        self.scans: list[tuple[RetainedScan, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self.messages or self.scans)

    def add(self, retained: list[Message] | RetainedScan, qos: int, identifier: int) -> None:
        """Add what Router.subscribe() returned for a subscription."""
        if isinstance(retained, list):
            self.messages.extend((message, qos, identifier, None) for message in retained)
        else:
            self.scans.append((retained, qos, identifier))

    def begin(self) -> None:
        """Begin to read, the SUBACK having left: now all routers have the subscriptions.

        What is one look-up is read at once.
        """
        waiting, self.scans = self.scans, []
        for scan, qos, identifier in waiting:
            scan.begin()
            if scan.is_exact:
                self._read(scan, qos, identifier, busy=False)
            else:
                self.scans.append((scan, qos, identifier))

    def join(self, later: Backlog) -> None:
        """Add what another SUBSCRIBE has asked for."""
        self.messages.extend(later.messages)
        self.scans.extend(later.scans)

    def read_on(self, busy: bool = False) -> None:
        """Read a slice of the first scan, a short one if busy; it may give nothing although there is more."""
        scan, qos, identifier = self.scans[0]
        self._read(scan, qos, identifier, busy)
        if scan.done:
            del self.scans[0]

    def _read(self, scan: RetainedScan, qos: int, identifier: int, busy: bool) -> None:
        limit, bytes_max = (SLICE_MESSAGES_BUSY, SLICE_BYTES_BUSY) if busy else (SLICE_MESSAGES, SLICE_BYTES)
        ledger = self._router.ledger
        messages = scan.next_slice(limit, ledger.now_us, ledger.now_ms, bytes_max)
        self.messages.extend((message, qos, identifier, scan) for message in messages)

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
        self.messages = deque(entry for entry in self.messages if self.is_current(entry[0], entry[3]))
        self._ended = True
