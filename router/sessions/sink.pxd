"""Where a session's packets go: the seam that a connection implements."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.sessions.ledger cimport Ledger
from router.core.message cimport Message

cdef enum SinkResult:
    SINK_SENT = 0
    SINK_FULL = 1                # QoS 0 only: the output is over its limit, the message is dropped
    SINK_TOO_LARGE = 2           # over the receiver's Maximum Packet Size: counts as delivered [MQTT-3.1.2-25]; or is_outside
    SINK_EXPIRED = 3
    SINK_GONE = 4                # the connection has ended, and its session is not told yet

cdef enum:                       # packet types of acknowledgements, as in the fixed header
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7

cdef enum:                       # reason codes of acknowledgements
    NO_MATCHING_SUBSCRIBERS = 0x10
    NOT_AUTHORIZED = 0x87
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    QUOTA_EXCEEDED = 0x97


cdef class Sink:
    cdef uint64_t* drops         # messages that did not reach this connection, by drop reason; NULL until the first
    cdef bint is_outside         # after SINK_TOO_LARGE: the topic has no name under the receiver's mount point
    cdef bint tells_refusals     # an acknowledgement there can say that a message was refused: MQTT 5.0
    cdef bint writable           # false while the output is over its limit: QoS 1/2 then waits in the session's queue

    cdef SinkResult publish(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                            const uint8_t* ids, uint32_t ids_length) except? SINK_FULL
    # Its version of MQTT may know no reason codes: then it is left out.
    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1
    cdef int queue_full(self) except -1  # the session's queue had no room, and the policy is that its connection ends


# A message was dropped for one of ledger.DROP_REASONS: counted for the router and, unless sink is None, its connection.
cdef int count_drop(Ledger ledger, Sink sink, int reason) noexcept
# For which of them a connection that answers so has not taken a message.
cdef int reason_of(Sink sink, SinkResult result) noexcept
# A queue did not take a message: counted likewise, and the connection ends, if that is the policy.
cdef int refuse(Ledger ledger, Sink sink, Message message, int reason) except -1
