"""A client inside the process."""

from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from router.sessions.ledger cimport DROP_EXPIRED, DROP_INBOX_FULL, DROP_NO_MEMBER, DROP_SESSION_ENDED
from router.core.message cimport Message, topic_hash
from router.core.receiver cimport DELIVERED, DROPPED, Verdict
from router.matching.shared_groups cimport SharedGroup


cdef class LocalClient(Receiver):
    """A subscriber in this process: what it receives lies in an inbox until its owner takes it, after the turn.

    Args:
        client_identifier: decides its place in shared subscriptions that hash.
        inbox_max: messages, 1 or more; those beyond are dropped and counted.
        ledger: of its router, counts what is dropped there too.
        arrivals: list that it joins when something came, until arrived() is called; its host goes through it after
            the turn.
        on_arrival: called without arguments by arrived().
    """

    def __init__(self, client_identifier: bytes = b"", inbox_max: int = 1000, Ledger ledger=None, list arrivals=None,
                 on_arrival=None):
        if inbox_max < 1:
            raise ValueError(f"inbox_max is 1 or more, not {inbox_max}")
        self.client_identifier = client_identifier
        self.key = topic_hash(<const uint8_t*>PyBytes_AS_STRING(client_identifier), len(client_identifier))
        self.inbox_max = inbox_max
        self.inbox = deque()
        self.connected = True
        self.ledger = ledger
        self.arrivals = arrivals
        self.on_arrival = on_arrival

    cdef Verdict deliver(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED:
        if not self.connected or len(self.inbox) >= self.inbox_max:
            self._drop(DROP_INBOX_FULL if self.connected else DROP_SESSION_ENDED)
            return DROPPED
        self.inbox.append((
            message.keep(), qos, bool(retain), PyBytes_FromStringAndSize(<const char*>ids, ids_length),
            <SharedGroup>group if group != NULL else None))
        if self.arrivals is not None and not self.listed:
            self.listed = True
            self.arrivals.append(self)
        return DELIVERED

    cdef bint online(self) noexcept:
        return self.connected

    cdef bint has_room(self) noexcept:
        return self.connected and len(self.inbox) < self.inbox_max

    @property
    def waiting(self) -> int:
        """Number of messages in the inbox."""
        return len(self.inbox)

    def arrived(self) -> None:
        """Something came, and the turn in which it came is over."""
        self.listed = False
        if self.on_arrival is not None:
            self.on_arrival()

    def take(self) -> list[tuple[Message, int, bool, bytes]]:
        """Return (message, QoS, RETAIN flag, encoded Subscription Identifiers) of all that came, and empty the inbox."""
        cdef list taken = [entry[:4] for entry in self.inbox]
        self.inbox.clear()
        return taken

    def take_next(self, now_ms: int) -> tuple[Message, int, bool, bytes] | None:
        """Take the oldest message out of the inbox, as take() returns it; None if there is none.

        What has expired before now_ms, monotonic, is dropped and counted [MQTT-3.3.2-5].
        """
        while self.inbox:
            entry = self.inbox.popleft()
            if not self.expired(entry[0], now_ms):
                return entry[:4]
        return None

    def expired(self, Message message not None, now_ms: int) -> bool:
        """Return whether a message has expired before now_ms, monotonic; then it is counted as dropped."""
        if message.expires_ms == 0 or now_ms <= message.expires_ms:
            return False
        self._drop(DROP_EXPIRED)
        return True

    # A publisher whose messages wait for their records

    def hold(self) -> None:
        """A message of this client waits for its record: later ones of QoS 1 and 2 wait behind it [MQTT-4.6.0-5]."""
        self.waiting_records += 1

    def release(self) -> None:
        """A message that hold() was called for has settled."""
        assert self.waiting_records, self.client_identifier
        self.waiting_records -= 1

    def leave(self) -> None:
        """Receive nothing any more. The tree has forgotten this client before.

        What is in the inbox is dropped and counted; what came through a shared subscription at QoS 1 or 2 goes to
        another member (4.8.2).
        """
        self.connected = False
        self.gone = True
        self.on_arrival = None
        inbox, self.inbox = self.inbox, deque()
        for message, qos, _, _, group in inbox:
            if qos == 0 or group is None:
                self._drop(DROP_SESSION_ENDED)
            elif not (<SharedGroup>group).redispatch(self, <Message>message):
                self._drop(DROP_NO_MEMBER)

    cdef int _drop(self, int reason) noexcept:
        self.dropped += 1
        if self.ledger is not None:
            self.ledger.dropped_messages[reason] += 1
        return 0
