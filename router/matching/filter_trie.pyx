"""The topic filters of one router as a tree, and the walk that finds those that match a topic name."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy

from router.matching.trie_levels cimport (
    HAS_HASH, HAS_PLUS, add_level, close_table, find_level, hash_level, open_table, remove_level, text_of)


@cython.final
@cython.no_gc
cdef class FilterTree:
    """Nodes by topic filter. What hangs on a node is its user's; a node without anything is pruned by its user."""

    def __cinit__(self, seed: int):
        open_table(&self.table, sizeof(Node), seed)
        self.plus_hash = hash_level(self.table.seed, b"+", 1)
        self.multi_hash = hash_level(self.table.seed, b"#", 1)

    def __dealloc__(self):
        cdef uint32_t slot
        if self.table.tags != NULL:
            for slot in range(self.table.mask + 1):
                if self.table.tags[slot]:
                    free((<Node*>self.table.levels[slot]).entries)
            close_table(&self.table)
        free(self.frontier)
        free(self.matched)

    cdef Node* find(self, bytes inner_filter) noexcept:
        """Return the node of a topic filter, or NULL."""
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(inner_filter)
        cdef const uint8_t* end = at + PyBytes_GET_SIZE(inner_filter)
        cdef const uint8_t* separator
        cdef Level* level = &self.root.level
        while True:
            separator = <const uint8_t*>memchr(at, 0x2F, end - at)
            if separator == NULL:
                separator = end
            level = find_level(&self.table, level, at, separator - at, hash_level(self.table.seed, at, separator - at))
            if level == NULL or separator == end:
                return <Node*>level
            at = separator + 1

    cdef Node* add(self, bytes inner_filter) except NULL:
        """Return the node of a topic filter, made if it is missing."""
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(inner_filter)
        cdef const uint8_t* end = at + PyBytes_GET_SIZE(inner_filter)
        cdef const uint8_t* separator
        cdef Level* level = &self.root.level
        while True:
            separator = <const uint8_t*>memchr(at, 0x2F, end - at)
            if separator == NULL:
                separator = end
            try:
                level = add_level(&self.table, level, at, separator - at)
            except MemoryError:
                self.prune(<Node*>level)
                raise
            if separator == end:
                return <Node*>level
            at = separator + 1

    cdef int prune(self, Node* node) noexcept:
        """Free a node without entries, groups and children, and its parents likewise, unless it is held."""
        cdef Node* parent
        while node != &self.root and not (
                node.entry_count or node.level.children or node.groups != NULL or node.level.held):
            parent = <Node*>node.level.parent
            free(node.entries)
            remove_level(&self.table, &node.level)
            node = parent
        return 0

    cdef bytes text(self, Node* node):
        """Return the topic filter of a node."""
        cdef Level* level = &node.level
        cdef Py_ssize_t size = -1                                # no separator in front of the first
        cdef bytes text
        cdef uint8_t* at
        while level.parent != NULL:
            size += level.length + 1
            level = level.parent
        text = PyBytes_FromStringAndSize(NULL, size)
        at = <uint8_t*>PyBytes_AS_STRING(text) + size
        level = &node.level
        while True:
            at -= level.length
            memcpy(at, text_of(&self.table, level), level.length)
            level = level.parent
            if level.parent == NULL:
                return text
            at -= 1
            at[0] = 0x2F

    cdef int walk(self, const uint8_t* topic, uint32_t topic_length) except -1:
        """Put every node into self.matched whose filter matches a topic name; a level at a time, no recursion."""
        cdef const uint8_t* at = topic
        cdef const uint8_t* end = topic + topic_length
        cdef const uint8_t* separator = NULL
        cdef Node** current
        cdef Node** following
        cdef Node* node
        cdef uint32_t count = 1
        cdef uint32_t next_count
        cdef uint32_t index
        cdef uint64_t level_hash
        cdef uint8_t wildcards
        cdef uint32_t half = 0                                   # which half of the frontier is the current one
        self.matched_count = 0
        self.begin_frontier()
        while count:
            # A step makes at most two nodes of one, and finds at most two.
            if count * 2 > self.frontier_capacity:
                self.grow_frontier(half, count)
                half = 0
            if self.matched_count + count * 2 > self.matched_capacity:
                self.grow_matched((self.matched_count + count * 2) * 2)
            current = self.frontier + half * self.frontier_capacity
            if separator == end:
                break
            half = 1 - half
            self.visited += count
            following = self.frontier + half * self.frontier_capacity
            next_count = 0
            separator = <const uint8_t*>memchr(at, 0x2F, end - at)
            if separator == NULL:
                separator = end
            level_hash = hash_level(self.table.seed, at, separator - at)
            for index in range(count):
                node = current[index]
                wildcards = node.level.flags & (HAS_PLUS | HAS_HASH)
                if node.level.children > <uint32_t>((wildcards & HAS_PLUS != 0) + (wildcards & HAS_HASH != 0)):
                    following[next_count] = <Node*>find_level(
                        &self.table, &node.level, at, separator - at, level_hash)
                    next_count += following[next_count] != NULL
                if wildcards and not (at == topic and at[0] == 0x24):        # no wildcard matches a first $ [MQTT-4.7.2-1]
                    if wildcards & HAS_HASH:
                        self.matched[self.matched_count] = <Node*>find_level(
                            &self.table, &node.level, b"#", 1, self.multi_hash)
                        self.matched_count += 1
                    if wildcards & HAS_PLUS:
                        following[next_count] = <Node*>find_level(&self.table, &node.level, b"+", 1, self.plus_hash)
                        next_count += 1
            count = next_count
            at = separator + 1
        self.match_last(current, count)
        return 0

    cdef int begin_frontier(self) except -1:
        if self.frontier_capacity == 0:
            self.frontier = <Node**>malloc(2 * 16 * sizeof(Node*))
            if self.frontier == NULL:
                raise MemoryError()
            self.frontier_capacity = 16
        self.frontier[0] = &self.root
        return 0

    cdef int grow_frontier(self, uint32_t half, uint32_t count) except -1:
        """Double both halves of the frontier; of one of them the nodes are kept, in the first half."""
        cdef void* moved = malloc(4 * self.frontier_capacity * sizeof(Node*))
        if moved == NULL:
            raise MemoryError()
        memcpy(moved, self.frontier + half * self.frontier_capacity, count * sizeof(Node*))
        free(self.frontier)
        self.frontier = <Node**>moved
        self.frontier_capacity *= 2
        return 0

    cdef int grow_matched(self, uint32_t capacity) except -1:
        cdef void* moved = realloc(self.matched, capacity * sizeof(Node*))
        if moved == NULL:
            raise MemoryError()
        self.matched = <Node**>moved
        self.matched_capacity = capacity
        return 0

    cdef int match_last(self, Node** current, uint32_t count) noexcept:
        """Put the nodes into self.matched that a topic name's last level has led to."""
        cdef Node* node
        cdef uint32_t index
        for index in range(count):
            node = current[index]
            if node.entry_count or node.groups != NULL:
                self.matched[self.matched_count] = node
                self.matched_count += 1
            if node.level.flags & HAS_HASH:                      # sport/# matches sport (section 4.7.1.2)
                self.matched[self.matched_count] = <Node*>find_level(
                    &self.table, &node.level, b"#", 1, self.multi_hash)
                self.matched_count += 1
        return 0
