"""What becomes of a message: who gets it, and whether that rests on a record."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from router.core.message cimport Message
from router.core.receiver cimport Receiver
from router.effects cimport Effects
from router.log.record_buffer cimport RecordBuffer
from router.matching.route_cache cimport Route, Target
from router.matching.shared_groups cimport SharedGroup
from router.matching.subscription_tree cimport SubscriptionTree
from router.peers.deferred_acks cimport Waiters
from router.retained.memory_store cimport RetainedStore
from router.retained.retained cimport Retaining
from router.sessions.ledger cimport Ledger
from router.sessions.session cimport Session

cdef enum:
    NOT_REFUSED = -1

cdef struct Publication:         # of one message: what its publisher's connection says of it, then what became of it
    uint16_t packet_identifier   # of the PUBLISH; not set at QoS 0
    bint dup                     # likewise
    bint can_wait                # a queue without room may keep its publisher from sending more
    int refusal                  # why it is not let through, a DROP_... of router.sessions.ledger; or NOT_REFUSED
    int reached                  # receivers that it is for, with room or without, a shared subscription being one
    bint recorded                # it rests on a record, and so does its acknowledgement; not set at QoS 0 without RETAIN
    void* pushed_by              # if it can wait: Session, borrowed, whose queue makes its publisher do so; NULL: none does


cdef class Publishing:
    cdef readonly Ledger ledger
    cdef readonly SubscriptionTree tree
    cdef readonly Retaining retaining    # retained messages, in memory or on disk
    cdef readonly RetainedStore retained # those in memory: retaining.store
    cdef readonly Effects effects
    cdef readonly dict peers             # "\0peer/node/worker" (bytes) -> Peer
    cdef readonly Waiters indexing       # acknowledgements that wait for the index that other workers read
    cdef readonly bint recording         # a log is attached: what rests on a record waits for it in effects
    cdef public bint accepting           # the log takes more; if not, what would rest on a record is refused

    # The message may be borrowed. `route` is the topic's, fresh. Returns how many receivers it is for.
    cdef int publish(self, Receiver publisher, Message message, Route route, Publication* publication) except -1
    # Whether receivers here get a message by its record, which its acknowledgement waits for, too. A peer's message is for
    # receivers here, and has a record there.
    cdef bint rests_on_record(self, Receiver publisher, Message message, Route route) except -1
    # Members of shared subscriptions, (group, member, tried), that a peer's message goes to.
    cdef bint picked_rest_on_record(self, Receiver publisher, list picked) except -1
    cdef int archive_message(self, Receiver publisher, Message message) except -1
    # Of a publisher that can wait, before publish(): whether it has to, for a queue without room.
    cdef int push_back(self, Receiver publisher, Message message, Route route, Publication* publication) except -1
    cdef bint deliver_own(self, Receiver publisher, Message message) except -1
    cdef int deliver_shared(self, Receiver publisher, Message message, SharedGroup group,
                            Publication* publication) except -1
    cdef int publish_recorded(self, Receiver publisher, Message message, Route route, Publication* publication,
                              bint will) except -1
    # To one receiver, without a record: `qos` is at most the granted one.
    cdef int deliver_unrecorded(self, Receiver receiver, Message message, Target* target, uint8_t qos) except -1
    # The same, as an effect of the newest record; `owned` has its number.
    cdef int deliver_recorded(self, Receiver receiver, Message owned, Target* target) except -1
    # What an accepted or forwarded record would give receivers that have no room is refused, and recorded as that. They are
    # appended to `decided`, which is made if it is None.
    cdef list skip_full(self, Receiver publisher, Message message, Route route, list behind, list decided,
                        Publication* publication)
    cdef int deliver_retained(self, Session session, Message message, uint8_t qos, const uint8_t* ids,
                              uint32_t ids_length) except -1
    # At QoS 0 or 1; the message may be borrowed. There must be room for it (Session.has_room) at QoS 1.
    cdef int deliver_replayed(self, Session session, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                              uint32_t ids_length) except -1

    cdef inline bint records_of(self, Receiver receiver) noexcept:
        """Whether what becomes of a receiver is recorded: there is a log, and it outlives its connection."""
        return self.recording and receiver.durable
