"""What receivers may read of the topic filters that they were granted in part."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.core.receiver cimport Receiver

cdef enum:
    VERDICTS = 65536             # remembered answers, a power of two

cdef class Rights:
    cdef object ask              # (principal, topic name) -> bool
    cdef uint64_t* verdicts      # VERDICTS entries: hash of receiver and topic name, low bit: it may; NULL before the first
    cdef uint64_t secret
    cdef uint32_t serial         # of the principal that was given last
    cdef readonly uint64_t asked # how often the answer was not remembered
    # Whether a receiver may read a topic. A no, if nobody can be asked. Cost: nanoseconds, if it is remembered.
    cdef bint may_read(self, Receiver receiver, const uint8_t* topic, uint16_t topic_length) noexcept
