"""What a router has decided and what may not leave before its record is durable."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.peers.deferred_acks cimport Held, Waiters
from router.sessions.ledger cimport Ledger
from router.core.message cimport Message
from router.core.receiver cimport Receiver
from router.log.record_buffer cimport RecordBuffer
from router.sessions.session cimport Session
from router.sessions.sink cimport Sink
from router.matching.shared_groups cimport SharedGroup

cdef enum EffectKind:
    EFFECT_DELIVER = 1           # one copy to one receiver
    EFFECT_ACKNOWLEDGE = 2       # PUBACK, PUBREC, PUBREL or PUBCOMP on the connection that is owed it
    EFFECT_CALL = 3              # CONNACK, SUBACK, UNSUBACK: a callable
    EFFECT_HELD = 4              # an acknowledgement that waits for peers, too
    EFFECT_WITHDRAWN = 5         # was EFFECT_DELIVER, and its receiver's session has ended

cdef enum:
    NO_NUMBER = 0xFFFFFFFFFFFFFFFF

cdef struct Effect:
    uint64_t record              # leaves when the record of this number is durable; records are numbered from 1
    void* subject                # Receiver, Session or callable; owned reference, or NULL
    void* argument               # Message, Sink or NULL; owned reference
    void* group                  # EFFECT_DELIVER: the SharedGroup that the receiver was picked from; owned, or NULL
    uint8_t* ids                 # owned
    Held* held                   # EFFECT_HELD
    uint32_t ids_length
    uint16_t packet_identifier
    uint8_t kind
    uint8_t qos                  # EFFECT_DELIVER; for EFFECT_ACKNOWLEDGE the packet type
    uint8_t flag                 # EFFECT_DELIVER: retain; EFFECT_ACKNOWLEDGE: the reason code


cdef struct Awaited:             # by the acknowledgement of the publish that is under way
    void* waiters                # Waiters of a peer or of the retained index, borrowed
    uint64_t sequence            # the delivery's number, or the record's


cdef class Effects:
    # A ring in the order of acceptance.
    cdef Ledger ledger
    cdef Effect* ring
    cdef uint32_t capacity       # a power of two, or 0
    cdef uint64_t head           # first not settled
    cdef uint64_t tail
    cdef Awaited[64] awaited
    cdef int awaited_count
    cdef uint64_t floor          # nothing leaves before the record of this number is durable

    cdef int deliver(self, Receiver receiver, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                     uint32_t ids_length, void* group) except -1
    # To another member of a group than `gone`, which did not take it or ends; then `number` is the delivery's there.
    # Nobody else: dropped. 1: somebody has it.
    cdef int pass_on(self, SharedGroup group, Session gone, uint64_t number, Message message) except -1
    cdef int withdraw(self, Session gone) except -1         # its session ends, and the end is not recorded yet
    # To one receiver, at QoS 1 or 2, by a decision that no accepted record implies; `gone` had it before, or None.
    cdef int address(self, Receiver receiver, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                     uint32_t ids_length, SharedGroup group, Session gone, uint64_t number) except -1
    # A peer gets a message for a group, by a copy of its own, for it may be owed the message besides: recorded in front of
    # the record that is going to say that the message was accepted. (group, peer, copy, tried) is appended to `copies`;
    # tried: routers where it was, encoded, which goes behind the group's identifier. No record has that.
    cdef int pick_peer(self, SharedGroup group, Receiver peer, Message message, bytes tried, list copies) except -1
    cdef int deliver_copies(self, list copies) except -1   # behind that record, and before the message to anybody else
    cdef int await_peer(self, Session peer) except -1       # to have what it was delivered last
    cdef int await_number(self, Waiters waiters, uint64_t number) except -1
    # acknowledge(), when peers have what await_peer() named since the last, and everything before it has left.
    cdef int hold_back(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason,
                       bint recorded) except -1
    cdef int hold(self, Held* held) except -1      # it waits for the newest record, beside what else it waits for
    cdef int acknowledge(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                         uint8_t reason) except -1
    cdef Effect* push(self, uint8_t kind) except NULL
    cdef int settle(self, uint64_t durable, int effects_max) except -1
    cdef int _release(self, Effect* effect) noexcept
