"""What becomes of a message: who gets it, and whether that rests on a record.

Messages go to receivers at once unless they rest on a record; then they wait in `effects` until the pump says how far the
log is durable. What rests on one is decided here and nowhere else: `rests_on_record()` for a message,
`Publishing.records_of()` for what becomes of one receiver.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from router.log.record_cursor cimport PEERS_MAX
from router.core.receiver cimport DISPLACES, DROPPED, QOS_MASK
from router.peers.peer cimport owed_peers
from router.sessions.ledger cimport DROP_NO_MEMBER, DROP_PEER_GONE, DROP_RETAINED_FULL

from router.sessions.ledger import DROP_REASONS


cdef inline int refuse_or_push_back(Receiver publisher, Receiver receiver, Message message, uint8_t qos,
                                    Publication* publication) except -3:
    """Return Receiver.refuses(); if the message is let in without room, its publisher may have to wait."""
    cdef int reason = receiver.refuses(message)
    # A queue never waits for the client that is to empty it.
    if (reason == DISPLACES and publication.can_wait and receiver is not publisher
            and receiver.push_back(message, qos)):
        publication.pushed_by = <void*>receiver
    return reason


cdef bint owes(Message message, Target* target) except -1:
    """Return whether a durable receiver is owed a message by a record."""
    cdef Receiver receiver = <Receiver>target.receiver
    if receiver.refuses(message) >= 0:
        return False
    # What only passes at a peer that is there, is acknowledged when it is there.
    return not receiver.peer or target.lasting or message.qos == 2 or not receiver.has_room()


cdef inline list skip_those_full(Publishing router, Receiver publisher, Message message, Route route, list behind,
                                 list decided, Publication* publication):
    cdef uint32_t index
    cdef Target* target
    cdef Receiver receiver
    cdef int reason
    cdef bint from_peer = publisher is not None and publisher.peer
    cdef list readers = None
    for index in range(route.target_count):
        target = &route.targets[index]
        receiver = <Receiver>target.receiver
        if target.qos == 0 or not receiver.durable or (from_peer and receiver.peer) or (
                behind is not None and receiver in behind):
            continue
        reason = refuse_or_push_back(publisher, receiver, message, target.qos, publication)
        if reason >= 0:
            receiver.refuse(message, reason)
            if not receiver.peer:        # those are named by the record
                router.ledger.records.add(
                    "skipped", router.ledger.now_us, (<Session?>receiver).client_identifier, DROP_REASONS[reason])
            if decided is None:
                decided = []
            decided.append(receiver)
        elif not target.whole and not receiver.peer:
            # Who may read this topic cannot be told from what the log says of subscriptions.
            if readers is None:
                readers = []
            readers.append((<Session?>receiver).client_identifier)
    if readers is not None:
        router.ledger.records.add("readers", router.ledger.now_us, readers)
    return decided


cdef inline list decide(Publishing router, Receiver publisher, Message message, Route route, list copies,
                        Publication* publication):
    """Decide what an accepted record does not imply, and record it.

    Returns None if there is nothing; else an index of a member per group of the route (-1: none), and who has no room.
    Picked peers come into `copies`, as Effects.pick_peer() says.
    """
    cdef list decided = None
    cdef uint32_t index
    if route.group_count:
        decided = [pick_member(router, publisher, message, <SharedGroup>route.groups[index], copies, publication)
                   for index in range(route.group_count)]
    return skip_those_full(router, publisher, message, route, None, decided, publication)


cdef int pick_member(Publishing router, Receiver publisher, Message message, SharedGroup group, list copies,
                     Publication* publication) except -2:
    """Return the index of the member that gets a message, whose pick is recorded; -1: none does, or a peer by `copies`."""
    cdef int reason, picked = group.pick(publisher, None, message)
    cdef Receiver member
    cdef uint8_t qos
    if picked < 0:
        router.ledger.dropped_messages[DROP_NO_MEMBER] += 1
        return -1
    qos = group.members[picked].options & QOS_MASK
    if qos == 0:
        return picked
    member = <Receiver>group.members[picked].partner
    reason = refuse_or_push_back(publisher, member, message, qos, publication)
    if reason >= 0:
        member.refuse(message, reason)
        return -1
    if member.peer:
        router.effects.pick_peer(group, member, message, b"", copies)
        return -1
    if member.durable:
        router.ledger.records.add(
            "shared_pick", router.ledger.now_us, group.name, (<Session?>member).client_identifier)
    return picked


cdef inline int record(Publishing router, Receiver publisher, Message owned, Route route, list decided,
                       uint16_t packet_identifier, bint will) except -1:
    """Record that a message was accepted, and for which peers; retain it, if that is asked for and possible."""
    cdef Ledger ledger = router.ledger
    cdef int64_t time_us = ledger.now_us, time_ms = ledger.now_ms
    cdef uint32_t[PEERS_MAX] peers
    cdef int peer_count = 0
    cdef bint retained = owned.retain, kept = retained
    if owned.qos and router.peers:
        peer_count = owed_peers(route, decided, peers)
    if retained:
        time_us = router.retaining.next_stamp_us()
        time_ms = router.retaining.stamp_ms()
        kept = router.retaining.may_retain(owned)
        if not kept:
            ledger.dropped_messages[DROP_RETAINED_FULL] += 1
            # Its record does not ask for it either: what was kept out is not to be there after a restart.
            owned.retain = False
    owned.record = ledger.records.accepted(
        time_us, time_ms, ledger.records.last_number + 1, owned,
        (<Session>publisher).client_identifier if isinstance(publisher, Session) else None,
        packet_identifier, will, peers, peer_count)
    owned.retain = retained
    if kept:
        router.retaining.retain(owned)
        if owned.qos and router.retaining.is_shared:
            router.effects.await_number(router.indexing, owned.record)
    return 0


cdef inline int deliver_to_targets(Publishing router, Receiver publisher, Message owned, Route route, list decided) except -1:
    """Deliver to those who have subscriptions of their own, but for those without room; returns how many they are."""
    cdef uint32_t index
    cdef Target* target
    cdef Target own
    cdef int reached = 0
    for index in range(route.target_count):
        target = &route.targets[index]
        if target.no_local and target.receiver == <void*>publisher:
            if not router.tree.target_for(owned.topic, owned.topic_length, publisher, True, &own):
                continue
            reached += 1
            try:
                if decided is None or publisher not in decided:
                    router.deliver_recorded(publisher, owned, &own)
            finally:
                free(own.ids)
            continue
        reached += 1
        if decided is None or <Receiver>target.receiver not in decided:
            router.deliver_recorded(<Receiver>target.receiver, owned, target)
    return reached


cdef int deliver_to_groups(Publishing router, Receiver publisher, Message owned, Route route, list decided) except -1:
    """Deliver to the members that were picked: `decided` begins with their indexes, -1 for none."""
    cdef uint32_t index, ids_length = 0
    cdef uint8_t[5] ids
    cdef SharedGroup group
    cdef Receiver member
    cdef uint8_t qos
    cdef bint retain
    for index in range(route.group_count):
        group = <SharedGroup>route.groups[index]
        if owned.qos == 0:
            if not group.publish(publisher, owned):
                router.ledger.dropped_messages[DROP_NO_MEMBER] += 1
            continue
        member_index = decided[index]
        if member_index < 0:
            continue
        member = <Receiver>group.members[<int>member_index].partner
        group.terms(member_index, owned, &qos, &retain, ids, &ids_length)
        if qos == 0:
            member.deliver(owned, 0, retain, ids, ids_length, <void*>group)
        else:
            router.effects.deliver(member, owned, qos, retain, ids, ids_length, <void*>group)
    return 0


cdef class Publishing:
    """Messages on their way to receivers: the part of a router that every message comes through."""

    cdef int publish(self, Receiver publisher, Message message, Route route, Publication* publication) except -1:
        """Give a message to every receiver that wants it, now or when its record is durable.

        Args:
            publisher: who published, for No Local and hashing; None for the broker's own.
            message: may be borrowed; what is stored is a copy.
            route: of the message's topic, fresh.
            publication: what its publisher's connection says; what became of it is set here.

        Returns the number of receivers that it is for, whether or not each has room for it: what a receiver drops is
        counted there.
        """
        cdef uint32_t index
        cdef int reached = route.target_count + route.group_count
        cdef Target* target
        cdef uint8_t qos
        if self.peers:
            message.publisher_key = publisher.key if publisher is not None else 0
        if message.qos or message.retain:
            if self.recording and self.rests_on_record(publisher, message, route):
                publication.recorded = True
                return self.publish_recorded(publisher, message, route, publication, False)
            publication.recorded = False
            if message.retain:
                self.retaining.retain(message)
        elif route.archived and self.recording:
            self.archive_message(publisher, message)
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.no_local and target.receiver == <void*>publisher:
                reached -= not self.deliver_own(publisher, message)
                continue
            qos = min(message.qos, target.qos)
            if qos and (<Receiver>target.receiver).durable:
                self.deliver_unrecorded(<Receiver>target.receiver, message, target, qos)
            else:
                (<Receiver>target.receiver).deliver(message, qos, message.retain and target.retain_as_published,
                                                    target.ids, target.ids_length, NULL)
        for index in range(route.group_count):
            self.deliver_shared(publisher, message, <SharedGroup>route.groups[index], publication)
        return reached

    cdef int archive_message(self, Receiver publisher, Message message) except -1:
        """Record a QoS 0 message that leaves at once; while the log takes nothing, it is counted instead."""
        cdef Ledger ledger = self.ledger
        assert message.qos == 0, message.qos
        if not self.accepting:
            ledger.archive_missed += 1
            return 0
        ledger.records.accepted(
            ledger.now_us, ledger.now_ms, ledger.records.last_number + 1, message,
            (<Session>publisher).client_identifier if isinstance(publisher, Session) else None, 0, False, NULL, 0)
        return 0

    cdef int push_back(self, Receiver publisher, Message message, Route route, Publication* publication) except -1:
        cdef uint32_t index
        cdef Target* target
        publication.pushed_by = NULL
        if self.recording and self.rests_on_record(publisher, message, route):
            return 0                         # asked when what it needs of room is recorded
        for index in range(route.target_count):
            target = &route.targets[index]
            refuse_or_push_back(publisher, <Receiver>target.receiver, message, min(message.qos, target.qos), publication)
        return 0

    cdef bint deliver_own(self, Receiver publisher, Message message) except -1:
        """Deliver to the publisher itself by its subscriptions without No Local [MQTT-3.8.3-3]; returns whether it has any."""
        cdef Target own
        if not self.tree.target_for(message.topic, message.topic_length, publisher, True, &own):
            return False
        try:
            self.deliver_unrecorded(publisher, message, &own, min(message.qos, own.qos))
        finally:
            free(own.ids)
        return True

    cdef int deliver_shared(self, Receiver publisher, Message message, SharedGroup group,
                            Publication* publication) except -1:
        """Deliver to one member, without a record."""
        cdef int index = group.pick(publisher, None, message)
        if index >= 0 and publication.can_wait:
            refuse_or_push_back(publisher, <Receiver>group.members[index].partner, message,
                                min(message.qos, group.members[index].options & QOS_MASK), publication)
        if index < 0 or not group.give(index, publisher, message):
            self.ledger.dropped_messages[DROP_NO_MEMBER] += 1
        return 0

    cdef int deliver_unrecorded(self, Receiver receiver, Message message, Target* target, uint8_t qos) except -1:
        """Deliver what has no record; the receiver may be one that is owed what it gets by records."""
        cdef bint retain = message.retain and target.retain_as_published
        cdef int reason
        if qos and receiver.peer:
            if receiver.refuses(message) >= 0:
                self.ledger.dropped_messages[DROP_PEER_GONE] += 1
            elif receiver.deliver(message, qos, retain, target.ids, target.ids_length, NULL) != DROPPED:
                self.effects.await_peer(<Session>receiver)
        elif qos and self.records_of(receiver):
            # There would be a record if it had room for this.
            reason = receiver.refuses(message)
            assert reason >= 0, "a durable session is owed what no record has"
            receiver.refuse(message, reason)
        else:
            receiver.deliver(message, qos, retain, target.ids, target.ids_length, NULL)
        return 0

    cdef bint rests_on_record(self, Receiver publisher, Message message, Route route) except -1:
        cdef uint32_t index, member
        cdef Target* target
        cdef SharedGroup group
        cdef bint from_peer = publisher is not None and publisher.peer
        if publisher is not None and publisher.waiting_records and message.qos:
            return True         # behind what its publisher has waiting, or order would be lost [MQTT-4.6.0-5]
        if not from_peer:
            if message.retain:
                return True
            if message.qos == 0:
                return False
            if route.archived or (message.qos == 2 and publisher is not None and publisher.durable):
                return True
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.qos and (<Receiver>target.receiver).durable and not (
                    from_peer and (<Receiver>target.receiver).peer) and owes(message, target):
                return True
        if from_peer:
            return False        # members of shared subscriptions are picked by the peer
        for index in range(route.group_count):
            group = <SharedGroup>route.groups[index]
            for member in range(group.member_count):
                if (<Receiver>group.members[member].partner).durable:
                    return True
        return False

    cdef bint picked_rest_on_record(self, Receiver publisher, list picked) except -1:
        if publisher.waiting_records:
            return True         # as above
        for _, member, _ in picked:
            if (<Receiver>member).durable:
                return True
        return False

    cdef int publish_recorded(self, Receiver publisher, Message message, Route route, Publication* publication,
                              bint will) except -1:
        """QoS 0 copies leave at once; the others, and then the publisher's acknowledgement, wait for the record."""
        cdef Message owned = message.keep()
        # What the record alone does not say about who gets it stands before it, so that both are there or neither.
        cdef list copies = [] if route.group_count and self.peers else None
        cdef list decided = decide(self, publisher, owned, route, copies, publication) if owned.qos else None
        record(self, publisher, owned, route, decided, publication.packet_identifier if owned.qos == 2 else 0, will)
        if copies:
            self.effects.deliver_copies(copies)
        cdef int reached = deliver_to_targets(self, publisher, owned, route, decided) + route.group_count
        if route.group_count:
            deliver_to_groups(self, publisher, owned, route, decided)
        return reached

    cdef int deliver_recorded(self, Receiver receiver, Message owned, Target* target) except -1:
        cdef uint8_t qos = min(owned.qos, target.qos)
        cdef bint retain = owned.retain and target.retain_as_published
        if qos == 0:
            receiver.deliver(owned, 0, retain, target.ids, target.ids_length, NULL)
        else:
            self.effects.deliver(receiver, owned, qos, retain, target.ids, target.ids_length, NULL)
        return 0

    cdef list skip_full(self, Receiver publisher, Message message, Route route, list behind, list decided,
                        Publication* publication):
        return skip_those_full(self, publisher, message, route, behind, decided, publication)

    # Stored messages, to one session ------------------------------------------------------------------------------

    cdef int deliver_retained(self, Session session, Message message, uint8_t qos, const uint8_t* ids,
                              uint32_t ids_length) except -1:
        """Give a session a retained message that its SUBSCRIBE asked for, with RETAIN 1 [MQTT3-3.3.1-8]."""
        cdef int reason
        if qos == 0 or not self.records_of(session):
            session.deliver(message, qos, True, ids, ids_length, NULL)
            return 0
        reason = session.refuses(message)
        if reason >= 0:
            session.refuse(message, reason)
        else:
            self.effects.address(session, message, qos, True, ids, ids_length, None, None, 0)
        return 0

    cdef int deliver_replayed(self, Session session, Message message, uint8_t qos, bint retain, const uint8_t* ids,
                              uint32_t ids_length) except -1:
        """Give a session a stored message; a durable one owes its acknowledgement to a record of the delivery."""
        cdef Message owned
        if qos == 0 or not self.records_of(session):
            session.deliver(message, qos, retain, ids, ids_length, NULL)
            return 0
        owned = message.keep()
        self.effects.address(session, owned, qos, retain, ids, ids_length, None, None, 0)
        return 0
