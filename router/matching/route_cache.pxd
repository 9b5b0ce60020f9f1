"""Routes: who receives a topic, read off the subscription tree once; and the bounded cache of them."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from router.core.receiver cimport NARROWED, NO_LOCAL, PASSING, QOS_MASK, RETAIN_AS_PUBLISHED, Entry
from router.core.varint cimport varint_length, write_varint

cdef struct Target:
    # One receiver of a topic: its matching subscriptions merged (one copy, highest QoS, all identifiers [MQTT-3.3.4-2..4]).
    void* receiver               # Receiver, borrowed: a route that is stale is never followed
    uint8_t* ids                 # ready-encoded Subscription Identifier properties, owned by the route; NULL if none
    uint32_t ids_length
    uint8_t qos                  # highest granted
    # These are 0 or 1; a bint has four bytes, and of targets there are many.
    uint8_t retain_as_published  # any match has it
    uint8_t no_local             # any match has it: a publish by this very receiver takes Tree.target_for()
    uint8_t lasting              # any match of QoS 1 or 2 is not PASSING
    uint8_t whole                # any match is not NARROWED: its rights are not asked for, and not recorded

cdef struct RouteSlot:
    uint64_t hash                # topic_hash of the route's topic
    void* route                  # Route, owned; NULL: empty
    const uint8_t* topic         # its topic: read while the route itself comes out of memory, not behind it


cdef inline uint8_t* write_identifier(uint8_t* at, uint32_t identifier) noexcept:
    """Write a Subscription Identifier property, 2 to 5 bytes, and return where it ends."""
    at[0] = 0x0B
    return write_varint(at + 1, identifier)


cdef inline uint32_t identifier_size(uint32_t identifier) noexcept:
    """Return how many bytes write_identifier writes."""
    return 1 + varint_length(identifier)


cdef inline void merge(Target* target, Entry* entry) noexcept:
    """Add one matching subscription to a target; ids_length counts, ids are written later."""
    if entry.options & QOS_MASK > target.qos:
        target.qos = entry.options & QOS_MASK
    if entry.options & QOS_MASK and not entry.options & PASSING:
        target.lasting = True
    if not entry.options & NARROWED:
        target.whole = True
    if entry.options & RETAIN_AS_PUBLISHED:
        target.retain_as_published = True
    if entry.options & NO_LOCAL:
        target.no_local = True
    if entry.identifier:
        target.ids_length += identifier_size(entry.identifier)


cdef tuple described(Target* target)


cdef class Route:
    # Who receives a topic. Valid while both generations are the tree's; see SubscriptionTree.fresh.
    cdef uint64_t hash
    cdef Target* targets
    cdef void** groups           # SharedGroup, borrowed
    cdef uint32_t target_count
    cdef uint32_t group_count
    cdef uint32_t generation_all # of filters whose first level is a wildcard
    cdef uint32_t generation_level   # of wildcard filters under this topic's first level
    cdef uint32_t level_slot     # which of the tree's level generations
    cdef uint16_t topic_length
    cdef bint dropped            # an exact filter of this topic changed, or the cache let go of it
    cdef uint32_t size           # bytes that it takes
    cdef uint32_t cost           # deliveries of a message, if they are more than a few; else 0, and not worth counting
    cdef bint archived           # its messages are recorded whoever wants them
    cdef bint referenced         # used since the cache last looked for a place
    cdef uint8_t* topic          # begins its one block of memory: targets, groups and ids lie behind, in this order


cdef class RouteCache:
    # Buckets of 8 slots, so that a lookup compares at most 8 hashes whatever topics clients choose.
    cdef RouteSlot* slots
    cdef uint32_t slot_count     # a power of two, <= slots_max; 0 before the first route
    cdef uint32_t slots_max
    cdef readonly uint32_t count # routes in it, fresh and stale
    cdef readonly uint64_t size_bytes    # of these; at most room_bytes, but for one that is larger by itself
    cdef uint64_t room_bytes
    cdef uint32_t shed           # where it looks next for one to let go of
    cdef int make_room(self, uint64_t bytes_needed) noexcept
    cdef int resized(self, uint32_t before, uint32_t after) noexcept     # of a route that is in it
    cdef uint32_t hand           # where in its bucket the next eviction starts to look
    cdef RouteSlot* find(self, uint64_t hash, const uint8_t* topic, uint32_t topic_length) noexcept
    cdef int add(self, Route route) except -1                    # of a topic that is not in it
    cdef int replace(self, RouteSlot* slot, Route route) noexcept    # by a newer route of the same topic
    cdef RouteSlot* place(self, uint64_t hash) except NULL
    cdef int grow(self) except -1
    cdef int evict(self, RouteSlot* slot) noexcept
    cdef uint32_t swept          # where the next sweep starts
