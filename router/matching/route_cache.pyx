"""Routes: who receives a topic, read off the subscription tree once; and the bounded cache of them."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free
from router.core.message cimport same_bytes

cdef enum:
    WAYS = 8


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Route:
    """The receivers of a topic. A route that a connection holds never changes; it is only replaced."""

    def __dealloc__(self):
        free(self.topic)


cdef tuple described(Target* target):
    """Return (receiver, granted QoS, retain as published, No Local, encoded identifiers) of a target."""
    return (
        <object>target.receiver, target.qos, bool(target.retain_as_published), bool(target.no_local),
        PyBytes_FromStringAndSize(<char*>target.ids, target.ids_length))


@cython.final
@cython.no_gc
cdef class RouteCache:
    """Routes by topic name: bounded, evicted one at a time, never cleared whole.

    Args:
        routes_max: 8 or more; rounded down to a power of two.
        bytes_max: how many bytes they may take.

    A route that leaves the cache is marked dropped, because whoever holds it would not hear of later changes.
    """

    def __cinit__(self, routes_max: int, bytes_max: int):
        if routes_max < WAYS:
            raise ValueError(f"routes_max is {WAYS} or more, not {routes_max}")
        self.slots_max = 1 << (min(routes_max, 1 << 30).bit_length() - 1)
        self.room_bytes = bytes_max

    def __dealloc__(self):
        cdef uint32_t slot
        for slot in range(self.slot_count):
            if self.slots[slot].route != NULL:
                (<Route>self.slots[slot].route).dropped = True
                Py_DECREF(<Route>self.slots[slot].route)
        free(self.slots)

    cdef RouteSlot* find(self, uint64_t hash, const uint8_t* topic, uint32_t topic_length) noexcept:
        """Return the slot of a topic's route, fresh or stale, or NULL."""
        cdef RouteSlot* slot
        cdef int way
        if self.slot_count == 0:
            return NULL
        slot = self.slots + (hash & (self.slot_count - 1) & ~<uint64_t>(WAYS - 1))
        for way in range(WAYS):
            if (slot.hash == hash and slot.route != NULL and (<Route>slot.route).topic_length == topic_length
                    and same_bytes(slot.topic, topic, topic_length)):
                return slot
            slot += 1
        return NULL

    cdef int add(self, Route route) except -1:
        """Take in a route; at the bound another one of its bucket goes, or those that are in its way."""
        cdef RouteSlot* slot
        self.make_room(route.size)
        slot = self.place(route.hash)
        Py_INCREF(route)
        self.size_bytes += route.size
        slot.hash = route.hash
        slot.route = <void*>route
        slot.topic = route.topic
        self.count += 1
        return 0

    cdef int replace(self, RouteSlot* slot, Route route) noexcept:
        """Put a newer route of the same topic into its slot."""
        cdef Route older = <Route>slot.route
        Py_INCREF(route)
        slot.route = <void*>route
        slot.topic = route.topic
        self.size_bytes += route.size
        self.size_bytes -= older.size
        older.dropped = True
        Py_DECREF(older)
        return 0

    cdef RouteSlot* place(self, uint64_t hash) except NULL:
        """Return an empty slot for a route: the cache grows to its bound, then the bucket gives a second chance."""
        cdef RouteSlot* bucket
        cdef RouteSlot* victim
        cdef Route route
        cdef int way
        while True:
            if self.slot_count == 0:
                self.grow()
            bucket = self.slots + (hash & (self.slot_count - 1) & ~<uint64_t>(WAYS - 1))
            for way in range(WAYS):
                if bucket[way].route == NULL:
                    return &bucket[way]
            # A full bucket in a nearly empty cache is somebody's choice of topics, not a reason to grow.
            if self.slot_count >= self.slots_max or self.count < self.slot_count // 4:
                break
            self.grow()
        self.hand += 1
        victim = &bucket[self.hand % WAYS]
        for way in range(WAYS):
            route = <Route>bucket[(self.hand + way) % WAYS].route
            if not route.referenced:
                victim = &bucket[(self.hand + way) % WAYS]
                break
            route.referenced = False
        self.evict(victim)
        return victim

    cdef int evict(self, RouteSlot* slot) noexcept:
        """Let go of a slot's route, and mark it: a connection that holds it would not hear of later changes."""
        cdef Route route = <Route>slot.route
        slot.route = NULL
        self.count -= 1
        self.size_bytes -= route.size
        route.dropped = True
        Py_DECREF(route)
        return 0

    cdef int make_room(self, uint64_t bytes_needed) noexcept:
        """Let go of routes, wherever they are, until one of this size fits; a second chance for those that were used."""
        cdef uint32_t left = self.slot_count * 2
        cdef RouteSlot* slot
        while self.count and left and self.size_bytes + bytes_needed > self.room_bytes:
            left -= 1
            self.shed = (self.shed + 1) & (self.slot_count - 1)
            slot = self.slots + self.shed
            if slot.route == NULL:
                continue
            if (<Route>slot.route).referenced and left > self.slot_count:
                (<Route>slot.route).referenced = False
            else:
                self.evict(slot)
        return 0

    cdef int resized(self, uint32_t before, uint32_t after) noexcept:
        self.size_bytes += after
        self.size_bytes -= before
        if self.size_bytes > self.room_bytes and self.count > 1:
            self.make_room(0)
        return 0

    @property
    def bytes_max(self) -> int:
        """How many bytes the routes may take."""
        return self.room_bytes

    @bytes_max.setter
    def bytes_max(self, value: int) -> None:
        self.room_bytes = value
        self.make_room(0)

    cdef int grow(self) except -1:
        """Double the cache; each old bucket fills two new ones, so nothing is evicted."""
        cdef uint32_t count = self.slot_count * 2 if self.slot_count else WAYS
        cdef RouteSlot* slots = <RouteSlot*>calloc(count, sizeof(RouteSlot))
        cdef RouteSlot* bucket
        cdef uint32_t index
        if slots == NULL:
            raise MemoryError()
        for index in range(self.slot_count):
            if self.slots[index].route != NULL:
                bucket = slots + (self.slots[index].hash & (count - 1) & ~<uint64_t>(WAYS - 1))
                while bucket.route != NULL:
                    bucket += 1
                bucket[0] = self.slots[index]
        free(self.slots)
        self.slots = slots
        self.slot_count = count
        return 0
