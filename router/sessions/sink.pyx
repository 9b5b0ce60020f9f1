"""Where a session's packets go: the seam that a connection implements."""

from libc.stdlib cimport calloc, free
from router.sessions.ledger cimport (
    DROP_EXPIRED, DROP_OFFLINE, DROP_OUTPUT_FULL, DROP_OUTSIDE_MOUNT, DROP_QUEUE_FULL, DROP_REASON_COUNT, DROP_TOO_LARGE,
)
from router.sessions.queue_policy cimport DISCONNECT

from router.sessions.ledger import DROP_REASONS


cdef class Sink:
    """One live connection as its session sees it. Abstract."""

    def __dealloc__(self):
        free(self.drops)

    cdef SinkResult publish(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                            const uint8_t* ids, uint32_t ids_length) except? SINK_FULL:
        raise TypeError(f"{type(self).__name__} does not publish")

    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1:
        raise TypeError(f"{type(self).__name__} does not acknowledge")

    cdef int queue_full(self) except -1:
        raise TypeError(f"{type(self).__name__} does not end")

    def dropped(self) -> dict[str, int]:
        """Messages from and to this connection that were dropped, by reason; reasons that never happened are left out."""
        if self.drops == NULL:
            return {}
        return {name: self.drops[index] for index, name in enumerate(DROP_REASONS) if self.drops[index]}


cdef int count_drop(Ledger ledger, Sink sink, int reason) noexcept:
    ledger.dropped_messages[reason] += 1
    if sink is None:
        return 0
    if sink.drops == NULL:
        sink.drops = <uint64_t*>calloc(DROP_REASON_COUNT, sizeof(uint64_t))
        if sink.drops == NULL:
            return 0                     # no memory for a count: the router's has it
    sink.drops[reason] += 1
    return 0


cdef int reason_of(Sink sink, SinkResult result) noexcept:
    if result == SINK_TOO_LARGE:
        return DROP_OUTSIDE_MOUNT if sink.is_outside else DROP_TOO_LARGE
    if result == SINK_EXPIRED:
        return DROP_EXPIRED
    return DROP_OFFLINE if result == SINK_GONE else DROP_OUTPUT_FULL


cdef int refuse(Ledger ledger, Sink sink, Message message, int reason) except -1:
    count_drop(ledger, sink, reason)
    if reason == DROP_QUEUE_FULL and sink is not None and ledger.policy_of(message) == DISCONNECT:
        sink.queue_full()
    return 0
