"""The router: what one worker owes its clients.

Events in, effects out: no socket, clock or chance is known here, and of packets no more than types, identifiers and
reason codes. `ledger.now_ms` is the only time there is. What comes with every message is in router/publishing.pyx and
router/exchanges.pyx; here is what comes more rarely: sessions, subscriptions, wills.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from router.core.message cimport Message
from router.core.receiver cimport DROPPED, RETAIN_HANDLING_MASK, Receiver
from router.effects cimport Effects
from router.log.record_buffer cimport RecordBuffer
from router.matching.archive_filters cimport ArchiveFilters
from router.matching.ended_subscriptions cimport EndedSubscriptions
from router.matching.route_cache cimport Route, Target
from router.matching.shared_groups cimport SharedGroup
from router.matching.subscription_tree cimport SubscriptionTree
from router.matching.topic_names cimport is_own_topic, is_state_topic, is_sys_topic
from router.peers.deferred_acks cimport Waiters
from router.publishing cimport Publication
from router.retained.retained cimport Retaining
from router.sessions.ledger cimport DROP_NOT_AUTHORIZED, Ledger

from router.sessions.replay_subscription import REPLAY_PREFIX

cdef enum:
    ENDED_AT_ONCE = 64           # so many subscriptions end as a whole
    ENDED_WORK = 4096            # levels of ended subscriptions, and some for each, that a turn deals with: some 0.5 ms


@cython.final
cdef class Router(Exchanges):
    """Sessions, subscriptions, retained messages and what follows from a publish.

    Args:
        ledger: limits and counters shared with the sessions.
        seed: of the random choice between members of a shared subscription; 64 bits.
        strategy: of shared subscriptions, a name in router.matching.shared_groups.STRATEGIES.
        routes_max, routes_bytes_max: topic names whose receivers are remembered, and the bytes that this may take.
        index: retained messages on disk (router.retained.lmdb_index.RetainedIndex); None: they are kept in memory.
        retains: False: retained messages that are recovered are passed over.
    """

    def __init__(self, Ledger ledger not None, seed: int = 0, strategy: str = "round_robin", routes_max: int = 65_536,
                 *, routes_bytes_max: int = 0xFFFFFFFFFFFFFFFF, index=None, retains: bool = True):
        self.ledger = ledger
        self.tree = SubscriptionTree(strategy, seed, routes_max, routes_bytes_max)
        self.retaining = Retaining(ledger, seed, index, retains)
        self.retained = self.retaining.store
        self.effects = Effects(ledger)
        self.sessions = {}
        self.peers = {}
        self.indexing = Waiters()
        self._deadlines = Deadlines()
        self.ended = EndedSubscriptions(self.tree)
        self.ending = Ending(ledger, self.effects)
        self.accepting = True

    def record_into(self, RecordBuffer records) -> None:
        """From here on what rests on a record waits for it, and the records come to lie in this buffer."""
        self.ledger.records = records
        self.recording = records is not None

    def archive(self, ArchiveFilters filters) -> None:
        """Record whatever these topic filters match. To be called while no route has been read."""
        assert self.tree.route_cache_count == 0, "routes that do not know whether they are archived"
        self.tree.archive = filters

    def publish_message(self, Message message not None, Receiver publisher=None, *, bint own=False) -> tuple[int, bool]:
        """Publish an owned message that no connection sent: a will, an in-process client's.

        Topics under $SYS, $replay and $shoal are our own: such a message is dropped and counted as not authorized.

        Args:
            own: it is what workers keep for one another, below $shoal.

        Returns how many receivers it is for, and whether it rests on a record.
        """
        cdef Publication publication
        if own:
            assert is_state_topic(message.topic, message.topic_length), message.topic_name
        elif is_own_topic(message.topic, message.topic_length):
            self.ledger.dropped_messages[DROP_NOT_AUTHORIZED] += 1
            return 0, False
        memset(&publication, 0, sizeof(Publication))
        reached = self.publish(publisher, message, self.tree.route(message.topic, message.topic_length), &publication)
        self.effects.awaited_count = 0           # no client is acknowledged
        return reached, bool(publication.recorded)

    def announce(self, Message message not None, Receiver only=None) -> int:
        """Give a message of the broker's to receivers online now, at QoS 0, or to one; returns how many.

        For others nothing is counted.
        """
        cdef Route route = self.tree.route(message.topic, message.topic_length)
        cdef Receiver receiver
        cdef Target* target
        cdef uint32_t index, reached = 0
        assert message.owned and message.qos == 0, message.topic_name
        for index in range(route.target_count):
            target = &route.targets[index]
            receiver = <Receiver>target.receiver
            if receiver.online() and (only is None or receiver is only):
                reached += receiver.deliver(message, 0, message.retain and target.retain_as_published,
                                            target.ids, target.ids_length, NULL) != DROPPED
        if only is None:
            for index in range(route.group_count):
                reached += (<SharedGroup>route.groups[index]).publish(None, message)
        return reached

    def tell(self, Message message not None, Receiver receiver not None) -> bool:
        """Give a message of the broker's, at QoS 0, to one receiver that is online, whatever it subscribes to."""
        return receiver.online() and receiver.deliver(message, 0, False, NULL, 0, NULL) != DROPPED

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

    def open_session(self, bytes client_identifier not None, clean_start: bool, expiry_interval_s: int, will=None,
                     bytes mount_point=b"", principal=None):
        """Find or make the session of a client identifier whose connection, if any, has been detached.

        Returns (session, session_present). A clean start ends an existing session first [MQTT-3.1.2-4]; its will, if
        one waits for its delay, is published then (3.1.3.2.2). A resumed session's waiting will is cancelled. A session
        of another mount point ends likewise: what it subscribes to and is owed has names that its client does not know.

        Args:
            will: of the new connection; `delay_interval_s`, `message(now_ms)` and, where there is a log, `fields()`, or
                None.
            mount_point: under which the client lives; b"" for the broker's whole tree.
            principal: who the client is, for rights; `encoded()` where there is a log; None: it may read everything.
        """
        cdef Session session = self._fall_due(self.sessions.get(client_identifier))
        if session is not None and (clean_start or session.mount_point != mount_point):
            self.end_session(session)
            session = None
        present = session is not None
        if session is None:
            self.ending.make_way(client_identifier)
            session = Session(client_identifier, self.ledger, expiry_interval_s)
            session.mount_point = mount_point
            self.sessions[client_identifier] = session
        else:
            self.set_expiry_interval(session, expiry_interval_s)
        was_logged, session_principal = session.logged, session.principal
        self.give_rights(session, principal)
        session.will = will
        session.ends_ms = 0
        self._deadlines.remove(session)
        if self.recording and (session.logged or session.durable or will is not None):
            session.logged = True
            self.ledger.records.add("session", self.ledger.now_us, client_identifier, expiry_interval_s)
            if mount_point:
                self.ledger.records.add("mounted", self.ledger.now_us, client_identifier, mount_point)
            if principal is not None and not (was_logged and session_principal == principal):
                self.record_principal(session)
            if will is not None:
                self.ledger.records.add("will", self.ledger.now_us, client_identifier, *will.fields())
        return session, present

    def give_rights(self, Receiver receiver not None, principal) -> None:
        """From here on a receiver reads as this principal."""
        if receiver.principal == principal:
            return
        if self.tree.rights is None:
            receiver.principal = principal
            return
        self.tree.rights.give(receiver, principal)
        if receiver.entry_count:
            self.tree.generation_all += 1        # it may be left out of other routes now

    def change_principal(self, Session session not None, principal) -> None:
        """A session's client is another principal from here on."""
        self.give_rights(session, principal)
        if session.logged:
            self.record_principal(session)

    def doubt(self, Receiver receiver not None, another: bool) -> None:
        """What a session is owed leaves only as far as its client may read it now.

        Args:
            another: its client is another user than before: what has been sent is not sent again either.
        """
        if self.tree.rights is not None and isinstance(receiver, Session):
            (<Session>receiver).doubt(self.tree.rights, another)

    def record_principal(self, Session session not None) -> None:
        """Record as whom a session reads."""
        self.ledger.records.add(
            "principal", self.ledger.now_us, session.client_identifier, session.principal.encoded())

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
            self.interest.connection_changes(False, self.tree.subscriptions_of(session, shared_only=True))
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

    def suspend_session(self, Session session not None) -> bool:
        """The connection of a session ends because this process does: nothing follows from it here.

        The log has it as connected, as after a crash, so a later process publishes its will, unless its client
        is back before: a server may put that off until it is started again (3.1.2.5). Returns False, and has done nothing,
        if the log has no record of it.
        """
        if not session.logged:
            return False
        if self.interest is not None and session.sink is not None:
            self.interest.connection_changes(False, self.tree.subscriptions_of(session, shared_only=True))
        session.detach()
        return True

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
        cdef Publication publication
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
            memset(&publication, 0, sizeof(Publication))
            self.publish_recorded(
                session, message, self.tree.route(message.topic, message.topic_length), &publication, True)
            self.effects.awaited_count = 0       # no client is acknowledged
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
        if self.records_of(receiver):
            self.ledger.records.add("subscribe", self.ledger.now_us, (<Session?>receiver).client_identifier,
                                    topic_filter, options, identifier)
        handling = options & RETAIN_HANDLING_MASK
        if not asks_retained or topic_filter.startswith(b"$share/") or handling == 0x20 or (
                handling == 0x10 and not is_new):
            return []
        if is_sys:
            return self.sys_topics.match(topic_filter) if self.sys_topics is not None else []
        return self.retaining.match_new(receiver, topic_filter) if is_new else self.retaining.match(topic_filter)

    def retained_message(self, bytes topic_name not None) -> Message | None:
        """Return what a new subscriber to a topic name would be sent now, None if it is nothing."""
        if self.sys_topics is not None and is_sys_topic(
                <const uint8_t*>PyBytes_AS_STRING(topic_name), len(topic_name)):
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
        if removed and self.records_of(receiver):
            self.ledger.records.add("unsubscribe", self.ledger.now_us, (<Session?>receiver).client_identifier,
                                    topic_filter)
        return removed

    def remove_receiver(self, Receiver receiver not None) -> None:
        """End every subscription of a receiver; of many, what is left to be done is done in turns."""
        if receiver.entry_count > ENDED_AT_ONCE:
            self.ended.end(receiver, self.interest)
        else:
            if self.interest is not None:
                self.interest.ends(receiver, self.tree.subscriptions_of(receiver))
            self.tree.remove_receiver(receiver)
        self.retaining.fences.forget(receiver)

    def forget_some(self) -> None:
        """Do a turn's share of what is left to be done about subscriptions that have ended."""
        self.ended.go_on(self.interest, ENDED_WORK)

    @property
    def deadline_count(self) -> int:
        """Sessions with a deadline: at most one for each session without a connection."""
        return self._deadlines.count
