"""The router: what one worker owes its clients."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.sessions.deadlines cimport Deadlines
from router.effects cimport Effects
from router.session_end cimport Ending
from router.peers.deferred_acks cimport Waiters
from router.sessions.ledger cimport Ledger
from router.core.message cimport Message
from router.peers.peer cimport Peer
from router.core.receiver cimport Receiver
from router.log.record_buffer cimport RecordBuffer
from router.retained.memory_store cimport RetainedStore
from router.retained.retained cimport Retaining
from router.sessions.session cimport Session
from router.matching.shared_groups cimport SharedGroup
from router.sessions.sink cimport Sink
from router.matching.route_cache cimport Route, Target
from router.matching.subscription_tree cimport SubscriptionTree


cdef class Router:
    cdef readonly Ledger ledger
    cdef readonly SubscriptionTree tree
    cdef readonly Retaining retaining    # retained messages, in memory or on disk
    cdef readonly RetainedStore retained # those in memory: retaining.store
    cdef readonly Effects effects
    cdef readonly dict sessions          # client identifier (bytes) -> Session
    cdef readonly dict peers             # "\0peer/node/worker" (bytes) -> Peer
    cdef public object interest          # hears what is wanted here, for peers (mesh.interest.Interest); None: no mesh
    cdef public object sys_topics        # the broker's own topics, $SYS: match(), message_of(), bring_up_to_date(); or None
    cdef readonly Waiters indexing       # acknowledgements that wait for the index that other workers read
    cdef readonly bint recording         # a log is attached: what rests on a record waits for it in effects
    cdef public bint accepting           # the log takes more; if not, what would rest on a record is refused
    cdef readonly bint recorded          # whether the last publish rests on a record
    cdef Deadlines _deadlines            # of sessions without a connection
    cdef readonly Ending ending          # has the client identifiers whose session's end is not durable yet

    # What has fallen due for a session is done, though its turn has not come. None: that was its end, or there is none.
    cdef Session _fall_due(self, Session session)

    # The message may be borrowed. `route` is the topic's, fresh. Returns how many receivers it is for.
    cdef int publish(self, Receiver publisher, Message message, Route route, uint16_t packet_identifier) except -1
    cdef bint rests_on_record(self, Receiver publisher, Message message, Route route) except -1
    cdef int _publish_recorded(self, Receiver publisher, Message message, Route route, uint16_t packet_identifier,
                               bint will) except -1
    cdef int _archive(self, Receiver publisher, Message message) except -1
    cdef int _deliver_unrecorded(self, Receiver receiver, Message message, Target* target, uint8_t qos) except -1
    cdef bint _deliver_own(self, Receiver publisher, Message message) except -1
    cdef int _deliver_shared(self, Receiver publisher, Message message, SharedGroup group) except -1
    cdef bint _owes(self, Message message, Target* target) except -1
    cdef list _decide(self, Receiver publisher, Message message, Route route, list copies)
    cdef int _deliver_recorded(self, Receiver receiver, Message owned, Target* target) except -1
    cdef int deliver_retained(self, Session session, Message message, uint8_t qos, const uint8_t* ids,
                              uint32_t ids_length) except -1
    # At QoS 0 or 1; the message may be borrowed. There must be room for it (Session.has_room) at QoS 1.
    cdef int deliver_replayed(self, Session session, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                              uint32_t ids_length) except -1
    # An acknowledgement of the publisher's packet: now, or in its place behind what waits.
    cdef int acknowledge(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                         uint8_t reason, bint recorded) except -1
