"""What a topic's receivers are: read off the topic filters that match it, one match at a time."""

cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, memset

from router.core.message cimport topic_hash
from router.core.receiver cimport NARROWED, NO_LOCAL
from router.matching.filter_trie cimport Node
from router.matching.route_cache cimport identifier_size, merge, write_identifier
from router.matching.shared_groups cimport SharedGroup

cdef enum:
    WORK_ASKED = 5               # places looked at that one question about rights counts as
    FEW = 2                      # targets and groups of a route, see Route.cost
    ROUTE_BYTES = 160            # of a route without anything, and of its place in the cache


cdef uint32_t position(Receiver receiver, void* partner, Entry* others, uint32_t count) noexcept:
    """Return where in receiver.entries its subscription to a node or group lies, or NOT_FOUND; reads the shorter side."""
    cdef uint32_t index
    if receiver.entry_count <= count:
        for index in range(receiver.entry_count):
            if receiver.entries[index].partner == partner:
                return index
    else:
        for index in range(count):
            if others[index].partner == <void*>receiver:
                return others[index].index
    return NOT_FOUND


@cython.no_gc
cdef class RouteReader:
    """Reads routes off a tree of topic filters, and what one receiver is owed of a topic."""

    def __dealloc__(self):
        free(self.found)

    cdef int fill(self, Route route, uint64_t hash, const uint8_t* topic, uint16_t topic_length) except -1:
        """Read a route off the tree. If that fails, the route is as it was."""
        cdef Match match
        cdef bint archived = self.archive is not None and self.archive.match(topic, topic_length)
        self.filters.walk(topic, topic_length)
        self.find_targets(&match)
        if self.rights is not None:
            self.leave_out(&match, topic, topic_length)
        self.lay_out(route, &match, topic, topic_length)
        route.archived = archived
        route.hash = hash
        if match.ids_length:
            self.write_identifiers(route, <uint8_t*>(route.groups + match.group_count))
        if match.group_count:
            self.write_groups(route)
        self.note_generations(route)
        return 0

    cdef int find_targets(self, Match* match) except -1:
        """Merge the subscriptions of the filters that match into one target for each receiver: self.found."""
        cdef Node* node
        cdef Entry* entry
        cdef Receiver receiver
        cdef Target* target
        cdef void* group
        cdef uint32_t index, place
        cdef uint32_t count = 0
        match.group_count = match.ids_length = 0
        self.stamp += 1
        for index in range(self.filters.matched_count):
            node = self.filters.matched[index]
            self.reserve_found(count + node.entry_count)
            self.filters.visited += node.entry_count
            for place in range(node.entry_count):
                entry = &node.entries[place]
                receiver = <Receiver>entry.partner
                # The stamp wraps, so the place that it vouches for is looked at too.
                if (receiver.match_stamp == self.stamp and receiver.match_index < count
                        and self.found[receiver.match_index].receiver == entry.partner):
                    target = &self.found[receiver.match_index]
                else:
                    receiver.match_stamp = self.stamp
                    receiver.match_index = count
                    target = &self.found[count]
                    memset(target, 0, sizeof(Target))
                    target.receiver = entry.partner
                    count += 1
                merge(target, entry)
                if entry.identifier:
                    match.ids_length += identifier_size(entry.identifier)
            group = node.groups
            while group != NULL:
                match.group_count += 1
                group = (<SharedGroup>group).next
        match.target_count = count
        return 0

    cdef int leave_out(self, Match* match, const uint8_t* topic, uint16_t topic_length) noexcept:
        """Leave out who may not read the topic; who was granted any of its filters as a whole is not asked about."""
        cdef uint32_t index, kept = 0
        cdef Target* target
        for index in range(match.target_count):
            target = &self.found[index]
            if not target.whole:
                self.filters.visited += WORK_ASKED
                if not self.rights.may_read(<Receiver>target.receiver, topic, topic_length):
                    (<Receiver>target.receiver).match_index = NOT_FOUND
                    match.ids_length -= target.ids_length
                    continue
            if kept != index:
                (<Receiver>target.receiver).match_index = kept
                self.found[kept] = target[0]
            kept += 1
        match.target_count = kept
        return 0

    cdef int reserve_found(self, uint32_t count) except -1:
        cdef void* moved
        if count > self.found_capacity:
            moved = realloc(self.found, count * 2 * sizeof(Target))
            if moved == NULL:
                raise MemoryError()
            self.found = <Target*>moved
            self.found_capacity = count * 2
        return 0

    cdef int lay_out(self, Route route, const Match* match, const uint8_t* topic, uint16_t topic_length) except -1:
        """Give a route one block with its targets and topic, and room for groups and identifiers."""
        cdef uint32_t count = match.target_count
        cdef size_t targets = (<size_t>topic_length + 7) & ~<size_t>7
        cdef size_t groups = targets + count * sizeof(Target)
        cdef size_t ids = groups + match.group_count * sizeof(void*)
        cdef size_t size = ids + match.ids_length
        cdef uint8_t* block = <uint8_t*>malloc(size)
        if block == NULL:
            raise MemoryError()
        if count:
            memcpy(block + targets, self.found, count * sizeof(Target))
        memcpy(block, topic, topic_length)
        free(route.topic)
        route.topic = block
        route.size = <uint32_t>min(size + ROUTE_BYTES, 0xFFFFFFFF)
        route.targets = <Target*>(block + targets)
        route.groups = <void**>(block + groups)
        route.target_count = count
        route.group_count = 0
        route.topic_length = topic_length
        route.cost = count + match.group_count if count + match.group_count > FEW else 0
        return 0

    cdef int write_groups(self, Route route) noexcept:
        cdef uint32_t index
        cdef void* group
        for index in range(self.filters.matched_count):
            group = self.filters.matched[index].groups
            while group != NULL:
                route.groups[route.group_count] = group
                route.group_count += 1
                group = (<SharedGroup>group).next
        return 0

    cdef int write_identifiers(self, Route route, uint8_t* ids) noexcept:
        """Write each target's Subscription Identifiers from `ids` on, in the order in which its filters matched."""
        cdef Node* node
        cdef Entry* entry
        cdef Target* target
        cdef uint32_t index, place
        for index in range(route.target_count):
            if route.targets[index].ids_length:
                route.targets[index].ids = ids
                ids += route.targets[index].ids_length
                route.targets[index].ids_length = 0          # counts again, as they are written
        for index in range(self.filters.matched_count):
            node = self.filters.matched[index]
            for place in range(node.entry_count):
                entry = &node.entries[place]
                if entry.identifier and (<Receiver>entry.partner).match_index != NOT_FOUND:
                    target = &route.targets[(<Receiver>entry.partner).match_index]
                    write_identifier(target.ids + target.ids_length, entry.identifier)
                    target.ids_length += identifier_size(entry.identifier)
        return 0

    cdef int note_generations(self, Route route) noexcept:
        """A route is fresh from now on, until what it was read off changes."""
        cdef const uint8_t* first_end = <const uint8_t*>memchr(route.topic, 0x2F, route.topic_length)
        cdef uint32_t length = <uint32_t>(first_end - route.topic) if first_end != NULL else route.topic_length
        route.level_slot = topic_hash(route.topic, length) % LEVEL_SLOTS
        route.generation_level = self.generation_level[route.level_slot]
        route.generation_all = self.generation_all
        route.dropped = False
        return 0

    cdef int target_for(self, const uint8_t* topic, uint16_t topic_length, Receiver receiver, bint skip_no_local,
                        Target* target) except -1:
        """Merge one receiver's subscriptions that match; 1 and the caller frees target.ids, or 0: there is none."""
        cdef Node* node
        cdef Entry* entry
        cdef uint8_t* end
        cdef uint32_t index
        cdef uint32_t place
        cdef bint matched = False
        cdef bint writing
        memset(target, 0, sizeof(Target))
        self.filters.walk(topic, topic_length)
        target.receiver = <void*>receiver
        for writing in (False, True):
            end = target.ids
            for index in range(self.filters.matched_count):
                node = self.filters.matched[index]
                place = position(receiver, node, node.entries, node.entry_count)
                if place == NOT_FOUND:
                    continue
                entry = &receiver.entries[place]
                if not entry.options & NARROWED:
                    target.whole = True
                if skip_no_local and entry.options & NO_LOCAL:
                    continue
                if not writing:
                    matched = True
                    merge(target, entry)
                elif entry.identifier:
                    end = write_identifier(end, entry.identifier)
            if writing or target.ids_length == 0:
                break
            target.ids = <uint8_t*>malloc(target.ids_length)
            if target.ids == NULL:
                raise MemoryError()
        return matched
