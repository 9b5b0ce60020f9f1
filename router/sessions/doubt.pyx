"""What was queued for a client under other rights than hold now: asked about again before it leaves.

Not at once: most of it is in the log only, and a thousand sessions may have much of it. What has been sent and not
acknowledged is sent again to the same user, who may have it: to leave it out would leave its packet identifier in doubt.
"""

cimport cython


@cython.final
cdef class Doubt:
    """Of one session."""

    cdef bint leaves_out(self, uint64_t number, bint sent, Message message) noexcept:
        return number < (self.sent_below if sent else self.below) and not self.rights.may_read(
            <Receiver>self.reader, message.topic, message.topic_length)

    cdef bint leaves_out_qos0(self, Message message) noexcept:
        if self.qos0 == 0:
            return False
        self.qos0 -= 1
        return not self.rights.may_read(<Receiver>self.reader, message.topic, message.topic_length)


cdef Doubt doubt(Receiver reader, Rights rights, uint64_t below, uint32_t qos0, bint another, Doubt before):
    """Return the doubt about deliveries with lower numbers, and about the first so many at QoS 0."""
    cdef Doubt made = Doubt.__new__(Doubt)
    made.rights = rights
    made.reader = <void*>reader
    made.below = below
    made.qos0 = qos0
    made.sent_below = below if another else before.sent_below if before is not None else 0
    return made
