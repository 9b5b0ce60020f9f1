"""Subscriptions that have ended, many at once, and what is left to be done about them.

A session may have 10,000 of 100 levels. Nothing is delivered by them any more when it ends. That their places in the tree
are freed, 14 us for each of these, and that peers hear of it is no hurry.
"""

cimport cython
from libc.stdlib cimport free
from router.core.receiver cimport Entry
from router.core.rings cimport grown
from router.matching.filter_trie cimport FilterTree
from router.matching.shared_groups cimport SharedGroup
from router.matching.trie_levels cimport Level

cdef enum:
    HELD_MAX = 255               # of one place in the tree
    CAPACITY_MIN = 256
    WORK_ENDED = 4               # one counts as so many levels more


@cython.final
cdef class EndedSubscriptions:
    """Of one router's tree.

    Args:
        tree: its places are held until go_on() comes to them.
    """

    def __init__(self, SubscriptionTree tree not None):
        self.tree = tree

    def __dealloc__(self):
        free(self.items)

    cdef int end(self, Receiver receiver, interest) except -1:
        cdef SubscriptionTree tree = self.tree
        cdef Entry* entry
        cdef Node* node
        if receiver.tree != <void*>tree:
            return 0
        if interest is not None:
            # Who has no member of a group any more is not to be picked.
            interest.ends(receiver, tree.subscriptions_of(receiver, shared_only=True))
        tree.generation_all += 1
        tree.all_stale = True
        try:
            while receiver.entry_count:
                entry = &receiver.entries[receiver.entry_count - 1]
                node = <Node*>(<SharedGroup>entry.partner).node if entry.shared else <Node*>entry.partner
                self.push(node, entry.options, receiver.durable, None if entry.shared else interest)
                tree.remove_entry(receiver, receiver.entry_count - 1)
        finally:
            tree.all_stale = False
        return 0

    cdef int push(self, Node* node, uint8_t options, bint durable, interest) except -1:
        if node.level.held == HELD_MAX:
            if interest is not None:
                interest.ended(self.tree.filters.text(node), options, durable)
            return 0
        if self.count == self.capacity:
            self.items = <Ended*>grown(self.items, &self.capacity, CAPACITY_MIN, sizeof(Ended), 0, self.count)
        self.items[self.count].node = node
        self.items[self.count].options = options
        self.items[self.count].durable = durable
        self.items[self.count].counts = interest is not None
        self.count += 1
        node.level.held += 1
        return 0

    cdef int go_on(self, interest, int work_max) except -1:
        cdef FilterTree filters = self.tree.filters
        cdef Ended ended
        cdef Level* level
        cdef int work = 0
        while self.count and (work_max == 0 or work < work_max):
            self.count -= 1
            ended = self.items[self.count]
            work += WORK_ENDED
            level = &ended.node.level
            while level.parent != NULL:
                work += 1
                level = level.parent
            ended.node.level.held -= 1
            if ended.counts and interest is not None:
                interest.ended(filters.text(ended.node), ended.options, ended.durable)
            filters.prune(ended.node)
        if self.count == 0:
            free(self.items)
            self.items = NULL
            self.capacity = 0
        return work
