"""What goes from a queue that is full, and the numbers that it leaves behind."""

from libc.stdint cimport uint64_t
from router.core.message cimport Message
from router.sessions.outgoing cimport Outgoing
from router.sessions.sink cimport Sink

# A durable session's queue is over its limits by this message: what has waited longest goes, if that is the policy.
cdef int make_room(Outgoing outgoing, Sink sink, bint durable, Message message) except -1
# Recovery: these numbers are given again.
cdef int assume_renumbered(Outgoing outgoing, uint64_t first_number, uint64_t amount) except -1
