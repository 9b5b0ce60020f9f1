"""Retained messages: the newest per topic name."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t
from libc.string cimport memchr

from router.matching.trie_levels cimport add_level, close_table, find_level, hash_level, open_table, remove_level, text_of

from router.matching.topic_names import check_topic_filter


cdef inline uint64_t size_of(Message message) noexcept:
    """Return what a message counts for in size_bytes."""
    return <uint64_t>message.topic_length + message.properties_length + message.payload_length


cdef inline Place* following(Place* place, Place* top) noexcept:
    """Return the place after one and all below it, depth first inside top; NULL at the end."""
    while place != top:
        if place.after != NULL:
            return place.after
        place = <Place*>place.level.parent
    return NULL


@cython.final
@cython.no_gc
cdef class RetainedStore:
    """The retained message of every topic name that has one, in memory.

    Order, wherever there is one: depth first, a level before what is below it, levels of one parent in the order in
    which they came to be. It follows from the calls alone.

    Args:
        seed: 0..2**64-1, of the hash of levels; secret, where clients are not trusted.
    """

    def __cinit__(self, seed: int = 0):
        open_table(&self.table, sizeof(Place), seed)

    def __dealloc__(self):
        cdef uint32_t slot
        cdef Place* place
        if self.table.tags == NULL:
            return
        for slot in range(self.table.mask + 1):
            if self.table.tags[slot]:
                place = <Place*>self.table.levels[slot]
                if place.message != NULL:
                    Py_DECREF(<Message>place.message)
        close_table(&self.table)

    cdef int store(self, Message message) except -1:
        """Keep an owned message in place of its topic's older one; 1 if the topic had none."""
        cdef const uint8_t* at = message.topic
        cdef const uint8_t* end = at + message.topic_length
        cdef const uint8_t* separator = NULL
        cdef Place* place = &self.root
        cdef Place* child
        cdef void* older
        assert message.owned and message.payload_length
        while separator != end:
            separator = <const uint8_t*>memchr(at, 0x2F, end - at)
            if separator == NULL:
                separator = end
            try:
                child = <Place*>add_level(&self.table, &place.level, at, separator - at)
            except MemoryError:
                self.prune(place)
                raise
            if child.before == NULL:                             # new: it joins its siblings as the last
                if place.first == NULL:
                    place.first = child
                    child.before = child
                else:
                    child.before = place.first.before
                    child.before.after = child
                    place.first.before = child
            place = child
            at = separator + 1
        older = place.message
        Py_INCREF(message)
        place.message = <void*>message
        self.size_bytes += size_of(message)
        if older == NULL:
            self.count += 1
            return 1
        self.size_bytes -= size_of(<Message>older)
        Py_DECREF(<Message>older)
        return 0

    cdef int clear(self, const uint8_t* topic, uint16_t topic_length) except -1:
        """Forget a topic's message; 1 if there was one."""
        cdef Place* place = self.find(topic, topic_length)
        if place == NULL or place.message == NULL:
            return 0
        self.drop(place)
        return 1

    cdef Message get(self, const uint8_t* topic, uint16_t topic_length):
        """Return a topic's message, or None."""
        cdef Place* place = self.find(topic, topic_length)
        if place == NULL or place.message == NULL:
            return None
        return <Message>place.message

    cdef Place* find(self, const uint8_t* topic, size_t topic_length) noexcept:
        """Return the place of a topic name, or NULL."""
        cdef const uint8_t* at = topic
        cdef const uint8_t* end = topic + topic_length
        cdef const uint8_t* separator = NULL
        cdef Level* level = &self.root.level
        while separator != end and level != NULL:
            separator = <const uint8_t*>memchr(at, 0x2F, end - at)
            if separator == NULL:
                separator = end
            level = find_level(&self.table, level, at, separator - at, hash_level(self.table.seed, at, separator - at))
            at = separator + 1
        return <Place*>level

    cdef int drop(self, Place* place) except -1:
        """Forget the message of a place, and the place if nothing is below it."""
        cdef Message message = <Message>place.message
        place.message = NULL
        self.count -= 1
        self.size_bytes -= size_of(message)
        Py_DECREF(message)
        return self.prune(place)

    cdef int prune(self, Place* place) noexcept:
        """Free a place that holds nothing, and its parents likewise."""
        cdef Place* parent
        while place != &self.root and place.message == NULL and place.first == NULL:
            parent = <Place*>place.level.parent
            if self.cursor == place:
                self.cursor = following(place, &self.root)
            if place.after != NULL:
                place.after.before = place.before
            else:
                parent.first.before = place.before
            if parent.first == place:
                parent.first = place.after
            else:
                place.before.after = place.after
            remove_level(&self.table, &place.level)
            place = parent
        return 0

    cdef Place* child_for(self, Place* place, bytes level) noexcept:
        """Return the first child that a filter's level matches, or NULL; + goes on with next_for."""
        cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(level)
        cdef size_t length = PyBytes_GET_SIZE(level)
        if length == 1 and text[0] == 0x2B:
            return self.open_from(place.first)
        return <Place*>find_level(&self.table, &place.level, text, length, hash_level(self.table.seed, text, length))

    cdef Place* next_for(self, Place* place, bytes level) noexcept:
        """Return the next sibling that a filter's level matches, or NULL."""
        return self.open_from(place.after) if level == b"+" else NULL

    cdef Place* open_from(self, Place* place) noexcept:
        """Return this place or the first sibling after it that a wildcard matches [MQTT-4.7.2-1], or NULL."""
        while (place != NULL and place.level.parent == &self.root.level and place.level.length
               and text_of(&self.table, &place.level)[0] == 0x24):
            place = place.after
        return place

    cdef int collect_below(self, Place* top, list found) except -1:
        """Append the messages of a place and of all below it that # reaches."""
        cdef Place* place = top
        while place != NULL:
            if place.message != NULL:
                found.append(<Message>place.message)
            if place.first != NULL:
                place = place.first
            else:
                place = following(place, top)
            # Only in the first level is there anything to step over.
            while place != NULL and place.level.parent == &self.root.level and self.open_from(place) != place:
                place = following(place, top)
        return 0

    def match(self, bytes topic_filter not None) -> list[Message]:
        """Return the messages that a topic filter matches, in the order of the store.

        Raises ValueError for a malformed filter. Cost: the matching branches, plus the siblings that each + looks at.
        """
        cdef list found = []
        cdef list levels = topic_filter.split(b"/")
        cdef Py_ssize_t last = len(levels) - 1
        cdef Py_ssize_t depth = 0                    # the level of the filter that the children of parent answer
        cdef Place* parent = &self.root
        cdef Place* place
        problem = check_topic_filter(topic_filter)
        if problem is not None:
            raise ValueError(problem)
        # No recursion: a filter has up to 65,536 levels.
        while True:
            if levels[depth] == b"#":
                self.collect_below(parent, found)    # the parent level too (section 4.7.1.2)
                place = NULL
            else:
                place = self.child_for(parent, levels[depth])
            if place != NULL and depth < last:
                parent = place
                depth += 1
                continue
            while place != NULL:
                if place.message != NULL:
                    found.append(<Message>place.message)
                place = self.next_for(place, levels[depth])
            # Up, until a + has a sibling left.
            while depth > 0:
                depth -= 1
                place = self.next_for(parent, levels[depth])
                if place != NULL:
                    parent = place
                    depth += 1
                    break
                parent = <Place*>parent.level.parent
            else:
                return found

    def purge_expired(self, now_ms: int, limit: int) -> int:
        """Remove messages that expired before now_ms and return how many.

        Args:
            now_ms: monotonic milliseconds.
            limit: levels to look at, 1 or more; the next call goes on behind them, round and round.
        """
        cdef int64_t deadline = now_ms
        cdef Py_ssize_t left = limit
        cdef Py_ssize_t removed = 0
        cdef Place* place = self.cursor
        if limit < 1:
            raise ValueError(f"limit is 1 or more, not {limit}")
        if place == NULL:
            place = self.root.first
        while place != NULL and left > 0:
            left -= 1
            self.cursor = place.first if place.first != NULL else following(place, &self.root)
            if place.message != NULL and is_expired(<Message>place.message, deadline):
                self.drop(place)                     # mends the cursor if that frees where it stands
                removed += 1
            place = self.cursor
        return removed

    # For Python callers

    def keep(self, Message message not None) -> bool:
        """Store a message as a publish with RETAIN 1 would [MQTT-3.3.1-5]; True if its topic had none.

        An empty payload clears the topic [MQTT-3.3.1-6].
        """
        if message.payload_length == 0:
            self.clear(message.topic, message.topic_length)
            return False
        return self.store(message.keep())

    def message_of(self, bytes topic_name not None) -> Message | None:
        """Return a topic's message."""
        return self.get(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint16_t>len(topic_name))

    @property
    def node_count(self) -> int:
        """Levels of topic names held."""
        return self.table.count


cdef inline bint is_expired(Message message, int64_t now_ms) noexcept:
    """Return whether a message must not be delivered any more."""
    return 0 < message.expires_ms < now_ms
