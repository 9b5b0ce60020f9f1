"""The subscription tree: who subscribed to what, and the routes that were read off it."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cimport router.core.receiver
from router.matching.filter_trie cimport FilterTree
from router.matching.trie_levels cimport IS_WILDCARD, Level, text_of
from router.core.message cimport topic_hash
from router.core.receiver cimport NARROWED, NO_LOCAL, PASSING, QOS_MASK, RETAIN_AS_PUBLISHED, give_back, reserve
from router.core.rights cimport Rights
from router.matching.route_cache cimport RouteSlot, described
from router.matching.route_reader cimport LEVEL_SLOTS, NOT_FOUND, position

from router.matching.shared_groups import STRATEGIES
from router.matching.topic_names import check_topic_filter, parse_shared

cdef extern from "Python.h":
    Py_ssize_t reference_count "Py_REFCNT"(PyObject* object) noexcept

cdef enum:
    IDENTIFIER_MAX = 268435455

ROUTES_MAX = 65536


cdef inline Entry* far_end(Entry* entry) noexcept:
    """Return the other end of a receiver's entry: its entry in a node or a group."""
    if entry.shared:
        return &(<SharedGroup>entry.partner).members[entry.index]
    return &(<Node*>entry.partner).entries[entry.index]


cdef inline void forget(void* receiver) noexcept:
    """Leave a receiver without subscriptions, when its tree goes."""
    free((<Receiver>receiver).entries)
    (<Receiver>receiver).entries = NULL
    (<Receiver>receiver).entry_count = 0
    (<Receiver>receiver).entry_capacity = 0
    (<Receiver>receiver).tree = NULL


cdef void leave(Receiver receiver) noexcept:
    """What a receiver calls that is freed with subscriptions."""
    cdef SubscriptionTree tree = <SubscriptionTree>receiver.tree
    while receiver.entry_count:
        tree.remove_entry(receiver, receiver.entry_count - 1)


router.core.receiver.leave_tree = leave


@cython.final
@cython.no_gc
cdef class SubscriptionTree(RouteReader):
    """Every subscription of one router, and a bounded cache of what was read off them.

    Args:
        strategy: how shared subscriptions choose a member, one of STRATEGIES.
        seed: 0..2**64-1, of the random strategy and of the hash of levels; secret, where clients are not trusted.
        routes_max, routes_bytes_max: how many routes the cache holds, 8 or more, rounded down to a power of two; and
            how many bytes they may take.

    It borrows its receivers: their owners take them out. Nothing here may be called from inside a delivery.
    """

    def __cinit__(self, strategy: str = "round_robin", seed: int = 0, routes_max: int = ROUTES_MAX,
                  routes_bytes_max: int = 0xFFFFFFFFFFFFFFFF):
        self.strategy = STRATEGIES[strategy]
        self.random_state = seed
        self.groups = {}
        self.cache = RouteCache(routes_max, routes_bytes_max)
        self.filters = FilterTree(seed)

    def __dealloc__(self):
        cdef uint32_t slot
        cdef uint32_t index
        cdef Node* node
        cdef SharedGroup group
        if self.filters is not None:
            for slot in range(self.filters.table.mask + 1):
                if self.filters.table.tags[slot]:
                    node = <Node*>self.filters.table.levels[slot]
                    for index in range(node.entry_count):
                        forget(node.entries[index].partner)
        for group in (self.groups or {}).values():
            for index in range(group.member_count):
                forget(group.members[index].partner)
            group.member_count = 0
            group.node = NULL
            group.random_state = NULL
            group.router_key = NULL
        free(self.text)

    # Subscribing

    cpdef bint subscribe(self, Receiver receiver, bytes topic_filter, int options, int identifier=0,
                         int weight=1) except -1:
        """Subscribe a receiver; True: new, False: an identical filter was replaced in place [MQTT-3.8.4-3].

        Args:
            options: subscription options as on the wire (5.0, 3.8.3.1); a peer's may be PASSING.
            identifier: 1..268,435,455, or 0 for none.
            weight: in a shared subscription, how many members this receiver stands for, 0..65,535.

        Raises ValueError for a malformed filter, option or identifier, and for No Local on a shared subscription
        [MQTT-3.8.3-4].
        """
        cdef SharedGroup group = None
        cdef Node* node
        cdef Entry terms
        cdef uint32_t index
        self.check(receiver, topic_filter, options, identifier)
        terms.options = <uint8_t>options
        terms.identifier = <uint32_t>identifier
        terms.weight = <uint16_t>weight
        shared = parse_shared(topic_filter)
        if shared is None:
            node = self.filters.add(topic_filter)
            index = position(receiver, node, node.entries, node.entry_count)
        else:
            if options & NO_LOCAL:
                raise ValueError("No Local on a shared subscription")
            group = self.group_made(shared[0], shared[1])
            node = <Node*>group.node
            index = position(receiver, <void*>group, group.members, group.member_count)
        if index != NOT_FOUND:
            # A route names the group, not its members.
            if self.replace_terms(&receiver.entries[index], &terms) and group is None:
                self.invalidate(node)
            return False
        self.add_entry(receiver, node, group, &terms)
        return True

    cdef int check(self, Receiver receiver, bytes topic_filter, int options, int identifier) except -1:
        """Raise ValueError for what no subscription can be."""
        problem = check_topic_filter(topic_filter)
        if problem is not None:
            raise ValueError(problem)
        if not 0 <= options & ~(PASSING if receiver.peer else NARROWED) <= 0x2F or options & QOS_MASK == 3:
            raise ValueError(f"subscription options 0x{options:02X}")
        if not 0 <= identifier <= IDENTIFIER_MAX:
            raise ValueError(f"subscription identifier {identifier}")
        if receiver.tree != NULL and receiver.tree != <void*>self:
            raise ValueError("a receiver is in one tree only")
        return 0

    cdef SharedGroup group_made(self, bytes share_name, bytes topic_filter):
        """Return the group of a shared subscription, which is made, without a member, if it is not there."""
        cdef bytes name = share_name + b"/" + topic_filter
        cdef SharedGroup group = self.groups.get(name)
        cdef Node* node
        if group is not None:
            return group
        group = SharedGroup.__new__(SharedGroup)
        group.name = name
        group.strategy = self.strategy
        group.random_state = &self.random_state
        group.router_key = &self.router_key
        group.rights = self.rights
        node = self.filters.add(topic_filter)
        try:
            self.groups[name] = group
        except MemoryError:
            self.filters.prune(node)
            raise
        group.node = node
        group.next = node.groups
        node.groups = <void*>group
        return group

    cdef bint replace_terms(self, Entry* entry, const Entry* terms) noexcept:
        """Give a subscription, at both ends, other options, identifier and weight; returns whether routes tell of it."""
        cdef Entry* other = far_end(entry)
        cdef bint relevant = ((entry.options ^ terms.options) & (QOS_MASK | NO_LOCAL | RETAIN_AS_PUBLISHED | PASSING | NARROWED)
                              or entry.identifier != terms.identifier)
        entry.options = other.options = terms.options
        entry.identifier = other.identifier = terms.identifier
        entry.weight = other.weight = terms.weight
        return relevant

    cdef int add_entry(self, Receiver receiver, Node* node, SharedGroup group, const Entry* terms) except -1:
        """Begin a subscription to a filter, or to a group at its node; without memory, nothing has changed."""
        cdef Entry* entry
        cdef Entry* other
        try:
            reserve(&receiver.entries, receiver.entry_count, &receiver.entry_capacity)
            if group is None:
                reserve(&node.entries, node.entry_count, &node.entry_capacity)
            else:
                reserve(&group.members, group.member_count, &group.member_capacity)
        except MemoryError:
            if group is not None and group.member_count == 0:
                self.remove_group(group)
            self.filters.prune(node)
            raise
        entry = &receiver.entries[receiver.entry_count]
        entry[0] = terms[0]
        entry.partner = <void*>group if group is not None else <void*>node
        entry.index = group.member_count if group is not None else node.entry_count
        entry.shared = group is not None
        other = far_end(entry)
        other[0] = entry[0]
        other.partner = <void*>receiver
        other.index = receiver.entry_count
        receiver.entry_count += 1
        receiver.tree = <void*>self
        self.subscription_count += not receiver.peer
        if group is None:
            node.entry_count += 1
            self.invalidate(node)
        else:
            group.member_count += 1
            self.shared_subscription_count += not receiver.peer
            if group.member_count == 1:
                self.invalidate(node)
        return 0

    cpdef bint unsubscribe(self, Receiver receiver, bytes topic_filter) except -1:
        """End a subscription; False: there was none."""
        cdef uint32_t index = self.entry_of(receiver, topic_filter)
        if index == NOT_FOUND:
            return False
        self.remove_entry(receiver, index)
        return True

    def has(self, Receiver receiver not None, bytes topic_filter not None) -> bool:
        """Whether a receiver has a subscription with this filter, $share/name/ included."""
        return self.entry_of(receiver, topic_filter) != NOT_FOUND

    def options_of(self, Receiver receiver not None, bytes topic_filter not None) -> int:
        """Return the options of a subscription, -1 if there is none."""
        cdef uint32_t index = self.entry_of(receiver, topic_filter)
        return -1 if index == NOT_FOUND else receiver.entries[index].options

    cdef SharedGroup group(self, bytes name):
        return self.groups.get(name)

    cdef uint32_t entry_of(self, Receiver receiver, bytes topic_filter) except? 0xFFFFFFFF:
        """Return the index of a receiver's entry for a filter, or NOT_FOUND."""
        cdef SharedGroup group
        cdef Node* node
        if receiver.tree != <void*>self:
            return NOT_FOUND
        if topic_filter.startswith(b"$share/"):
            group = self.groups.get(topic_filter[7:])
            if group is None:
                return NOT_FOUND
            return position(receiver, <void*>group, group.members, group.member_count)
        node = self.filters.find(topic_filter)
        if node == NULL:
            return NOT_FOUND
        return position(receiver, node, node.entries, node.entry_count)

    cpdef int remove_receiver(self, Receiver receiver) except -1:
        """End every subscription of a receiver, O(1) each, and return how many there were."""
        cdef int count = receiver.entry_count
        if receiver.tree != <void*>self:
            return 0
        while receiver.entry_count:
            self.remove_entry(receiver, receiver.entry_count - 1)
        return count

    def subscriptions_of(self, Receiver receiver not None, bint shared_only=False) -> list[tuple[bytes, int, int]]:
        """Return (topic filter, options, identifier) of each subscription of a receiver, $share/name/ included."""
        if receiver.tree != <void*>self:
            return []
        return [
            (self.filter_of(&receiver.entries[index]), receiver.entries[index].options,
             receiver.entries[index].identifier)
            for index in range(receiver.entry_count) if not shared_only or receiver.entries[index].shared]

    cdef bytes filter_of(self, Entry* entry):
        """Return the topic filter of a receiver's entry."""
        if entry.shared:
            return b"$share/" + (<SharedGroup>entry.partner).name
        return self.filters.text(<Node*>entry.partner)

    cdef int remove_entry(self, Receiver receiver, uint32_t index) noexcept:
        """End one subscription; on both sides the last entry moves into the hole."""
        cdef Entry gone = receiver.entries[index]
        cdef SharedGroup group = <SharedGroup>gone.partner if gone.shared else None
        cdef Node* node = <Node*>group.node if gone.shared else <Node*>gone.partner
        cdef Entry* moved
        if (group is None or group.member_count == 1) and not self.all_stale:    # a route names the group, not its members
            self.invalidate(node)
        if group is not None:
            group.member_count -= 1
            self.shared_subscription_count -= not receiver.peer
            moved = &group.members[group.member_count]
            if group.next_member == group.member_count:
                group.next_member = gone.index
        else:
            node.entry_count -= 1
            moved = &node.entries[node.entry_count]
        if moved.partner != <void*>receiver:
            (<Receiver>moved.partner).entries[moved.index].index = gone.index
            far_end(&gone)[0] = moved[0]
        receiver.entry_count -= 1
        if index != receiver.entry_count:
            receiver.entries[index] = receiver.entries[receiver.entry_count]
            far_end(&receiver.entries[index]).index = index
        give_back(&receiver.entries, receiver.entry_count, &receiver.entry_capacity)
        if receiver.entry_count == 0:
            receiver.tree = NULL
        self.subscription_count -= not receiver.peer
        if group is None:
            give_back(&node.entries, node.entry_count, &node.entry_capacity)
        else:
            give_back(&group.members, group.member_count, &group.member_capacity)
            if group.member_count == 0:
                self.remove_group(group)
        self.filters.prune(node)
        return 0

    cdef int remove_group(self, SharedGroup group) noexcept:
        """Take an empty group off its node and out of the dict."""
        cdef void** link = &(<Node*>group.node).groups
        while link[0] != <void*>group:
            link = &(<SharedGroup>link[0]).next
        link[0] = group.next
        group.node = NULL
        group.random_state = NULL
        group.router_key = NULL
        group.next = NULL
        del self.groups[group.name]
        return 0

    cdef int invalidate(self, Node* node) noexcept:
        """Make every route stale that the filter of this node matches, and as few others as is cheap."""
        cdef Level* level = &node.level
        cdef Level* first = level
        cdef bint wildcard = False
        cdef uint32_t size = 0
        cdef uint8_t* at
        cdef RouteSlot* slot
        while level.parent != NULL:
            if level.flags & IS_WILDCARD:
                wildcard = True
            size += level.length + 1
            first = level
            level = level.parent
        if first.flags & IS_WILDCARD:
            self.generation_all += 1
            return 0
        if wildcard:
            self.generation_level[topic_hash(text_of(&self.filters.table, first), first.length) % LEVEL_SLOTS] += 1
            return 0
        if size > self.text_capacity:
            at = <uint8_t*>realloc(self.text, size)
            if at == NULL:
                self.generation_all += 1                         # no memory to say which: all of them
                return 0
            self.text = at
            self.text_capacity = size
        at = self.text + size
        level = &node.level
        while level.parent != NULL:
            at -= 1
            at[0] = 0x2F
            at -= level.length
            memcpy(at, text_of(&self.filters.table, level), level.length)
            level = level.parent
        size -= 1
        slot = self.cache.find(topic_hash(self.text, size), self.text, size)
        if slot != NULL:
            (<Route>slot.route).dropped = True
        return 0

    # Routes

    cdef Route route(self, const uint8_t* topic, uint16_t topic_length):
        """Return a topic's receivers. Cost: tens of nanoseconds if cached, else a walk of the matching branches."""
        cdef uint64_t hash = topic_hash(topic, topic_length)
        cdef RouteSlot* slot = self.cache.find(hash, topic, topic_length)
        cdef uint32_t before
        cdef Route route
        if slot != NULL:
            if self.fresh(<Route>slot.route):
                (<Route>slot.route).referenced = True
                return <Route>slot.route
            if reference_count(<PyObject*>slot.route) == 1:
                route = <Route>slot.route
                before = route.size
                self.fill(route, hash, topic, topic_length)
                slot.topic = route.topic
                self.cache.resized(before, route.size)
                return route
            # Somebody holds the stale one: it stays as it is, and stale.
            route = Route.__new__(Route)
            self.fill(route, hash, topic, topic_length)
            self.cache.replace(slot, route)
            return route
        route = Route.__new__(Route)
        self.fill(route, hash, topic, topic_length)
        self.cache.add(route)
        return route

    def sweep_routes(self, limit: int) -> int:
        """Forget routes that are stale, or that were not used since the last sweep came by.

        Looks at up to `limit` places of the cache and goes on there the next time. Returns how many it forgot.
        """
        cdef RouteCache cache = self.cache
        cdef RouteSlot* slot
        cdef Route route
        cdef uint32_t count = cache.count
        cdef Py_ssize_t left = min(limit, cache.slot_count)
        while left > 0:
            left -= 1
            cache.swept = (cache.swept + 1) & (cache.slot_count - 1)
            slot = cache.slots + cache.swept
            if slot.route == NULL:
                continue
            route = <Route>slot.route
            # One reference is the cache's, one is this variable's; a connection that holds it uses it without asking.
            if not self.fresh(route) or (not route.referenced and reference_count(<PyObject*>slot.route) == 2):
                cache.evict(slot)
            else:
                route.referenced = False
        return count - cache.count

    # Rights

    def ask(self, Rights rights) -> None:
        """From here on these rights say who is left out, where a subscription is NARROWED."""
        cdef SharedGroup group
        self.rights = rights
        for group in self.groups.values():
            group.rights = rights
        self.generation_all += 1

    def rights_changed(self) -> None:
        """Other answers may hold now: every topic's receivers are read anew."""
        if self.rights is not None:
            self.rights.forget()
        self.generation_all += 1

    def may_send(self, Receiver receiver not None, bytes topic_filter not None, bytes topic_name not None) -> bool:
        """Return whether a receiver may have a topic by a subscription: if that has ended, or is NARROWED, perhaps not."""
        cdef uint32_t index
        if self.rights is None:
            return True
        index = self.entry_of(receiver, topic_filter)
        if index == NOT_FOUND:
            return False
        return not receiver.entries[index].options & NARROWED or self.rights.may_read(
            receiver, topic_name, <uint16_t>len(topic_name))

    # For tests and administration

    def read_route(self, bytes topic_name not None) -> Route:
        """Return the route of a topic name, as a publisher would hold it."""
        return self.route(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint16_t>len(topic_name))

    def is_fresh(self, Route route not None) -> bool:
        """Return whether a route may still be followed."""
        return self.fresh(route)

    def receivers(self, bytes topic_name not None) -> list[tuple[Receiver, int, bool, bool, bytes]]:
        """Return (receiver, granted QoS, retain as published, No Local, encoded identifiers) of a topic's targets."""
        cdef Route route = self.read_route(topic_name)
        return [described(&route.targets[index]) for index in range(route.target_count)]

    def receiver_for(self, bytes topic_name not None, Receiver receiver not None, bint skip_no_local=False
                     ) -> tuple[Receiver, int, bool, bool, bytes] | None:
        """Return what receivers() would say of one receiver, without its No Local subscriptions if asked; or None."""
        cdef Target target
        if not self.target_for(<const uint8_t*>PyBytes_AS_STRING(topic_name), <uint16_t>len(topic_name), receiver,
                               skip_no_local, &target):
            return None
        try:
            if not target.whole and self.rights is not None and not self.rights.may_read(
                    receiver, <const uint8_t*>PyBytes_AS_STRING(topic_name), <uint16_t>len(topic_name)):
                return None
            return described(&target)
        finally:
            free(target.ids)

    def shared_groups(self, bytes topic_name not None) -> list[SharedGroup]:
        """Return the shared subscriptions that match a topic name."""
        cdef Route route = self.read_route(topic_name)
        return [<SharedGroup>route.groups[index] for index in range(route.group_count)]

    def has_branch(self, bytes first_levels not None) -> bool:
        """Return whether a receiver subscribes to a filter that begins with these levels, shared or not; O(levels)."""
        return self.filters.find(first_levels) != NULL

    @property
    def node_count(self) -> int:
        """Levels of topic filters held."""
        return self.filters.table.count

    @property
    def group_count(self) -> int:
        """Shared subscriptions that have members."""
        return len(self.groups)

    @property
    def route_cache_count(self) -> int:
        """Routes in the cache, fresh and stale."""
        return self.cache.count
