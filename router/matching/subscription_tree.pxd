"""The subscription tree: who subscribed to what, and the routes that were read off it."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.matching.filter_trie cimport Node
from router.core.message cimport Message, same_bytes
from router.core.receiver cimport Entry, Receiver
from router.matching.route_cache cimport Route, RouteCache, Target
from router.matching.route_reader cimport RouteReader
from router.matching.shared_groups cimport SharedGroup


cdef inline bint is_of(Route route, const uint8_t* topic, uint16_t topic_length) noexcept:
    return route.topic_length == topic_length and same_bytes(route.topic, topic, topic_length)


cdef class SubscriptionTree(RouteReader):
    cdef readonly uint64_t subscription_count            # what other routers want is none
    cdef readonly uint64_t shared_subscription_count     # of these, how many are $share/...
    # private state is declared below this line
    cdef SharedGroup group(self, bytes name)     # by "name/filter", or None
    cdef dict groups             # "name/filter" -> SharedGroup
    cdef uint8_t strategy        # of groups made from now on
    cdef uint64_t random_state
    cdef public uint64_t router_key      # of this router, where a hash chooses among routers
    cdef readonly RouteCache cache
    cdef uint8_t* text           # scratch: a topic filter; grown and never shrunk
    cdef uint32_t text_capacity
    cdef bint all_stale          # every route has been made stale: no need to look for some

    # Options as on the wire (5.0, 3.8.3.1), identifier 1..268,435,455 or 0 for none. True: new; False: replaced in
    # place [MQTT-3.8.4-3]. Raises ValueError for a malformed filter or option. Cost: about a microsecond.
    cpdef bint subscribe(self, Receiver receiver, bytes topic_filter, int options, int identifier=*, int weight=*) except -1
    cdef uint32_t entry_of(self, Receiver receiver, bytes topic_filter) except? 0xFFFFFFFF
    cpdef bint unsubscribe(self, Receiver receiver, bytes topic_filter) except -1      # False: there was none
    cpdef int remove_receiver(self, Receiver receiver) except -1     # all of its subscriptions; returns how many

    cdef Route route(self, const uint8_t* topic, uint16_t topic_length)       # cached or read off the tree; never None

    cdef int check(self, Receiver receiver, bytes topic_filter, int options, int identifier) except -1
    cdef SharedGroup group_made(self, bytes share_name, bytes topic_filter)
    cdef bint replace_terms(self, Entry* entry, const Entry* terms) noexcept
    cdef int add_entry(self, Receiver receiver, Node* node, SharedGroup group, const Entry* terms) except -1
    cdef int remove_entry(self, Receiver receiver, uint32_t index) noexcept
    cdef int remove_group(self, SharedGroup group) noexcept
    cdef int invalidate(self, Node* node) noexcept
    cdef bytes filter_of(self, Entry* entry)

    cdef inline bint fresh(self, Route route) noexcept:
        """Return whether a route may still be followed."""
        return (not route.dropped and route.generation_all == self.generation_all
                and route.generation_level == self.generation_level[route.level_slot])

    cdef inline bint leads(self, Route route, const uint8_t* topic, uint16_t topic_length) noexcept:
        """Return whether this is the route of a topic, and fresh; None is not. Publishes of one topic come in a row."""
        return route is not None and is_of(route, topic, topic_length) and self.fresh(route)
