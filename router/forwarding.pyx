"""What comes from peers, and what becomes of what they are owed.

A message that a peer sends is for receivers here, and goes no further. What a durable session wants of it is recorded as
`forwarded`, with the number that it has in the peer's log, so that a repeat is known as one after a crash of either end.
"""

from functools import partial

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset
from router.peers.deferred_acks cimport Held
from router.peers.peer cimport EVERY_DELIVERY
from router.publishing cimport Publication
from router.sessions.ledger cimport DROP_NO_MEMBER, Ledger
from router.core.message cimport message_size, topic_hash
from router.sessions.outgoing cimport DELIVERY_FREE, DELIVERY_QUEUED, Delivery, Outgoing
from router.core.receiver cimport PASSING, QOS_MASK
from router.core.varint cimport read_varint, write_varint
from router.matching.route_cache cimport Target
from router.matching.shared_groups cimport IDS_BYTES_MAX, ROUTER_TRIED, ROUTERS_TRIED_MAX, router_number
from router.sessions.session cimport Session

from router.peers.peer import PEER_PREFIX

SUPERSEDED = "superseded"        # why it is skipped: a newer retained message was sent to its new subscription

cdef enum:
    IDENTIFIER_MAX = 268435455


def group_identifier(bytes name not None) -> int:
    """Return the subscription identifier that stands for a shared subscription, "name/filter", between routers.

    1..268,435,455; the same on every router. Two names may have the same one, so whoever reads it looks at the topic too.
    """
    return 1 + topic_hash(<const uint8_t*>PyBytes_AS_STRING(name), len(name)) % IDENTIFIER_MAX


cdef uint32_t read_identifier(const uint8_t* ids, uint32_t at, uint32_t length, uint32_t* identifier) noexcept:
    """Read a number, with the byte in front of it; returns where it ends."""
    identifier[0] = 0
    at += 1
    return at + max(read_varint(ids + at, length - at, identifier), 0)


cdef bytes names_of(const uint32_t* tried, uint32_t count):
    """Encode the routers where a message was, to go behind the identifier of a group."""
    cdef uint8_t[IDS_BYTES_MAX] names
    cdef uint8_t* at = names
    cdef uint32_t index
    for index in range(count):
        at[0] = ROUTER_TRIED
        at = write_varint(at + 1, tried[index])
    return PyBytes_FromStringAndSize(<const char*>names, at - names)


cdef inline bint is_owed(SharedGroup group, Receiver member) noexcept:
    """Return whether a member is a peer that gets a message at QoS 1."""
    return member.peer and group.members[group.index_of(member)].options & QOS_MASK


@cython.final
cdef class Forwarding:
    """Messages between this router and its peers; what is decided about them."""

    def __init__(self, Router router not None):
        self.router = router
        self.group_names = {}

    def peer(self, bytes router_identifier not None) -> Peer:
        """Return the peer of a router identifier, "node/worker"; one that was never heard of is made, and recorded."""
        cdef Router router = self.router
        cdef Peer peer = router.peers.get(PEER_PREFIX + router_identifier)
        if peer is None:
            peer = Peer(router.ledger, router_identifier, 1 + max([known.number for known in router.peers.values()], default=0))
            router.peers[PEER_PREFIX + router_identifier] = peer
            if router.recording:
                router.ledger.records.add("peer", router.ledger.now_us, peer.number, router_identifier, 0)
        return peer

    # What is wanted there ------------------------------------------------------------------------------------------

    def want(self, Peer peer not None, bytes topic_filter not None, qos: int, durable: bool, online: int = 0) -> None:
        """A peer wants a topic filter, or wants it in another way than before.

        Args:
            topic_filter: perhaps `$share/name/filter`.
            qos: the highest that a receiver there was granted.
            durable: it outlives the peer's process.
            online: of a shared subscription, the members that have a connection.
        """
        cdef Router router = self.router
        cdef Session session = peer.session
        identifier = group_identifier(topic_filter[7:]) if topic_filter.startswith(b"$share/") else 0
        options = qos | 0x08 | (0 if durable else PASSING)
        before = router.tree.options_of(session, topic_filter)
        router.tree.subscribe(session, topic_filter, options, identifier, min(online, 0xFFFF))
        if not router.recording:
            return
        if durable and before != options:
            router.ledger.records.add("subscribe", router.ledger.now_us, session.client_identifier, topic_filter, options,
                                      identifier)
        elif not durable and before >= 0 and not before & PASSING:
            router.ledger.records.add("unsubscribe", router.ledger.now_us, session.client_identifier, topic_filter)

    def want_no_more(self, Peer peer not None, bytes topic_filter not None) -> None:
        """A peer does not want a topic filter any more. What it is owed stays owed."""
        cdef Router router = self.router
        before = router.tree.options_of(peer.session, topic_filter)
        if router.tree.unsubscribe(peer.session, topic_filter) and router.recording and not before & PASSING:
            router.ledger.records.add("unsubscribe", router.ledger.now_us, peer.session.client_identifier, topic_filter)

    # Messages in -----------------------------------------------------------------------------------------------------

    def began(self, Peer peer not None, incarnation: int, after: int) -> None:
        """A peer's process says after which record of its log it began.

        What a log has lost has numbers that are given again: `os` or `none` and a loss of power, a folder that comes from
        a backup. So the numbers that its earlier processes sent count up to that one only.
        """
        cdef Router router = self.router
        if peer.shares_node and router.retaining.is_shared and router.retaining.fences.is_new(peer.worker, incarnation):
            router.retaining.index.began(peer.worker, incarnation, after)
            router.retaining.fences.began(peer.worker, incarnation, after)
        peer.began(incarnation, after)

    def brought(self, Peer peer not None, record: int) -> None:
        """A peer's link has brought all that is wanted here of its log, up to a record."""
        cdef Router router = self.router
        if peer.shares_node and router.retaining.is_shared:
            router.retaining.fences.brought(peer.worker, record)

    def hears(self, Peer peer not None, bint is_up) -> None:
        """A peer's link is up, or nothing is heard of it."""
        cdef Router router = self.router
        if peer.shares_node and router.retaining.is_shared:
            router.retaining.fences.waits.hears(peer.worker, is_up)

    cdef int pass_on(self, Message message) except -1:
        """Take a message for all receivers here of its topic, at QoS 0, without RETAIN: nothing is decided."""
        cdef Route route
        cdef Target* target
        cdef uint32_t index
        self.received += 1
        route = self.route_of(message)
        for index in range(route.target_count):
            target = &route.targets[index]
            if not (<Receiver>target.receiver).peer:
                (<Receiver>target.receiver).deliver(message, 0, False, target.ids, target.ids_length, NULL)
        return 0

    cdef bint receive(self, Peer peer, Message message, uint64_t sequence, uint32_t incarnation, uint64_t n,
                      const uint8_t* ids, uint32_t ids_length, uint64_t publisher_key) except? False:
        cdef Router router = self.router
        cdef Route route
        cdef Target* target
        cdef Receiver receiver
        cdef uint32_t index
        cdef list behind = None
        # Without a sequence it comes beside the queue and once, at QoS 0, whatever it was published at: it overtakes what
        # waits for its record there, so its numbers say nothing of what came before.
        cdef uint8_t qos = message.qos if sequence else 0
        self.received += 1
        if qos:
            if incarnation < peer.heard_incarnation or (
                    incarnation == peer.heard_incarnation and sequence <= peer.heard_sequence) or (n and n <= peer.heard):
                peer.repeats += 1
                if incarnation >= peer.heard_incarnation:
                    peer.heard_sequence = max(sequence, peer.heard_sequence if incarnation == peer.heard_incarnation else 0)
                    peer.heard_incarnation = incarnation
                return False
            peer.heard_incarnation = incarnation
            peer.heard_sequence = sequence
            if n:
                peer.heard = n
        if message.retain and peer.shares_node:
            router.retaining.forwarded(message, peer.worker, incarnation, n, router.ledger.now_us)
            # Those that a log has told of stand where nothing is shared, too: while sessions are spread anew.
            if n and not ids_length and len(router.retaining.fences):
                route = self.route_of(message)
                behind = router.retaining.fences.behind(
                    peer.worker, (incarnation, n), message.topic_name,
                    [<Receiver>route.targets[index].receiver for index in range(route.target_count)],
                    router.tree) or None
                if behind is not None and message.payload_length == 0 and router.retaining.is_cleared_by(
                        message, peer.worker, n):
                    behind = None       # they were given nothing of the topic, but may have been sent an older one live
            if n and router.retaining.is_shared:
                if qos:
                    router.retaining.fences.brought(peer.worker, n)
                else:
                    router.retaining.fences.came_early(peer.worker, incarnation, n)
        if ids_length:
            self.receive_picked(peer, message, qos, incarnation, n, ids, ids_length, publisher_key)
            return True
        route = self.route_of(message)
        # What stands behind a record of the same peer leaves behind it, so that order holds [MQTT-4.6.0-5].
        if qos and router.recording and router.rests_on_record(peer.session, message, route):
            self.receive_recorded(peer, message, incarnation, n, route, behind)
            return True
        for index in range(route.target_count):
            target = &route.targets[index]
            receiver = <Receiver>target.receiver
            if not receiver.peer and (behind is None or receiver not in behind):
                router.deliver_unrecorded(receiver, message, target, min(qos, target.qos))
        return True

    cdef int receive_recorded(self, Peer peer, Message message, uint32_t incarnation, uint64_t n, Route route,
                              list behind) except -1:
        """Record a message and deliver it when that is durable; receivers without room are skipped, and logged so.

        So are those `behind`, which were given what came behind it.
        """
        cdef Ledger ledger = self.router.ledger
        cdef Router router = self.router
        cdef Target* target
        cdef Receiver receiver
        cdef uint32_t index
        cdef Publication publication
        cdef list skipped
        memset(&publication, 0, sizeof(Publication))
        message = message.keep()
        for index in range(route.target_count):
            target = &route.targets[index]
            receiver = <Receiver>target.receiver
            if target.qos and receiver.durable and not receiver.peer and behind is not None and receiver in behind:
                ledger.records.add("skipped", ledger.now_us, (<Session?>receiver).client_identifier, SUPERSEDED)
        skipped = router.skip_full(peer.session, message, route, behind, None, &publication)
        message.record = ledger.records.forwarded(ledger.now_us, ledger.now_ms, message, peer.number, incarnation, n, False)
        for index in range(route.target_count):
            target = &route.targets[index]
            receiver = <Receiver>target.receiver
            if not receiver.peer and (skipped is None or receiver not in skipped) and (
                    behind is None or receiver not in behind):
                router.deliver_recorded(receiver, message, target)
        return 0

    cdef int receive_picked(self, Peer peer, Message message, uint8_t qos, uint32_t incarnation, uint64_t n,
                            const uint8_t* ids, uint32_t ids_length, uint64_t publisher_key) except -1:
        """Take a message that is for a member of each of some shared subscriptions."""
        cdef Router router = self.router
        cdef Ledger ledger = router.ledger
        cdef list picked = []
        cdef list copies = []
        cdef bint waits
        message.publisher_key = publisher_key        # where it goes on, that is asked again
        self.pick_members(message, qos, ids, ids_length, publisher_key, picked)
        waits = qos != 0 and router.recording and router.picked_rest_on_record(peer.session, picked)
        if waits:
            message = message.keep()
            for group, member, tried in picked:
                if is_owed(<SharedGroup>group, <Receiver>member):
                    router.effects.pick_peer(<SharedGroup>group, <Receiver>member, message, tried, copies)
                elif (<Receiver>member).durable and not (<Receiver>member).peer:
                    ledger.records.add("shared_pick", ledger.now_us, (<SharedGroup>group).name,
                                       (<Session?>member).client_identifier)
            message.record = ledger.records.forwarded(
                ledger.now_us, ledger.now_ms, message, peer.number, incarnation, n, True)
            if copies:
                router.effects.deliver_copies(copies)
        for group, member, tried in picked:
            if not waits or not is_owed(<SharedGroup>group, <Receiver>member):
                self.hand_over(<SharedGroup>group, <Receiver>member, message, qos, waits, tried)
        return 0

    cdef Route route_of(self, Message message):
        """Return the route of a message's topic, fresh; the topic that came last costs one comparison.

        What a client publishes at once comes in a row.
        """
        cdef Route route = self.route
        if not self.router.tree.leads(route, message.topic, message.topic_length):
            route = self.route = self.router.tree.route(message.topic, message.topic_length)
        return route

    def receive_message(self, Peer peer not None, Message message not None, sequence: int, incarnation: int, n: int,
                        bytes ids not None = b"", publisher_key: int = 0) -> bool:
        """Take a message that a peer sent; whether it was new.

        Args:
            sequence: the number of the delivery there; rising within an incarnation. 0: it is delivered at QoS 0.
            incarnation: of the peer.
            n: its record there, 0 if it has none.
            ids: encoded identifiers of the shared subscriptions that it is for; empty: for all others.
            publisher_key: of who published it, for shared subscriptions that hash.
        """
        return self.receive(peer, message, sequence, incarnation, n, <const uint8_t*>PyBytes_AS_STRING(ids),
                            <uint32_t>len(ids), publisher_key)

    def acknowledge(self, Peer peer not None, sequence: int) -> None:
        """A peer has all deliveries up to this one: they are owed no more; publishers that waited are answered."""
        self.acknowledged(peer, sequence)

    cdef int pick_members(self, Message message, uint8_t qos, const uint8_t* ids, uint32_t ids_length,
                          uint64_t publisher_key, list picked) except -1:
        """Append (group, member, tried) for each shared subscription that a peer chose this router for.

        Where no member here may read it, or the last one has gone while it was under way, it goes on to a router where it
        has not been: `tried` names those where it was, so that it never comes back to one.
        """
        cdef uint32_t at = 0, identifier
        cdef uint32_t[ROUTERS_TRIED_MAX] tried
        cdef uint32_t tried_count
        cdef SharedGroup group
        cdef int member
        cdef bytes names
        cdef Route route = self.router.tree.route(message.topic, message.topic_length)
        cdef uint32_t index
        while at < ids_length:
            at = read_identifier(ids, at, ids_length, &identifier)
            tried_count = 0
            while at < ids_length and ids[at] == ROUTER_TRIED and tried_count < ROUTERS_TRIED_MAX:
                at = read_identifier(ids, at, ids_length, &tried[tried_count])
                tried_count += 1
            group = None
            for index in range(route.group_count):
                if group_identifier((<SharedGroup>route.groups[index]).name) == identifier:
                    group = <SharedGroup>route.groups[index]
                    break
            member = group.choose(publisher_key, None, message, True) if group is not None else -1
            names = b""
            if member < 0 and group is not None and tried_count < ROUTERS_TRIED_MAX:
                tried[tried_count] = router_number(self.router.tree.router_key)
                member = group.choose_untried(publisher_key, message, tried, tried_count + 1)
                names = names_of(tried, tried_count + 1)
            if member < 0 or (qos and (<Receiver>group.members[member].partner).refuses(message) >= 0):
                self.router.ledger.dropped_messages[DROP_NO_MEMBER] += 1
                continue
            picked.append((group, <Receiver>group.members[member].partner, names))
        return 0

    def hand_over(self, SharedGroup group not None, Receiver member not None, Message message not None, qos_max: int,
                  bint waits, bytes tried not None):
        """Deliver to the member that was picked."""
        cdef uint8_t[IDS_BYTES_MAX] ids
        cdef uint32_t ids_length = 0
        cdef uint8_t qos
        cdef bint retain
        cdef int index = group.index_of(member)
        group.terms(index, message, &qos, &retain, ids, &ids_length)
        memcpy(ids + ids_length, PyBytes_AS_STRING(tried), len(tried))
        ids_length += <uint32_t>len(tried)
        qos = min(qos, <uint8_t>qos_max)
        if qos and waits:
            self.router.effects.deliver(member, message, qos, retain, ids, ids_length, <void*>group)
        else:
            member.deliver(message, qos, retain, ids, ids_length, <void*>group)

    def when_durable(self, Peer peer not None, action) -> None:
        """Call `action()` when everything that came from a peer so far is as durable as it is going to be."""
        cdef Router router = self.router
        if not router.recording or len(router.effects) == 0:
            action()
            return
        peer.session.waiting_records += 1

        def settled() -> None:
            (<Session>peer.session).waiting_records -= 1
            action()

        router.effects.call(settled)

    # Messages out ----------------------------------------------------------------------------------------------------

    cdef int acknowledged(self, Peer peer, uint64_t sequence) except -1:
        cdef Session session = peer.session
        if session.outgoing is not None:
            session.outgoing.acknowledged_below(sequence + 1)
        peer.settle(sequence)
        if session.outgoing is not None and session.outgoing.waiting():
            session.drain()
        return 0

    def link_lost(self, Peer peer not None) -> None:
        """Nothing is heard of a peer, and its session is detached: what it is owed and is in no record gets one.

        So its publishers are acknowledged, and it comes to the peer when that is back. While this process lives, it comes
        from memory and in the place that it has: behind it there may be what had a record when it was published, and that
        must not overtake it [MQTT-4.6.0-5]. The record is a copy, and is for the next process if this one dies.
        """
        cdef Session session = peer.session
        cdef Outgoing outgoing = session.outgoing
        cdef Ledger ledger = self.router.ledger
        cdef Delivery* delivery
        cdef Message message
        cdef uint64_t number, record = 0
        cdef Held* held
        if not self.router.recording:
            return
        if outgoing is not None and outgoing.ring != NULL:
            for number in range(max(outgoing.oldest_open, peer.copied_below), outgoing.end_number):
                delivery = outgoing.slot(number)
                if delivery.state != DELIVERY_FREE and delivery.record == 0:
                    message = <Message>delivery.message
                    record = ledger.records.copy_of(ledger.now_us, ledger.now_ms, ledger.incarnation, message)
                    ledger.records.add("delivery", ledger.now_us, session.client_identifier, record, message_size(message),
                                       1, bool(delivery.retain), b"", b"", b"", 0)
            peer.copied_below = outgoing.end_number
        if record:
            self.router.effects.call(partial(self.copied, peer, record))
        held = peer.waiters.take()
        while held != NULL:
            held.pending -= 1
            self.router.effects.hold(held)
            held = peer.waiters.take()

    def copied(self, Peer peer not None, record: int) -> None:
        """Copies up to this record are durable, and so is what was recorded before them: all of it has its number now."""
        peer.copied(record)

    def restarted(self, Peer peer not None, incarnation: int) -> None:
        """A peer has come with a new process: its ephemeral sessions are gone, and what only they wanted.

        What is recorded for it, if only as a copy, is sent again when its link takes it. With a log that is all that it
        was picked for; without one that goes to other members, or is counted.
        """
        cdef SharedGroup group
        cdef list unsent = []
        cdef Session session = peer.session
        cdef Outgoing outgoing = session.outgoing
        cdef Delivery* delivery
        cdef uint64_t number
        if outgoing is not None and outgoing.ring != NULL:
            for number in range(max(outgoing.oldest_open, peer.copied_below), outgoing.end_number):
                delivery = outgoing.slot(number)
                if delivery.state != DELIVERY_FREE and delivery.record == 0:
                    if delivery.group != NULL:
                        unsent.append((<object>delivery.group, <object>delivery.message))
                    if delivery.state == DELIVERY_QUEUED:
                        outgoing._unqueue(delivery)
                    outgoing.free_slot(number)
        assert not unsent or not self.router.recording, "a peer was picked for what no record has"
        for group, message in unsent:
            if not group.redispatch(session, <Message?>message):
                self.router.ledger.dropped_messages[DROP_NO_MEMBER] += 1
        peer.settle(EVERY_DELIVERY)
        for topic_filter, options, _ in self.router.tree.subscriptions_of(session):
            if options & PASSING:
                self.router.tree.unsubscribe(session, topic_filter)
