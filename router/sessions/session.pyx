"""A session: what the broker remembers of one client identifier, whether it is connected or not."""

cimport cython
from libc.stdlib cimport calloc, free
from router.sessions.ledger cimport DROP_OFFLINE, DROP_PEER_AWAY, DROP_PEER_GONE
from router.sessions.packet_identifiers cimport ShiftedIdentifiers
from router.sessions.queue_eviction cimport make_room
from router.core.receiver cimport DELIVERED, DROPPED, QUEUED, TAKES, TOO_LARGE
from router.sessions.doubt cimport doubt
from router.sessions.sink cimport SINK_SENT, SINK_TOO_LARGE, SinkResult, count_drop, reason_of, refuse
from router.log.crc32c cimport crc32c
from router.core.message cimport message_size, topic_hash
from cpython.bytes cimport PyBytes_AS_STRING

from router.sessions.ledger import DROP_REASONS

cdef enum:
    SETTLED = 0x10000            # beside the identifier in an entry of `incoming`
    DOUBTFUL = 0x20000
    DIGEST_AT = 18
    DIGESTS = 0x3FFF             # 1 to this; 0 is one that is not known
    INCOMING_MIN = 8

VERDICTS = ("sent", "queued", "dropped", "dropped")


cdef uint32_t digest_of(const uint8_t* topic, size_t topic_length, const uint8_t* payload, size_t payload_length) noexcept:
    return 1 + crc32c(crc32c(0, topic, topic_length), payload, payload_length) % DIGESTS


def risen(before: dict[str, int], Ledger ledger not None) -> list[str]:
    """Return the reasons of drops whose counts are higher than they were."""
    return [reason for reason, count in ledger.dropped().items() if count > before.get(reason, 0)]


@cython.final
@cython.no_gc
cdef class Session(Receiver):
    """The state of one client identifier (4.1): subscriptions, what it is owed, QoS 2 identifiers it has sent.

    It holds its connection and its connection holds it; whoever closes the connection calls detach(), since neither
    is seen by the garbage collector.
    """

    def __init__(self, bytes client_identifier not None, Ledger ledger not None, expiry_interval_s: int = 0):
        self.client_identifier = client_identifier
        self.ledger = ledger
        self.limits = ledger.session_limits
        self.set_expiry_interval(expiry_interval_s)
        self.incoming_max = UNLIMITED
        self.mount_point = b""
        self.key = topic_hash(<const uint8_t*>PyBytes_AS_STRING(client_identifier), len(client_identifier))

    def __dealloc__(self):
        free(self.incoming)

    def set_expiry_interval(self, expiry_interval_s: int) -> None:
        """Set the session expiry interval, seconds; 0 ends the session with its connection."""
        self.expiry_interval_s = expiry_interval_s
        self.durable = expiry_interval_s != 0

    def limit(self, SessionLimits limits not None) -> None:
        """From here on it may have so much; what it has beyond that stays."""
        self.limits = limits
        if self.outgoing is not None:
            self.outgoing.limits = limits

    def end_with_connection(self) -> None:
        """It is to end with its connection, whatever was said at its beginning.

        Until then it stays what the log has it for: of a durable one everything is recorded, so that each delivery has the
        number that recovery gives it, and what another member gets of it is known as that after a crash.
        """
        self.expiry_interval_s = 0

    def stand_for_peer(self, peer) -> None:
        """From here on what it is sent goes to a router.peers.Peer."""
        self.peer = True
        self.stands_for = peer

    cdef Verdict deliver(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED:
        cdef SinkResult result
        cdef Verdict verdict
        if self.peer:
            return self.forward(message, qos, retain, ids, ids_length, group)
        if self.watch is not None:
            return self.deliver_watched(message, qos, retain, ids, ids_length, group)
        if qos == 0 and (self.outgoing is None or self.outgoing.waiting_qos0 is None):
            if self.sink is not None:
                result = self.sink.publish(message, 0, 0, retain, False, ids, ids_length)
                return DELIVERED if result == SINK_SENT else self.untaken(result)
            if not self.ledger.queue_qos0 or not self.durable:
                count_drop(self.ledger, None, DROP_OFFLINE)
                return DROPPED
        if self.outgoing is None:
            self.make_outgoing()
        verdict = self.outgoing.deliver(self.sink, self.durable, message, qos, retain, ids, ids_length, group)
        if verdict == QUEUED and (self.outgoing.queued_count > self.limits.queue_messages_max
                                  or self.outgoing.queued_bytes > self.limits.queue_bytes_max):
            make_room(self.outgoing, self.sink, self.durable, message)
        return verdict

    cdef Verdict untaken(self, SinkResult result) noexcept:
        """The connection did not take a message of QoS 0: count why."""
        cdef int reason = reason_of(self.sink, result)
        count_drop(self.ledger, self.sink, reason)
        self.lose(reason)
        return TOO_LARGE if result == SINK_TOO_LARGE else DROPPED

    cdef int lose(self, int reason) noexcept:
        if self.outgoing is not None:
            self.outgoing.lose(reason)
        elif not self.peer:
            self.loss = self.ledger.losses.note(self.loss, self.client_identifier, reason, self.ledger.now_ms)
        return 0

    cdef Verdict forward(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                         void* group) except? DROPPED:
        """deliver(), of a peer: the link acknowledges once, and the other router knows what a receiver there is granted."""
        cdef Verdict verdict
        if qos == 0:
            if self.sink is not None and self.sink.publish(message, 0, 0, retain, False, ids, ids_length) == SINK_SENT:
                return DELIVERED
            count_drop(self.ledger, self.sink, DROP_PEER_AWAY)
            return DROPPED
        self.make_outgoing()
        verdict = self.outgoing.deliver(self.sink, True, message, 1, retain, ids, ids_length, group)
        if self.outgoing.peer_missed:
            self.settle_missed()
        return verdict

    cdef int settle_missed(self) except -1:
        """Something was dropped on its way to the peer: no publisher waits for that, and no restart brings it back."""
        self.outgoing.peer_missed = False
        self.stands_for.settle_missed()
        return 0

    cdef int make_outgoing(self) except -1:
        """From the first delivery on, a session has state for what it is owed."""
        if self.outgoing is None:
            self.outgoing = Outgoing(self.ledger, self.client_identifier)
            self.outgoing.peer = self.peer
            self.outgoing.loss = self.loss
            self.outgoing.limits = self.limits
            if self.sink is not None:
                self.outgoing.attach(self.receive_maximum)
        return 0

    cdef int doubt(self, Rights rights, bint another) except -1:
        cdef Outgoing outgoing
        if self.promised:
            self.make_outgoing()             # what waits for its records comes to be queued behind what is
        outgoing = self.outgoing
        if outgoing is not None:
            outgoing.doubted = doubt(self, rights, outgoing.end_number + self.promised, <uint32_t>(
                len(outgoing.waiting_qos0) if outgoing.waiting_qos0 is not None else 0), another, outgoing.doubted)
        return 0

    cdef int owe(self, uint64_t record, uint32_t size, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                 void* group) except -1:
        self.make_outgoing()
        return self.outgoing.owe(record, size, 1 if self.peer else qos, retain, ids, ids_length, group)

    cdef int refuses(self, Message message) except -3:
        cdef uint64_t messages = self.promised       # on their way here, and first
        cdef uint64_t held_bytes = self.promised_bytes
        if self.has_room():
            return TAKES
        if self.outgoing is not None:
            messages += self.outgoing.queued_count
            held_bytes += self.outgoing.queued_bytes
        if self.peer:
            return (DROP_PEER_GONE if messages >= self.ledger.peer_messages_max
                    or held_bytes + message_size(message) > self.ledger.peer_bytes_max else TAKES)
        return self.ledger.refuses(message, messages, held_bytes, self.limits)

    cdef int refuse(self, Message message, int reason) except -1:
        if self.watch is not None:
            self.watch.refused_delivery(message.topic_name, message.qos, DROP_REASONS[reason])
        self.lose(reason)
        return refuse(self.ledger, self.sink, message, reason)

    cdef bint push_back(self, Message message, uint8_t qos) except -1:
        # QoS 0 waits only behind QoS 0 that has waited for a connection. Without one nothing makes room.
        if self.sink is None or (qos == 0 and (self.outgoing is None or self.outgoing.waiting_qos0 is None)):
            return False
        self.make_outgoing()
        return self.outgoing.push_back(message)

    cdef bint online(self) noexcept:
        return self.sink is not None

    cdef bint has_room(self) noexcept:
        if self.sink is None or not self.sink.writable:
            return False
        if self.outgoing is None:
            return <int>self.promised < self.receive_maximum
        return self.outgoing.send_quota > <int>self.promised and not self.outgoing.waiting()

    cdef int attach(self, Sink sink, int receive_maximum) except -1:
        """A connection took the session: what is owed goes to it when drain() is called."""
        assert self.sink is None, self.client_identifier
        self.sink = sink
        if not self.peer:
            self.ledger.sessions_online += 1
            if self.ledger.sessions_online > self.ledger.sessions_online_max:
                self.ledger.sessions_online_max = self.ledger.sessions_online
        self.receive_maximum = receive_maximum
        self.waiting_answers = 0
        if self.outgoing is not None:
            self.outgoing.attach(receive_maximum)
        return 0

    cdef int detach(self) except -1:
        """The connection is gone; the subscriptions stay, messages queue from now on."""
        if self.sink is not None:
            self.sink = None
            if not self.peer:
                self.ledger.sessions_online -= 1
        if self.outgoing is not None:
            self.outgoing.end_push_back()
        if self.outgoing is not None and self.outgoing.oldest_open == self.outgoing.end_number:
            # Owed nothing: hold nothing, but the next delivery number goes on where this one was.
            free(self.outgoing.ring)
            self.outgoing.ring = NULL
            self.outgoing.capacity = 0
        elif self.outgoing is not None and self.expiry_interval_s:       # else it ends, and others may be owed what it has
            self.outgoing.let_go()
        if self.incoming_count == 0:
            self._free_incoming()
        return 0

    cdef int drain(self) except -1:
        if self.outgoing is None or self.sink is None:
            return 0
        if self.watch is not None:
            return self.drain_watched()
        self.outgoing.drain(self.sink, self.durable)
        if self.outgoing.peer_missed:
            self.settle_missed()
        if self.outgoing.starved and not self.starved:
            self.starved = True
            self.ledger.starved.append(self)
        return 0

    cdef Verdict deliver_watched(self, Message message, uint8_t qos, bint retain, const uint8_t* ids, uint32_t ids_length,
                                 void* group) except? DROPPED:
        """deliver(), and tell what came of it: a verdict, and the reason whose count has risen."""
        cdef Verdict verdict
        watch, self.watch = self.watch, None
        before = self.ledger.dropped()
        try:
            verdict = self.deliver(message, qos, retain, ids, ids_length, group)
        finally:
            self.watch = watch
        watch.delivered(message.topic_name, qos, message.record, VERDICTS[<int>verdict], risen(before, self.ledger))
        return verdict

    cdef int drain_watched(self) except -1:
        """drain(), and tell what was dropped of what had waited."""
        watch, self.watch = self.watch, None
        before = self.ledger.dropped()
        try:
            self.drain()
        finally:
            self.watch = watch
        for reason in risen(before, self.ledger):
            watch.dropped_waiting(reason)
        return 0

    # QoS 2 identifiers that this client has sent and not released [MQTT-4.3.3-10]: open addressing, linear probing.

    cdef uint32_t* _incoming_slot(self, uint16_t packet_identifier) noexcept:
        cdef uint32_t index
        if self.incoming_capacity == 0:
            return NULL
        index = (packet_identifier * <uint32_t>40503) & (self.incoming_capacity - 1)
        while self.incoming[index] != 0 and (self.incoming[index] & 0xFFFF) != packet_identifier:
            index = (index + 1) & (self.incoming_capacity - 1)
        return &self.incoming[index]

    cdef int incoming_state(self, uint16_t packet_identifier) noexcept:
        cdef uint32_t* slot = self._incoming_slot(packet_identifier)
        if slot == NULL or slot[0] == 0:
            return 0
        return 2 if slot[0] & SETTLED else 1

    cdef bint incoming_add(self, uint16_t packet_identifier, bint settled) except -1:
        cdef uint32_t* slot
        cdef uint32_t* old = self.incoming
        cdef uint32_t index, old_capacity = self.incoming_capacity
        if self.incoming_count * 2 >= self.incoming_capacity:
            self.incoming_capacity = old_capacity * 2 if old_capacity else INCOMING_MIN
            self.incoming = <uint32_t*>calloc(self.incoming_capacity, sizeof(uint32_t))
            if self.incoming == NULL:
                self.incoming = old
                self.incoming_capacity = old_capacity
                raise MemoryError()
            for index in range(old_capacity):
                if old[index]:
                    self._incoming_slot(old[index] & 0xFFFF)[0] = old[index]
            free(old)
        slot = self._incoming_slot(packet_identifier)
        if slot[0]:
            return False
        slot[0] = packet_identifier | (SETTLED if settled else 0)
        self.incoming_count += 1
        return True

    cdef bint incoming_doubtful(self, uint16_t packet_identifier) noexcept:
        cdef uint32_t* slot = self._incoming_slot(packet_identifier)
        return slot != NULL and slot[0] & DOUBTFUL

    cdef bint incoming_is_new(self, uint16_t packet_identifier, bint dup, Message message) noexcept:
        cdef uint32_t* slot = self._incoming_slot(packet_identifier)
        if slot == NULL or not slot[0] & DOUBTFUL:
            return False
        # Without DUP it is not sent again [MQTT-3.3.1-1]. With DUP it may be a new one, too, whose first PUBLISH did not
        # come here: then it is another message than the one that the log has.
        return not dup or (slot[0] >> DIGEST_AT != 0 and slot[0] >> DIGEST_AT != digest_of(
            message.topic, message.topic_length, message.payload, message.payload_length))

    cdef int incoming_restore(self, uint16_t packet_identifier, uint32_t digest) except -1:
        self.incoming_add(packet_identifier, True)
        self._incoming_slot(packet_identifier)[0] = packet_identifier | SETTLED | digest << DIGEST_AT
        return 0

    cdef int mark_incoming(self) noexcept:
        """The log may have lost that identifiers were released: what comes under one of them may be a new message."""
        cdef uint32_t index
        for index in range(self.incoming_capacity):
            if self.incoming[index]:
                self.incoming[index] |= DOUBTFUL
        return 0

    cdef bint incoming_settle(self, uint16_t packet_identifier) noexcept:
        cdef uint32_t* slot = self._incoming_slot(packet_identifier)
        if slot == NULL or slot[0] == 0:
            return False
        slot[0] |= SETTLED
        return True

    cdef bint incoming_remove(self, uint16_t packet_identifier) noexcept:
        cdef uint32_t* slot = self._incoming_slot(packet_identifier)
        cdef uint32_t hole, index, home, mask = self.incoming_capacity - 1
        if slot == NULL or slot[0] == 0:
            return False
        hole = <uint32_t>(slot - self.incoming)
        index = hole
        while True:                     # close the hole, so that no probe stops short of an entry behind it
            index = (index + 1) & mask
            if self.incoming[index] == 0:
                break
            home = ((self.incoming[index] & 0xFFFF) * <uint32_t>40503) & mask
            if ((index - home) & mask) >= ((index - hole) & mask):
                self.incoming[hole] = self.incoming[index]
                hole = index
        self.incoming[hole] = 0
        self.incoming_count -= 1
        if self.incoming_count == 0 and self.incoming_capacity > INCOMING_MIN * 2:
            self._free_incoming()
        return True

    cdef int _free_incoming(self) noexcept:
        free(self.incoming)
        self.incoming = NULL
        self.incoming_capacity = 0
        return 0

    def has_incoming(self, packet_identifier: int) -> bool:
        """Whether a QoS 2 message of the client's is under way with this packet identifier, as far as is certain."""
        return self.incoming_state(packet_identifier) != 0 and not self.incoming_doubtful(packet_identifier)

    def doubt_identifiers(self) -> tuple[int, int]:
        """The log may have lost what the client knows: take new packet identifiers, and no new message for an old one.

        Returns the first delivery number that has them, and by how much they are shifted.
        """
        self.make_outgoing()
        self.mark_incoming()
        first_number = self.outgoing.end_number
        amount = (self.outgoing.identifiers or ShiftedIdentifiers()).of_run(self.ledger.incarnation)
        self.outgoing.shift(first_number, amount)
        return first_number, amount

    @property
    def shifts(self) -> list[tuple[int, int]]:
        """(first delivery number, amount) of each shift of its packet identifiers (router.sessions.packet_identifiers)."""
        if self.outgoing is None or self.outgoing.identifiers is None:
            return []
        return self.outgoing.identifiers.listed()

    @property
    def owed(self):
        """What it is owed at QoS 1 and 2 (router.sessions.outgoing.Outgoing), None if it was never owed anything."""
        return self.outgoing

    @property
    def incoming_identifiers(self) -> list[int]:
        """Packet identifiers of QoS 2 messages that the client has sent and not released, ascending."""
        return sorted(self.incoming[index] & 0xFFFF for index in range(self.incoming_capacity) if self.incoming[index])

    @property
    def incoming_messages(self) -> list[list[int]]:
        """Of these messages [packet identifier, digest], 0 where it is not known; ascending."""
        return sorted([self.incoming[index] & 0xFFFF, self.incoming[index] >> DIGEST_AT]
                      for index in range(self.incoming_capacity) if self.incoming[index])

    @property
    def connected(self) -> bool:
        """Whether a connection holds the session."""
        return self.sink is not None

    @property
    def connection(self):
        """The live connection, or None."""
        return self.sink

    def state(self) -> dict:
        """What the session holds, for admin and tests."""
        return {
            "client_identifier": self.client_identifier.decode("utf-8", "replace"),
            "connected": self.sink is not None,
            "expiry_interval_s": self.expiry_interval_s,
            "subscriptions": self.entry_count,
            "incoming": self.incoming_identifiers,
            "outgoing": None if self.outgoing is None else self.outgoing.state(),
        }
