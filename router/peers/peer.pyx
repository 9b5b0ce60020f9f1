"""Other routers, as this one sees them.

A peer is a session that stands for a whole router: the topic filters that are wanted there are its subscriptions here,
what it is owed waits in its queue and in the log like any session's, and its sink is the link.
"""

cimport cython
from router.log.record_cursor cimport PEERS_MAX
from router.sessions.ledger cimport Ledger
from router.sessions.outgoing cimport Outgoing
from router.core.receiver cimport Receiver
from router.sessions.session cimport EXPIRY_NEVER

# In front of a router identifier; no client identifier has it, since U+0000 is in no UTF-8 string of MQTT [MQTT-1.5.4-2].
PEER_PREFIX = b"\0peer/"


@cython.final
cdef class Peer:
    """One other router.

    Args:
        router_identifier: "node/worker": the same over its restarts; worker is a number.
        number: of its `peer` record.
    """

    def __init__(self, Ledger ledger not None, bytes router_identifier not None, number: int):
        self.router_identifier = router_identifier
        self.worker = int(router_identifier.rpartition(b"/")[2])
        self.shares_node = True
        self.number = number
        self.waiters = Waiters()
        self.session = Session(PEER_PREFIX + router_identifier, ledger, <uint32_t>EXPIRY_NEVER)
        self.session.stand_for_peer(self)

    cdef int settle(self, uint64_t number) except -1:
        cdef Outgoing outgoing = self.session.outgoing
        if outgoing is not None:
            self.tell_done()
            number = max(number + 1, outgoing.oldest_open) - 1       # behind it something may have been dropped
        self.waiters.acknowledged(number)
        return 0

    cdef int tell_done(self) except -1:
        """Tell the log the highest record that, with all below, is owed no more, if it has not been told.

        If that is lost, the peer knows the repeat of what it has by its number, and what was dropped is sent to it.
        """
        cdef Outgoing outgoing = self.session.outgoing
        cdef Ledger ledger = self.session.ledger
        cdef uint64_t record = outgoing.passed_record
        if self.last_copy and outgoing.oldest_open >= self.copies_end:
            record = max(record, self.last_copy)
            self.last_copy = 0
        outgoing.passed_record = 0
        if record and ledger.records is not None:
            ledger.records.add("peer_acknowledged", ledger.now_us, self.number, record)
        return 0

    cdef int copied(self, uint64_t record) except -1:
        self.last_copy = record
        self.copies_end = self.session.outgoing.end_number       # all of it has its number now
        return self.tell_done()

    def settle_missed(self) -> None:
        """Something that it was owed was dropped on the way to its link."""
        if self.session.outgoing.oldest_open:
            self.settle(self.session.outgoing.oldest_open - 1)

    cdef int began(self, uint32_t incarnation, uint64_t after) noexcept:
        if incarnation > self.heard_incarnation:
            self.heard_incarnation = incarnation
            self.heard_sequence = 0
            self.heard = min(self.heard, after)
        return 0

    cdef int recovered(self, uint32_t incarnation, uint64_t n) noexcept:
        # The first that came of a process was none of those that came before, so it was the last that counted then.
        self.heard = n if incarnation > self.heard_incarnation else max(self.heard, n)
        self.heard_incarnation = max(self.heard_incarnation, incarnation)
        return 0

    def state(self) -> dict:
        """Return what is owed to it and what was heard of it, for admin and tests."""
        return {
            "router_identifier": self.router_identifier.decode("utf-8", "replace"),
            "connected": self.session.connected,
            "filters": self.session.entry_count,
            "outgoing": self.session.state()["outgoing"],
            "waiting_acknowledgements": len(self.waiters),
            "heard_incarnation": self.heard_incarnation,
            "heard_sequence": self.heard_sequence,
            "heard": self.heard,
            "repeats": self.repeats,
        }


cdef int owed_peers(Route route, list decided, uint32_t* numbers) except -1:
    cdef uint32_t index
    cdef int count = 0
    cdef Receiver receiver
    for index in range(route.target_count):
        receiver = <Receiver>route.targets[index].receiver
        if receiver.peer and route.targets[index].qos and (decided is None or receiver not in decided):
            assert count < PEERS_MAX, "more peers than there may be"
            numbers[count] = (<Peer>(<Session>receiver).stands_for).number
            count += 1
    return count
