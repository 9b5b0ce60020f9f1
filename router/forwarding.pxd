"""What comes from peers, and what becomes of what they are owed."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.peers.peer cimport Peer
from router.core.receiver cimport Receiver
from router.router cimport Router
from router.matching.route_cache cimport Route
from router.matching.shared_groups cimport SharedGroup


cdef class Forwarding:
    cdef Router router
    cdef dict group_names        # group identifier -> names of shared subscriptions that it may be
    cdef readonly uint64_t received     # messages from peers, repeats included, since the start
    cdef Route route             # of the topic that came last; None, or perhaps stale

    # A message from a peer, borrowed or owned; `incarnation` is the peer's. Sequence 0: at QoS 0. True: it was new.
    cdef bint receive(self, Peer peer, Message message, uint64_t sequence, uint32_t incarnation, uint64_t n,
                      const uint8_t* ids, uint32_t ids_length, uint64_t publisher_key) except? False
    # The same for one without a sequence, without picked members and without RETAIN.
    cdef int pass_on(self, Message message) except -1
    # The peer has all deliveries up to this one.
    cdef int acknowledged(self, Peer peer, uint64_t sequence) except -1

    cdef Route route_of(self, Message message)
    cdef int receive_recorded(self, Peer peer, Message message, uint32_t incarnation, uint64_t n, Route route,
                              list behind) except -1
    cdef int receive_picked(self, Peer peer, Message message, uint8_t qos, uint32_t incarnation, uint64_t n,
                            const uint8_t* ids, uint32_t ids_length, uint64_t publisher_key) except -1
    cdef int pick_members(self, Message message, uint8_t qos, const uint8_t* ids, uint32_t ids_length,
                          uint64_t publisher_key, list picked) except -1
