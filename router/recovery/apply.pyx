"""Recovery: records of the commit log, fed to the router that they came from.

The router is a function of what is logged (docs/ARCHITECTURE.md, The commit log): its inputs, and every decision that
they do not imply. What is fed here goes to the same sessions, tree and queues that the running router has, and nothing
is decided again: what was dropped, picked or published then stands in the log as such.

Only what outlives its connection is in the log, so the router that comes out of it has durable sessions, all without a
connection, wills that are still to be published, and retained messages.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free
from libc.string cimport memset
from router.log.record_cursor cimport ACKNOWLEDGED_HEADER, RECORD_ACCEPTED, RECORD_ACKNOWLEDGED, RECORD_COPY, RECORD_RELEASED
from router.log.record_cursor cimport RECORD_FORWARDED, RECORD_STORED, RELEASED_HEADER, get16, get32, message_of
from router.sessions.queue_eviction cimport assume_renumbered
from router.core.message cimport same_bytes, topic_hash
from router.peers.peer cimport Peer
from router.core.receiver cimport QOS_MASK
from router.matching.route_cache cimport Route, Target, write_identifier
from router.matching.shared_groups cimport SharedGroup
from router.sessions.outgoing cimport DELIVERY_QUEUED, DELIVERY_RELEASED, Outgoing
from router.sessions.session cimport digest_of
from router.sessions.sink cimport PUBACK, PUBREC

from router.forwarding import group_identifier
from router.log.record_kinds import RecordError
from router.sessions.replay_subscription import ReplaySubscription, remember

cdef enum:
    PROBLEMS_KEPT = 100


cdef int assume_window_sent(Outgoing outgoing) except -1:
    """The connection was lost without a record of it: whatever is owed may have been sent, since acknowledgements
    whose records were lost had opened the window further than anybody can tell now."""
    return outgoing.assume_sent_below(min(outgoing.end_number, outgoing.oldest_open + outgoing.window_max()))


cdef int skip_to(Outgoing outgoing, uint64_t number) except -1:
    """Use up the numbers from the end to this one; if nothing is owed, at no cost for each of them."""
    if outgoing.oldest_open == outgoing.end_number and number > outgoing.end_number:
        outgoing.oldest_open = outgoing.next_number = outgoing.resend_number = outgoing.end_number = number
    while outgoing.end_number < number:
        outgoing._use_up(outgoing.end_number, 0)
    return 0


cdef int restore_state(Outgoing outgoing, uint64_t number, uint8_t state) except -1:
    """Bring a delivery that was just queued as the newest to a later state, as a snapshot says."""
    if state != DELIVERY_QUEUED:
        outgoing.assume_sent_below(number + 1)
    if state == DELIVERY_RELEASED:
        outgoing._release(outgoing.slot(number))
        outgoing.slot(number).state = DELIVERY_RELEASED
    return 0


@cython.final
cdef class Recovery:
    """Feeds a router that is not recording yet.

    Args:
        router: empty, or as earlier records have left it.
        make_will: makes a session's will of the fields of its record.
        now_us, now_ms: the same moment, since 1970 and monotonic.
        worker: whose log it is.
    """

    def __init__(self, Router router not None, make_will, now_us: int, now_ms: int, worker: int = 0):
        self.router = router
        self.make_will = make_will
        self.now_us = now_us
        self.now_ms = now_ms
        self.worker = worker
        self.topic = Message.__new__(Message)
        self.peers = {}
        self.picks = []
        self.copies = []
        self.skipped = []
        self.readers = []
        self.detached_us = {}
        self.problems = []
        self.places = b""

    def feed(self, Cursor cursor not None) -> None:
        """Apply all records of a cursor, to its end.

        A record that does not fit the ones before it, because those are lost, changes what it can and is counted in
        `problem_count`. Cost: some 0.2 µs for a record of fixed layout, some 5 µs for another.
        """
        while cursor.next():
            self.fed += 1
            self.last_number = cursor.number
            self.apply(cursor)

    def feed_retained(self, Cursor cursor not None) -> None:
        """Apply what the records of a cursor say of retained messages, and nothing else."""
        cdef MessageFields fields
        while cursor.next():
            if cursor.kind == RECORD_ACCEPTED and cursor.message_fields(&fields) == 0 and fields.retain:
                self.retain(cursor, &fields)

    cdef int retain(self, Cursor cursor, MessageFields* fields) except -1:
        self.router.ledger.stamp_us = max(self.router.ledger.stamp_us, cursor.time_us)
        if cursor.number > self.router.retaining.known:
            # Rounded down, as message_of() rounds up: together they give the time of expiry that is in the record.
            self.router.retaining.recover(
                message_of(fields, self.now_us, self.now_ms), cursor.number, cursor.time_us,
                self.now_ms - (self.now_us - cursor.time_us) // 1000)
        return 0

    cdef int apply(self, Cursor cursor) except -1:
        cdef Session session
        if cursor.kind == RECORD_ACCEPTED:
            return self.on_accepted(cursor)
        if cursor.kind == RECORD_FORWARDED:
            return self.on_forwarded(cursor)
        if cursor.kind == RECORD_ACKNOWLEDGED:
            return self.on_acknowledged(cursor.body, cursor.body_length)
        if cursor.kind == RECORD_COPY:
            self.keep_decisions(cursor)
            self.copies.append(cursor.number)
            return 0
        if cursor.kind == RECORD_STORED:
            return 0
        if cursor.kind == RECORD_RELEASED and cursor.body_length > RELEASED_HEADER:
            session = self.recent_session(cursor.body + RELEASED_HEADER, cursor.body_length - RELEASED_HEADER)
            if session is not None:
                session.incoming_remove(get16(cursor.body))
            return 0
        try:
            return self.apply_rare(cursor)
        except (RecordError, ValueError, TypeError, OverflowError, KeyError) as problem:
            self._note(f"record {cursor.number}: {problem}")
        return 0

    def _note(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)

    cdef Session session_of(self, bytes client_identifier):
        """Return a session, of a client or a peer, None if the log has not told of it."""
        cdef Session session = self.router.sessions.get(client_identifier)
        if session is None and client_identifier in self.router.peers:
            return (<Peer>self.router.peers[client_identifier]).session
        return session

    cdef Session recent_session(self, const uint8_t* client_identifier, size_t length):
        """session_of(), without making an object of the name of one that was asked for not long ago."""
        cdef uint64_t place
        cdef Session session
        if self.newest != NULL and is_named(<Session>self.newest, client_identifier, length):
            return <Session>self.newest          # what a client acknowledges at once comes in a row
        place = topic_hash(client_identifier, length) % RECENT
        if self.recent[place].session != NULL and is_named(<Session>self.recent[place].session, client_identifier, length):
            self.newest = self.recent[place].session
            return <Session>self.newest
        session = self.session_of(PyBytes_FromStringAndSize(<const char*>client_identifier, length))
        if session is not None:
            self.newest = self.recent[place].session = <void*>session
        return session

    # Messages ------------------------------------------------------------------------------------------------------

    cdef int on_accepted(self, Cursor cursor) except -1:
        cdef MessageFields fields
        cdef Session publisher = None
        cdef uint64_t size
        self.keep_decisions(cursor)
        if cursor.message_fields(&fields):
            self._note(f"record {cursor.number} is no well-formed accepted")
            return 0
        if fields.publisher_length and (fields.qos == 2 or fields.will):
            publisher = self.recent_session(fields.publisher, fields.publisher_length)
        if fields.retain:
            self.retain(cursor, &fields)
        if fields.qos:
            size = <uint64_t>fields.topic_length + fields.properties_length + fields.payload_length
            if self.copies:
                self.owe_copies(&fields, size)
            if fields.peer_count:
                self.owe_peers(&fields, cursor.number, size)
            self.owe_targets(&fields, cursor.number, size)
        if publisher is not None:
            if fields.will:
                publisher.will = None
                if publisher.expiry_interval_s == 0:
                    self.forget(publisher)
            elif fields.qos == 2 and fields.packet_identifier and publisher.durable:
                publisher.incoming_restore(fields.packet_identifier, digest_of(
                    fields.topic, fields.topic_length, fields.payload, fields.payload_length))
        if self.picks or self.skipped or self.copies or self.readers:
            self.forget_decisions()
        return 0

    cdef int on_forwarded(self, Cursor cursor) except -1:
        """A peer's message: it is for sessions here, and repeats of it are known from now on."""
        cdef MessageFields fields
        cdef Peer peer
        cdef uint64_t size
        self.keep_decisions(cursor)
        if cursor.message_fields(&fields):
            self._note(f"record {cursor.number} is no well-formed forwarded")
            return 0
        peer = self.peers.get(fields.origin)
        if peer is None:
            self._note(f"record {cursor.number}: no peer {fields.origin}")
        else:
            peer.recovered(fields.incarnation, fields.n)
        size = <uint64_t>fields.topic_length + fields.properties_length + fields.payload_length
        if self.copies:
            self.owe_copies(&fields, size)
        self.owe_targets(&fields, cursor.number, size)
        self.forget_decisions()
        return 0

    cdef int owe_copies(self, MessageFields* fields, uint64_t size) except -1:
        """Peers that were picked for groups are owed the copies before the record, and that before sessions are.

        What a group is wanted for there need not be known here any more: it may have been a wish of its process's.
        """
        cdef uint8_t[5] ids
        cdef uint32_t ids_length
        cdef SharedGroup group
        cdef Session session
        cdef list picks = self.picks
        self.picks = []
        for name, client_identifier in picks:
            session = self.session_of(client_identifier)
            if session is None or not session.peer or not self.copies:
                self.picks.append((name, client_identifier))
                continue
            group = self.router.tree.group(name)
            ids_length = <uint32_t>(write_identifier(ids, <uint32_t>group_identifier(name)) - ids)
            session.owe(self.copies.pop(0), <uint32_t>size, 1, fields.retain, ids, ids_length,
                        <void*>group if group is not None else NULL)
        return 0

    cdef int forget_decisions(self) except -1:
        self.picks.clear()
        self.copies.clear()
        self.skipped.clear()
        self.readers.clear()
        return 0

    cdef int owe_peers(self, MessageFields* fields, uint64_t record, uint64_t size) except -1:
        cdef int index
        cdef Peer peer
        for index in range(fields.peer_count):
            peer = self.peers.get(get32(fields.peers + 4 * index))
            if peer is None:
                self._note(f"record {record}: no peer {get32(fields.peers + 4 * index)}")
            else:
                peer.session.owe(record, <uint32_t>size, 1, fields.retain, NULL, 0, NULL)
        return 0

    cdef int keep_decisions(self, Cursor cursor) except -1:
        """What was decided counts for the records right behind it: if those were lost, not for whatever comes then."""
        if cursor.number != self.decided_number + 1 or cursor.mark != self.decided_mark:
            self.forget_decisions()
        self.decided_number = cursor.number
        self.decided_mark = cursor.mark
        return 0

    cdef int owe_targets(self, MessageFields* fields, uint64_t record, uint64_t size) except -1:
        cdef Route route = self.route
        cdef Target* target
        cdef Target own
        cdef uint32_t index
        cdef uint8_t[5] ids
        cdef uint32_t ids_length
        cdef uint8_t qos
        cdef bint retain
        cdef SharedGroup group
        cdef Session session
        cdef int member
        if not self.router.tree.leads(route, fields.topic, fields.topic_length):
            route = self.route = self.router.tree.route(fields.topic, fields.topic_length)
        for index in range(route.target_count):
            if fields.picked:
                break
            target = &route.targets[index]
            session = <Session>target.receiver
            if session.peer:             # named by the record, if it is owed this
                continue
            if not session.durable or (self.skipped and session in self.skipped):
                continue
            if not target.whole and session.client_identifier not in self.readers:
                continue
            if target.no_local and is_named(session, fields.publisher, fields.publisher_length):
                if self.router.tree.target_for(fields.topic, fields.topic_length, session, True, &own):
                    try:
                        if min(fields.qos, own.qos):
                            session.owe(record, <uint32_t>size, min(fields.qos, own.qos),
                                        fields.retain and own.retain_as_published, own.ids, own.ids_length, NULL)
                    finally:
                        free(own.ids)
                continue
            qos = min(fields.qos, target.qos)
            if qos:
                session.owe(record, <uint32_t>size, qos, fields.retain and target.retain_as_published,
                            target.ids, target.ids_length, NULL)
        if not self.picks:
            return 0
        self.topic.qos = fields.qos
        self.topic.retain = fields.retain
        for name, client_identifier in self.picks:
            group = self.router.tree.group(name)
            session = self.session_of(client_identifier)
            member = group.index_of(session) if group is not None and session is not None else -1
            if member < 0:
                self._note(f"record {record}: {client_identifier!r} is no member of {name!r}")
                continue
            group.terms(member, self.topic, &qos, &retain, ids, &ids_length)
            if qos:
                session.owe(record, <uint32_t>size, qos, retain, ids, ids_length, <void*>group)
        return 0

    cdef int on_acknowledged(self, const uint8_t* body, size_t length) except -1:
        cdef Session session
        cdef uint16_t identifier
        if length <= ACKNOWLEDGED_HEADER:
            return 0
        session = self.recent_session(body + ACKNOWLEDGED_HEADER, length - ACKNOWLEDGED_HEADER)
        if session is None or session.outgoing is None:
            return 0
        identifier = get16(body + 2)
        session.outgoing.assume_sent(identifier)
        if body[0] == PUBACK:
            session.outgoing.on_puback(identifier)
        elif body[0] == PUBREC:
            session.outgoing.on_pubrec(identifier, body[1] >= 0x80)
        else:
            session.outgoing.on_pubcomp(identifier)
        return 0

    # Sessions ------------------------------------------------------------------------------------------------------

    cdef int forget(self, Session session) except -1:
        """The session is over; nothing follows from it here."""
        del self.router.sessions[session.client_identifier]
        self.detached_us.pop(session.client_identifier, None)
        self.router.tree.remove_receiver(session)
        self.router.retaining.fences.forget(session)
        session.gone = True
        session.outgoing = None
        memset(self.recent, 0, sizeof(self.recent))
        self.newest = NULL
        return 0

    cdef int apply_rare(self, Cursor cursor) except -1:
        cdef Session session
        kind = cursor.kind_name()
        cdef dict fields = cursor.fields()
        if kind == "readers":
            self.keep_decisions(cursor)
            self.readers.extend(fields["client_identifiers"])
            return 0
        if self.apply_to_router(cursor, kind, fields):
            return 0
        client_identifier = fields["client_identifier"]
        session = self.session_of(client_identifier)
        if kind == "session":
            self.begin_session(session, client_identifier, fields["expiry_interval_s"])
        elif kind == "shared_pick":
            self.keep_decisions(cursor)
            self.picks.append((fields["group"], client_identifier))
        elif kind == "skipped":
            self.keep_decisions(cursor)
            if session is not None:
                self.skipped.append(session)
        elif session is None:
            # A hole in the log has taken its beginning; or an ephemeral session's end, which means nothing here.
            if kind != "ended" and kind != "will_removed":
                self._note(f"record {cursor.number} ({kind}): no session of {client_identifier!r}")
        elif not self.apply_to_session(cursor, session, kind, fields) and not self.apply_to_deliveries(
                session, kind, fields):
            raise RecordError(f"{kind} does not belong here")
        return 0

    cdef bint apply_to_router(self, Cursor cursor, str kind, dict fields) except -1:
        """Apply a record that is of no session; returns whether it was one."""
        cdef Peer peer
        if kind == "snapshot":
            self.first_number = fields["first_number"]
            self.router.ledger.stamp_us = fields["stamp_us"]
        elif kind == "snapshot_end":
            self.places = fields["places"]
            self.ended = True
        elif kind == "peer":
            peer = self.peers.get(fields["peer"])
            if peer is None:
                peer = Peer(self.router.ledger, fields["router_identifier"], fields["peer"])
                self.peers[peer.number] = self.router.peers[peer.session.client_identifier] = peer
            peer.heard = max(peer.heard, fields["heard"])
        elif kind == "peer_heard":
            peer = self.peers[fields["peer"]]
            peer.recovered(fields["incarnation"], fields["heard"])
        elif kind == "peer_acknowledged":
            peer = self.peers[fields["peer"]]
            if peer.session.outgoing is not None:
                peer.session.outgoing.done_with(fields["record"])
        elif "client_identifier" not in fields:
            raise RecordError(f"{kind} does not belong here")
        else:
            return False
        return True

    cdef int begin_session(self, Session session, bytes client_identifier, uint32_t expiry_interval_s) except -1:
        """A session is made, or is its client's again; the record of its will follows, if it has one."""
        if session is not None and expiry_interval_s == 0:
            self.forget(session)
            session = None
        if session is None:
            session = Session(client_identifier, self.router.ledger, expiry_interval_s)
            session.logged = True
            self.router.sessions[client_identifier] = session
        else:
            session.set_expiry_interval(expiry_interval_s)
        session.will = None
        self.detached_us.pop(client_identifier, None)
        return 0

    cdef bint apply_to_session(self, Cursor cursor, Session session, str kind, dict fields) except -1:
        """Apply a record of what a session is and wants; returns whether it was one."""
        if kind == "detached":
            session.set_expiry_interval(fields["expiry_interval_s"])
            self.detached_us[session.client_identifier] = cursor.time_us
            if session.outgoing is not None:
                session.outgoing.assume_sent_below(fields["next_number"])
        elif kind == "ended":
            self.forget(session)
        elif kind == "replay_in_logs":
            remember(self.router, session, ReplaySubscription.restored(
                fields["topic_filter"], fields["options"], fields["identifier"], fields["since_us"],
                fields["positions"]))
        elif kind == "replay":
            # As it was written while a replay read its own worker's log and no other.
            remember(self.router, session, ReplaySubscription.restored(
                fields["topic_filter"], fields["options"], fields["identifier"], fields["since_us"],
                [] if fields["since_us"] >= 0 else [self.worker, fields["number"]]))
        elif kind == "subscribe":
            self.router.tree.subscribe(session, fields["topic_filter"], fields["options"], fields["identifier"])
        elif kind == "unsubscribe":
            self.router.tree.unsubscribe(session, fields["topic_filter"])
            self.router.retaining.fences.take_down(session, fields["topic_filter"])
        elif kind == "fenced":
            self.router.retaining.fences.restore(session, fields["topic_filter"], fields["reached"])
        elif kind == "principal":
            session.principal = fields["principal"]
        elif kind == "mounted":
            session.mount_point = fields["mount_point"]
        elif kind == "will":
            session.will = self.make_will(*fields.values())
        elif kind == "will_removed":
            session.will = None
            if session.expiry_interval_s == 0:
                self.forget(session)
        else:
            return False
        return True

    cdef bint apply_to_deliveries(self, Session session, str kind, dict fields) except -1:
        """Apply a record of what a session is owed, or has in doubt from its client; returns whether it was one."""
        cdef Session other
        if kind == "shifted":
            session.make_outgoing()
            session.outgoing.shift(fields["first_number"], fields["amount"])
            session.mark_incoming()
        elif kind == "dropped":
            session.make_outgoing()
            session.outgoing.assume_dropped(fields["number"])
        elif kind == "renumbered":
            if session.outgoing is not None:
                assume_renumbered(session.outgoing, fields["first_number"], fields["amount"])
        elif kind == "delivery":
            other = self.session_of(fields["from_client"]) if fields["from_client"] else None
            if other is not None and other.outgoing is not None:
                other.outgoing.assume_dropped(fields["from_number"])
            self._owe(session, fields["record"], fields["size"], fields["qos"], fields["retain"], fields["identifiers"],
                      fields["group"])
        elif kind == "deliveries":
            session.make_outgoing()
            for number, record, size, qos, state, retain, identifiers, group in fields["deliveries"]:
                self._take_numbers(session, number)
                self._owe(session, record, size, qos, retain, identifiers, group)
                restore_state(session.outgoing, number, state)
            self._take_numbers(session, fields["end_number"])
            session.outgoing.assume_sent_below(fields["next_number"])
        elif kind == "incoming":
            for identifier in fields["packet_identifiers"]:
                session.incoming_restore(identifier, 0)
        elif kind == "incoming_messages":
            for identifier, digest in fields["messages"]:
                session.incoming_restore(identifier, digest)
        else:
            return False
        return True

    def _take_numbers(self, Session session not None, number: int) -> None:
        """The numbers before this one that no delivery has are used up."""
        skip_to(session.outgoing, number)

    def _owe(self, Session session not None, record: int, size: int, qos: int, retain: bool, bytes identifiers not None,
             bytes group not None) -> None:
        cdef SharedGroup shared = self.router.tree.group(group) if group else None
        session.owe(record, size, qos, retain, <const uint8_t*>PyBytes_AS_STRING(identifiers),
                    <uint32_t>len(identifiers), <void*>shared if shared is not None else NULL)

    def finish(self) -> list[bytes]:
        """Everything has been fed: no session has a connection now.

        Returns the client identifiers of those whose connection the log knows no end of: what they were sent last is in
        doubt, and a `detached` record is due for them.
        """
        cdef Session session
        cdef list lost = []
        for client_identifier, session in self.router.sessions.items():
            if client_identifier in self.detached_us:
                continue
            lost.append(client_identifier)
            if session.outgoing is not None:
                assume_window_sent(session.outgoing)
        return lost


cdef inline bint is_named(Session session, const uint8_t* client_identifier, size_t length) noexcept:
    return (<size_t>PyBytes_GET_SIZE(session.client_identifier) == length
            and same_bytes(<const uint8_t*>PyBytes_AS_STRING(session.client_identifier), client_identifier, length))
