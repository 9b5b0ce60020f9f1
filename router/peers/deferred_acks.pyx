"""Acknowledgements that wait for peers, and for those before them.

A QoS 1 message that only ephemeral sessions of other routers want rests on no record: its publisher is acknowledged when
those routers have it. Acknowledgements of one session leave in the order of its publishes [MQTT-4.6.0-2], so what comes
behind one that waits, waits too; another session's do not.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free
from libc.string cimport memset
from router.core.rings cimport grown
from router.sessions.sink cimport PUBACK, PUBCOMP, PUBREC

cdef enum:
    RING_MIN = 64


cdef Held* hold(Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except NULL:
    cdef Held* held = <Held*>PyMem_Malloc(sizeof(Held))
    if held == NULL:
        raise MemoryError()
    memset(held, 0, sizeof(Held))
    Py_INCREF(session)
    held.session = <void*>session
    Py_INCREF(sink)
    held.sink = <void*>sink
    held.packet_identifier = packet_identifier
    held.packet_type = packet_type
    held.reason = reason
    if session.held_last != NULL:
        (<Held*>session.held_last).next = held
    else:
        session.held_first = <void*>held
    session.held_last = <void*>held
    session.held_count += 1
    if packet_type == PUBACK or packet_type == PUBCOMP:
        session.waiting_answers += 1
    return held


cdef int let_go(Held* held) except -1:
    cdef Session session = <Session>held.session
    cdef Sink sink
    assert held.pending, "an acknowledgement is let go once for each thing that it waits for"
    held.pending -= 1
    while session.held_first != NULL and (<Held*>session.held_first).pending == 0:
        held = <Held*>session.held_first
        session.held_first = <void*>held.next
        if held.next == NULL:
            session.held_last = NULL
        session.held_count -= 1
        if held.packet_type == PUBREC:
            session.incoming_settle(held.packet_identifier)
        try:
            sink = <Sink>held.sink
            # On the connection that asked; a client that came back asks again.
            if session.sink is sink:
                if held.packet_type == PUBACK or held.packet_type == PUBCOMP:
                    session.waiting_answers -= 1
                sink.acknowledge(held.packet_type, held.packet_identifier, held.reason)
        finally:
            Py_DECREF(<object>held.session)
            Py_DECREF(<object>held.sink)
            PyMem_Free(held)
    return 0


cdef int forget(Held* held) noexcept:
    held.pending -= 1
    if held.pending == 0:
        Py_DECREF(<object>held.session)
        Py_DECREF(<object>held.sink)
        PyMem_Free(held)
    return 0


@cython.final
cdef class Waiters:
    """Acknowledgements that wait for one peer to have a delivery."""

    def __dealloc__(self):
        cdef Held* held = self.take()
        while held != NULL:
            forget(held)
            held = self.take()
        free(self.ring)

    def __len__(self) -> int:
        return self.tail - self.head

    cdef int add(self, uint64_t sequence, Held* held) except -1:
        if self.tail - self.head == self.capacity:
            self.ring = <Waiter*>grown(self.ring, &self.capacity, RING_MIN, sizeof(Waiter), self.head, self.tail)
        self.ring[self.tail & (self.capacity - 1)].sequence = sequence
        self.ring[self.tail & (self.capacity - 1)].held = held
        self.tail += 1
        held.pending += 1
        return 0

    cdef int acknowledged(self, uint64_t sequence) except -1:
        cdef int count = 0
        cdef Held* held
        while self.head < self.tail and self.ring[self.head & (self.capacity - 1)].sequence <= sequence:
            held = self.ring[self.head & (self.capacity - 1)].held
            self.head += 1
            count += 1
            let_go(held)
        return count

    cdef bint empty(self) noexcept:
        return self.head == self.tail

    cdef Held* take(self) noexcept:
        if self.head == self.tail:
            return NULL
        self.head += 1
        return self.ring[(self.head - 1) & (self.capacity - 1)].held
