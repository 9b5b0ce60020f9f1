"""What the sessions of one router share: the time, the limits they go by, and the counts of what was dropped."""

from router.core.message cimport message_size
from router.sessions.losses cimport Losses
from router.sessions.queue_policy cimport DISCONNECT, DROP_NEWEST
from router.core.receiver cimport DISPLACES, TAKES

DROP_REASONS = (
    "offline", "queue_full", "expired", "too_large", "output_full", "refused", "session_ended", "no_member",
    "not_authorized", "retained_full", "memory", "inbox_full", "unreadable", "log_unavailable", "queue_oldest",
    "peer_away", "peer_gone", "payload_too_large", "outside_mount",
)
assert len(DROP_REASONS) == DROP_REASON_COUNT, DROP_REASONS
# To a client's loss, by what the broker could not keep or its connection did not take. What expired, what it may not
# read or refused itself, and QoS 0 while it was away, it was never to have.
LOSSES = frozenset({"queue_full", "queue_oldest", "memory", "output_full", "too_large", "unreadable"})


cdef class SessionLimits:
    """What a session may have: messages that wait, bytes of their topic names, properties and payloads, subscriptions."""

    def __init__(self, queue_messages_max: int, queue_bytes_max: int, subscriptions_max: int = 0):
        self.queue_messages_max = queue_messages_max
        self.queue_bytes_max = queue_bytes_max
        self.subscriptions_max = subscriptions_max


cdef class Ledger:
    """Shared by a router and all its sessions; the router's host moves `now_ms` and sets `memory_full`.

    A limit that is not given is as large as its field holds: the broker's own are its settings.
    """

    def __init__(self, queue_messages_max: int = 0xFFFFFFFF, queue_bytes_max: int = 0xFFFFFFFFFFFFFFFF,
                 inflight_max: int = 65_535, queue_qos0: bool = False,
                 retained_messages_max: int = 0xFFFFFFFFFFFFFFFF, retained_bytes_max: int = 0xFFFFFFFFFFFFFFFF,
                 *, OverflowRules overflow=None, push_back_ms: int = 0,
                 peer_bytes_max: int = 0xFFFFFFFFFFFFFFFF):
        self.queue_qos0 = queue_qos0
        self.retained_messages_max = retained_messages_max
        self.retained_bytes_max = retained_bytes_max
        self.session_limits = SessionLimits(queue_messages_max, queue_bytes_max)
        self.inflight_max = inflight_max
        self.peer_messages_max = 0xFFFFFFFF
        self.peer_bytes_max = peer_bytes_max
        self.overflow = overflow if overflow is not None else OverflowRules()
        self.push_back_ms = push_back_ms
        self.gap_min = 1024
        self.losses = Losses(DROP_REASONS, LOSSES)
        self.starved = []

    cdef Message fetch(self, uint64_t record):
        """Read a message back by the number of its record. None: it cannot be read yet; the session asks again.

        Raises LookupError if it is in the log no more.
        """
        if self.bodies is None:
            raise LookupError(record)
        return self.bodies.fetch(record, self.now_us, self.now_ms)

    cdef int policy_of(self, Message message) except -1:
        return self.overflow.policy_of(message.topic, message.topic_length)

    cdef int refuses(self, Message message, uint64_t messages, uint64_t held_bytes, SessionLimits limits) except -3:
        cdef uint64_t size = message_size(message)
        cdef int policy
        if messages < limits.queue_messages_max and held_bytes + size <= limits.queue_bytes_max:
            return DROP_MEMORY if self.memory_full else TAKES
        policy = self.policy_of(message)
        if policy == DROP_NEWEST or policy == DISCONNECT or size > limits.queue_bytes_max:
            return DROP_QUEUE_FULL
        return DROP_MEMORY if self.memory_full else DISPLACES

    def count_dropped(self, reason: str) -> None:
        """Count a message dropped for a reason of DROP_REASONS: one that only Python saw."""
        self.dropped_messages[DROP_REASONS.index(reason)] += 1

    def dropped(self) -> dict[str, int]:
        """Messages dropped since the start, by reason; reasons that never happened are left out."""
        return {name: self.dropped_messages[index] for index, name in enumerate(DROP_REASONS)
                if self.dropped_messages[index]}
