"""What a router has decided and what may not leave before its record is durable.

Only what rests on a record comes here; everything else leaves at once (docs/ARCHITECTURE.md, The seams). Effects settle
in the order in which they were pushed, so one publisher's acknowledgements keep the order of acceptance [MQTT-4.6.0-2].
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from router.peers.deferred_acks cimport forget, hold, let_go
from router.sessions.ledger cimport DROP_NO_MEMBER, DROP_SESSION_ENDED
from router.core.message cimport message_size
from router.peers.peer cimport Peer
from router.core.receiver cimport TOO_LARGE
from router.core.rings cimport grown
from router.matching.shared_groups cimport IDS_BYTES_MAX
from router.sessions.sink cimport PUBACK, PUBCOMP, PUBREC

cdef enum:
    RING_MIN = 64


@cython.final
cdef class Effects:
    """A ring of effects waiting for their records to be durable."""

    def __init__(self, Ledger ledger not None):
        self.ledger = ledger

    def __dealloc__(self):
        while self.head < self.tail:
            if self.ring[self.head & (self.capacity - 1)].kind == EFFECT_HELD:
                forget(self.ring[self.head & (self.capacity - 1)].held)
            self._release(&self.ring[self.head & (self.capacity - 1)])
            self.head += 1
        free(self.ring)

    def __len__(self) -> int:
        return self.tail - self.head

    cdef int _release(self, Effect* effect) noexcept:
        if effect.kind == EFFECT_HELD:
            return 0
        Py_DECREF(<object>effect.subject)
        if effect.argument != NULL:
            Py_DECREF(<object>effect.argument)
        if effect.group != NULL:
            Py_DECREF(<object>effect.group)
        free(effect.ids)
        return 0

    cdef Effect* push(self, uint8_t kind) except NULL:
        if self.tail - self.head == self.capacity:
            self.ring = <Effect*>grown(self.ring, &self.capacity, RING_MIN, sizeof(Effect), self.head, self.tail)
        cdef Effect* effect = &self.ring[self.tail & (self.capacity - 1)]
        memset(effect, 0, sizeof(Effect))
        effect.kind = kind
        effect.record = self.ledger.records.last_number if self.ledger.records is not None else 0
        self.tail += 1
        return effect

    cdef int deliver(self, Receiver receiver, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                     uint32_t ids_length, void* group) except -1:
        assert message.owned, "an effect holds owned messages only"
        cdef Effect* effect = self.push(EFFECT_DELIVER)
        Py_INCREF(receiver)
        effect.subject = <void*>receiver
        Py_INCREF(message)
        effect.argument = <void*>message
        if group != NULL:
            Py_INCREF(<object>group)
            effect.group = group
        receiver.promised += 1
        receiver.promised_bytes += message_size(message)
        if ids_length:
            effect.ids = <uint8_t*>malloc(ids_length)
            if effect.ids == NULL:
                raise MemoryError()
            memcpy(effect.ids, ids, ids_length)
            effect.ids_length = ids_length
        effect.qos = qos
        effect.flag = retain
        return 0

    cdef int pass_on(self, SharedGroup group, Session gone, uint64_t number, Message message) except -1:
        cdef Receiver member
        cdef int reason
        cdef int index = group.pick(None, gone, message)
        cdef uint8_t[5] ids
        cdef uint32_t ids_length = 0
        cdef uint8_t qos
        cdef bint retain
        if index < 0:
            self.ledger.dropped_messages[DROP_NO_MEMBER] += 1
            return 0
        member = <Receiver>group.members[index].partner
        reason = member.refuses(message)
        if reason >= 0:
            member.refuse(message, reason)
            return 0
        group.terms(index, message, &qos, &retain, ids, &ids_length)
        if qos == 0:
            member.deliver(message, qos, retain, ids, ids_length, <void*>group)
            return 1
        return self.address(member, message, qos, retain, ids, ids_length, group,
                            gone if number != NO_NUMBER and gone.durable else None, number)

    cdef int withdraw(self, Session gone) except -1:
        """Pass on what waits here for a session that ends: recovery would not, once its end is recorded.

        In the log each is owed to the session already, under the number that it would have got here.
        """
        cdef Effect* effect
        cdef uint64_t place, tail = self.tail
        cdef uint64_t number = gone.outgoing.end_number if gone.outgoing is not None else 0
        for place in range(self.head, tail):
            effect = &self.ring[place & (self.capacity - 1)]         # anew: the ring may have moved
            if effect.kind == EFFECT_DELIVER and effect.subject == <void*>gone:
                if effect.group != NULL:
                    effect.kind = EFFECT_WITHDRAWN
                    self.pass_on(<SharedGroup>effect.group, gone, number, <Message>effect.argument)
                number += 1
        return 0

    cdef int address(self, Receiver receiver, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                     uint32_t ids_length, SharedGroup group, Session gone, uint64_t number) except -1:
        cdef RecordBuffer records = self.ledger.records
        cdef bytes from_client = b""
        cdef uint64_t from_number = 0
        if receiver.durable:
            if message.record == 0 or gone is None or receiver.peer:
                # In a record of its own: who else owes it may be done with it long before. What a peer is owed has
                # ever higher numbers, or it would take it for a repeat.
                message = message.twin()         # others may be owed it under the number that it has
                message.record = records.copy_of(self.ledger.now_us, self.ledger.now_ms, self.ledger.incarnation, message)
            if gone is not None:
                from_client = gone.client_identifier
                from_number = number
            records.add(
                "delivery", self.ledger.now_us, (<Session?>receiver).client_identifier, message.record,
                message_size(message), qos, retain, PyBytes_FromStringAndSize(<const char*>ids, ids_length),
                group.name if group is not None else b"", from_client, from_number)
        return 1 + self.deliver(receiver, message, qos, retain, ids, ids_length,
                                <void*>group if group is not None else NULL)

    cdef int pick_peer(self, SharedGroup group, Receiver peer, Message message, bytes tried, list copies) except -1:
        cdef Message twin = message.twin()
        cdef RecordBuffer records = self.ledger.records
        twin.record = records.copy_of(self.ledger.now_us, self.ledger.now_ms, self.ledger.incarnation, message)
        records.add("shared_pick", self.ledger.now_us, group.name, (<Session?>peer).client_identifier)
        copies.append((group, peer, twin, tried))
        return 0

    cdef int deliver_copies(self, list copies) except -1:
        cdef SharedGroup group
        cdef Message twin
        cdef bytes tried
        cdef uint8_t[IDS_BYTES_MAX] ids
        cdef uint32_t ids_length = 0
        cdef uint8_t qos
        cdef bint retain
        for group, peer, twin, tried in copies:
            group.terms(group.index_of(peer), twin, &qos, &retain, ids, &ids_length)
            memcpy(ids + ids_length, PyBytes_AS_STRING(tried), len(tried))
            self.deliver(peer, twin, qos, retain, ids, ids_length + <uint32_t>len(tried), <void*>group)
        return 0

    cdef int acknowledge(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                         uint8_t reason) except -1:
        cdef Effect* effect = self.push(EFFECT_ACKNOWLEDGE)
        Py_INCREF(session)
        effect.subject = <void*>session
        Py_INCREF(sink)
        effect.argument = <void*>sink
        effect.packet_identifier = packet_identifier
        effect.qos = packet_type
        effect.flag = reason
        session.waiting_records += 1
        if packet_type == PUBACK or packet_type == PUBCOMP:
            session.waiting_answers += 1
        return 0

    cdef int await_peer(self, Session peer) except -1:
        return self.await_number((<Peer>peer.stands_for).waiters, peer.outgoing.end_number - 1)

    cdef int await_number(self, Waiters waiters, uint64_t number) except -1:
        assert self.awaited_count < 64, "a publish goes to more peers than there may be"
        self.awaited[self.awaited_count].waiters = <void*>waiters
        self.awaited[self.awaited_count].sequence = number
        self.awaited_count += 1
        return 0

    cdef int hold_back(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason,
                       bint recorded) except -1:
        cdef Held* held = hold(session, sink, packet_type, packet_identifier, reason)
        cdef int index
        for index in range(self.awaited_count):
            (<Waiters>self.awaited[index].waiters).add(self.awaited[index].sequence, held)
        self.awaited_count = 0
        if recorded or self.head < self.tail:
            return self.hold(held)
        return 0

    cdef int hold(self, Held* held) except -1:
        self.push(EFFECT_HELD).held = held
        held.pending += 1
        (<Session>held.session).waiting_records += 1
        return 0

    def call(self, action) -> None:
        """Call `action()` once everything recorded so far is durable."""
        cdef Effect* effect = self.push(EFFECT_CALL)
        Py_INCREF(action)
        effect.subject = <void*>action

    cdef int settle(self, uint64_t durable, int effects_max) except -1:
        """Let leave, in order, what rests on records up to `durable`: so many effects at most, 0: all. Returns how many."""
        cdef Effect effect
        cdef Session session
        cdef Receiver receiver
        cdef bint taken
        cdef int settled = 0
        while (self.head < self.tail and self.ring[self.head & (self.capacity - 1)].record <= durable
               and self.floor <= durable and (effects_max == 0 or settled < effects_max)):
            effect = self.ring[self.head & (self.capacity - 1)]
            self.head += 1
            settled += 1
            try:
                if effect.kind == EFFECT_DELIVER:
                    receiver = <Receiver>effect.subject
                    receiver.promised -= 1
                    receiver.promised_bytes -= message_size(<Message>effect.argument)
                    taken = not receiver.gone and receiver.deliver(
                        <Message>effect.argument, effect.qos, effect.flag, effect.ids, effect.ids_length,
                        effect.group) != TOO_LARGE
                    if not taken and effect.group != NULL:
                        # What follows, its publisher's acknowledgement first of all, rests on the new record.
                        self.pass_on(<SharedGroup>effect.group, <Session?>receiver, NO_NUMBER, <Message>effect.argument)
                        self.floor = self.ledger.records.last_number
                    elif receiver.gone:
                        self.ledger.dropped_messages[DROP_SESSION_ENDED] += 1
                elif effect.kind == EFFECT_ACKNOWLEDGE:
                    session = <Session>effect.subject
                    session.waiting_records -= 1
                    if effect.qos == PUBREC:
                        session.incoming_settle(effect.packet_identifier)
                    # On the connection that asked; a client that came back asks again.
                    if session.sink is <Sink>effect.argument:
                        if effect.qos == PUBACK or effect.qos == PUBCOMP:
                            session.waiting_answers -= 1
                        session.sink.acknowledge(effect.qos, effect.packet_identifier, effect.flag)
                elif effect.kind == EFFECT_HELD:
                    (<Session>effect.held.session).waiting_records -= 1
                    let_go(effect.held)
                elif effect.kind == EFFECT_CALL:
                    (<object>effect.subject)()
            finally:
                self._release(&effect)
        return settled
