"""Shared subscriptions: one message of a topic goes to one member of a group."""

cimport cython
from libc.stdlib cimport free

from router.message cimport topic_hash
from router.receiver cimport DROPPED, QOS_MASK, QUEUED, RETAIN_AS_PUBLISHED, TOO_LARGE, Verdict
from router.routes cimport write_identifier

STRATEGIES = {"round_robin": 0, "random": 1, "sticky": 2, "hash_client": 3, "hash_topic": 4}


cdef inline uint64_t mix(uint64_t value) noexcept:
    """The finalizer of splitmix64: every bit of the result depends on every bit of the value."""
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


@cython.final
@cython.no_gc
cdef class SharedGroup:
    """The members of one $share/name/filter; made and ended by the tree.

    Who still holds a group that has emptied finds nobody in it.
    """

    def __dealloc__(self):
        free(self.members)

    cdef int pick(self, Receiver publisher, Receiver gone, Message message) noexcept:
        """Return the index of the member that gets a message, or -1.

        Best is a member that can send it at once, then one that is online, then, for QoS 1 and 2, any: its session
        queues it. The strategy chooses among the best.
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
        cdef bint hashed = self.strategy == HASH_CLIENT or self.strategy == HASH_TOPIC
        if self.member_count == 0:
            return -1
        if self.strategy == HASH_TOPIC:
            key = topic_hash(message.topic, message.topic_length)
        elif self.strategy == HASH_CLIENT:
            key = publisher.key if publisher is not None else 0
        elif self.strategy == RANDOM:
            self.random_state[0] += <uint64_t>0x9E3779B97F4A7C15
            self.next_member = <uint32_t>(mix(self.random_state[0]) % self.member_count)
        key = mix(key)
        index = self.next_member if self.next_member < self.member_count and not hashed else 0
        for step in range(self.member_count):
            member = <Receiver>self.members[index].partner
            # Rendezvous: each member weighs each key, so one that joins or leaves moves only its own share.
            weight = mix(key ^ mix(member.key)) if hashed else 0
            if member is not gone and (best_quality < 3 or weight > best_weight):
                if not member.online():
                    quality = 1 if message.qos and self.members[index].options & QOS_MASK else 0
                elif message.qos and self.members[index].options & QOS_MASK and not member.has_room():
                    quality = 2
                else:
                    quality = 3
                if quality > best_quality or (quality == best_quality and quality and weight > best_weight):
                    best = <int>index
                    best_quality = quality
                    best_weight = weight
                    if quality == 3 and not hashed:
                        break
            index += 1
            if index == self.member_count:
                index = 0
        if best < 0:
            return -1
        if self.strategy == ROUND_ROBIN:
            self.next_member = <uint32_t>best + 1
        elif self.strategy == STICKY:
            # A full window lends the message to somebody else and keeps the place; going offline loses it.
            if (self.next_member >= self.member_count
                    or not (<Receiver>self.members[self.next_member].partner).online()):
                self.next_member = <uint32_t>best
        return best

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
        """Deliver to one member; 1 delivered or queued, 0 nobody. The publisher may be None.

        If it is too large for the first, another member may get it (3.1.2.11.4).
        """
        cdef int index = self.pick(publisher, None, message)
        cdef Verdict verdict
        if index < 0:
            return 0
        verdict = self.hand_over(index, message)
        if verdict == TOO_LARGE:
            index = self.pick(publisher, <Receiver>self.members[index].partner, message)
            if index >= 0:
                verdict = self.hand_over(index, message)
        return verdict <= QUEUED

    cpdef int redispatch(self, Receiver gone, Message message) except -1:
        """Deliver an owned message to another member than one whose session ends; 0: nobody is left."""
        assert message.owned
        cdef int index = self.pick(None, gone, message)
        return index >= 0 and self.hand_over(index, message) <= QUEUED

    @property
    def size(self) -> int:
        """Number of members."""
        return self.member_count
