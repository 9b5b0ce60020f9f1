"""What was queued for a client under other rights than hold now: asked about again before it leaves."""

from libc.stdint cimport uint32_t, uint64_t
from router.core.message cimport Message
from router.core.receiver cimport Receiver
from router.core.rights cimport Rights


cdef class Doubt:
    cdef Rights rights
    cdef void* reader            # Receiver, borrowed: whose it is
    cdef uint64_t below          # deliveries with lower numbers are in doubt, if they have not been sent
    cdef uint64_t sent_below     # ... and if they have: to somebody else
    cdef uint32_t qos0           # so many of those that wait at QoS 0, the first ones
    cdef bint leaves_out(self, uint64_t number, bint sent, Message message) noexcept
    cdef bint leaves_out_qos0(self, Message message) noexcept     # of the first one, which is taken


# `another`: the reader is somebody else than before. `before`: the doubt that there was, or None.
cdef Doubt doubt(Receiver reader, Rights rights, uint64_t below, uint32_t qos0, bint another, Doubt before)
