"""One router among others: its links, what it tells them and what they tell it.

Messages and their acknowledgements are the links' (link.pyx). Here is what goes beside them: which topic filters each
router wants. They travel as numbered changes; who has missed one is sent everything again.
"""

from collections import deque
from functools import partial
from itertools import islice

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from mesh.frames cimport FRAME_GOSSIP, FRAME_INTEREST, FRAME_INTEREST_INSTALLED, FRAME_VERSION
from router.sessions.ledger cimport DROP_PEER_GONE, Ledger
from router.core.message cimport topic_hash
from router.peers.peer cimport EVERY_DELIVERY, Peer
from router.router cimport Router

import msgpack

from mesh.frames import FrameError
from mesh.interest import Interest, Wish
from router.peers.peer import PEER_PREFIX
from router.log.segment_index import Reach

cdef enum:
    PART_MAX = 500               # filters in one frame: so many are installed in a few milliseconds
    AGAIN_MS = 1000              # until what was not confirmed is sent again
    RETAINED_MS = 50             # between two heartbeats that say how far what is retained has been sent
    ASK_AGAIN_MS = 250           # until a question is asked again
    COUNTERS_BYTES_MAX = 65536   # in one gossip
    FILTER_BYTES_MAX = 65535 + 65535 + 16


@cython.final
cdef class Neighbour:
    """A peer, its link, and what both sides know of each other's wishes."""

    def state(self) -> dict:
        """Return link, interest and custody, for admin and tests."""
        return {**self.link.statistics(), "filters": self.peer.session.entry_count, "installed": self.installed,
                "sent": self.sent, "wants": self.wants, **{
                    name: value for name, value in self.peer.state().items()
                    if name in ("outgoing", "waiting_acknowledgements", "heard")}}


@cython.final
cdef class Owner(LinkOwner):
    """What the links of a mesh ask for."""

    cdef Mesh mesh

    cdef int send(self, PeerLink link, const uint8_t* frame, size_t length) except -1:
        return (<Neighbour>link.place).channel.send(frame, length)

    cdef int answer(self, PeerLink link, const uint8_t* frame, size_t length) except -1:
        cdef Neighbour neighbour = <Neighbour>link.place
        if neighbour.identity is not None:
            self.mesh.transport.answer(neighbour.identity, frame, length)
        return 0

    cdef int take(self, PeerLink link, FrameReader entry) except -1:
        if entry.sequence == 0 and entry.ids_length == 0 and not entry.message.retain:
            return self.mesh.forwarding.pass_on(entry.message)
        self.mesh.forwarding.receive(
            (<Neighbour>link.place).peer, entry.message, entry.sequence, link.peer_incarnation, entry.n, entry.ids,
            entry.ids_length, entry.publisher_key)
        return 0

    cdef int taken(self, PeerLink link, uint64_t epoch, uint64_t index, uint64_t sequence) except -1:
        if not self.mesh.router.recording or len(self.mesh.router.effects) == 0:
            return link.settled(epoch, index, sequence)
        self.mesh.forwarding.when_durable((<Neighbour>link.place).peer, partial(link.settle, epoch, index, sequence))
        return 0

    cdef int acknowledged(self, PeerLink link, uint64_t end) except -1:
        return self.mesh.forwarding.acknowledged((<Neighbour>link.place).peer, end - 1) if end else 0

    def changed(self, link: PeerLink, before: str) -> None:
        """A link came up, or its peer does not answer any more."""
        cdef Neighbour neighbour = <Neighbour>link.place
        self.mesh.log.info(
            "peer", peer=link.peer.decode(), state=link.state, before=before, incarnation=link.peer_incarnation)
        self.mesh.forwarding.hears(neighbour.peer, link.state == "up")
        if link.state == "up":
            self.mesh.tell_all(neighbour)
            self.mesh.gossip_to(neighbour)
        elif before == "up":
            self.mesh.forwarding.link_lost(neighbour.peer)
            self.mesh.call_ready()
            self.mesh.say_reach(neighbour)

    def began(self, link: PeerLink, after: int) -> None:
        """A process of a peer says where its log was when it began."""
        self.mesh.forwarding.began((<Neighbour>link.place).peer, link.peer_incarnation, after)

    def brought(self, link: PeerLink, record: int) -> None:
        """A peer has sent all that is wanted here, up to a record of its log."""
        self.mesh.forwarding.brought((<Neighbour>link.place).peer, record)

    def restarted(self, link: PeerLink, incarnation: int) -> None:
        """Another process than before: it knows nothing of what we want, and wants what it will tell."""
        cdef Neighbour neighbour = self.mesh.neighbours[link.peer]
        self.mesh.know(neighbour, b"%b/%d" % (link.peer, incarnation))
        neighbour.sent = neighbour.installed = neighbour.wants = 0
        neighbour.sent_ms = 0
        neighbour.listed = None
        neighbour.answered = neighbour.asked = 0
        neighbour.follows = False
        neighbour.reach = neighbour.told = None
        neighbour.counters = None
        self.mesh.forwarding.restarted(neighbour.peer, incarnation)
        if link.state == "up":
            self.mesh.tell_all(neighbour)
            self.mesh.gossip_to(neighbour)


@cython.final
cdef class Inbox(FrameHandler):
    """Where the transport brings frames."""

    cdef Mesh mesh

    cdef int received(self, bytes identity, bint answer, const uint8_t* frame, size_t length) except -1:
        return self.mesh.heard(identity, answer, frame, length)


@cython.final
cdef class Mesh(MeshSeam):
    """The links of one router to all others.

    Args:
        router: recovered; it tells us what its receivers want.
        transport: bound; we connect it and close it.
        name: ours, "node/worker".
        incarnation: of our process, 1 or more.
        peers: name -> endpoint of every other router; its public key behind it, (endpoint, key), where links are
            encrypted.
        wake: makes the reactor turn; from this thread.
        log: where links are told of, a structlog logger.
        began_after: the newest record of our log that is older than this process; 0 where there is no log.
        interest_timeout_ms: how long a SUBACK waits for peers at most.
        absent_ms: how long a peer may be away; then it is forgotten.
        link_options: heartbeat_ms, silence_ms, window_bytes of mesh.link.PeerLink.
    """

    def __init__(self, Router router not None, Carrier transport not None, bytes name not None, incarnation: int,
                 peers: dict, wake, log, *, began_after: int = 0, interest_timeout_ms: int = 1000, absent_ms: int = 86_400_000,
                 **link_options):
        cdef Neighbour neighbour
        cdef Owner owner = Owner()
        cdef Inbox inbox = Inbox()
        self.router = router
        self.transport = transport
        self.name = name
        self.wake = wake
        self.log = log
        self.indexing = deque()
        self.interest_timeout_ms = interest_timeout_ms
        self.absent_ms = absent_ms
        self.forwarding = Forwarding(router)
        self.interest = Interest()
        self.changed = self.interest.changed
        self.reader = FrameReader()
        self.untold = deque()
        self.waiting = deque()
        self.neighbours = {}
        self.processes = {}
        self.links = []
        owner.mesh = inbox.mesh = self
        self.owner, self.inbox = owner, inbox
        for session in router.sessions.values():
            for topic_filter, options, _ in router.tree.subscriptions_of(session):
                self.interest.changes(topic_filter, session, -1, options)
        while self.changed:
            self.interest.take(router.ledger.now_ms)     # whole: who hears of any of it may rely on all
        router.interest = self.interest
        # As peers see us: where a hash chooses among routers, all come to the same answer.
        key = PEER_PREFIX + name
        router.tree.router_key = topic_hash(<const uint8_t*>PyBytes_AS_STRING(key), len(key))
        for peer, endpoint in sorted(peers.items()):
            key = None
            if isinstance(endpoint, tuple):
                endpoint, key = endpoint
            neighbour = Neighbour()
            neighbour.name = peer
            neighbour.peer = self.forwarding.peer(peer)
            neighbour.peer.shares_node = peer.rpartition(b"/")[0] == name.rpartition(b"/")[0]
            if neighbour.peer.shares_node and router.retaining.is_shared:
                router.retaining.fences.passed[neighbour.peer.worker] = 0, 0
                router.retaining.fences.waits.hears(neighbour.peer.worker, False)
            neighbour.channel = transport.connect(peer, endpoint, key)
            neighbour.there_ms = router.ledger.now_ms
            neighbour.link = PeerLink(peer, owner, neighbour.peer.session, incarnation, began_after=began_after,
                                      **link_options)
            neighbour.link.place = neighbour
            self.neighbours[peer] = neighbour
            self.links.append(neighbour.link)

    def close(self) -> None:
        """Close all sockets; what is unsent is lost. What is owed stays in the log."""
        self.router.interest = None
        for link in self.links:
            link.give_up()
        self.transport.close()

    @property
    def fds(self) -> list[int]:
        """Descriptors of which each says that receive() has something to do."""
        return self.transport.fds

    # The reactor's ---------------------------------------------------------------------------------------------------

    cdef int readable(self, int fd) except -1:
        return self.transport.readable(fd)

    cdef int receive(self) except -1:
        return self.transport.receive(self.inbox)

    cdef bint batching(self) except -1:
        cdef PeerLink link
        for link in self.links:
            if link.batch.count:
                return True
        return False

    cdef bint pending(self) except -1:
        return self.transport.pending()

    cdef int flush(self) except -1:
        cdef PeerLink link
        if self.indexing:
            self.call_indexed()
        if self.changed or self.has_more:
            self.announce()
        if self.followed:
            self.tell_reach()
        for link in self.links:
            link.flush()
        if self.router.retaining.is_shared:
            self.tell_retained()
            if self.router.retaining.fences.has_more:
                self.router.retaining.fences.go_on()
                self.wake()              # another turn, for the rest
        return 0

    cdef int tell_retained(self) except -1:
        """Let peers know soon that nothing older comes of what others can read in the index of retained messages now."""
        cdef PeerLink link
        cdef uint64_t applied
        if self.router.retaining.fences.waits.waits_for_index:
            self.router.retaining.fences.waits.look()
        if self.router.ledger.now_ms - self.told_ms < RETAINED_MS:
            return 0
        applied = self.router.retaining.index.applied
        if applied == self.told_applied:
            return 0
        self.told_applied = applied
        self.told_ms = self.router.ledger.now_ms
        for link in self.links:
            if link.state == "up":
                link.beat()
        return 0

    cdef int tick(self, int64_t now_ms) except -1:
        cdef Neighbour neighbour
        if self.interest.due(now_ms):
            self.announce()
        for neighbour in self.neighbours.values():
            neighbour.link.tick(now_ms)
            if neighbour.link.state == "up":
                neighbour.there_ms = now_ms
            elif now_ms - neighbour.there_ms >= self.absent_ms:
                neighbour.there_ms = now_ms
                self.forget(neighbour.name)
            if (neighbour.link.state == "up" and neighbour.installed < self.interest.version
                    and now_ms - neighbour.sent_ms >= AGAIN_MS):
                self.tell_all(neighbour)         # a connection that broke took it along
        if self.following and now_ms - self.gossiped_ms >= ASK_AGAIN_MS:
            self.gossiped_ms = now_ms
            for neighbour in self.neighbours.values():
                if neighbour.answered < self.question and neighbour.peer.shares_node:
                    self.gossip_to(neighbour)
        self.call_ready()
        return 0

    cdef int heard(self, bytes identity, bint answer, const uint8_t* frame, size_t length) except -1:
        """A frame of a peer. What is no frame is counted, said, and hurts no other peer."""
        cdef Neighbour neighbour
        if answer:
            neighbour = self.neighbours.get(identity)
        else:
            neighbour = self.processes.get(identity)
            if neighbour is None:
                neighbour = self.new_process(identity)
                if neighbour is None:
                    return 0
        if neighbour is None:
            self.errors += 1
            return 0
        try:
            self.reader.open(frame, length)
            if neighbour.link.receive(self.reader) == 0:
                self.on_other(neighbour, PyBytes_FromStringAndSize(<const char*>frame, <Py_ssize_t>length))
        except FrameError as error:
            self.errors += 1
            self.log.warning("bad_frame", peer=neighbour.name.decode(errors="replace"), what=str(error))
        return 0

    cdef Neighbour new_process(self, bytes identity):
        """Return the peer that a new identity is of; None: no peer's, or an older process's."""
        cdef Neighbour neighbour
        name, _, number = identity.rpartition(b"/")
        neighbour = self.neighbours.get(name)
        if neighbour is None or not number.isdigit():
            self.errors += 1
            return None
        if int(number) < neighbour.link.peer_incarnation:
            return None
        if neighbour.identity is None or int(number) > neighbour.link.peer_incarnation:
            self.know(neighbour, identity)
        return neighbour

    cdef int know(self, Neighbour neighbour, bytes identity) except -1:
        """Note the identity of a peer's newest process."""
        self.processes.pop(neighbour.identity, None)
        neighbour.identity = identity
        self.processes[identity] = neighbour
        return 0

    def on_other(self, Neighbour neighbour not None, bytes frame not None) -> None:
        """A frame that is not the link's."""
        try:
            fields = msgpack.unpackb(frame, strict_map_key=False)
            kind = fields[1]
            if kind == FRAME_INTEREST:
                self.on_interest(neighbour, *fields[2:8])
            elif kind == FRAME_INTEREST_INSTALLED:
                incarnation, version = fields[2:4]
                if incarnation == neighbour.link.incarnation and neighbour.installed < version <= neighbour.sent:
                    neighbour.installed = version
                    self.call_ready()
            elif kind == FRAME_GOSSIP:
                self.on_gossip(neighbour, *fields[2:8])
            else:
                raise FrameError(f"a frame of kind {kind!r}, which this version does not know")
        except (ValueError, TypeError, IndexError, OverflowError, msgpack.UnpackException) as error:
            raise FrameError(f"a frame of kind {self.reader.kind} is not as it must be: {error}") from error

    # What we want ----------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell every peer some of what has changed of what is wanted here, the oldest first; the rest in turns to come."""
        cdef Neighbour neighbour
        before = self.interest.version
        found = self.interest.take(self.router.ledger.now_ms)
        self.has_more = self.interest.due(self.router.ledger.now_ms)
        if self.has_more:
            self.wake()
        for neighbour in self.neighbours.values() if found else ():
            # Who does not know the version before is, or will be, told everything.
            if neighbour.link.state == "up" and neighbour.sent == before and before:
                self.tell(neighbour, before, found)
            elif neighbour.link.state == "up":
                self.tell_all(neighbour)
        if self.untold:
            self.call_ready()

    def tell_all(self, Neighbour neighbour not None) -> None:
        """Send a peer everything that is wanted here."""
        self.interest.version = max(self.interest.version, 1)
        self.tell(neighbour, 0, self.interest.told())

    def tell(self, Neighbour neighbour not None, before: int, wishes) -> None:
        """Send filters and how they are wanted, in parts; `before` is the version that they are changes of, 0: all."""
        wishes = iter(wishes)
        part = list(islice(wishes, PART_MAX))
        first = True
        while True:
            following = list(islice(wishes, PART_MAX))
            packed = msgpack.packb([
                FRAME_VERSION, FRAME_INTEREST, neighbour.link.incarnation, before, self.interest.version, first,
                not following, [[name] if wish is None else [name, *wish] for name, wish in part]])
            self.transport.send_frame(neighbour.channel, packed)
            if not following:
                break
            part, first = following, False
        neighbour.sent = self.interest.version
        neighbour.sent_ms = self.router.ledger.now_ms

    def when_installed(self, action) -> None:
        """Call `action()` once every live peer knows what is wanted here now, or after `interest_timeout_ms`. In order."""
        self.untold.append((self.interest.offset(), self.router.ledger.now_ms + self.interest_timeout_ms, action))
        self.announce()
        self.call_ready()

    def call_ready(self) -> None:
        """Do what has waited long enough."""
        cdef Neighbour neighbour
        while self.untold and (
                self.untold[0][0] <= self.interest.taken or self.untold[0][1] <= self.router.ledger.now_ms):
            _, due_ms, action = self.untold.popleft()
            self.waiting.append((self.interest.version, due_ms, action))
        if not self.waiting:
            return
        everywhere = min([neighbour.installed for neighbour in self.neighbours.values() if neighbour.link.state == "up"],
                         default=self.interest.version)
        while self.waiting and (self.waiting[0][0] <= everywhere or self.waiting[0][1] <= self.router.ledger.now_ms):
            self.waiting.popleft()[2]()

    @property
    def ready(self) -> bool:
        """Whether each peer is there, knows what we want, and has told what it wants."""
        return not self.changed and all([
            neighbour.link.state == "up" and neighbour.installed >= self.interest.version and neighbour.wants
            for neighbour in self.neighbours.values()])

    # What they want --------------------------------------------------------------------------------------------------

    def on_interest(self, Neighbour neighbour not None, incarnation: int, before: int, version: int, first: bool,
                    last: bool, wishes: list) -> None:
        """A peer says what it wants. Raises ValueError, TypeError for what cannot be."""
        if incarnation != neighbour.link.peer_incarnation:
            if incarnation < neighbour.link.peer_incarnation:
                return
            # The link has not heard of this process: the next heartbeat brings that, and what is not confirmed comes again.
            return
        if before == 0 and first:
            neighbour.listed = set()
        elif before == 0:
            if neighbour.listed is None:
                return                   # its first part was lost
        elif before != neighbour.wants:
            return                       # a change of what we do not know: it is not confirmed, and comes again
        for name, *wish in wishes:
            if not isinstance(name, bytes) or len(name) > FILTER_BYTES_MAX:
                raise TypeError("a topic filter is bytes")
            if not wish:
                self.forwarding.want_no_more(neighbour.peer, name)
                continue
            qos, durable, online = Wish(*wish[:3])
            if qos not in (0, 1, 2) or online < 0:
                raise ValueError(f"QoS {qos}, {online} online")
            self.forwarding.want(neighbour.peer, name, qos, bool(durable), online)
            if before == 0:
                neighbour.listed.add(name)
        if not last:
            return
        if before == 0:
            for name, _, _ in self.router.tree.subscriptions_of(neighbour.peer.session):
                if name not in neighbour.listed:
                    self.forwarding.want_no_more(neighbour.peer, name)
            neighbour.listed = None
        neighbour.wants = version
        confirm = partial(self.confirm, neighbour, incarnation, version)
        if self.router.retaining.is_shared and self.router.retaining.index.pending:
            # What was retained here before was not sent there, so whoever subscribes there must find it in the index.
            number = self.router.last_record
            self.router.retaining.index.pass_over(number)
            confirm = partial(self.indexing.append, (number, confirm))
        self.forwarding.when_durable(neighbour.peer, confirm)

    def call_indexed(self) -> None:
        """Do what has waited for the index of retained messages."""
        applied = self.router.retaining.index.applied
        while self.indexing and self.indexing[0][0] <= applied:
            self.indexing.popleft()[1]()

    def confirm(self, Neighbour neighbour not None, incarnation: int, version: int) -> None:
        """What a peer wants is installed, and as durable as it must be."""
        if neighbour.identity is not None and incarnation == neighbour.link.peer_incarnation:
            self.transport.answer_frame(neighbour.identity, msgpack.packb(
                [FRAME_VERSION, FRAME_INTEREST_INSTALLED, incarnation, version]))

    # Who does not return --------------------------------------------------------------------------------------------

    def forget(self, bytes name not None) -> int:
        """Drop what a peer is owed that is away, and what it wanted; returns how many messages that were.

        It may come back all the same: then it says what it wants, and is sent what is published from then on.

        Raises KeyError: there is no such peer; ValueError: it is there.
        """
        cdef Peer peer = self.router.peers[PEER_PREFIX + name]
        cdef Neighbour neighbour = self.neighbours.get(name)
        cdef Ledger ledger = self.router.ledger
        cdef uint64_t owed = ledger.queued_messages + ledger.inflight_messages
        if neighbour is not None and neighbour.link.state == "up":
            raise ValueError("the peer is there")
        for topic_filter, _, _ in self.router.tree.subscriptions_of(peer.session):
            self.forwarding.want_no_more(peer, topic_filter)
        if neighbour is not None:
            neighbour.wants = 0          # said when it is back, so that it says again what it wants
        if peer.session.outgoing is not None:
            peer.session.outgoing.done_with(0xFFFFFFFFFFFFFFFF)
            peer.session.outgoing.passed_record = self.router.last_record
        peer.settle(EVERY_DELIVERY)
        owed -= ledger.queued_messages + ledger.inflight_messages
        ledger.dropped_messages[DROP_PEER_GONE] += owed
        self.log.warning("peer_forgotten", peer=name.decode(errors="replace"), messages_dropped=owed)
        return owed

    # What routers say of themselves ----------------------------------------------------------------------------------

    def follow(self) -> int:
        """Ask all peers how far their logs can be read, and to say so whenever that changes. Returns the question.

        Who has answered has `answered` there or beyond: its `reach` is no older than the question.
        """
        self.following = True
        self.question += 1
        self.gossip()
        return self.question

    def unfollow(self) -> None:
        """No replay here reads the peers' logs any more."""
        self.following = False
        self.gossip()

    def tell_counters(self, bytes counters not None) -> None:
        """Tell all peers what we count, in whatever form they expect; they have it as `counters` of their neighbour."""
        self.own_counters = counters
        self.gossip()

    def gossip(self) -> None:
        """Tell every peer that is there what we say of ourselves."""
        cdef Neighbour neighbour
        self.gossiped_ms = self.router.ledger.now_ms
        for neighbour in self.neighbours.values():
            self.gossip_to(neighbour)
        self.wake()

    def gossip_to(self, Neighbour neighbour not None, full: bool = True) -> None:
        """Tell one peer. What is lost is said again: counters soon, a question when there was no answer."""
        if neighbour.link.state != "up":
            return
        reach = None
        if neighbour.follows and self.log_reach is not None:
            reach = neighbour.told = self.log_reach()
        self.transport.send_frame(neighbour.channel, msgpack.packb(
            [FRAME_VERSION, FRAME_GOSSIP, neighbour.link.incarnation,
             self.question if self.following and neighbour.peer.shares_node else 0,
             neighbour.asked, reach, self.own_counters if full else None, neighbour.wants]))

    def tell_reach(self) -> None:
        """Tell the peers that read our log how far it has come."""
        cdef Neighbour neighbour
        reach = self.log_reach()
        for neighbour in self.neighbours.values():
            if neighbour.follows and neighbour.told != reach:
                self.gossip_to(neighbour, False)

    def on_gossip(self, Neighbour neighbour not None, incarnation: int, asked: int, answered: int, reach,
                  counters, wants: int) -> None:
        """A peer says how it is; `reach` and `counters` may be None. Raises ValueError, TypeError for what cannot be."""
        if incarnation != neighbour.link.peer_incarnation:
            return                       # the next heartbeat tells of it, and what matters is said again
        if counters is not None:
            if not isinstance(counters, bytes) or len(counters) > COUNTERS_BYTES_MAX:
                raise TypeError("counters are bytes, and not many")
            neighbour.counters = counters
        if wants == 0 and neighbour.installed:
            neighbour.sent = neighbour.installed = 0         # we were forgotten
            self.tell_all(neighbour)
        neighbour.follows = asked != 0
        self.followed = self.log_reach is not None and any([other.follows for other in self.neighbours.values()])
        if asked > neighbour.asked:
            neighbour.asked = asked
            self.gossip_to(neighbour, False)
        if reach is not None and answered:
            neighbour.reach = Reach(*map(int, reach))
            neighbour.answered = max(neighbour.answered, answered)
            self.say_reach(neighbour)

    def say_reach(self, Neighbour neighbour not None) -> None:
        """Tell the replays here how far a peer's log can be read now."""
        if self.on_reach is not None:
            self.on_reach(neighbour)
