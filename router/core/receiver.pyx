"""What the subscription tree holds: receivers of messages."""

from libc.stdlib cimport free, realloc

# For what is not compiled: the bits of Subscription Options.
QOS_BITS = QOS_MASK
NO_LOCAL_BIT = NO_LOCAL
RETAIN_AS_PUBLISHED_BIT = RETAIN_AS_PUBLISHED
NARROWED_OPTION = NARROWED
RESERVED_BITS = 0xFF & ~(QOS_MASK | NO_LOCAL | RETAIN_AS_PUBLISHED | RETAIN_HANDLING_MASK)


def encode_options(qos: int, no_local: bool, retain_as_published: bool, retain_handling: int) -> int:
    """Return the Subscription Options byte (3.8.3.1)."""
    return (qos | (NO_LOCAL if no_local else 0) | (RETAIN_AS_PUBLISHED if retain_as_published else 0)
            | retain_handling << RETAIN_HANDLING_SHIFT)


def decode_options(options: int) -> tuple[int, bool, bool, int]:
    """Return Maximum QoS, No Local, Retain As Published and Retain Handling of a Subscription Options byte."""
    return (options & QOS_MASK, options & NO_LOCAL != 0, options & RETAIN_AS_PUBLISHED != 0,
            (options & RETAIN_HANDLING_MASK) >> RETAIN_HANDLING_SHIFT)


cdef class Receiver:
    """What may subscribe: a session of a client or of a peer, an in-process client. Abstract."""

    def __dealloc__(self):
        if self.tree != NULL:
            leave_tree(self)
        free(self.entries)

    cdef Verdict deliver(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED:
        raise TypeError(f"{type(self).__name__} does not receive")

    cdef int refuses(self, Message message) except -3:
        return TAKES

    cdef int refuse(self, Message message, int reason) except -1:
        raise TypeError(f"{type(self).__name__} has no queue")

    cdef bint push_back(self, Message message, uint8_t qos) except -1:
        return False

    cdef bint online(self) noexcept:
        return False

    cdef bint has_room(self) noexcept:
        return False

    @property
    def is_online(self) -> bool:
        """Whether it has a live connection."""
        return self.online()

    @property
    def subscription_count(self) -> int:
        """Number of subscriptions held."""
        return self.entry_count


cdef int reserve(Entry** entries, uint32_t count, uint32_t* capacity) except -1:
    """Make room for one entry more: 1, then twice as many."""
    cdef uint32_t wanted
    cdef Entry* moved
    if count < capacity[0]:
        return 0
    wanted = capacity[0] * 2 if capacity[0] else 1
    moved = <Entry*>realloc(entries[0], wanted * sizeof(Entry))
    if moved == NULL:
        raise MemoryError()
    entries[0] = moved
    capacity[0] = wanted
    return 0


cdef void give_back(Entry** entries, uint32_t count, uint32_t* capacity) noexcept:
    """Halve what is three quarters empty."""
    cdef Entry* moved
    if count == 0:
        free(entries[0])
        entries[0] = NULL
        capacity[0] = 0
    elif count <= capacity[0] // 4:
        moved = <Entry*>realloc(entries[0], capacity[0] // 2 * sizeof(Entry))
        if moved != NULL:
            entries[0] = moved
            capacity[0] //= 2
