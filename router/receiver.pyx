"""What the subscription tree holds: receivers of messages."""

from libc.stdlib cimport free


cdef class Receiver:
    """Somebody who may subscribe: a Session, a link to a peer, an in-process client. Abstract."""

    def __dealloc__(self):
        free(self.entries)

    cdef Verdict deliver(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED:
        raise TypeError(f"{type(self).__name__} does not receive")

    cdef bint online(self) noexcept:
        return False

    cdef bint has_room(self) noexcept:
        return False

    @property
    def subscription_count(self) -> int:
        """Number of subscriptions held."""
        return self.entry_count
