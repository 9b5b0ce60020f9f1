"""The subscription tree and the routes read off it."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.message cimport Message
from router.receiver cimport Entry, Receiver

cdef struct Target:
    # One receiver of a topic: its matching subscriptions merged (one copy, highest QoS, all identifiers [MQTT-3.3.4-2..4]).
    void* receiver               # Receiver, borrowed: a route that is stale is never followed
    uint8_t* ids                 # ready-encoded Subscription Identifier properties, owned by the route; NULL if none
    uint32_t ids_length
    uint8_t qos                  # highest granted
    bint retain_as_published     # any match has it
    bint no_local                # any match has it: a publish by this very receiver takes Tree.target_for()


cdef class Route:
    # Who receives a topic. Valid while both generations are the tree's; see SubscriptionTree.fresh.
    cdef uint64_t hash
    cdef uint8_t* topic
    cdef Target* targets
    cdef void** groups           # SharedGroup, borrowed
    cdef uint32_t target_count
    cdef uint32_t group_count
    cdef uint32_t generation_all # of filters whose first level is a wildcard
    cdef uint32_t generation_level   # of wildcard filters under this topic's first level
    cdef uint32_t level_slot     # which of the tree's level generations
    cdef uint16_t topic_length
    cdef bint dropped            # an exact filter of this topic changed


cdef class SharedGroup:
    # The members of one $share/name/filter, in order of joining.
    cdef Entry* members          # partner: Receiver
    cdef uint32_t member_count
    cdef uint32_t member_capacity
    cdef uint32_t next_member    # round robin
    cdef uint8_t strategy
    cdef readonly bytes name     # "name/filter"
    cdef void* node              # the tree's Node it hangs on
    cdef SubscriptionTree tree   # for its random state; broken when the group empties
    # Pick a member and deliver; members offline or without room are skipped while another one is there.
    cdef int publish(self, Receiver publisher, Message message) except -1     # 1 delivered or queued, 0 nobody


cdef class SubscriptionTree:
    cdef uint32_t generation_all
    cdef uint32_t[1024] generation_level
    cdef readonly uint64_t subscription_count
    # private state is declared below this line

    cdef Route route(self, const uint8_t* topic, uint16_t topic_length)       # cached or read off the tree; never None
    cdef int target_for(self, const uint8_t* topic, uint16_t topic_length, Receiver receiver, bint skip_no_local,
                        Target* target) except -1    # 1 and fills target (caller frees ids), or 0: nothing matches

    cdef inline bint fresh(self, Route route) noexcept:
        """Return whether a route may still be followed."""
        return (not route.dropped and route.generation_all == self.generation_all
                and route.generation_level == self.generation_level[route.level_slot])
