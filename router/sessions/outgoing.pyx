"""What one session is owed at QoS 1 and 2: deliveries in flight, then deliveries that wait (QoS 0 too, if asked for).

A delivery gets its number when the session first owes it, and its packet identifier follows from the number. Numbers
are freed in any order; the ring's start moves over freed ones. Only a new connection resends, in the first order
[MQTT-4.4.0-1], [MQTT-4.6.0-1].
"""

from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from router.sessions.ledger cimport DROP_NOT_AUTHORIZED, DROP_UNREADABLE
from router.sessions.packet_identifiers cimport PACKET_IDENTIFIERS, ShiftedIdentifiers
from router.core.message cimport message_size
from router.sessions.queue_policy cimport PUSH_BACK
from router.core.receiver cimport DELIVERED, DROPPED, QUEUED, TOO_LARGE
from router.core.rings cimport grown
from router.matching.shared_groups cimport SharedGroup
from router.sessions.sink cimport (
    PUBREL, SINK_SENT, SINK_TOO_LARGE, SinkResult, count_drop, reason_of, refuse,
)

from router.sessions.ledger import DROP_REASONS

cdef enum:
    RING_MIN = 4
    RING_KEPT_MAX = 256          # a larger ring is given back when it empties
    PEER_RING_MAX = 8192         # ... and one of a peer, which has what goes to all clients there
    BODIES_KEPT_MAX = 256        # messages that wait in memory for one session; the others are read back from the log


@cython.final
@cython.no_gc
cdef class Outgoing:
    """The QoS 1 and 2 deliveries of one session. Created when the first one is owed."""

    def __cinit__(self, Ledger ledger, bytes client_identifier=b""):
        self.ledger = ledger
        self.limits = ledger.session_limits
        self.client_identifier = client_identifier

    def __dealloc__(self):
        cdef uint64_t number
        if self.ring != NULL:
            for number in range(self.oldest_open, self.end_number):
                if self.slot(number).state == DELIVERY_SENT or self.slot(number).state == DELIVERY_RELEASED:
                    self.ledger.inflight_messages -= 1
                self._release(self.slot(number))
            free(self.ring)
        self.ledger.queued_messages -= self.queued_count
        self.ledger.queued_bytes -= self.queued_bytes

    cdef inline Delivery* slot(self, uint64_t number) noexcept:
        return &self.ring[number & (self.capacity - 1)]

    cdef inline void _release(self, Delivery* delivery) noexcept:
        if delivery.message != NULL:
            Py_DECREF(<object>delivery.message)
            delivery.message = NULL
        if delivery.group != NULL:
            Py_DECREF(<object>delivery.group)
            delivery.group = NULL
        if delivery.ids != NULL:
            free(delivery.ids)
            delivery.ids, delivery.ids_length = NULL, 0

    cdef inline int append(self) except -1:
        """Make room for the number end_number."""
        return self._grow() if self.end_number - self.oldest_open == self.capacity else 0

    cdef int _grow(self) except -1:
        self.ring = <Delivery*>grown(
            self.ring, &self.capacity, RING_MIN, sizeof(Delivery), self.oldest_open, self.end_number)
        return 0

    cdef inline Delivery* _fill(self, uint64_t number, uint64_t record, uint64_t size, uint8_t qos,
                                bint retain) noexcept:
        """Fill in the slot of a number, but for its state and what it holds."""
        cdef Delivery* delivery = self.slot(number)
        memset(delivery, 0, sizeof(Delivery))
        delivery.record = record
        delivery.size = <uint32_t>size
        delivery.qos = qos
        delivery.retain = retain
        delivery.connection = self.connection
        return delivery

    cdef int _hold(self, Delivery* delivery, Message message, const uint8_t* ids, uint32_t ids_length,
                   void* group) except -1:
        """It may have to be sent again, or to another member. The message is None if it is in the log only."""
        cdef Message owned
        if message is not None:
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
        return 0

    cdef Verdict deliver(self, Sink sink, bint durable, Message message, uint8_t qos, bint retain,
                         const uint8_t* ids, uint32_t ids_length, void* group) except? DROPPED:
        """Send one delivery if nothing waits before it and quota allows, else queue it.

        A session that ends with its connection is never resent anything, so it keeps no copy of what it was sent,
        unless another member of a shared subscription may have to take it (4.8.2). A durable one keeps the number of
        the record instead, if there is one. In a durable session every delivery uses up its number, also one that is
        dropped: recovery counts them so.
        """
        cdef SinkResult result
        cdef Delivery* delivery
        cdef uint64_t number = self.end_number
        if (qos and sink is not None and sink.writable and self.resend_number == number
                and self.send_quota > 0 and number - self.oldest_open < self.window_max()):
            self.append()
            result = sink.publish(message, self.identifier_of(number), qos, retain, False, ids, ids_length)
            if result != SINK_SENT:
                self._drop(result, sink, number, self._is_logged(durable))
                if self.peer:
                    self._use_up(number, message.record)     # what is open below may have lower ones
                return TOO_LARGE if result == SINK_TOO_LARGE else DROPPED
            delivery = self._fill(number, message.record, message_size(message), qos, retain)
            if durable or group != NULL:
                self._hold(delivery, None if durable and message.record else message, ids, ids_length, group)
            delivery.state = DELIVERY_SENT
            self.send_quota -= 1
            self.ledger.inflight_messages += 1
            self.end_number = self.next_number = self.resend_number = number + 1
            return DELIVERED
        return self._queue(sink, durable and message.record != 0, message, qos, retain, ids, ids_length, group)

    cdef Verdict _queue(self, Sink sink, bint readable, Message message, uint8_t qos, bint retain,
                        const uint8_t* ids, uint32_t ids_length, void* group) except? DROPPED:
        """deliver() what has to wait; `readable`: it can be read back from the log."""
        cdef uint64_t number = self.end_number
        cdef uint64_t size = message_size(message)
        cdef Delivery* delivery
        cdef int reason
        if not readable and not self.peer:   # else the limits were asked before its record was made
            reason = self.ledger.refuses(message, self.queued_count, self.queued_bytes, self.limits)
            if reason >= 0:
                self.lose(reason)
                refuse(self.ledger, sink, message, reason)
                return DROPPED
        self.queued_count += 1
        self.queued_bytes += size
        self.ledger.queued_messages += 1
        self.ledger.queued_bytes += size
        if qos == 0:
            # In no order with the others [MQTT-4.6.0-5], and without a number: what has one stands in the log.
            if self.waiting_qos0 is None:
                self.waiting_qos0 = deque()
            self.waiting_qos0.append((message.keep(), bool(retain),
                                      PyBytes_FromStringAndSize(<const char*>ids, ids_length)))
        else:
            self.append()
            delivery = self._fill(number, message.record, size, qos, retain)
            self._hold(delivery, None if readable and (sink is None or self.queued_count > BODIES_KEPT_MAX) else message,
                       ids, ids_length, group)
            delivery.state = DELIVERY_QUEUED
            self.end_number = number + 1
        return QUEUED                    # whoever called makes room, if that is too many (router.sessions.queue_eviction)

    cdef bint push_back(self, Message message) except -1:
        """The queue has no room: let the message in, and return whether its publisher waits, as the policy says."""
        if self.ledger.policy_of(message) != PUSH_BACK:
            return False
        if self.push_back_until_ms == 0:
            self.push_back_until_ms = self.ledger.now_ms + self.ledger.push_back_ms
        elif self.push_back_until_ms <= self.ledger.now_ms:      # it has had its time
            return False
        self.pushed_count += 1
        self.pushed_bytes += message_size(message)
        return True

    cdef bint pushes_back(self) noexcept:
        return self.push_back_until_ms > self.ledger.now_ms and (
            self.queued_count >= self.limits.queue_messages_max or self.queued_bytes >= self.limits.queue_bytes_max)

    cdef int end_push_back(self) noexcept:
        """There is room again, or no connection that could make any."""
        self.push_back_until_ms = self.pushed_count = self.pushed_bytes = 0
        return 0

    cdef int _use_up(self, uint64_t number, uint64_t record) except -1:
        """Use up the next delivery number without a delivery, as recovery does when it counts the numbers again."""
        self.append()
        memset(self.slot(number), 0, sizeof(Delivery))
        self.slot(number).record = record
        self.end_number = number + 1
        if self.next_number == number:
            if self.resend_number == number:
                self.resend_number = number + 1
            self.next_number = number + 1
        return self.free_slot(number)

    cdef int _drop(self, SinkResult result, Sink sink, uint64_t number, bint logged) except -1:
        """The connection did not take a delivery: count why, and if it is in the log, say so there."""
        cdef int reason = reason_of(sink, result)
        count_drop(self.ledger, sink, reason)
        self.lose(reason)
        if logged:
            self.note_drop(number, reason)
            if number == self.end_number:
                self._use_up(number, 0)
        self.peer_missed = self.peer
        return 0

    cdef int note_drop(self, uint64_t number, int reason) except -1:
        self.ledger.records.add("dropped", self.ledger.now_us, self.client_identifier, number, DROP_REASONS[reason])
        return 0

    cdef Message body(self, Delivery* delivery):
        if delivery.message != NULL:
            return <Message>delivery.message
        assert delivery.record, "a delivery has neither a message nor a record"
        return self.ledger.fetch(delivery.record)

    cdef int let_go(self) noexcept:
        """Hold no message in memory that can be read back from the log: the session has no connection."""
        cdef uint64_t number
        cdef Delivery* delivery
        if self.ring == NULL:
            return 0
        for number in range(self.oldest_open, self.end_number):
            delivery = self.slot(number)
            if delivery.record and delivery.message != NULL:
                Py_DECREF(<object>delivery.message)
                delivery.message = NULL
        return 0

    cdef int _unqueue(self, Delivery* delivery) noexcept:
        return self._count_out(delivery.size)

    cdef int _count_out(self, uint64_t size) noexcept:
        self.queued_count -= 1
        self.queued_bytes -= size
        self.ledger.queued_messages -= 1
        self.ledger.queued_bytes -= size
        return 0

    cdef int drain(self, Sink sink, bint durable) except -1:
        """Resend what an earlier connection was sent, then send what waits, as far as quota and output allow. Returns
        how many packets were sent. It stops where a message cannot be read back from the log yet: then
        `starved` is set, and whoever drains comes again when the log has moved on.
        """
        cdef Delivery* delivery
        cdef Message message
        cdef SinkResult result
        cdef uint64_t number
        cdef int sent = 0
        cdef bint logged = self._is_logged(durable)
        self.starved = False
        if self.waiting_qos0 is not None:
            sent += self._drain_qos0(sink)
        if self.resend_number < self.next_number:
            sent += self._resend(sink, logged)
            if self.resend_number < self.next_number and sink.writable:      # for want of quota, or of the log
                return sent
        if self.drop_record > self.ledger.durable:
            # Else, after a crash, what was dropped might come behind what was sent now.
            self.starved = self.next_number < self.end_number
            return sent
        while (self.next_number < self.end_number and sink.writable
               and self.next_number - self.oldest_open < self.window_max()
               and self.resend_number == self.next_number):
            number = self.next_number
            delivery = self.slot(number)
            if self.send_quota <= 0:
                break
            message = None
            if delivery.state == DELIVERY_QUEUED:
                message = self._read(delivery, sink, number, logged)
                if self.starved:
                    break
            self.next_number = self.resend_number = number + 1
            if delivery.state == DELIVERY_QUEUED:
                self._unqueue(delivery)
                if message is not None:
                    result = sink.publish(message, self.identifier_of(number),
                                          delivery.qos, delivery.retain, False, delivery.ids, delivery.ids_length)
                    if result != SINK_SENT:
                        self._drop(result, sink, number, logged)
                    else:
                        sent += 1
                        delivery.state = DELIVERY_SENT
                        self.ledger.inflight_messages += 1
                        delivery.connection = self.connection
                        self.send_quota -= 1
                        if not durable and delivery.group == NULL:
                            self._release(delivery)
                        elif durable and delivery.record and delivery.message != NULL:
                            Py_DECREF(<object>delivery.message)      # the log has it, should it be resent
                            delivery.message = NULL
                        continue
            self.free_slot(number)
        if self.push_back_until_ms and not (self.queued_count >= self.limits.queue_messages_max
                                            or self.queued_bytes >= self.limits.queue_bytes_max):
            self.end_push_back()
        return sent

    cdef int _resend(self, Sink sink, bint logged) except -1:
        """Resend what an earlier connection was sent, as far as quota, log and output allow; how many packets."""
        cdef Delivery* delivery
        cdef Message message
        cdef SinkResult result
        cdef uint64_t number
        cdef int sent = 0
        while self.resend_number < self.next_number and sink.writable:
            number = self.resend_number
            delivery = self.slot(number)
            if delivery.state == DELIVERY_SENT:
                if self.send_quota <= 0:
                    return sent
                message = self._read(delivery, sink, number, logged)
                if message is None:
                    if self.starved:
                        return sent
                    self.free_slot(number)
                else:
                    result = sink.publish(message, self.identifier_of(number),
                                          delivery.qos, delivery.retain, True, delivery.ids, delivery.ids_length)
                    if result == SINK_SENT:
                        delivery.connection = self.connection
                        self.send_quota -= 1
                        sent += 1
                    else:
                        self._drop(result, sink, number, logged)
                        self.free_slot(number)
            elif delivery.state == DELIVERY_RELEASED and delivery.released_on != self.connection:
                # Uses no quota, and its PUBCOMP gives none back (4.9). A PUBREC that came on this connection before
                # the resending got here has had its PUBREL: not twice on one connection [MQTT-4.4.0-1].
                delivery.released_on = self.connection
                sink.acknowledge(PUBREL, self.identifier_of(number), 0)
                sent += 1
            # free_slot may have moved the start past it
            self.resend_number = max(number + 1, self.oldest_open)
        return sent

    cdef int _drain_qos0(self, Sink sink) except -1:
        """Send the QoS 0 messages that waited for a connection, as far as the output takes them; how many."""
        cdef int sent = 0
        cdef Message message
        cdef SinkResult result
        cdef bytes ids
        while self.waiting_qos0 and sink.writable:
            message, retain, ids = self.waiting_qos0.popleft()
            self._count_out(message_size(message))
            if self.doubted is not None and self.doubted.leaves_out_qos0(message):
                count_drop(self.ledger, sink, DROP_NOT_AUTHORIZED)
                continue
            result = sink.publish(message, 0, 0, retain, False, <const uint8_t*>PyBytes_AS_STRING(ids),
                                  <uint32_t>len(ids))
            if result != SINK_SENT:
                self._drop(result, sink, 0, False)
            sent += result == SINK_SENT
        if not self.waiting_qos0:
            self.waiting_qos0 = None
        return sent

    cdef Message _read(self, Delivery* delivery, Sink sink, uint64_t number, bint logged):
        """Return a delivery's message. None: it is not there yet (`starved`), or lost, or not to be read, which is counted."""
        cdef Message message
        try:
            message = self.body(delivery)
        except LookupError:
            return self._leave_out(sink, number, logged, DROP_UNREADABLE)
        self.starved = message is None
        if message is not None and self.doubted is not None and self.doubted.leaves_out(
                number, delivery.state == DELIVERY_SENT, message):
            return self._leave_out(sink, number, logged, DROP_NOT_AUTHORIZED)
        return message

    cdef Message _leave_out(self, Sink sink, uint64_t number, bint logged, int reason):
        count_drop(self.ledger, sink, reason)
        self.lose(reason)
        if logged:
            self.note_drop(number, reason)
        self.peer_missed = self.peer

    cdef int attach(self, int receive_maximum) except -1:
        """Start on a new connection with a full quota; what was sent before is to be resent."""
        assert receive_maximum > 0, receive_maximum
        self.receive_maximum = receive_maximum if self.peer else min(receive_maximum, self.ledger.inflight_max)
        self.send_quota = self.receive_maximum
        self.resend_number = self.oldest_open
        self.connection += 1
        return 0

    cdef uint64_t number_of(self, uint16_t packet_identifier, uint64_t end) noexcept:
        """Return the number, from the oldest open one up to `end`, that has a packet identifier; `end` if none has."""
        cdef uint64_t start = self.oldest_open
        cdef int64_t distance
        if packet_identifier == 0:
            return end
        if self.identifiers is not None:
            return self.identifiers.number_of(packet_identifier, start, end)
        distance = <int64_t>packet_identifier - 1 - <int64_t>(start % PACKET_IDENTIFIERS)
        if distance < 0:
            distance += PACKET_IDENTIFIERS
        return min(start + <uint64_t>distance, end)

    cdef int shift(self, uint64_t first_number, uint32_t amount) except -1:
        """Shift the identifiers of numbers from this one on (router.sessions.packet_identifiers)."""
        if self.identifiers is None:
            self.identifiers = ShiftedIdentifiers()
        return self.identifiers.shift(first_number, amount, self.oldest_open)

    cdef inline Delivery* in_flight(self, uint16_t packet_identifier, uint64_t* number) noexcept:
        """Return the delivery that was sent under a packet identifier, and its number; NULL if there is none."""
        cdef uint64_t found = self.number_of(packet_identifier, self.next_number)
        cdef Delivery* delivery
        if found == self.next_number:
            return NULL
        delivery = self.slot(found)
        if delivery.state != DELIVERY_SENT and delivery.state != DELIVERY_RELEASED:
            return NULL
        number[0] = found
        return delivery

    cdef int free_slot(self, uint64_t number) except -1:
        """The delivery is done: let go of what it holds and move the start over freed numbers."""
        cdef Delivery* delivery = self.slot(number)
        cdef uint64_t oldest_open = self.oldest_open
        if delivery.state == DELIVERY_SENT or delivery.state == DELIVERY_RELEASED:
            self.ledger.inflight_messages -= 1
        self._release(delivery)
        delivery.state = DELIVERY_FREE
        while oldest_open < self.end_number and self.slot(oldest_open).state == DELIVERY_FREE:
            if self.peer:
                self.passed_record = max(self.passed_record, self.slot(oldest_open).record)
            oldest_open += 1
        self.oldest_open = oldest_open
        self.next_number = max(self.next_number, oldest_open)
        self.resend_number = max(self.resend_number, oldest_open)
        if oldest_open == self.end_number and <int>self.capacity > (PEER_RING_MAX if self.peer else RING_KEPT_MAX):
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

    cdef int acknowledged_below(self, uint64_t number) except -1:
        number = min(number, self.next_number)
        while self.ring != NULL and self.oldest_open < number:
            self.give_back_quota(self.slot(self.oldest_open))
            self.free_slot(self.oldest_open)
        return 0

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

    # Recovery ------------------------------------------------------------------------------------------------------

    cdef int owe(self, uint64_t record, uint32_t size, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                 void* group) except -1:
        """Queue a delivery whose message is in the log; no limit stands against it: it was let in before."""
        cdef uint64_t number = self.end_number
        cdef Delivery* delivery
        self.append()
        delivery = self._fill(number, record, size, qos, retain)
        self._hold(delivery, None, ids, ids_length, group)
        delivery.state = DELIVERY_QUEUED
        self.end_number = number + 1
        self.queued_count += 1
        self.queued_bytes += size
        self.ledger.queued_messages += 1
        self.ledger.queued_bytes += size
        return 0

    cdef int assume_sent_below(self, uint64_t number) except -1:
        """All deliveries before this number have been sent, or may have been."""
        cdef Delivery* delivery
        number = min(number, self.end_number)
        while self.next_number < number:
            delivery = self.slot(self.next_number)
            if delivery.state == DELIVERY_QUEUED:
                self._unqueue(delivery)
                delivery.state = DELIVERY_SENT
                self.ledger.inflight_messages += 1
            self.next_number += 1
        return self._pass_free()

    cdef int done_with(self, uint64_t record) except -1:
        while self.oldest_open < self.end_number and self.slot(self.oldest_open).record <= record:
            if self.slot(self.oldest_open).state == DELIVERY_QUEUED:
                self._unqueue(self.slot(self.oldest_open))
            self.free_slot(self.oldest_open)
        self.passed_record = 0               # a record says so already
        return self._pass_free()

    cdef int _pass_free(self) noexcept:
        """The first delivery not sent yet is one that is still owed: the same state has the same numbers."""
        while self.next_number < self.end_number and self.slot(self.next_number).state == DELIVERY_FREE:
            self.next_number += 1
        return 0

    cdef int assume_sent(self, uint16_t packet_identifier) except -1:
        """The client has acknowledged a delivery, so it and those before it were sent."""
        cdef uint64_t number = self.number_of(packet_identifier, self.end_number)
        return self.assume_sent_below(number + 1) if number < self.end_number else 0

    cdef int assume_dropped(self, uint64_t number) except -1:
        """A delivery was dropped; one that is not there yet only took the number."""
        while self.end_number <= number:
            self._use_up(self.end_number, 0)
        if number >= self.oldest_open:
            if self.slot(number).state == DELIVERY_QUEUED:
                self._unqueue(self.slot(number))
            self.free_slot(number)
        return self._pass_free()

    def deliveries(self) -> list[list]:
        """Return what is owed, as a snapshot has it: [number, record, size, qos, state, retain, identifiers, group]."""
        cdef uint64_t number
        cdef Delivery* delivery
        cdef list found = []
        for number in range(self.oldest_open, self.end_number):
            delivery = self.slot(number)
            if delivery.state != DELIVERY_FREE:
                found.append([
                    number, delivery.record if delivery.state != DELIVERY_RELEASED else 0, delivery.size, delivery.qos,
                    delivery.state, bool(delivery.retain),
                    PyBytes_FromStringAndSize(<const char*>delivery.ids, delivery.ids_length),
                    # A group that has emptied is nobody's, also if one of its name comes again.
                    (<SharedGroup>delivery.group).name
                    if delivery.group != NULL and (<SharedGroup>delivery.group).member_count else b""])
        return found

    @property
    def numbers(self) -> tuple[int, int]:
        """The number of the first delivery not sent yet, and the one that the next delivery gets."""
        return self.next_number, self.end_number

    def state(self) -> dict:
        """Counts and identifiers for admin and tests: in flight (packet identifier, qos, state) in order, queued."""
        cdef uint64_t number
        names = ("free", "queued", "sent", "released")
        return {
            "in_flight": [(self.identifier_of(number), self.slot(number).qos, names[self.slot(number).state])
                          for number in range(self.oldest_open, self.next_number) if self.slot(number).state != DELIVERY_FREE],
            "queued": self.queued_count, "queued_bytes": self.queued_bytes,
            "send_quota": self.send_quota,
        }
