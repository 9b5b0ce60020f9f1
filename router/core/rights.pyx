"""What receivers may read of the topic filters that they were granted in part."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from router.core.message cimport topic_hash


@cython.final
cdef class Rights:
    """Asks an ACL, and remembers the answers.

    Args:
        ask: called with a principal and a topic name, returns whether that may be read; decides by these alone.
        secret: 64 bits that no client knows.
    """

    def __init__(self, ask, secret: int = 0):
        self.ask = ask
        self.secret = secret

    def __dealloc__(self):
        free(self.verdicts)

    def give(self, Receiver receiver not None, principal) -> None:
        """From here on a receiver reads as this principal; what was said of the one before is forgotten."""
        receiver.principal = principal
        self.serial += 1
        receiver.rights_serial = self.serial

    def forget(self) -> None:
        """Other answers may hold now."""
        if self.verdicts != NULL:
            memset(self.verdicts, 0, VERDICTS * sizeof(uint64_t))

    def allows(self, Receiver receiver not None, bytes topic_name not None) -> bool:
        """Return whether a receiver may read a topic."""
        return self.may_read(receiver, topic_name, <uint16_t>len(topic_name))

    cdef bint may_read(self, Receiver receiver, const uint8_t* topic, uint16_t topic_length) noexcept:
        cdef uint64_t key
        cdef uint64_t* remembered
        cdef bint answer
        if receiver.principal is None:
            return True
        if self.verdicts == NULL:
            self.verdicts = <uint64_t*>calloc(VERDICTS, sizeof(uint64_t))
            if self.verdicts == NULL:
                return False
        key = (topic_hash(topic, topic_length) ^ self.secret) * <uint64_t>0x9E3779B97F4A7C15 + receiver.rights_serial
        key = (key ^ (key >> 29)) * <uint64_t>0xBF58476D1CE4E5B9
        remembered = &self.verdicts[(key >> 40) & (VERDICTS - 1)]
        if (remembered[0] | 1) == (key | 1):
            return remembered[0] & 1
        self.asked += 1
        answer = self.ask(receiver.principal, PyBytes_FromStringAndSize(<const char*>topic, topic_length))
        remembered[0] = (key & ~<uint64_t>1) | answer
        return answer
