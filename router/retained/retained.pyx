"""What a router retains, in memory or on disk."""

from functools import partial

cimport cython
from router.sessions.ledger cimport DROP_RETAINED_FULL
from router.core.message cimport message_size

from router.retained.fences import Fences
from router.retained.keys import key_of
from router.retained.link_waits import NOWHERE
from router.retained.values import is_tombstone, origin_of, record_of


@cython.final
cdef class Retaining:
    """Retained messages, wherever they are kept, and the limits that hold for them.

    Args:
        ledger: limits, counters, the time and the stamp, of the router.
        seed: of the store in memory.
        index: messages on disk (router.retained.lmdb_index.RetainedIndex), which needs a log; None: they are in memory.
        retains: False: what is recovered is passed over.
    """

    def __init__(self, Ledger ledger not None, seed: int, index, retains: bool):
        self.ledger = ledger
        self.store = RetainedStore(seed)
        self.index = index
        self.known = 0 if retains else 0xFFFFFFFFFFFFFFFF
        self.is_shared = index is not None and index.is_shared
        self.fences = Fences(self.written if self.is_shared else dict, self.record_fence)
        if index is not None:
            self.known = index.applied
            ledger.stamp_us = max(ledger.stamp_us, index.last_stamp_us)

    cdef int64_t next_stamp_us(self) except -1:
        """Return the stamp of a message that is retained now, higher than that of any that was acknowledged before.

        A hybrid logical clock: the newest retained message of a topic is the one with the highest stamp.
        """
        cdef Ledger ledger = self.ledger
        if self.is_shared:
            ledger.stamp_us = max(ledger.stamp_us, <int64_t>self.index.look())
        ledger.stamp_us = max(ledger.now_us, ledger.stamp_us + 1)
        return ledger.stamp_us

    cdef int forwarded(self, Message message, uint32_t origin, uint32_t incarnation, uint64_t record,
                       int64_t stamp_us) except -1:
        """Take notice of a retained message that another worker of the node has published, stores and has sent us.

        To be called before a receiver gets it, so that nobody is sent what was there before it any more.

        Args:
            message: may be borrowed.
            origin, incarnation, record: its id; a message without record is not noticed.
            stamp_us: its stamp, or any later time of its origin's clock.
        """
        if self.is_shared and record:
            self.ledger.stamp_us = max(self.ledger.stamp_us, stamp_us)
            self.index.forwarded(message.keep(), stamp_us=stamp_us, origin=origin, incarnation=incarnation,
                                 record=record, sure=self.fences.passed)
        return 0

    cdef int retain(self, Message message) except -1:
        """Replace the topic's retained message; an empty payload removes it [MQTT-3.3.1-5], [MQTT-3.3.1-6]."""
        if self.index is not None:
            return self.retain_in_index(message)
        if message.payload_length == 0:
            self.store.clear(message.topic, message.topic_length)
        elif self.may_retain(message):
            self.store.store(message.keep())
        else:
            self.ledger.dropped_messages[DROP_RETAINED_FULL] += 1
        return 0

    cdef int64_t stamp_ms(self) noexcept:
        """Return the monotonic time that ledger.stamp_us is, rounded up: what is left of an expiry interval never grows."""
        return self.ledger.now_ms + (self.ledger.stamp_us - self.ledger.now_us + 999) // 1000

    cdef int retain_in_index(self, Message message) except -1:
        """retain() for a message that has just got its record and stamp, and for which may_retain() has been asked."""
        cdef Ledger ledger = self.ledger
        assert message.record, "an index without a log"
        if message.payload_length == 0:
            self.index.clear(message.topic_name, stamp_us=ledger.stamp_us, record=message.record)
        else:
            self.index.store(message, stamp_us=ledger.stamp_us, record=message.record, now_ms=self.stamp_ms())
        return 0

    cdef int recover(self, Message message, uint64_t record, int64_t stamp_us, int64_t moment_ms) except -1:
        """Take a retained message, or the end of one, from the log.

        The limits of this run are not asked: what the log has was let in, and acknowledged, under those of then.
        """
        message.record = record
        if self.index is not None:
            self.index.apply(record, message.topic_name, message if message.payload_length else None,
                             stamp_us=stamp_us, now_ms=moment_ms)
            return 0
        if message.payload_length == 0:
            return self.store.clear(message.topic, message.topic_length)
        return self.store.store(message)

    cdef bint may_retain(self, Message message) except -1:
        """Return whether the limits on retained messages let this one in; one that replaces another counts its growth.

        Whoever publishes for a client asks before; what is published all the same goes out and is not kept.
        """
        cdef Ledger ledger = self.ledger
        cdef Message older
        cdef uint64_t count, held, size, older_size = 0
        if message.payload_length == 0:
            return True
        size = message_size(message)
        if self.index is None:
            count, held = self.store.count, self.store.size_bytes
        else:
            count, held = self.index.count, self.index.size_bytes
        if count < ledger.retained_messages_max and not ledger.memory_full and held + size <= ledger.retained_bytes_max:
            return True
        if self.index is not None:
            older_size = self.index.size_of(message.topic_name)
        else:
            older = self.store.get(message.topic, message.topic_length)
            if older is not None:
                older_size = message_size(older)
        return older_size > 0 and (
            size <= older_size or (not ledger.memory_full and held - older_size + size <= ledger.retained_bytes_max))

    def match(self, bytes topic_filter not None):
        """Return what a topic filter matches: a list, or a RetainedScan that reads it, where there is an index.

        It is for a subscription that stands.
        """
        if self.index is None:
            return self.store.match(topic_filter)
        # With other workers something may come to be there before the scan begins again.
        if not self.is_shared and self.index.is_empty:
            return []
        found = self.index.scan(topic_filter)
        found.is_standing = self.is_shared
        return found

    def match_new(self, receiver, bytes topic_filter not None):
        """match() for a new subscription, which what other workers have retained before is not sent behind that."""
        found = self.match(topic_filter)
        if self.is_shared:
            found.is_standing = False
            found.early, found.sure = self.fences.early(), self.fences.sure
            found.on_bound = partial(self.fence, receiver, topic_filter, False)
            found.begin()
            found.on_bound = partial(self.fence, receiver, topic_filter, True)
        return found

    def fence(self, receiver, bytes topic_filter not None, keep: bool, dict reached not None) -> None:
        """A new subscription is given what LMDB has up to there; keep: really, and not only if its SUBACK leaves."""
        self.fences.put(receiver, topic_filter, reached, keep=keep)

    def is_cleared_by(self, Message message not None, origin: int, record: int) -> bool:
        """Return whether nothing is retained under a topic since this message of another worker, which is empty."""
        value = self.index.newest(key_of(message.topic_name)) if self.is_shared else None
        return value is not None and is_tombstone(value) and origin_of(value) == origin and record_of(value) == record

    def record_fence(self, receiver, bytes topic_filter not None, dict reached not None) -> None:
        """Have the log tell how a fence of a kept session stands, before that is sent what is retained."""
        if receiver.durable and self.ledger.records is not None:
            numbers = [number for worker, (incarnation, record) in reached.items()
                       for number in (worker, incarnation, record)]
            self.ledger.records.add("fenced", self.ledger.now_us, receiver.client_identifier, topic_filter, numbers)

    def written(self) -> dict[int, tuple[int, int]]:
        """Return up to which record (with its incarnation) of each other worker's log LMDB has what was retained."""
        self.index.look()
        return self.index.written()

    def is_brought(self, bytes topic_name not None) -> bool:
        """Return whether message_of() is what a link has brought, which the index may have differently in the end."""
        return self.is_shared and bool(self.index.is_brought(key_of(topic_name)))

    @property
    def is_early(self) -> bool:
        """Whether a retained message has come from another worker that a kill of that one may take away."""
        return self.is_shared and bool(self.fences.early())

    def when_sure(self, effects, action) -> None:
        """Call `action()` when all that other workers have retained, and is here, is in their logs.

        A worker that does not answer is not waited for: of that one new subscribers are given what LMDB has.
        """
        self.fences.when_sure(partial(effects.call, action))

    def when_brought(self, effects, action) -> None:
        """Call `action(reached)` when links have brought, and this worker has delivered, what other workers retain now.

        `reached` is up to where they have come by then: what is behind that comes live.

        Who was subscribed all the time gets it live, and must not get the newest message of a topic before the others.
        A worker that does not answer is not waited for.
        """
        reached = self.index.written()
        self.fences.when_passed(reached, partial(self.brought, effects, action, reached))

    def brought(self, effects, action, dict reached not None) -> None:
        """Links have come so far, or further: call `action(reached)` behind what they have brought."""
        for worker, record in self.fences.passed.items():
            # Of one that is not in there nothing was retained when it was asked for.
            reached[worker] = max(reached.get(worker, NOWHERE), record)
        effects.call(partial(action, reached))

    def message_of(self, bytes topic_name not None) -> Message | None:
        """Return a topic's message; a new object each time, where there is an index."""
        if self.index is None:
            return self.store.message_of(topic_name)
        return self.index.message_of(topic_name, self.ledger.now_us, self.ledger.now_ms)

    def purge_expired(self, limit: int) -> int:
        """Remove messages that have expired; looks at so many, 1 or more. Returns how many went."""
        if self.index is None:
            return self.store.purge_expired(self.ledger.now_ms, limit)
        return self.index.purge_expired(self.ledger.now_us, limit)

    @property
    def count(self) -> int:
        """Messages held."""
        return self.store.count if self.index is None else self.index.count

    @property
    def size_bytes(self) -> int:
        """Topic, properties and payload bytes held."""
        return self.store.size_bytes if self.index is None else self.index.size_bytes
