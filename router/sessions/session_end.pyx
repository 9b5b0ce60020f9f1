"""Sessions that end: what came to them through shared subscriptions goes to other members, or is counted (4.8.2).

A message that waits in the log may not be readable yet: it is not written, or the disk refuses for now. Nothing is lost
for that: the session ends for everybody else, and passes on what it owes when that can be read. Its end is recorded
behind what follows from it, so after a crash there may be one too many of something, never one too few.
"""

cimport cython
from router.sessions.ledger cimport DROP_NO_MEMBER, DROP_SESSION_ENDED, DROP_UNREADABLE
from router.core.message cimport Message
from router.sessions.outgoing cimport DELIVERY_QUEUED, DELIVERY_SENT, Delivery, Outgoing
from router.matching.shared_groups cimport SharedGroup

cdef enum:
    PASSED_MAX = 512             # in one turn, by one session: each may have to be read from the disk
    ALL = 0x7FFFFFFF


@cython.final
cdef class Ending:
    """The sessions of a router that end."""

    def __init__(self, Ledger ledger not None, Effects effects not None):
        self.ledger = ledger
        self.effects = effects
        self.records = {}
        self.unfinished = {}

    def __contains__(self, bytes client_identifier not None) -> bool:
        return client_identifier in self.records or client_identifier in self.unfinished

    def __len__(self) -> int:
        return len(self.records) + len(self.unfinished)

    @property
    def sessions(self) -> list[Session]:
        """Those that still owe messages to other members."""
        return [session for session in self.ledger.starved if (<Session>session).gone]

    cdef int end(self, Session gone) except -1:
        if gone.outgoing is not None and gone.outgoing.waiting_qos0 is not None:
            self.ledger.dropped_messages[DROP_SESSION_ENDED] += <uint64_t>len(gone.outgoing.waiting_qos0)
        if gone.promised:
            self.effects.withdraw(gone)
        # What an ephemeral session owes is in memory, and in no record that would outlive the process.
        if self._pass_on(gone, PASSED_MAX if gone.durable else <int>ALL):
            return self._record(gone)
        self.unfinished[gone.client_identifier] = gone
        return self._wait(gone)

    cdef int go_on(self, Session gone) except -1:
        if not self._pass_on(gone, PASSED_MAX):
            return self._wait(gone)
        if self.unfinished.get(gone.client_identifier) is gone:
            del self.unfinished[gone.client_identifier]
            return self._record(gone)
        gone.outgoing = None
        return 0

    cdef int make_way(self, bytes client_identifier) except -1:
        cdef Session gone = self.unfinished.pop(client_identifier, None)
        cdef Outgoing outgoing
        if gone is None:
            return 0
        self._pass_on(gone, ALL)
        outgoing = gone.outgoing
        self._record(gone)
        gone.outgoing = outgoing         # go_on() comes again, and says of no delivery any more whose it was
        gone.set_expiry_interval(0)
        return 0

    cdef int settle(self, uint64_t durable) except -1:
        while self.records and next(iter(self.records.values())) <= durable:
            del self.records[next(iter(self.records))]
        return 0

    cdef int _wait(self, Session gone) except -1:
        if not gone.starved:
            gone.starved = True
            self.ledger.starved.append(gone)
        return 0

    cdef int _record(self, Session gone) except -1:
        gone.outgoing = None
        if gone.logged:
            self.ledger.records.add("ended", self.ledger.now_us, gone.client_identifier)
            self.records.pop(gone.client_identifier, None)
            self.records[gone.client_identifier] = self.ledger.records.last_number
        return 0

    cdef bint _pass_on(self, Session gone, int passed_max) except -1:
        cdef Outgoing outgoing = gone.outgoing
        cdef Delivery* delivery
        cdef Message message
        cdef SharedGroup group
        cdef uint64_t number
        while outgoing is not None and outgoing.ring != NULL and outgoing.oldest_open < outgoing.end_number:
            number = outgoing.oldest_open
            delivery = outgoing.slot(number)
            if delivery.group != NULL and (delivery.state == DELIVERY_QUEUED or delivery.qos == 1):
                if passed_max == 0:
                    return False
                passed_max -= 1
                try:
                    message = outgoing.body(delivery)
                    if message is None:
                        return False
                except LookupError:
                    message = None
                group = <SharedGroup>delivery.group
                if message is None:
                    self.ledger.dropped_messages[DROP_UNREADABLE] += 1
                elif self.ledger.records is not None:
                    self.effects.pass_on(group, gone, number, message)
                elif not group.redispatch(gone, message):
                    self.ledger.dropped_messages[DROP_NO_MEMBER] += 1
            elif delivery.state == DELIVERY_QUEUED or (delivery.state == DELIVERY_SENT and delivery.group != NULL):
                # Nobody knows whether what was sent at QoS 2 has come, and no other member gets it [MQTT-4.8.2-5].
                self.ledger.dropped_messages[DROP_SESSION_ENDED] += 1
            if delivery.state == DELIVERY_QUEUED:
                outgoing._unqueue(delivery)
            outgoing.free_slot(number)
        return True
