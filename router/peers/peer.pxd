"""Other routers, as this one sees them."""

from libc.stdint cimport uint32_t, uint64_t
from router.peers.deferred_acks cimport Waiters
from router.matching.route_cache cimport Route
from router.sessions.session cimport Session


cdef enum:
    EVERY_DELIVERY = 0xFFFFFFFFFFFFFFFE   # as a number: it, and all before


cdef class Peer:
    cdef readonly Session session        # its interest are its subscriptions, what it is owed is its queue
    cdef readonly bytes router_identifier    # "node/worker"
    cdef readonly uint32_t worker        # of the router identifier
    cdef public bint shares_node         # its data folder is ours: the index of retained messages, and the logs to replay
    cdef readonly uint32_t number        # of its `peer` record, 1 or more
    cdef readonly Waiters waiters        # acknowledgements that wait for it
    # When the link falls silent, deliveries that are in no record get a copy in the log, for the next process. In this
    # one they keep their message and their place in the session.
    cdef uint64_t copied_below           # deliveries without a record, and below this number, have a copy
    cdef uint64_t last_copy              # record of the newest copy that is still owed; 0: there is none
    cdef uint64_t copies_end             # all copies are done with when the deliveries below this number are
    # What it sent to us, so that a repeat is known as one.
    cdef readonly uint32_t heard_incarnation     # the newest that is known to have sent anything; `heard` is as it counts
    cdef readonly uint64_t heard_sequence        # the last delivery of that incarnation
    cdef readonly uint64_t heard         # the highest record of its log that came here, of those that it still has
    cdef readonly uint64_t repeats       # that came and were dropped, since the start

    # It has all deliveries up to this number, or they were dropped: the log is told, and who waits for them is answered.
    cdef int settle(self, uint64_t number) except -1
    # All copies up to this record are durable, and so is what was recorded before them.
    cdef int copied(self, uint64_t record) except -1
    cdef int tell_done(self) except -1
    # A process of it says after which record it began: later numbers, which the one before may have given, are given anew.
    cdef int began(self, uint32_t incarnation, uint64_t after) noexcept
    # The log says that a message of a process came, with its record there.
    cdef int recovered(self, uint32_t incarnation, uint64_t n) noexcept


# Write the numbers of the peers that a recorded message of QoS 1 or 2 is owed to; how many. `decided` has those without
# room. At most PEERS_MAX.
cdef int owed_peers(Route route, list decided, uint32_t* numbers) except -1
