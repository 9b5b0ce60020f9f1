"""A session: what the broker remembers of one client identifier."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.sessions.ledger cimport Ledger, SessionLimits
from router.core.message cimport Message
from router.sessions.outgoing cimport Outgoing
from router.core.receiver cimport DROPPED, Receiver, Verdict
from router.core.rights cimport Rights
from router.sessions.sink cimport Sink, SinkResult

cdef enum:
    EXPIRY_NEVER = 0xFFFFFFFF    # session expiry interval of a session that does not expire
    UNLIMITED = 0xFFFFFFFF       # incoming_max where no Receive Maximum is held against the client


# 14 bits that tell a message from another one under the same packet identifier (docs/formats.md); never 0.
cdef uint32_t digest_of(const uint8_t* topic, size_t topic_length, const uint8_t* payload, size_t payload_length) noexcept


cdef class Session(Receiver):
    cdef readonly bytes client_identifier
    cdef Sink sink                        # the live connection, None while there is none
    cdef Outgoing outgoing                # None until the first QoS 1/2 delivery
    cdef Ledger ledger
    cdef readonly SessionLimits limits
    # QoS 2 identifiers received and not released: open addressing, 0 is empty. Beside each are two flags, and in the
    # upper 14 bits a digest of the message where it is known: of what recovery found in the log.
    cdef uint32_t* incoming
    cdef uint32_t incoming_capacity       # a power of two, or 0
    cdef uint32_t incoming_count
    cdef bint logged                      # the log has a record of it, so it gets one of its end
    cdef bint starved                     # in ledger.starved
    cdef readonly uint32_t expiry_interval_s # 0: ends with its connection; until then a durable one stays so
    cdef int receive_maximum              # of the live connection
    cdef object stands_for                # router.peers.Peer; None for a client's
    cdef void* held_first                 # router.peers.deferred_acks.Held: acknowledgements that wait for peers, in order; NULL: none
    cdef void* held_last
    cdef uint32_t held_count
    cdef uint32_t loss                    # in ledger.losses, while it has no `outgoing`, which has it then; 0: none
    cdef uint32_t incoming_max            # messages of QoS 1 and 2 that the client may have under way [MQTT-3.3.4-7]
    cdef uint32_t waiting_answers         # PUBACK and PUBCOMP that wait for a record and for this connection
    cdef public int64_t ends_ms           # monotonic ms at which it expires while offline; 0: it does not
    cdef int64_t will_due_ms              # monotonic ms at which its will is published while offline, if it has one
    cdef uint32_t deadline_place          # in router.sessions.deadlines.Deadlines, from 1 on; 0: it has none
    cdef public object will               # Will to publish, None if there is none
    cdef public object watch              # hears what becomes of what it is delivered (broker.control.tracing.Tap); None: nobody does
    cdef public bytes mount_point         # under which its client lives; b"": in the broker's whole tree
    cdef public dict replays              # topic filter as given -> ReplaySubscription; None while there are none

    cdef bint incoming_add(self, uint16_t packet_identifier, bint settled) except -1    # False: it was there already
    cdef int incoming_state(self, uint16_t packet_identifier) noexcept      # 0 unknown, 1 not settled, 2 settled
    cdef bint incoming_doubtful(self, uint16_t packet_identifier) noexcept   # its PUBREL may have been lost with a log
    # A message that comes under a doubtful identifier is none that the log has under it.
    cdef bint incoming_is_new(self, uint16_t packet_identifier, bint dup, Message message) noexcept
    # Recovery: the log has a message under it, whatever was there before.
    cdef int incoming_restore(self, uint16_t packet_identifier, uint32_t digest) except -1
    cdef int mark_incoming(self) noexcept
    cdef bint incoming_settle(self, uint16_t packet_identifier) noexcept
    cdef bint incoming_remove(self, uint16_t packet_identifier) noexcept
    cdef uint32_t* _incoming_slot(self, uint16_t packet_identifier) noexcept
    cdef int _free_incoming(self) noexcept
    cdef int attach(self, Sink sink, int receive_maximum) except -1
    cdef int detach(self) except -1
    cdef int make_outgoing(self) except -1
    cdef int doubt(self, Rights rights, bint another) except -1   # what is owed was queued under other rights, or for another
    cdef Verdict forward(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED
    cdef int settle_missed(self) except -1
    cdef int lose(self, int reason) noexcept             # its client does not get a message
    cdef Verdict untaken(self, SinkResult result) noexcept
    # Recovery: it is owed a message that is in the log.
    cdef int owe(self, uint64_t record, uint32_t size, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                 void* group) except -1
    cdef int drain(self) except -1
    cdef Verdict deliver_watched(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                                 void* group) except? DROPPED
    cdef int drain_watched(self) except -1
