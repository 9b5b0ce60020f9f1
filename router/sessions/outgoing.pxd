"""What one session is owed at QoS 1 and 2."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.sessions.packet_identifiers cimport PACKET_IDENTIFIERS, SHIFTED_WINDOW, ShiftedIdentifiers
from router.sessions.doubt cimport Doubt
from router.sessions.ledger cimport Ledger, SessionLimits
from router.core.message cimport Message
from router.core.receiver cimport DROPPED, Verdict
from router.sessions.sink cimport Sink, SinkResult

cdef enum DeliveryState:
    DELIVERY_FREE = 0                     # acknowledged, or dropped while it waited
    DELIVERY_QUEUED = 1                   # not sent yet
    DELIVERY_SENT = 2                     # PUBLISH sent, PUBACK or PUBREC to come
    DELIVERY_RELEASED = 3                 # PUBREC came, PUBREL sent, PUBCOMP to come; the payload is gone [MQTT-4.3.3-4]

cdef enum Answer:                # what an acknowledgement was to us
    ANSWER_FREED = 0             # the delivery is done
    ANSWER_RELEASE = 1           # PUBREC accepted: PUBREL is due
    ANSWER_UNKNOWN = 2           # no such packet identifier in flight
    ANSWER_WRONG = 3             # in flight, but not at this QoS or step: a protocol error

cdef struct Delivery:
    void* message                # Message, owned reference; NULL once let go, to be read back, or never to be sent again
    uint64_t record              # number of its record in the log; 0: it is in memory only
    void* group                  # SharedGroup, owned reference; NULL if not from a shared subscription
    uint8_t* ids                 # encoded Subscription Identifiers, owned; NULL if none
    uint32_t ids_length
    uint32_t size                # topic name, properties and payload, bytes
    uint8_t qos                  # 1 or 2
    uint8_t state                # DeliveryState
    uint8_t retain
    uint32_t connection          # on which of the session's connections it last used send quota
    uint32_t released_on         # RELEASED: on which of them its PUBREL was last sent


cdef class Outgoing:
    # One ring holds all deliveries from the oldest not acknowledged to the newest queued:
    #   oldest_open <= resend_number <= next_number <= end_number,   next_number - oldest_open <= 65535
    cdef Delivery* ring                   # slot of number n: ring[n & (capacity - 1)]; NULL while nothing is owed
    cdef uint32_t capacity                # a power of two, or 0
    cdef uint64_t oldest_open             # oldest delivery not acknowledged
    cdef uint64_t resend_number           # sent on an earlier connection and to be resent from here [MQTT-4.4.0-1]
    cdef uint64_t next_number             # first not sent yet
    cdef uint64_t end_number              # one past the newest
    cdef ShiftedIdentifiers identifiers   # None but where a log may have lost its end
    cdef uint64_t queued_bytes            # payload and topic of what is QUEUED
    cdef uint32_t queued_count
    cdef object waiting_qos0              # deque of (Message, retain, identifiers) for a connection; None while there are none
    cdef uint32_t connection              # counts the session's connections
    cdef bint starved                     # the last drain() stopped at what the log has not got yet
    cdef uint64_t drop_record             # nothing behind what was dropped leaves before this record is durable; 0: it is
    cdef int64_t push_back_until_ms       # until then a full queue makes publishers wait; 0: none has had to
    cdef uint32_t loss                    # of its client, in ledger.losses; 0: none
    cdef uint32_t dropped_count           # to make room, since a gap was last looked for
    cdef uint32_t pushed_count            # messages let in meanwhile beyond the limits, one of each who waits
    cdef uint64_t pushed_bytes
    cdef int send_quota                   # PUBLISH packets that may still be sent; 0 <= send_quota <= receive_maximum
    cdef int receive_maximum
    cdef Ledger ledger
    cdef SessionLimits limits         # of its session
    cdef bytes client_identifier
    cdef bint peer                        # of a peer: limits are its own, and its numbers are in no record
    cdef Doubt doubted                    # what was queued under other rights than hold now; None: nothing was
    cdef bint peer_missed                 # of a peer: something was dropped, and its Peer has not settled that yet
    cdef uint64_t passed_record           # of a peer: the highest record below oldest_open; 0: none since it was told

    cdef Verdict deliver(self, Sink sink, bint durable, Message message, uint8_t qos, bint retain,
                         const uint8_t* ids, uint32_t ids_length, void* group) except? DROPPED
    cdef int drain(self, Sink sink, bint durable) except -1         # resend, then send what quota allows; how many
    cdef int attach(self, int receive_maximum) except -1            # a new connection: everything sent is doubtful
    cdef Answer on_puback(self, uint16_t packet_identifier) except? ANSWER_UNKNOWN
    cdef Answer on_pubrec(self, uint16_t packet_identifier, bint refused) except? ANSWER_UNKNOWN
    cdef Answer on_pubcomp(self, uint16_t packet_identifier) except? ANSWER_UNKNOWN

    cdef inline bint waiting(self) noexcept:
        """Return whether drain() has something to do once quota allows."""
        return self.resend_number < self.end_number or self.waiting_qos0 is not None

    cdef inline uint16_t identifier_of(self, uint64_t number) noexcept:
        if self.identifiers is None:
            return <uint16_t>(1 + number % PACKET_IDENTIFIERS)
        return self.identifiers.of_number(number)

    cdef inline uint64_t window_max(self) noexcept:
        """Return how many numbers, from the oldest open one on, have identifiers of their own."""
        return PACKET_IDENTIFIERS if self.identifiers is None else SHIFTED_WINDOW

    cdef Delivery* slot(self, uint64_t number) noexcept
    cdef uint64_t number_of(self, uint16_t packet_identifier, uint64_t end) noexcept
    cdef int shift(self, uint64_t first_number, uint32_t amount) except -1
    cdef Delivery* in_flight(self, uint16_t packet_identifier, uint64_t* number) noexcept
    cdef int append(self) except -1
    cdef int free_slot(self, uint64_t number) except -1
    cdef int give_back_quota(self, Delivery* delivery) noexcept
    cdef void _release(self, Delivery* delivery) noexcept
    cdef int _grow(self) except -1
    cdef Delivery* _fill(self, uint64_t number, uint64_t record, uint64_t size, uint8_t qos, bint retain) noexcept
    cdef int _hold(self, Delivery* delivery, Message message, const uint8_t* ids, uint32_t ids_length,
                   void* group) except -1
    cdef Verdict _queue(self, Sink sink, bint readable, Message message, uint8_t qos, bint retain,
                        const uint8_t* ids, uint32_t ids_length, void* group) except? DROPPED
    cdef inline bint _is_logged(self, bint durable) noexcept:
        return durable and self.ledger.records is not None and not self.peer

    cdef inline int lose(self, int reason) noexcept:
        """Its client does not get a message."""
        if not self.peer:
            self.loss = self.ledger.losses.note(self.loss, self.client_identifier, reason, self.ledger.now_ms)
        return 0

    cdef int _drop(self, SinkResult result, Sink sink, uint64_t number, bint logged) except -1
    cdef int note_drop(self, uint64_t number, int reason) except -1
    cdef int _use_up(self, uint64_t number, uint64_t record) except -1
    cdef Message _read(self, Delivery* delivery, Sink sink, uint64_t number, bint logged)
    cdef bint push_back(self, Message message) except -1     # for which there is no room: its publisher waits, by the policy
    cdef bint pushes_back(self) noexcept                     # whoever was made to wait goes on doing so
    cdef int end_push_back(self) noexcept
    cdef Message _leave_out(self, Sink sink, uint64_t number, bint logged, int reason)
    cdef Message body(self, Delivery* delivery)              # None: it cannot be read back yet; raises LookupError
    cdef int acknowledged_below(self, uint64_t number) except -1   # frees what was sent
    cdef int done_with(self, uint64_t record) except -1        # recovery, of a peer: it has all up to this record
    cdef int let_go(self) noexcept                           # of the bodies that can be read back
    # Recovery: what the records say has become of deliveries.
    cdef int owe(self, uint64_t record, uint32_t size, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                 void* group) except -1
    cdef int assume_sent(self, uint16_t packet_identifier) except -1
    cdef int assume_sent_below(self, uint64_t number) except -1
    cdef int assume_dropped(self, uint64_t number) except -1
    cdef int _pass_free(self) noexcept
    cdef int _resend(self, Sink sink, bint logged) except -1
    cdef int _drain_qos0(self, Sink sink) except -1
    cdef int _unqueue(self, Delivery* delivery) noexcept
    cdef int _count_out(self, uint64_t size) noexcept
