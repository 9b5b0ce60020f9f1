"""What one session is owed at QoS 1 and 2: deliveries in flight, then deliveries that wait (QoS 0 too, if asked for).

A delivery gets its number when the session first owes it, and its packet identifier follows from the number. Numbers
are freed in any order; the ring's start moves over freed ones. Only a new connection resends, in the first order
[MQTT-4.4.0-1], [MQTT-4.6.0-1].
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from router.ledger cimport (
    DROP_EXPIRED, DROP_OFFLINE, DROP_MEMORY, DROP_OUTPUT_FULL, DROP_QUEUE_FULL, DROP_TOO_LARGE,
)
from router.receiver cimport DELIVERED, DROPPED, QUEUED, TOO_LARGE
from router.sink cimport PUBREL, SINK_EXPIRED, SINK_GONE, SINK_SENT, SINK_TOO_LARGE, SinkResult, count_drop

cdef enum:
    PACKET_IDENTIFIERS = 65535
    RING_MIN = 4
    RING_KEPT_MAX = 256          # a larger ring is given back when it empties


@cython.final
@cython.no_gc
cdef class Outgoing:
    """The QoS 1 and 2 deliveries of one session. Created when the first one is owed."""

    def __cinit__(self, Ledger ledger):
        self.ledger = ledger

    def __dealloc__(self):
        cdef uint64_t number
        if self.ring != NULL:
            for number in range(self.oldest_open, self.end_number):
                if self.slot(number).state == DELIVERY_SENT or self.slot(number).state == DELIVERY_RELEASED:
                    self.ledger.inflight_messages -= 1
                self._release(self.slot(number))
            self.ledger.queued_messages -= self.queued_count
            self.ledger.queued_bytes -= self.queued_bytes
            free(self.ring)

    cdef inline Delivery* slot(self, uint64_t number) noexcept:
        return &self.ring[number & (self.capacity - 1)]

    cdef void _release(self, Delivery* delivery) noexcept:
        if delivery.message != NULL:
            Py_DECREF(<object>delivery.message)
            delivery.message = NULL
        if delivery.group != NULL:
            Py_DECREF(<object>delivery.group)
            delivery.group = NULL
        if delivery.ids != NULL:
            free(delivery.ids)
            delivery.ids = NULL

    cdef int append(self) except -1:
        """Make room for the number end_number. The slot comes back zeroed."""
        cdef Delivery* ring
        cdef uint32_t capacity
        cdef uint64_t number
        if self.end_number - self.oldest_open == self.capacity:
            capacity = self.capacity * 2 if self.capacity else RING_MIN
            ring = <Delivery*>calloc(capacity, sizeof(Delivery))
            if ring == NULL:
                raise MemoryError()
            for number in range(self.oldest_open, self.end_number):
                ring[number & (capacity - 1)] = self.ring[number & (self.capacity - 1)]
            free(self.ring)
            self.ring = ring
            self.capacity = capacity
        return 0

    cdef int _fill(self, Delivery* delivery, Message message, bint kept, uint8_t qos, bint retain,
                   const uint8_t* ids, uint32_t ids_length, void* group, uint8_t state) except -1:
        cdef Message owned
        delivery.message = NULL
        delivery.group = NULL
        delivery.ids = NULL
        delivery.ids_length = 0
        if kept:
            owned = message.keep()
            Py_INCREF(owned)
            delivery.message = <void*>owned
            if ids_length:
                delivery.ids = <uint8_t*>malloc(ids_length)
                if delivery.ids == NULL:
                    raise MemoryError()
                memcpy(delivery.ids, ids, ids_length)
                delivery.ids_length = ids_length
            if group != NULL:
                Py_INCREF(<object>group)
                delivery.group = group
        delivery.qos = qos
        delivery.retain = retain
        delivery.state = state
        delivery.connection = self.connection
        return 0

    cdef Verdict deliver(self, Sink sink, bint durable, Message message, uint8_t qos, bint retain,
                         const uint8_t* ids, uint32_t ids_length, void* group) except? DROPPED:
        """Send one delivery if nothing waits before it and quota allows, else queue it.

        A session that ends with its connection is never resent anything, so it keeps no copy of what it was sent,
        unless another member of a shared subscription may have to take it (4.8.2).
        """
        cdef SinkResult result
        cdef uint64_t number = self.end_number
        cdef uint64_t size
        if (qos and sink is not None and sink.writable and self.next_number == number and self.resend_number == number
                and self.send_quota > 0 and number - self.oldest_open < PACKET_IDENTIFIERS):
            self.append()
            result = sink.publish(message, <uint16_t>(1 + number % PACKET_IDENTIFIERS), qos, retain, False,
                                  ids, ids_length)
            if result != SINK_SENT:
                self._count(result, sink)
                return TOO_LARGE if result == SINK_TOO_LARGE else DROPPED
            self._fill(self.slot(number), message, durable or group != NULL, qos, retain, ids, ids_length, group, DELIVERY_SENT)
            self.send_quota -= 1
            self.ledger.inflight_messages += 1
            self.end_number = self.next_number = self.resend_number = number + 1
            return DELIVERED
        size = <uint64_t>message.topic_length + message.payload_length + message.properties_length
        if (self.queued_count >= self.ledger.queue_messages_max
                or self.queued_bytes + size > self.ledger.queue_bytes_max):
            count_drop(self.ledger, sink, DROP_QUEUE_FULL)
            return DROPPED
        if self.ledger.memory_full:
            count_drop(self.ledger, sink, DROP_MEMORY)
            return DROPPED
        self.append()
        self._fill(self.slot(number), message, True, qos, retain, ids, ids_length, group, DELIVERY_QUEUED)
        self.end_number = number + 1
        self.queued_count += 1
        self.queued_qos0 += qos == 0
        self.queued_bytes += size
        self.ledger.queued_messages += 1
        self.ledger.queued_bytes += size
        return QUEUED

    cdef int _count(self, SinkResult result, Sink sink) noexcept:
        if result == SINK_TOO_LARGE:
            count_drop(self.ledger, sink, DROP_TOO_LARGE)
        elif result == SINK_EXPIRED:
            count_drop(self.ledger, sink, DROP_EXPIRED)
        elif result == SINK_GONE:
            count_drop(self.ledger, sink, DROP_OFFLINE)
        else:
            count_drop(self.ledger, sink, DROP_OUTPUT_FULL)
        return 0

    cdef int _unqueue(self, Delivery* delivery) noexcept:
        cdef Message message = <Message>delivery.message
        cdef uint64_t size = <uint64_t>message.topic_length + message.payload_length + message.properties_length
        self.queued_count -= 1
        self.queued_qos0 -= delivery.qos == 0
        self.queued_bytes -= size
        self.ledger.queued_messages -= 1
        self.ledger.queued_bytes -= size
        return 0

    cdef int drain(self, Sink sink, bint durable) except -1:
        """Resend what an earlier connection was sent, then send what waits, as far as quota and output allow.

        Returns how many packets were sent.
        """
        cdef Delivery* delivery
        cdef SinkResult result
        cdef uint64_t number
        cdef int sent = 0
        while self.resend_number < self.next_number and sink.writable:
            number = self.resend_number
            delivery = self.slot(number)
            if delivery.state == DELIVERY_SENT:
                if self.send_quota <= 0:
                    return sent
                assert delivery.message != NULL, "a delivery to resend has lost its message"
                result = sink.publish(<Message>delivery.message, <uint16_t>(1 + number % PACKET_IDENTIFIERS),
                                      delivery.qos, delivery.retain, True, delivery.ids, delivery.ids_length)
                if result == SINK_SENT:
                    delivery.connection = self.connection
                    self.send_quota -= 1
                    sent += 1
                else:
                    self._count(result, sink)
                    self.free_slot(number)
            elif delivery.state == DELIVERY_RELEASED and delivery.released_on != self.connection:
                # Uses no quota, and its PUBCOMP gives none back (4.9). A PUBREC that came on this connection before
                # the resending got here has had its PUBREL: not twice on one connection [MQTT-4.4.0-1].
                delivery.released_on = self.connection
                sink.acknowledge(PUBREL, <uint16_t>(1 + number % PACKET_IDENTIFIERS), 0)
                sent += 1
            # free_slot may have moved the start past it
            self.resend_number = max(number + 1, self.oldest_open)
        while (self.next_number < self.end_number and sink.writable
               and self.next_number - self.oldest_open < PACKET_IDENTIFIERS
               and self.resend_number == self.next_number):
            number = self.next_number
            delivery = self.slot(number)
            if delivery.qos and self.send_quota <= 0:
                break
            self.next_number = self.resend_number = number + 1
            if delivery.state == DELIVERY_QUEUED:
                self._unqueue(delivery)
                result = sink.publish(<Message>delivery.message, <uint16_t>(1 + number % PACKET_IDENTIFIERS),
                                      delivery.qos, delivery.retain, False, delivery.ids, delivery.ids_length)
                if result != SINK_SENT:
                    self._count(result, sink)
                else:
                    sent += 1
                    if delivery.qos:
                        delivery.state = DELIVERY_SENT
                        self.ledger.inflight_messages += 1
                        delivery.connection = self.connection
                        self.send_quota -= 1
                        if not durable and delivery.group == NULL:
                            self._release(delivery)
                        continue
            self.free_slot(number)
        return sent

    cdef int attach(self, int receive_maximum) except -1:
        """Start on a new connection with a full quota; what was sent before is to be resent."""
        assert receive_maximum > 0, receive_maximum
        self.receive_maximum = min(receive_maximum, self.ledger.inflight_max)
        self.send_quota = self.receive_maximum
        self.resend_number = self.oldest_open
        self.connection += 1
        return 0

    cdef bint waiting(self) noexcept:
        return self.resend_number < self.end_number

    cdef Delivery* in_flight(self, uint16_t packet_identifier, uint64_t* number) noexcept:
        """Return the delivery that was sent under a packet identifier, and its number; NULL if there is none."""
        cdef uint64_t found
        cdef Delivery* delivery
        if packet_identifier == 0 or self.oldest_open == self.next_number:
            return NULL
        found = self.oldest_open + (
            (<uint64_t>packet_identifier - 1 + PACKET_IDENTIFIERS - self.oldest_open % PACKET_IDENTIFIERS)
            % PACKET_IDENTIFIERS)
        if found >= self.next_number:
            return NULL
        delivery = self.slot(found)
        if delivery.state != DELIVERY_SENT and delivery.state != DELIVERY_RELEASED:
            return NULL
        number[0] = found
        return delivery

    cdef int free_slot(self, uint64_t number) except -1:
        """The delivery is done: let go of what it holds and move the start over freed numbers."""
        cdef Delivery* delivery = self.slot(number)
        if delivery.state == DELIVERY_SENT or delivery.state == DELIVERY_RELEASED:
            self.ledger.inflight_messages -= 1
        self._release(delivery)
        delivery.state = DELIVERY_FREE
        while self.oldest_open < self.next_number and self.slot(self.oldest_open).state == DELIVERY_FREE:
            self.oldest_open += 1
        if self.resend_number < self.oldest_open:
            self.resend_number = self.oldest_open
        if self.oldest_open == self.end_number and self.capacity > RING_KEPT_MAX:
            free(self.ring)
            self.ring = NULL
            self.capacity = 0
        return 0

    cdef int give_back_quota(self, Delivery* delivery) noexcept:
        # What was sent on an earlier connection used none of this one's quota, so its end gives none back (4.9).
        if delivery.connection == self.connection:
            self.send_quota += 1
        return 0

    cdef Answer on_puback(self, uint16_t packet_identifier) except? ANSWER_UNKNOWN:
        cdef uint64_t number = 0
        cdef Delivery* delivery = self.in_flight(packet_identifier, &number)
        if delivery == NULL:
            return ANSWER_UNKNOWN
        if delivery.qos != 1:
            return ANSWER_WRONG
        self.give_back_quota(delivery)
        self.free_slot(number)
        return ANSWER_FREED

    cdef Answer on_pubrec(self, uint16_t packet_identifier, bint refused) except? ANSWER_UNKNOWN:
        """PUBREC: below 0x80 the payload is let go and PUBREL is due; else the exchange is over [MQTT-4.4.0-2]."""
        cdef uint64_t number = 0
        cdef Delivery* delivery = self.in_flight(packet_identifier, &number)
        if delivery == NULL:
            return ANSWER_UNKNOWN
        if delivery.qos != 2:
            return ANSWER_WRONG
        if refused:
            self.give_back_quota(delivery)
            self.free_slot(number)
            return ANSWER_FREED
        self._release(delivery)
        delivery.state = DELIVERY_RELEASED
        delivery.released_on = self.connection
        return ANSWER_RELEASE

    cdef Answer on_pubcomp(self, uint16_t packet_identifier) except? ANSWER_UNKNOWN:
        cdef uint64_t number = 0
        cdef Delivery* delivery = self.in_flight(packet_identifier, &number)
        if delivery == NULL:
            return ANSWER_UNKNOWN
        if delivery.qos != 2 or delivery.state != DELIVERY_RELEASED:
            return ANSWER_WRONG
        self.give_back_quota(delivery)
        self.free_slot(number)
        return ANSWER_FREED

    def state(self) -> dict:
        """Counts and identifiers for admin and tests: in flight (packet identifier, qos, state) in order, queued."""
        cdef uint64_t number
        names = ("free", "queued", "sent", "released")
        return {
            "in_flight": [(1 + number % PACKET_IDENTIFIERS, self.slot(number).qos, names[self.slot(number).state])
                          for number in range(self.oldest_open, self.next_number) if self.slot(number).state != DELIVERY_FREE],
            "queued": self.queued_count,
            "queued_bytes": self.queued_bytes,
            "send_quota": self.send_quota,
        }
