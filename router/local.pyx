"""A client inside the process."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from router.message cimport Message, topic_hash
from router.receiver cimport DELIVERED, DROPPED, Verdict


cdef class LocalClient(Receiver):
    """A subscriber in this process: what it receives lies in an inbox until its owner takes it, after the turn.

    Args:
        client_identifier: decides its place in shared subscriptions that hash.
        inbox_max: messages, 1 or more; those beyond are dropped and counted.
    """

    def __init__(self, client_identifier: bytes = b"", inbox_max: int = 1000):
        if inbox_max < 1:
            raise ValueError(f"inbox_max is 1 or more, not {inbox_max}")
        self.client_identifier = client_identifier
        self.key = topic_hash(<const uint8_t*>PyBytes_AS_STRING(client_identifier), len(client_identifier))
        self.inbox_max = inbox_max
        self.inbox = []
        self.connected = True

    cdef Verdict deliver(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED:
        if not self.connected or len(self.inbox) >= self.inbox_max:
            self.dropped += 1
            return DROPPED
        self.inbox.append((
            message.keep(), qos, bool(retain), PyBytes_FromStringAndSize(<const char*>ids, ids_length)))
        return DELIVERED

    cdef bint online(self) noexcept:
        return self.connected

    cdef bint has_room(self) noexcept:
        return self.connected and len(self.inbox) < self.inbox_max

    @property
    def waiting(self) -> int:
        """Number of messages in the inbox."""
        return len(self.inbox)

    def take(self) -> list[tuple[Message, int, bool, bytes]]:
        """Return (message, QoS, RETAIN flag, encoded Subscription Identifiers) of all that came, and empty the inbox."""
        cdef list taken = self.inbox
        self.inbox = []
        return taken
