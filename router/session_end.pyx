"""Sessions that end: what came to them through shared subscriptions goes to other members, or is counted (4.8.2).

A message that waits in the log may not be readable yet: it is not written, or the disk is refusing. Nothing is lost for
that: the session ends for everybody else, and passes on what it owes when that can be read. Its end is recorded
behind what follows from it, so after a crash there may be one too many of something, never one too few.
"""

cimport cython
from router.sessions.ledger cimport DROP_NO_MEMBER, DROP_SESSION_ENDED, DROP_UNREADABLE
from router.core.message cimport Message
from router.sessions.outgoing cimport DELIVERY_QUEUED, DELIVERY_SENT, Delivery, Outgoing
from router.matching.shared_groups cimport SharedGroup

cdef enum:
    WORK_MAX = 8192              # deliveries that are forgotten at a time, by all sessions that end: some 0.3 ms
    WORK_PASS = 16               # one that is passed on counts as so many more, for it may have to be read from the disk


cdef inline bint goes_to_another(Delivery* delivery) noexcept:
    return delivery.group != NULL and (delivery.state == DELIVERY_QUEUED or (
        delivery.state == DELIVERY_SENT and delivery.qos == 1))


@cython.final
cdef class Ending:
    """The sessions of a router that end."""

    def __init__(self, Ledger ledger not None, Effects effects not None):
        self.ledger = ledger
        self.effects = effects
        self.records = {}
        self.unfinished = {}
        self.called_after = []
        self.begin_turn()

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
        if self._pass_on(gone):
            return self._record(gone)
        self.unfinished[gone.client_identifier] = gone
        return self._wait(gone)

    cdef int begin_turn(self) noexcept:
        self.work_left = WORK_MAX
        self.more = False
        return 0

    def call_after(self, bytes client_identifier not None, action) -> bool:
        """Call `action()` when a session has ended that owes others more than a turn passes on; False: there is none.

        Whoever opens a session of that name before has all that passed on at once.
        """
        if not self.more or not self._owes_others(client_identifier):
            return False
        self.called_after.append((client_identifier, action))
        return True

    cdef bint _owes_others(self, bytes client_identifier) except -1:
        """Return whether a session that ends has messages left for other members: what others do not get is no hurry."""
        cdef Session gone = self.unfinished.get(client_identifier)
        cdef Outgoing outgoing = gone.outgoing if gone is not None else None
        cdef uint64_t number
        if outgoing is not None and outgoing.ring != NULL:
            for number in range(outgoing.oldest_open, outgoing.end_number):
                if goes_to_another(outgoing.slot(number)):
                    return True
        return False

    cdef int tell(self) except -1:
        """Call those who waited for sessions that owe others nothing by now, when that is durable."""
        cdef list called = self.called_after
        if not called:
            return 0
        self.called_after = []
        for client_identifier, action in called:
            if self._owes_others(client_identifier):
                self.called_after.append((client_identifier, action))
            elif self.ledger.records is not None:
                self.effects.call(action)
            else:
                action()
        return 0

    cdef int go_on(self, Session gone) except -1:
        if not self._pass_on(gone):
            return self._wait(gone)
        if self.unfinished.get(gone.client_identifier) is gone:
            del self.unfinished[gone.client_identifier]
            return self._record(gone)
        gone.outgoing = None
        return 0

    cdef int make_way(self, bytes client_identifier) except -1:
        cdef Session gone = self.unfinished.pop(client_identifier, None)
        cdef Outgoing outgoing
        cdef uint64_t number
        if gone is None:
            return 0
        outgoing = gone.outgoing
        if outgoing is not None and outgoing.ring != NULL:
            # What others are owed has its records before the end has; the rest is only counted, in turns to come.
            for number in range(outgoing.oldest_open, outgoing.end_number):
                if goes_to_another(outgoing.slot(number)) and not self._let_go(gone, outgoing, number):
                    break
        self._record(gone)
        gone.outgoing = outgoing         # go_on() comes again, and says of no delivery any more whose it was
        gone.set_expiry_interval(0)
        return 0

    cdef int settle(self, uint64_t durable) except -1:
        self.begin_turn()
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

    cdef bint _pass_on(self, Session gone) except -1:
        cdef Outgoing outgoing = gone.outgoing
        while outgoing is not None and outgoing.ring != NULL and outgoing.oldest_open < outgoing.end_number:
            if self.work_left <= 0:
                self.more = True
                return False
            if not self._let_go(gone, outgoing, outgoing.oldest_open):
                return False
        return True

    cdef bint _let_go(self, Session gone, Outgoing outgoing, uint64_t number) except -1:
        cdef Delivery* delivery = outgoing.slot(number)
        cdef SharedGroup group
        cdef Message message
        self.work_left -= 1
        if goes_to_another(delivery):
            try:
                message = outgoing.body(delivery)
                if message is None:
                    return False
            except LookupError:
                message = None
            self.work_left -= WORK_PASS
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
