"""The router: what one worker owes its clients.

Events in, effects out: no socket, clock or chance is known here, and of packets no more than types and identifiers.
`ledger.now_ms` is the only time there is. Messages go to receivers at once unless they rest on a record (`recording`);
then they wait in `effects` until the pump says how far the log is durable.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING

from router.matching.archive_filters cimport ArchiveFilters
from router.log.record_cursor cimport PEERS_MAX
from router.core.receiver cimport DISPLACES, DROPPED, QOS_MASK, RETAIN_HANDLING_MASK
from router.sessions.ledger cimport DROP_NO_MEMBER, DROP_NOT_AUTHORIZED, DROP_PEER_GONE, DROP_RETAINED_FULL
from router.peers.peer cimport owed_peers
from router.core.receiver cimport Entry
from router.sessions.session cimport EXPIRY_NEVER
from router.matching.route_cache cimport Target
from router.matching.shared_groups cimport SharedGroup
from router.sessions.sink cimport PUBREL
from router.matching.topic_names cimport is_own_topic, is_sys_topic
from libc.stdlib cimport free

from router.sessions.ledger import DROP_REASONS

from router.sessions.replay_subscription import REPLAY_PREFIX


@cython.final
cdef class Router:
    """Sessions, subscriptions, retained messages and what follows from a publish.

    Args:
        ledger: limits and counters shared with the sessions.
        seed: of the random choice between members of a shared subscription; 64 bits.
        strategy: of shared subscriptions, a name in router.matching.shared_groups.STRATEGIES.
        routes_max: topic names whose receivers are remembered.
        index: retained messages on disk (router.retained.lmdb_index.RetainedIndex); None: they are kept in memory.
        retains: False: retained messages that are recovered are passed over.
    """

    def __init__(self, Ledger ledger not None, seed: int = 0, strategy: str = "round_robin", routes_max: int = 65_536,
                 *, index=None, retains: bool = True):
        self.ledger = ledger
        self.tree = SubscriptionTree(strategy, seed, routes_max)
        self.retaining = Retaining(ledger, seed, index, retains)
        self.retained = self.retaining.store
        self.effects = Effects(ledger)
        self.sessions = {}
        self.peers = {}
        self.indexing = Waiters()
        self._deadlines = Deadlines()
        self.ending = Ending(ledger, self.effects)
        self.accepting = True

    def record_into(self, RecordBuffer records) -> None:
        """From here on what rests on a record waits for it, and the records come to lie in this buffer."""
        self.ledger.records = records
        self.recording = records is not None

    # Publishing ----------------------------------------------------------------------------------------------------

    cdef int publish(self, Receiver publisher, Message message, Route route, uint16_t packet_identifier) except -1:
        """Give a message to every receiver that wants it, now or when its record is durable.

        Args:
            publisher: who published, for No Local and hashing; None for the broker's own.
            message: may be borrowed; what is stored is a copy.
            route: of the message's topic, fresh.
            packet_identifier: of the publisher's packet, for QoS 2; else 0.

        Returns the number of receivers that it is for, a shared subscription being one, whether or not each has room
        for it: what a receiver drops is counted there.
        """
        cdef uint32_t index
        cdef int reached = route.target_count + route.group_count
        cdef Target* target
        cdef uint8_t qos
        self.recorded = False
        if self.peers:
            message.publisher_key = publisher.key if publisher is not None else 0
        if message.qos or message.retain:
            if self.recording and self.rests_on_record(publisher, message, route):
                self.recorded = True
                return self._publish_recorded(publisher, message, route, packet_identifier, False)
            if message.retain:
                self.retaining.retain(message)
        elif route.archived and self.recording:
            self._archive(publisher, message)
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.no_local and target.receiver == <void*>publisher:
                reached -= not self._deliver_own(publisher, message)
                continue
            qos = min(message.qos, target.qos)
            if qos and (<Receiver>target.receiver).durable:
                self._deliver_unrecorded(<Receiver>target.receiver, message, target, qos)
            else:
                (<Receiver>target.receiver).deliver(message, qos, message.retain and target.retain_as_published,
                                                    target.ids, target.ids_length, NULL)
        for index in range(route.group_count):
            self._deliver_shared(publisher, message, <SharedGroup>route.groups[index])
        return reached

    cdef int _archive(self, Receiver publisher, Message message) except -1:
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

    def archive(self, ArchiveFilters filters) -> None:
        """Record whatever these topic filters match. To be called while no route has been read."""
        assert self.tree.route_cache_count == 0, "routes that do not know whether they are archived"
        self.tree.archive = filters

    cdef int _deliver_unrecorded(self, Receiver receiver, Message message, Target* target, uint8_t qos) except -1:
        """Deliver what has no record; the receiver may be one that is owed what it gets by records."""
        cdef bint retain = message.retain and target.retain_as_published
        cdef int reason
        if qos and receiver.peer:
            if receiver.refuses(message) >= 0:
                self.ledger.dropped_messages[DROP_PEER_GONE] += 1
            elif receiver.deliver(message, qos, retain, target.ids, target.ids_length, NULL) != DROPPED:
                self.effects.await_peer(<Session>receiver)
        elif qos and receiver.durable and self.recording:
            # There would be a record if it had room for this.
            reason = receiver.refuses(message)
            assert reason >= 0, "a durable session is owed what no record has"
            receiver.refuse(message, reason)
        else:
            receiver.deliver(message, qos, retain, target.ids, target.ids_length, NULL)
        return 0

    cdef bint _deliver_own(self, Receiver publisher, Message message) except -1:
        """Deliver to the publisher itself by its subscriptions without No Local [MQTT-3.8.3-3]; returns whether it has any."""
        cdef Target own
        if not self.tree.target_for(message.topic, message.topic_length, publisher, True, &own):
            return False
        try:
            self._deliver_unrecorded(publisher, message, &own, min(message.qos, own.qos))
        finally:
            free(own.ids)
        return True

    cdef int _deliver_shared(self, Receiver publisher, Message message, SharedGroup group) except -1:
        if not group.publish(publisher, message):
            self.ledger.dropped_messages[DROP_NO_MEMBER] += 1
        return 0

    cdef bint rests_on_record(self, Receiver publisher, Message message, Route route) except -1:
        cdef uint32_t index, member
        cdef Target* target
        cdef SharedGroup group
        if message.retain:
            return True
        if message.qos == 0:
            return False
        if route.archived:
            return True
        if publisher is not None and publisher.waiting_records:
            return True         # behind what its publisher has waiting, or order would be lost [MQTT-4.6.0-5]
        if message.qos == 2 and publisher is not None and publisher.durable:
            return True
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.qos and (<Receiver>target.receiver).durable and self._owes(message, target):
                return True
        for index in range(route.group_count):
            group = <SharedGroup>route.groups[index]
            for member in range(group.member_count):
                if (<Receiver>group.members[member].partner).durable:
                    return True
        return False

    cdef bint _owes(self, Message message, Target* target) except -1:
        """Return whether a durable receiver is owed a message by a record."""
        cdef Receiver receiver = <Receiver>target.receiver
        if receiver.refuses(message) >= 0:
            return False
        # What only passes at a peer that is there, is acknowledged when it is there.
        return not receiver.peer or target.lasting or message.qos == 2 or not receiver.has_room()

    cdef int _publish_recorded(self, Receiver publisher, Message message, Route route, uint16_t packet_identifier,
                               bint will) except -1:
        """QoS 0 copies leave at once; the others, and then the publisher's acknowledgement, wait for the record."""
        cdef Message owned = message.keep()
        cdef Ledger ledger = self.ledger
        cdef uint32_t index, ids_length = 0
        cdef Target* target
        cdef Target own
        cdef SharedGroup group
        cdef Receiver member
        cdef int reached = 0
        cdef int64_t time_us = ledger.now_us, time_ms = ledger.now_ms
        cdef uint8_t[5] ids
        cdef uint32_t[PEERS_MAX] peers
        cdef int peer_count = 0
        cdef uint8_t qos
        cdef bint retain, retained = owned.retain, kept = retained
        # What the record alone does not say about who gets it stands before it, so that both are there or neither.
        cdef list copies = [] if route.group_count and self.peers else None
        cdef list decided = self._decide(publisher, owned, route, copies) if owned.qos else None
        if owned.qos and self.peers:
            peer_count = owed_peers(route, decided, peers)
        if retained:
            time_us = self.retaining.next_stamp_us()
            time_ms = self.retaining.stamp_ms()
            kept = self.retaining.may_retain(owned)
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
            self.retaining.retain(owned)
            if owned.qos and self.retaining.is_shared:
                self.effects.await_number(self.indexing, owned.record)
        if copies:
            self.effects.deliver_copies(copies)
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.no_local and target.receiver == <void*>publisher:
                if not self.tree.target_for(owned.topic, owned.topic_length, publisher, True, &own):
                    continue
                reached += 1
                try:
                    if decided is None or publisher not in decided:
                        self._deliver_recorded(publisher, owned, &own)
                finally:
                    free(own.ids)
                continue
            reached += 1
            if decided is None or <Receiver>target.receiver not in decided:
                self._deliver_recorded(<Receiver>target.receiver, owned, target)
        for index in range(route.group_count):
            group = <SharedGroup>route.groups[index]
            reached += 1
            if owned.qos == 0:
                if not group.publish(publisher, owned):
                    ledger.dropped_messages[DROP_NO_MEMBER] += 1
                continue
            # decided begins with the groups' members, in order: an index, or -1
            member_index = decided[index]
            if member_index < 0:
                continue
            member = <Receiver>group.members[<int>member_index].partner
            group.terms(member_index, owned, &qos, &retain, ids, &ids_length)
            if qos == 0:
                member.deliver(owned, 0, retain, ids, ids_length, <void*>group)
            else:
                self.effects.deliver(member, owned, qos, retain, ids, ids_length, <void*>group)
        return reached

    cdef list _decide(self, Receiver publisher, Message message, Route route, list copies):
        """Decide what an accepted record does not imply, and record it.

        Returns None if there is nothing; else an index of a member per group of the route (-1: none), and who has no room.
        Picked peers come into `copies`, as Effects.pick_peer() says.
        """
        cdef list decided = None
        cdef uint32_t index
        cdef int picked, reason
        cdef Target* target
        cdef SharedGroup group
        cdef Receiver receiver
        if route.group_count:
            decided = []
            for index in range(route.group_count):
                group = <SharedGroup>route.groups[index]
                picked = group.pick(publisher, None, message)
                if picked < 0:
                    self.ledger.dropped_messages[DROP_NO_MEMBER] += 1
                elif group.members[picked].options & QOS_MASK:
                    receiver = <Receiver>group.members[picked].partner
                    reason = receiver.refuses(message)
                    if reason == DISPLACES:
                        receiver.push_back(message)
                    if reason >= 0:
                        receiver.refuse(message, reason)
                        picked = -1
                    elif receiver.peer:
                        self.effects.pick_peer(group, receiver, message, copies)
                        picked = -1
                    elif receiver.durable:
                        self.ledger.records.add("shared_pick", self.ledger.now_us, group.name,
                                                (<Session?>receiver).client_identifier)
                decided.append(picked)
        for index in range(route.target_count):
            target = &route.targets[index]
            receiver = <Receiver>target.receiver
            if target.qos == 0 or not receiver.durable:
                continue
            reason = receiver.refuses(message)
            if reason == DISPLACES:
                receiver.push_back(message)
            if reason >= 0:
                receiver.refuse(message, reason)
                if not receiver.peer:        # those are named by the record
                    self.ledger.records.add(
                        "skipped", self.ledger.now_us, (<Session?>receiver).client_identifier, DROP_REASONS[reason])
                if decided is None:
                    decided = []
                decided.append(receiver)
        return decided

    cdef int _deliver_recorded(self, Receiver receiver, Message owned, Target* target) except -1:
        cdef uint8_t qos = min(owned.qos, target.qos)
        cdef bint retain = owned.retain and target.retain_as_published
        if qos == 0:
            receiver.deliver(owned, 0, retain, target.ids, target.ids_length, NULL)
        else:
            self.effects.deliver(receiver, owned, qos, retain, target.ids, target.ids_length, NULL)
        return 0

    cdef int acknowledge(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                         uint8_t reason, bint recorded) except -1:
        if self.effects.awaited_count or (session.held_first != NULL and packet_type != PUBREL):
            self.effects.hold_back(session, sink, packet_type, packet_identifier, reason, recorded)
        elif recorded or session.waiting_records:
            self.effects.acknowledge(session, sink, packet_type, packet_identifier, reason)
        else:
            sink.acknowledge(packet_type, packet_identifier, reason)
        return 0

    def publish_message(self, Message message not None, Receiver publisher=None) -> int:
        """Publish an owned message that no connection sent: a will, an in-process client's.

        Topics under $SYS and $replay are our own: such a message is dropped and counted as not authorized.
        """
        if is_own_topic(message.topic, message.topic_length):
            self.ledger.dropped_messages[DROP_NOT_AUTHORIZED] += 1
            return 0
        reached = self.publish(publisher, message, self.tree.route(message.topic, message.topic_length), 0)
        self.effects.awaited_count = 0           # nobody is acknowledged
        return reached

    def announce(self, Message message not None) -> int:
        """Give a message of $SYS to receivers online now, at QoS 0; returns how many. For others nothing is counted."""
        cdef Route route = self.tree.route(message.topic, message.topic_length)
        cdef Receiver receiver
        cdef Target* target
        cdef uint32_t index, reached = 0
        assert message.owned and message.qos == 0, message.topic_name
        for index in range(route.target_count):
            target = &route.targets[index]
            receiver = <Receiver>target.receiver
            if receiver.online():
                reached += receiver.deliver(message, 0, message.retain and target.retain_as_published,
                                            target.ids, target.ids_length, NULL) != DROPPED
        for index in range(route.group_count):
            reached += (<SharedGroup>route.groups[index]).publish(None, message)
        return reached

    def settle(self, durable: int, effects_max: int = 0) -> int:
        """Let leave what rests on records up to number `durable`, so many at most; 0: all. Returns how many left."""
        cdef Session session
        cdef list starved = self.ledger.starved
        self.ledger.durable = durable
        self.ending.settle(durable)
        cdef int settled = self.effects.settle(durable, effects_max)
        if starved:
            self.ledger.starved = []
            for session in starved:
                session.starved = False
                if session.gone:
                    self.ending.go_on(session)
                else:
                    session.drain()
        self.ending.tell()
        return settled

    @property
    def last_record(self) -> int:
        """The number of the newest record; 0 without a log."""
        return self.ledger.records.last_number if self.recording else 0

    # Sessions: rare verbs ------------------------------------------------------------------------------------------

    def open_session(self, bytes client_identifier not None, clean_start: bool, expiry_interval_s: int, will=None):
        """Find or make the session of a client identifier whose connection, if any, has been detached.

        Returns (session, session_present). A clean start ends an existing session first [MQTT-3.1.2-4]; its will, if
        one waits for its delay, is published then (3.1.3.2.2). A resumed session's waiting will is cancelled.

        Args:
            will: of the new connection; `delay_interval_s`, `message(now_ms)` and, where there is a log, `fields()`, or
                None.
        """
        cdef Session session = self._fall_due(self.sessions.get(client_identifier))
        if session is not None and clean_start:
            self.end_session(session)
            session = None
        present = session is not None
        if session is None:
            self.ending.make_way(client_identifier)
            session = Session(client_identifier, self.ledger, expiry_interval_s)
            self.sessions[client_identifier] = session
        else:
            self.set_expiry_interval(session, expiry_interval_s)
        session.will = will
        session.ends_ms = 0
        self._deadlines.remove(session)
        if self.recording and (session.logged or session.durable or will is not None):
            session.logged = True
            self.ledger.records.add("session", self.ledger.now_us, client_identifier, expiry_interval_s)
            if will is not None:
                self.ledger.records.add("will", self.ledger.now_us, client_identifier, *will.fields())
        return session, present

    def set_expiry_interval(self, Session session not None, expiry_interval_s: int) -> None:
        """Set when a session ends after its connection, in seconds; it is recorded with the connection's beginning or end."""
        if self.interest is not None and session.durable != (expiry_interval_s != 0):
            self.interest.durability_changes(session, self.tree.subscriptions_of(session))
        session.set_expiry_interval(expiry_interval_s)

    def detach_session(self, Session session not None, publish_will: bool) -> None:
        """The connection of a session is gone.

        The will, if it is to be published, goes out at once or after its delay, but not later than the session ends
        [MQTT-3.1.2-8], [MQTT-3.1.3-9]. A session with expiry interval 0 ends here [MQTT-3.1.2-23].
        """
        if self.interest is not None and session.sink is not None:
            self.interest.connection_changes(False, self.tree.subscriptions_of(session))
        session.detach()
        if session.will is not None and not publish_will:
            session.will = None
            if session.logged:
                self.ledger.records.add("will_removed", self.ledger.now_us, session.client_identifier)
        if session.expiry_interval_s == 0:
            self.end_session(session)
            return
        if session.will is not None and session.will.delay_interval_s == 0:
            self._publish_will(session)
        if session.logged:
            self.ledger.records.add(
                "detached", self.ledger.now_us, session.client_identifier, session.expiry_interval_s,
                session.outgoing.next_number if session.outgoing is not None else 0)
        self.start_deadlines(session, 0)

    def start_deadlines(self, Session session not None, passed_ms: int) -> None:
        """Let a session whose connection is gone since `passed_ms` end in its time, and its will be published."""
        self._deadlines.start(session, self.ledger.now_ms - <int64_t>passed_ms)

    def end_session(self, Session session not None) -> None:
        """Forget a session: its subscriptions, what it is owed, its identifiers.

        Of what came through a shared subscription, unsent messages and sent QoS 1 messages go to another member
        (4.8.2); sent QoS 2 messages never do [MQTT-4.8.2-5], and are counted.
        """
        assert session.sink is None, session.client_identifier
        del self.sessions[session.client_identifier]
        self.remove_receiver(session)
        session.gone = True
        self._deadlines.remove(session)
        self._publish_will(session)
        self.ending.end(session)

    def _publish_will(self, Session session not None) -> None:
        """Publish a session's will, if it has one; `will.message` returns None for one that its client may not publish."""
        cdef Message message
        will, session.will = session.will, None
        if will is None:
            return
        message = will.message(self.ledger.now_ms)
        if message is None or is_own_topic(message.topic, message.topic_length):
            self.ledger.dropped_messages[DROP_NOT_AUTHORIZED] += 1
            if session.logged:
                self.ledger.records.add("will_removed", self.ledger.now_us, session.client_identifier)
        elif session.logged:
            # One record is both: it has been published, and there is no will any more.
            self._publish_recorded(session, message, self.tree.route(message.topic, message.topic_length), 0, True)
            self.effects.awaited_count = 0       # nobody is acknowledged
        else:
            self.publish_message(message, session)

    def expire(self, sessions_max: int = 0) -> int:
        """Do what has fallen due, wills and ends, of so many sessions at most (0: all). Returns the next due time or 0."""
        cdef int64_t left = sessions_max or -1
        while left and (session := self._deadlines.due(self.ledger.now_ms)) is not None:
            left -= 1
            self._fall_due(session)
        return self._deadlines.next_ms

    cdef Session _fall_due(self, Session session):
        cdef int64_t now_ms = self.ledger.now_ms
        if session is None or session.deadline_place == 0:
            return session
        self._deadlines.remove(session)
        if session.will is not None and session.will_due_ms <= now_ms:
            self._publish_will(session)
        if session.ends_ms == 0 or session.ends_ms > now_ms:
            self._deadlines.go_on(session)
            return session
        self.ledger.sessions_expired += 1
        self.end_session(session)

    def subscribe(self, Receiver receiver not None, bytes topic_filter not None, options: int, identifier: int = 0,
                  *, bint asks_retained=True):
        """Subscribe, or replace an identical subscription in place [MQTT-3.8.4-3].

        Args:
            receiver: a Session, or an in-process client, which is never durable.
            topic_filter: valid, perhaps `$share/name/filter`.
            options: Subscription Options byte (3.8.3.1).
            asks_retained: False: retained messages are not looked for, whatever the options say.

        Returns the retained messages to send now, by Retain Handling [MQTT-3.3.1-9..11]; none for a shared one: a list,
        or a RetainedScan that reads them, where there is an index.
        """
        cdef bint is_sys = is_sys_topic(<const uint8_t*>PyBytes_AS_STRING(topic_filter), len(topic_filter))
        if is_sys and self.sys_topics is not None:
            self.sys_topics.bring_up_to_date()
        before = self.tree.options_of(receiver, topic_filter) if self.interest is not None else -1
        is_new = self.tree.subscribe(receiver, topic_filter, options, identifier)
        if self.interest is not None:
            self.interest.changes(topic_filter, receiver, before, options)
        if self.recording and receiver.durable:
            self.ledger.records.add("subscribe", self.ledger.now_us, (<Session?>receiver).client_identifier,
                                    topic_filter, options, identifier)
        handling = options & RETAIN_HANDLING_MASK
        if not asks_retained or topic_filter.startswith(b"$share/") or handling == 0x20 or (
                handling == 0x10 and not is_new):
            return []
        if is_sys:
            return self.sys_topics.match(topic_filter) if self.sys_topics is not None else []
        return self.retaining.match_new(receiver, topic_filter) if is_new else self.retaining.match(topic_filter)

    cdef int deliver_retained(self, Session session, Message message, uint8_t qos, const uint8_t* ids,
                              uint32_t ids_length) except -1:
        """Give a session a retained message that its SUBSCRIBE asked for, with RETAIN 1 [MQTT3-3.3.1-8]."""
        cdef int reason
        if qos == 0 or not self.recording or not session.durable:
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
        if qos == 0 or not self.recording or not session.durable:
            session.deliver(message, qos, retain, ids, ids_length, NULL)
            return 0
        owned = message.keep()
        self.effects.address(session, owned, qos, retain, ids, ids_length, None, None, 0)
        return 0

    def retained_message(self, bytes topic_name not None) -> Message | None:
        """Return what a new subscriber to a topic name would be sent now, None if it is nothing."""
        if self.sys_topics is not None and topic_name.startswith(b"$SYS"):
            return self.sys_topics.message_of(topic_name)
        return self.retaining.message_of(topic_name)

    def unsubscribe(self, Receiver receiver not None, bytes topic_filter not None) -> bool:
        """Remove a subscription; returns whether there was one. What is already owed stays owed [MQTT-3.10.4-3]."""
        cdef Session session = receiver if isinstance(receiver, Session) else None
        if topic_filter.startswith(REPLAY_PREFIX):
            removed = session is not None and session.replays is not None and topic_filter in session.replays
            if removed:
                del session.replays[topic_filter]
        else:
            before = self.tree.options_of(receiver, topic_filter) if self.interest is not None else -1
            removed = self.tree.unsubscribe(receiver, topic_filter)
            self.retaining.fences.take_down(receiver, topic_filter)
            if removed and self.interest is not None:
                self.interest.changes(topic_filter, receiver, before, -1)
        if removed and self.recording and receiver.durable:
            self.ledger.records.add("unsubscribe", self.ledger.now_us, (<Session?>receiver).client_identifier,
                                    topic_filter)
        return removed

    def remove_receiver(self, Receiver receiver not None) -> None:
        """End every subscription of a receiver."""
        if self.interest is not None:
            self.interest.ends(receiver, self.tree.subscriptions_of(receiver))
        self.tree.remove_receiver(receiver)
        self.retaining.fences.forget(receiver)

    @property
    def deadline_count(self) -> int:
        """Sessions with a deadline: at most one for each session without a connection."""
        return self._deadlines.count
