"""Acknowledgements that wait for peers, and for those before them."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.sessions.session cimport Session
from router.sessions.sink cimport Sink

cdef struct Held:
    # One acknowledgement of a session's publish. It leaves when `pending` is 0 and it is the session's first.
    void* session                # Session, owned reference
    void* sink                   # Sink, owned reference: the connection that is owed it
    Held* next                   # of the same session; NULL: the last
    uint32_t pending             # what it waits for: peers, and a record if it rests on one
    uint16_t packet_identifier
    uint8_t packet_type          # PUBACK, PUBREC or PUBCOMP
    uint8_t reason

cdef struct Waiter:
    uint64_t sequence            # of the peer's delivery, or the number of the record that the index is to have
    Held* held


cdef class Waiters:
    # What waits for one peer, or for the index of retained messages: a ring in the order of deliveries or records.
    cdef Waiter* ring
    cdef uint32_t capacity       # a power of two, or 0
    cdef uint64_t head
    cdef uint64_t tail
    cdef int add(self, uint64_t sequence, Held* held) except -1
    cdef int acknowledged(self, uint64_t sequence) except -1    # all deliveries up to this one; returns how many waited
    cdef bint empty(self) noexcept
    cdef Held* take(self) noexcept                              # the oldest, whatever it waits for; NULL: there is none


# An acknowledgement at the end of a session's, which waits for nothing yet.
cdef Held* hold(Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except NULL
# One of the things that it waited for has come; it leaves, and those behind it, if they can.
cdef int let_go(Held* held) except -1
# The router is freed: nobody is acknowledged any more.
cdef int forget(Held* held) noexcept
