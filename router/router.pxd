"""The router: what one worker owes its clients."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from router.effects cimport Effects
from router.ledger cimport Ledger
from router.message cimport Message
from router.receiver cimport Receiver
from router.retained cimport RetainedStore
from router.session cimport Session
from router.sink cimport Sink
from router.routes cimport Route, Target
from router.subscriptions cimport SubscriptionTree

cdef enum DeadlineKind:
    DEADLINE_WILL = 0
    DEADLINE_SESSION = 1


cdef class Router:
    cdef readonly Ledger ledger
    cdef readonly SubscriptionTree tree
    cdef readonly RetainedStore retained
    cdef readonly Effects effects
    cdef readonly dict sessions          # client identifier (bytes) -> Session
    cdef public object sys_topics        # the broker's own topics, $SYS: match(), message_of(), bring_up_to_date(); or None
    cdef public bint recording           # a log is attached: what rests on a record waits for it in effects
    cdef readonly bint recorded          # whether the last publish rests on a record
    cdef list _deadlines                 # heap of (monotonic ms, sequence, kind, Session)
    cdef uint64_t _deadline_sequence

    # The message may be borrowed. `route` is the topic's, fresh. Returns how many receivers it is for.
    cdef int publish(self, Receiver publisher, Message message, Route route) except -1
    cdef bint rests_on_record(self, Receiver publisher, Message message, Route route) except -1
    cdef int _publish_now(self, Receiver publisher, Message message, Route route) except -1
    cdef int _publish_recorded(self, Receiver publisher, Message message, Route route) except -1
    cdef int _deliver_recorded(self, Receiver receiver, Message owned, Target* target) except -1
    cdef _redispatch(self, Session session)
    cdef _add_deadline(self, Session session, DeadlineKind kind, delay_s)
    cdef int retain(self, Message message) except -1
    cdef bint may_retain(self, Message message) except -1       # there is room for it among the retained messages
    # An acknowledgement of the publisher's packet: now, or in its place behind what waits.
    cdef int acknowledge(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                         uint8_t reason, bint recorded) except -1
