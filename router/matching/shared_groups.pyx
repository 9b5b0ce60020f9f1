"""Shared subscriptions: one message of a topic goes to one member of a group."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.math cimport log
from libc.stdlib cimport free

from router.core.message cimport topic_hash
from router.core.receiver cimport DROPPED, NARROWED, PASSING, QOS_MASK, QUEUED, RETAIN_AS_PUBLISHED, TOO_LARGE, Verdict
from router.matching.route_cache cimport write_identifier

STRATEGIES = {"round_robin": 0, "random": 1, "sticky": 2, "hash_client": 3, "hash_topic": 4}


cdef inline uint64_t mix(uint64_t value) noexcept:
    """The finalizer of splitmix64: every bit of the result depends on every bit of the value."""
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


cdef inline double rendezvous(uint64_t key, uint64_t router_key, uint32_t weight) noexcept:
    """What a router of this weight scores for a key; the highest score has it."""
    # In (0, 1): 53 bits, and never 0 or 1.
    cdef double drawn = (<double>(mix(key ^ mix(router_key)) >> 11) + 0.5) * 1.1102230246251565e-16
    return -<double>weight / log(drawn)


cdef inline uint8_t quality_of(Entry* entry, Message message) noexcept:
    """Return how good a member is for a message: 3 it can send it at once, 2 it is online, 1 it would queue it, 0 none."""
    cdef Receiver member = <Receiver>entry.partner
    cdef bint wanted = message.qos and entry.options & QOS_MASK
    if not member.online() or entry.weight == 0:
        return 1 if wanted and not entry.options & PASSING else 0
    return 2 if wanted and not member.has_room() else 3


cdef inline bint leaves_out(SharedGroup group, uint32_t index, Message message) noexcept:
    """Return whether a member may not read a topic."""
    return group.members[index].options & NARROWED and group.rights is not None and not group.rights.may_read(
        <Receiver>group.members[index].partner, message.topic, message.topic_length)


cdef inline bint is_named(const uint32_t* numbers, uint32_t count, uint64_t key) noexcept:
    """Return whether a router is among some."""
    cdef uint32_t index
    for index in range(count):
        if numbers[index] == router_number(key):
            return True
    return False


@cython.final
@cython.no_gc
cdef class SharedGroup:
    """The members of one $share/name/filter; made and ended by the tree.

    Who still holds a group that has emptied finds nobody in it.
    """

    def __dealloc__(self):
        free(self.members)

    cdef int pick(self, Receiver publisher, Receiver gone, Message message) noexcept:
        """Return the index of the member that gets a message, or -1. See choose()."""
        return self.choose(publisher.key if publisher is not None else 0, gone, message, False)

    cdef int choose(self, uint64_t publisher_key, Receiver gone, Message message, bint local) noexcept:
        """Return the index of the member that gets a message, or -1.

        A member that may not read the topic is none. Best is a member that can send it at once, then one that is online,
        then, for QoS 1 and 2, any: its session queues it. The strategy chooses among the best. A peer stands for its
        members; which of them gets the message is decided there, and whether any of them may read it.

        Args:
            publisher_key: of who published it, 0 for nobody.
            gone: who does not get it, or None.
            local: no peer gets it.
        """
        cdef int best = -1
        cdef uint8_t best_quality = 0
        cdef uint64_t best_weight = 0
        cdef uint64_t key = 0
        cdef uint64_t weight
        cdef uint8_t quality
        cdef uint32_t index
        cdef uint32_t step
        cdef Receiver member
        cdef uint32_t here
        cdef bint stays = False
        cdef bint hashed = self.strategy == HASH_CLIENT or self.strategy == HASH_TOPIC
        if self.member_count == 0:
            return -1
        if self.strategy == HASH_TOPIC:
            key = topic_hash(message.topic, message.topic_length)
        elif self.strategy == HASH_CLIENT:
            key = publisher_key
        elif self.strategy == RANDOM:
            self.next_member = self.draw()
        key = mix(key)
        if not local and (hashed or self.strategy == STICKY) and self.has_peers():
            best = self.choose_router(key, gone, message, NULL, 0)
            if best >= 0:
                return best
            local = stays = True
        index = self.next_member if self.next_member < self.member_count and not hashed else 0
        for step in range(self.member_count):
            member = <Receiver>self.members[index].partner
            # Rendezvous: each member weighs each key, so one that joins or leaves moves only its own share.
            weight = mix(key ^ mix(member.key)) if hashed else 0
            if member is not gone and (best_quality < 3 or weight > best_weight) and not (local and member.peer):
                quality = quality_of(&self.members[index], message)
                if quality >= best_quality and leaves_out(self, index, message):
                    quality = 0
                if quality > best_quality or (quality == best_quality and quality and weight > best_weight):
                    best = <int>index
                    best_quality = quality
                    best_weight = weight
                    if quality == 3 and not hashed:
                        break
            index += 1
            if index == self.member_count:
                index = 0
        if best >= 0:
            self.pass_turn(<uint32_t>best)
        elif stays:
            # The key is this router's, and no member here may read the topic: it is the next one's.
            here = router_number(self.router_key[0])
            best = self.choose_router(key, gone, message, &here, 1)
        return best

    cdef int pass_turn(self, uint32_t chosen) noexcept:
        """A member has been chosen: note whose turn is next."""
        if self.strategy == ROUND_ROBIN:
            # A peer has as many turns in a row as it has members.
            self.stayed = self.stayed + 1 if self.next_member == chosen else 1
            self.next_member = chosen
            if self.stayed >= self.members[chosen].weight:
                self.next_member += 1
                self.stayed = 0
        elif self.strategy == STICKY:
            # A full window lends the message to somebody else and keeps the place; going offline loses it.
            if (self.next_member >= self.member_count
                    or not (<Receiver>self.members[self.next_member].partner).online()):
                self.next_member = chosen
        return 0

    cdef uint32_t draw(self) noexcept:
        """Return a member at random, a peer as often as it has members."""
        cdef uint64_t total = 0
        cdef uint64_t drawn
        cdef uint32_t index
        for index in range(self.member_count):
            total += self.members[index].weight
        self.random_state[0] += <uint64_t>0x9E3779B97F4A7C15
        drawn = mix(self.random_state[0]) % (total if total else 1)
        for index in range(self.member_count):
            if drawn < self.members[index].weight:
                return index
            drawn -= self.members[index].weight
        return 0

    cdef bint has_peers(self) noexcept:
        cdef uint32_t index
        for index in range(self.member_count):
            if (<Receiver>self.members[index].partner).peer:
                return True
        return False

    cdef int choose_untried(self, uint64_t publisher_key, Message message, const uint32_t* tried,
                            uint32_t tried_count) noexcept:
        cdef uint64_t key = publisher_key
        if self.member_count == 0:
            return -1
        if self.strategy == HASH_TOPIC:
            key = topic_hash(message.topic, message.topic_length)
        elif self.strategy != HASH_CLIENT:
            self.random_state[0] += <uint64_t>0x9E3779B97F4A7C15
            key = self.random_state[0]       # whose turn it would be, nobody knows
        return self.choose_router(mix(key), None, message, tried, tried_count)

    cdef int choose_router(self, uint64_t key, Receiver gone, Message message, const uint32_t* tried,
                           uint32_t tried_count) noexcept:
        """Return the index of the peer to which a key belongs, -1 if it is this router's.

        Weighted rendezvous (Schindelhauer and Schomaker 2005): every router comes to the same answer, as long as they
        know of the same members. Members online count; while there are none, those whose sessions queue it.
        """
        cdef bint queued
        cdef uint32_t index
        cdef uint32_t here
        cdef uint32_t weight
        cdef Receiver member
        cdef double score, best_score
        cdef int best
        if self.strategy == STICKY:
            key = mix(topic_hash(<const uint8_t*>PyBytes_AS_STRING(self.name), len(self.name)))
        for queued in (False, True):
            here = 0
            best = -1
            best_score = 0
            for index in range(self.member_count):
                member = <Receiver>self.members[index].partner
                if member is gone or (tried_count and (not member.peer or is_named(tried, tried_count, member.key))):
                    continue
                if queued:
                    weight = message.qos and self.members[index].options & QOS_MASK and not (
                        self.members[index].options & PASSING)
                else:
                    weight = self.members[index].weight if member.online() else 0
                if not member.peer:
                    here += weight
                elif weight:
                    score = rendezvous(key, member.key, weight)
                    if best < 0 or score > best_score:
                        best = <int>index
                        best_score = score
            if here and (best < 0 or rendezvous(key, self.router_key[0], here) > best_score):
                return -1
            if best >= 0:
                return best
        return -1

    cdef int index_of(self, Receiver member) noexcept:
        cdef uint32_t index
        for index in range(self.member_count):
            if self.members[index].partner == <void*>member:
                return <int>index
        return -1

    cdef int terms(self, int index, Message message, uint8_t* qos, bint* retain, uint8_t* ids,
                   uint32_t* ids_length) noexcept:
        """Tell how a member is sent a message: QoS, RETAIN flag and encoded identifier, by its subscription."""
        qos[0] = min(self.members[index].options & QOS_MASK, message.qos)
        retain[0] = message.retain and self.members[index].options & RETAIN_AS_PUBLISHED
        ids_length[0] = 0
        if self.members[index].identifier:
            ids_length[0] = <uint32_t>(write_identifier(ids, self.members[index].identifier) - ids)
        return 0

    cdef Verdict hand_over(self, int index, Message message) except? DROPPED:
        """Deliver to one member, at the QoS and with the options of its subscription."""
        cdef uint8_t[5] ids
        cdef uint32_t ids_length = 0
        cdef uint8_t qos
        cdef bint retain
        self.terms(index, message, &qos, &retain, ids, &ids_length)
        return (<Receiver>self.members[index].partner).deliver(message, qos, retain, ids, ids_length, <void*>self)

    cpdef int publish(self, Receiver publisher, Message message) except -1:
        """Deliver to one member; 1 delivered or queued, 0 no member took it. The publisher may be None."""
        cdef int index = self.pick(publisher, None, message)
        return index >= 0 and self.give(index, publisher, message)

    cdef int give(self, int index, Receiver publisher, Message message) except -1:
        """Deliver to a member; if it is too large for that one, another member may get it (3.1.2.11.4)."""
        cdef Verdict verdict = self.hand_over(index, message)
        if verdict == TOO_LARGE:
            index = self.pick(publisher, <Receiver>self.members[index].partner, message)
            if index >= 0:
                verdict = self.hand_over(index, message)
        return verdict <= QUEUED

    cpdef int redispatch(self, Receiver gone, Message message) except -1:
        """Deliver an owned message to another member than one whose session ends; 0: no member is left."""
        assert message.owned
        cdef int index = self.pick(None, gone, message)
        return index >= 0 and self.hand_over(index, message) <= QUEUED

    @property
    def size(self) -> int:
        """Number of members."""
        return self.member_count
