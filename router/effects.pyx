"""What a router has decided and what may not leave before its record is durable.

Only what rests on a record comes here; everything else leaves at once (DESIGN, the pump). Effects settle in the order
in which they were pushed, so one publisher's acknowledgements keep the order of acceptance [MQTT-4.6.0-2].
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from router.sink cimport PUBACK, PUBCOMP, PUBREC

cdef enum:
    RING_MIN = 64


@cython.final
cdef class Effects:
    """A ring of effects waiting for their records to be durable."""

    def __init__(self):
        self.records = []

    def __dealloc__(self):
        while self.head < self.tail:
            self._release(&self.ring[self.head & (self.capacity - 1)])
            self.head += 1
        free(self.ring)

    def __len__(self) -> int:
        return self.tail - self.head

    cdef int _release(self, Effect* effect) noexcept:
        Py_DECREF(<object>effect.subject)
        if effect.argument != NULL:
            Py_DECREF(<object>effect.argument)
        if effect.group != NULL:
            Py_DECREF(<object>effect.group)
        free(effect.ids)
        return 0

    cdef uint64_t record(self, tuple fields) except 0:
        """Take note of something the log must hold; effects pushed from here on rest on it."""
        self.record_number += 1
        self.records.append((self.record_number, *fields))
        return self.record_number

    cdef Effect* push(self, uint8_t kind) except NULL:
        cdef Effect* ring
        cdef uint32_t capacity
        cdef uint64_t number
        if self.tail - self.head == self.capacity:
            capacity = self.capacity * 2 if self.capacity else RING_MIN
            ring = <Effect*>calloc(capacity, sizeof(Effect))
            if ring == NULL:
                raise MemoryError()
            for number in range(self.head, self.tail):
                ring[number & (capacity - 1)] = self.ring[number & (self.capacity - 1)]
            free(self.ring)
            self.ring = ring
            self.capacity = capacity
        cdef Effect* effect = &self.ring[self.tail & (self.capacity - 1)]
        memset(effect, 0, sizeof(Effect))
        effect.kind = kind
        effect.record = self.record_number
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
        if ids_length:
            effect.ids = <uint8_t*>malloc(ids_length)
            if effect.ids == NULL:
                raise MemoryError()
            memcpy(effect.ids, ids, ids_length)
            effect.ids_length = ids_length
        effect.qos = qos
        effect.flag = retain
        return 0

    cdef int share(self, SharedGroup group, Receiver publisher, Message message) except -1:
        assert message.owned, "an effect holds owned messages only"
        cdef Effect* effect = self.push(EFFECT_SHARE)
        Py_INCREF(group)
        effect.subject = <void*>group
        Py_INCREF(message)
        effect.argument = <void*>message
        if publisher is not None:
            Py_INCREF(publisher)
            effect.group = <void*>publisher
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

    def call(self, action) -> None:
        """Call `action()` once everything recorded so far is durable."""
        cdef Effect* effect = self.push(EFFECT_CALL)
        Py_INCREF(action)
        effect.subject = <void*>action

    cdef int settle(self, uint64_t durable) except -1:
        """Let leave, in order, everything that rests on records up to `durable`. Returns how many effects left."""
        cdef Effect effect
        cdef Session session
        cdef Receiver receiver, publisher
        cdef int settled = 0
        while self.head < self.tail and self.ring[self.head & (self.capacity - 1)].record <= durable:
            effect = self.ring[self.head & (self.capacity - 1)]
            self.head += 1
            settled += 1
            try:
                if effect.kind == EFFECT_DELIVER:
                    receiver = <Receiver>effect.subject
                    if not receiver.gone:
                        receiver.deliver(<Message>effect.argument, effect.qos, effect.flag, effect.ids,
                                         effect.ids_length, effect.group)
                elif effect.kind == EFFECT_SHARE:
                    publisher = <Receiver>effect.group if effect.group != NULL else None
                    (<SharedGroup>effect.subject).publish(publisher, <Message>effect.argument)
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
                else:
                    (<object>effect.subject)()
            finally:
                self._release(&effect)
        return settled
