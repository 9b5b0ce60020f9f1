"""Shared subscriptions: one message of a topic goes to one member of a group."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.core.message cimport Message
from router.core.receiver cimport DROPPED, Entry, Receiver, Verdict
from router.core.rights cimport Rights

cdef enum:
    IDS_BYTES_MAX = 255          # of a delivery: the group's identifier, and the routers where it was
    ROUTERS_TRIED_MAX = 48       # so many have room there
    ROUTER_TRIED = 0             # in place of a property's identifier, in front of a router's number

cdef inline uint32_t router_number(uint64_t key) noexcept:
    """Return what a router is called in the identifiers of a delivery, from what it weighs with: 1..268,435,455."""
    return 1 + <uint32_t>(key % 268435455)

cdef enum Strategy:              # how a shared subscription chooses among its members
    ROUND_ROBIN = 0
    RANDOM = 1
    STICKY = 2                   # one member for as long as it is online
    HASH_CLIENT = 3              # by the publisher's key
    HASH_TOPIC = 4


cdef class SharedGroup:
    # The members of one $share/name/filter. The last one takes the place of one that leaves.
    cdef Entry* members          # partner: Receiver
    cdef uint32_t member_count
    cdef uint32_t member_capacity
    cdef uint32_t next_member    # round robin: whose turn it is; sticky: the member that it stays with
    cdef uint8_t strategy
    cdef readonly bytes name     # "name/filter"
    cdef void* node              # the tree's Node it hangs on
    cdef uint64_t* random_state  # the tree's; NULL once the group has emptied
    cdef uint64_t* router_key    # the tree's: what this router weighs with where a hash chooses among routers
    cdef uint16_t stayed         # round robin: messages in a row for the peer whose turn it is
    cdef void* next              # the next SharedGroup of the same node, or NULL
    cdef Rights rights           # the tree's; None: nobody is asked
    # Pick a member and deliver; members offline or without room are skipped while another one is there. The publisher
    # may be None. Returns 1 delivered or queued, 0 nobody.
    cpdef int publish(self, Receiver publisher, Message message) except -1
    # The same, with a member that pick() has picked.
    cdef int give(self, int index, Receiver publisher, Message message) except -1
    # Deliver an owned message, which `gone` will not settle any more, to another member (4.8.2); same result.
    # The caller does this for unsent messages and sent QoS 1, never for sent QoS 2 [MQTT-4.8.2-5].
    cpdef int redispatch(self, Receiver gone, Message message) except -1
    cdef int pick(self, Receiver publisher, Receiver gone, Message message) noexcept
    cdef int choose(self, uint64_t publisher_key, Receiver gone, Message message, bint local) noexcept
    cdef int pass_turn(self, uint32_t chosen) noexcept
    # A peer's index, or -1: this router. If any is named as tried, this one is, too: -1 is nobody then.
    cdef int choose_router(self, uint64_t key, Receiver gone, Message message, const uint32_t* tried,
                           uint32_t tried_count) noexcept
    # Another router than those that have been tried, of which this one is one; -1: there is none.
    cdef int choose_untried(self, uint64_t publisher_key, Message message, const uint32_t* tried,
                            uint32_t tried_count) noexcept
    cdef bint has_peers(self) noexcept
    cdef uint32_t draw(self) noexcept
    cdef int index_of(self, Receiver member) noexcept     # -1: it is none
    cdef int terms(self, int index, Message message, uint8_t* qos, bint* retain, uint8_t* ids,
                   uint32_t* ids_length) noexcept        # ids has room for five bytes
    cdef Verdict hand_over(self, int index, Message message) except? DROPPED
