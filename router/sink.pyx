"""Where a session's packets go: the seam that a connection implements."""


cdef class Sink:
    """One live connection as its session sees it. Abstract."""

    cdef SinkResult publish(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                            const uint8_t* ids, uint32_t ids_length) except? SINK_FULL:
        raise TypeError(f"{type(self).__name__} does not publish")

    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1:
        raise TypeError(f"{type(self).__name__} does not acknowledge")
