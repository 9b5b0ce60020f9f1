"""The router: what one worker owes its clients.

Events in, effects out: no packet, socket, clock or chance is known here. `ledger.now_ms` is the only time there is.
Messages go to receivers at once unless they rest on a record (`recording`); then they wait in `effects` until whoever
drives the router says how far the log is durable.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from heapq import heappop, heappush

from router.receiver cimport DROPPED, RETAIN_HANDLING_MASK
from router.ledger cimport DROP_NO_MEMBER, DROP_NOT_AUTHORIZED, DROP_RETAINED_FULL, DROP_SESSION_ENDED
from router.outgoing cimport DELIVERY_QUEUED, DELIVERY_SENT, Delivery, Outgoing
from router.receiver cimport Entry
from router.session cimport EXPIRY_NEVER
from router.routes cimport Target
from router.shared cimport SharedGroup
from router.topics cimport is_sys_topic
from libc.stdlib cimport free


@cython.final
cdef class Router:
    """Sessions, subscriptions, retained messages and what follows from a publish.

    Args:
        ledger: limits and counters shared with the sessions.
        seed: of the random choice between members of a shared subscription; 64 bits.
        strategy: of shared subscriptions, a name in router.shared.STRATEGIES.
        routes_max: topic names whose receivers are remembered.
    """

    def __init__(self, Ledger ledger not None, seed: int = 0, strategy: str = "round_robin", routes_max: int = 65_536):
        self.ledger = ledger
        self.tree = SubscriptionTree(strategy, seed, routes_max)
        self.retained = RetainedStore(seed)
        self.effects = Effects()
        self.sessions = {}
        self._deadlines = []

    # Publishing ----------------------------------------------------------------------------------------------------

    cdef int publish(self, Receiver publisher, Message message, Route route) except -1:
        """Give a message to everybody who wants it, now or when its record is durable.

        Args:
            publisher: who published, for No Local and hashing; None for the broker's own.
            message: may be borrowed; what is stored is a copy.
            route: of the message's topic, fresh.

        Returns the number of receivers that it is for, a shared subscription being one, whether or not each has room
        for it: what a receiver drops is counted there.
        """
        self.recorded = self.recording and self.rests_on_record(publisher, message, route)
        if self.recorded:
            return self._publish_recorded(publisher, message, route)
        if message.retain:
            self.retain(message)
        return self._publish_now(publisher, message, route)

    cdef int _publish_now(self, Receiver publisher, Message message, Route route) except -1:
        cdef uint32_t index
        cdef Target* target
        cdef Target own
        cdef int reached = 0
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.no_local and target.receiver == <void*>publisher:
                # The publisher's own subscriptions that ask for No Local do not count, the others do [MQTT-3.8.3-3].
                if self.tree.target_for(message.topic, message.topic_length, publisher, True, &own):
                    reached += 1
                    try:
                        publisher.deliver(message, min(message.qos, own.qos), message.retain and own.retain_as_published,
                                          own.ids, own.ids_length, NULL)
                    finally:
                        free(own.ids)
                continue
            reached += 1
            (<Receiver>target.receiver).deliver(message, min(message.qos, target.qos),
                                                message.retain and target.retain_as_published,
                                                target.ids, target.ids_length, NULL)
        for index in range(route.group_count):
            reached += 1
            if not (<SharedGroup>route.groups[index]).publish(publisher, message):
                self.ledger.dropped_messages[DROP_NO_MEMBER] += 1
        return reached

    cdef bint rests_on_record(self, Receiver publisher, Message message, Route route) except -1:
        cdef uint32_t index, member
        cdef Target* target
        cdef SharedGroup group
        if message.retain:
            return True
        if message.qos == 0:
            return False
        if publisher is not None and publisher.waiting_records:
            return True         # behind what its publisher has waiting, or order would be lost [MQTT-4.6.0-5]
        if message.qos == 2 and publisher is not None and publisher.durable:
            return True
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.qos and (<Receiver>target.receiver).durable:
                return True
        for index in range(route.group_count):
            group = <SharedGroup>route.groups[index]
            for member in range(group.member_count):
                if (<Receiver>group.members[member].partner).durable:
                    return True
        return False

    cdef int _publish_recorded(self, Receiver publisher, Message message, Route route) except -1:
        """QoS 0 copies leave at once; the others, and whoever is acknowledged after them, wait for the record."""
        cdef Message owned = message.keep()
        cdef uint32_t index
        cdef Target* target
        cdef Target own
        cdef int reached = 0
        self.effects.record(("accepted", owned))
        if owned.retain:
            self.retain(owned)
        for index in range(route.target_count):
            target = &route.targets[index]
            if target.no_local and target.receiver == <void*>publisher:
                if not self.tree.target_for(owned.topic, owned.topic_length, publisher, True, &own):
                    continue
                reached += 1
                try:
                    self._deliver_recorded(publisher, owned, &own)
                finally:
                    free(own.ids)
                continue
            reached += 1
            self._deliver_recorded(<Receiver>target.receiver, owned, target)
        for index in range(route.group_count):
            self.effects.share(<SharedGroup>route.groups[index], publisher, owned)
            reached += 1
        return reached

    cdef int _deliver_recorded(self, Receiver receiver, Message owned, Target* target) except -1:
        cdef uint8_t qos = min(owned.qos, target.qos)
        cdef bint retain = owned.retain and target.retain_as_published
        if qos == 0:
            receiver.deliver(owned, 0, retain, target.ids, target.ids_length, NULL)
        else:
            self.effects.deliver(receiver, owned, qos, retain, target.ids, target.ids_length, NULL)
        return 0

    cdef int retain(self, Message message) except -1:
        """Replace the topic's retained message; an empty payload removes it [MQTT-3.3.1-5], [MQTT-3.3.1-6]."""
        if message.payload_length == 0:
            self.retained.clear(message.topic, message.topic_length)
        elif self.may_retain(message):
            self.retained.store(message.keep())
        else:
            self.ledger.dropped_messages[DROP_RETAINED_FULL] += 1
        return 0

    cdef bint may_retain(self, Message message) except -1:
        """Return whether the limits on retained messages let this one in; one that replaces another counts its growth.

        Whoever publishes for a client asks before; what is published all the same goes out and is not kept.
        """
        cdef Ledger ledger = self.ledger
        cdef Message older
        cdef uint64_t size, older_size = 0
        if message.payload_length == 0:
            return True
        size = <uint64_t>message.topic_length + message.properties_length + message.payload_length
        if (self.retained.count < ledger.retained_messages_max and not ledger.memory_full
                and self.retained.size_bytes + size <= ledger.retained_bytes_max):
            return True
        older = self.retained.get(message.topic, message.topic_length)
        if older is not None:
            older_size = <uint64_t>older.topic_length + older.properties_length + older.payload_length
        return older is not None and (
            size <= older_size
            or (not ledger.memory_full
                and self.retained.size_bytes - older_size + size <= ledger.retained_bytes_max))

    cdef int acknowledge(self, Session session, Sink sink, uint8_t packet_type, uint16_t packet_identifier,
                         uint8_t reason, bint recorded) except -1:
        if recorded or session.waiting_records:
            self.effects.acknowledge(session, sink, packet_type, packet_identifier, reason)
        else:
            sink.acknowledge(packet_type, packet_identifier, reason)
        return 0

    def publish_message(self, Message message not None, Receiver publisher=None) -> int:
        """Publish an owned message that no connection sent: a will, an in-process client's.

        Topics under $SYS are the broker's own: such a message is dropped and counted as not authorized.
        """
        if is_sys_topic(message.topic, message.topic_length):
            self.ledger.dropped_messages[DROP_NOT_AUTHORIZED] += 1
            return 0
        return self.publish(publisher, message, self.tree.route(message.topic, message.topic_length))

    def announce(self, Message message not None) -> int:
        """Give a message of the broker's own, one of $SYS, to whoever is connected now, at QoS 0.

        It is not retained, queued, recorded or counted as dropped for those who are not. Returns how many were given it.
        """
        cdef Route route = self.tree.route(message.topic, message.topic_length)
        cdef Receiver receiver
        cdef Target* target
        cdef uint32_t index
        cdef int reached = 0
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

    def settle(self, durable: int) -> int:
        """Let leave what rests on records up to number `durable`. Returns how many effects left."""
        return self.effects.settle(durable)

    # Sessions: rare verbs ------------------------------------------------------------------------------------------

    def open_session(self, bytes client_identifier not None, clean_start: bool, expiry_interval_s: int):
        """Find or make the session of a client identifier whose connection, if any, has been detached.

        Returns (session, session_present). A clean start ends an existing session first [MQTT-3.1.2-4]; its will, if
        one waits for its delay, is published then (3.1.3.2.2). A resumed session's waiting will is cancelled.
        """
        cdef Session session = self.sessions.get(client_identifier)
        if session is not None and clean_start:
            self.end_session(session)
            session = None
        present = session is not None
        if session is None:
            session = Session(client_identifier, self.ledger, expiry_interval_s)
            self.sessions[client_identifier] = session
        else:
            session.set_expiry_interval(expiry_interval_s)
            session.will = None
        session.deadline_sequence += 1
        if self.recording and (present or session.durable):
            self.effects.record(("session", client_identifier, expiry_interval_s))
        return session, present

    def detach_session(self, Session session not None, publish_will: bool) -> None:
        """The connection of a session is gone.

        The will, if it is to be published, goes out at once or after its delay, but not later than the session ends
        [MQTT-3.1.2-8], [MQTT-3.1.3-9]. A session with expiry interval 0 ends here [MQTT-3.1.2-23].
        """
        session.detach()
        if not publish_will:
            session.will = None
        if session.expiry_interval_s == 0:
            self.end_session(session)
            return
        will = session.will
        if will is not None:
            if will.delay_interval_s == 0:
                self._publish_will(session)
            else:
                self._add_deadline(session, DEADLINE_WILL, will.delay_interval_s)
        if session.expiry_interval_s != EXPIRY_NEVER:
            session.ends_ms = self.ledger.now_ms + session.expiry_interval_s * <int64_t>1000
            self._add_deadline(session, DEADLINE_SESSION, session.expiry_interval_s)
        if self.recording:
            self.effects.record(("detached", session.client_identifier, session.expiry_interval_s))

    def end_session(self, Session session not None) -> None:
        """Forget a session: its subscriptions, what it is owed, its identifiers.

        Of what came through a shared subscription, unsent messages and sent QoS 1 messages go to another member
        (4.8.2); sent QoS 2 messages never do [MQTT-4.8.2-5].
        """
        assert session.sink is None, session.client_identifier
        del self.sessions[session.client_identifier]
        self.tree.remove_receiver(session)
        session.gone = True
        session.deadline_sequence += 1
        if self.recording and session.durable:
            self.effects.record(("ended", session.client_identifier))
        self._publish_will(session)
        self._redispatch(session)
        session.outgoing = None

    def _publish_will(self, Session session not None) -> None:
        """Publish a session's will, if it has one; `will.message` returns None for one that its client may not publish."""
        will, session.will = session.will, None
        if will is not None:
            message = will.message(self.ledger.now_ms)
            if message is None:
                self.ledger.dropped_messages[DROP_NOT_AUTHORIZED] += 1
            else:
                self.publish_message(message, session)

    cdef _redispatch(self, Session session):
        cdef Outgoing outgoing = session.outgoing
        cdef Delivery* delivery
        cdef uint64_t number
        if outgoing is None:
            return
        for number in range(outgoing.oldest_open, outgoing.end_number):
            delivery = outgoing.slot(number)
            if delivery.state != DELIVERY_QUEUED and delivery.state != DELIVERY_SENT:
                continue
            if delivery.group == NULL or (delivery.state == DELIVERY_SENT and delivery.qos == 2):
                if delivery.state == DELIVERY_QUEUED:
                    self.ledger.dropped_messages[DROP_SESSION_ENDED] += 1
            elif not (<SharedGroup>delivery.group).redispatch(session, <Message>delivery.message):
                self.ledger.dropped_messages[DROP_NO_MEMBER] += 1

    cdef _add_deadline(self, Session session, DeadlineKind kind, delay_s):
        self._deadline_sequence += 1
        heappush(self._deadlines, (self.ledger.now_ms + delay_s * 1000, self._deadline_sequence, kind,
                                   session.deadline_sequence, session))

    def expire(self) -> int:
        """Do what has fallen due: delayed wills, ends of sessions. Returns the next due time, monotonic ms, or 0."""
        cdef Session session
        while self._deadlines:
            due_ms, _, kind, sequence, session = self._deadlines[0]
            if session.deadline_sequence == sequence and due_ms > self.ledger.now_ms:
                return due_ms
            heappop(self._deadlines)
            if session.deadline_sequence != sequence:
                continue
            if kind == DEADLINE_WILL:
                self._publish_will(session)
            else:
                self.ledger.sessions_expired += 1
                self.end_session(session)
        return 0

    def subscribe(self, Receiver receiver not None, bytes topic_filter not None, options: int, identifier: int = 0):
        """Subscribe, or replace an identical subscription in place [MQTT-3.8.4-3].

        Args:
            receiver: a Session, or an in-process client, which is never durable.
            topic_filter: valid, perhaps `$share/name/filter`.
            options: Subscription Options byte (3.8.3.1).

        Returns the retained messages to send now, by Retain Handling [MQTT-3.3.1-9..11]; none for a shared one.
        """
        cdef bint is_sys = is_sys_topic(<const uint8_t*>PyBytes_AS_STRING(topic_filter), len(topic_filter))
        if is_sys and self.sys_topics is not None:
            self.sys_topics.bring_up_to_date()
        is_new = self.tree.subscribe(receiver, topic_filter, options, identifier)
        if self.recording and receiver.durable:
            self.effects.record(("subscribe", (<Session?>receiver).client_identifier, topic_filter, options, identifier))
        handling = options & RETAIN_HANDLING_MASK
        if topic_filter.startswith(b"$share/") or handling == 0x20 or (handling == 0x10 and not is_new):
            return []
        if is_sys:
            return self.sys_topics.match(topic_filter) if self.sys_topics is not None else []
        return self.retained.match(topic_filter)

    def retained_message(self, bytes topic_name not None) -> Message | None:
        """Return what a new subscriber to a topic name would be sent now, None if it is nothing."""
        if self.sys_topics is not None and topic_name.startswith(b"$SYS"):
            return self.sys_topics.message_of(topic_name)
        return self.retained.message_of(topic_name)

    def unsubscribe(self, Receiver receiver not None, bytes topic_filter not None) -> bool:
        """Remove a subscription; returns whether there was one. What is already owed stays owed [MQTT-3.10.4-3]."""
        removed = self.tree.unsubscribe(receiver, topic_filter)
        if removed and self.recording and receiver.durable:
            self.effects.record(("unsubscribe", (<Session?>receiver).client_identifier, topic_filter))
        return removed

    @property
    def deadline_count(self) -> int:
        """Deadlines held, including those that no longer mean anything."""
        return len(self._deadlines)
