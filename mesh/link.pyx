"""One link to one peer: what is on its way, what has arrived, and whether the peer answers.

Nothing here knows a socket or a clock: frames go out by the owner and come in by receive(), time is what the ledger and
tick() say. docs/mesh.md tells the rules and why they are so.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free
from mesh.frames cimport FRAME_ACK, FRAME_DATA, FRAME_GAP, FRAME_HEARTBEAT, HEADER_ROOM, header
from router.core.rings cimport grown
from router.sessions.ledger cimport DROP_OUTPUT_FULL
from router.sessions.outgoing cimport ANSWER_FREED, DELIVERY_SENT, Outgoing
from router.sessions.sink cimport SINK_EXPIRED, SINK_FULL, SINK_SENT, count_drop

from mesh.frames import FrameError

cdef enum:
    RING_MIN = 16
    ACK_BYTES = 524288           # so much that rests on no sequence is taken before the peer gets its credit back
    STALL_MS = 250               # a heartbeat asks so early after what is on its way
    TICK_MS_MAX = 1000           # time between two ticks counts no more: it is we who were stopped
    WINDOW_MIN = 1048576         # 2 * ACK_BYTES

STATES = ("connecting", "up", "silent", "gone")


cdef class LinkOwner:
    """What a link needs of the world: two sockets' ways out, and a router that takes and gives.

    A subclass overrides compiled methods where it is compiled, and the Python method of each where it is not.
    """

    cdef int send(self, PeerLink link, const uint8_t* frame, size_t length) except -1:
        self.on_send(link, PyBytes_FromStringAndSize(<const char*>frame, <Py_ssize_t>length))
        return 0

    cdef int answer(self, PeerLink link, const uint8_t* frame, size_t length) except -1:
        self.on_answer(link, PyBytes_FromStringAndSize(<const char*>frame, <Py_ssize_t>length))
        return 0

    cdef int take(self, PeerLink link, FrameReader entry) except -1:
        self.on_message(link, entry)
        return 0

    cdef int taken(self, PeerLink link, uint64_t epoch, uint64_t index, uint64_t sequence) except -1:
        self.on_taken(link, epoch, index, sequence)
        return 0

    cdef int acknowledged(self, PeerLink link, uint64_t end) except -1:
        self.on_acknowledged(link, end)
        return 0

    def on_send(self, link: PeerLink, frame: bytes) -> None:
        """Send a frame to the peer's ROUTER."""
        raise TypeError(f"{type(self).__name__} does not send")

    def on_answer(self, link: PeerLink, frame: bytes) -> None:
        """Send a frame back to the peer's DEALER, which may not be there."""
        raise TypeError(f"{type(self).__name__} does not answer")

    def on_message(self, link: PeerLink, entry: FrameReader) -> None:
        """Take a message of the peer: in order and once within its incarnation and ours."""
        raise TypeError(f"{type(self).__name__} takes no messages")

    def on_taken(self, link: PeerLink, epoch: int, index: int, sequence: int) -> None:
        """A whole frame was taken. When it is safe here, and all before it, link.settle() is called with the same."""
        link.settle(epoch, index, sequence)

    def on_acknowledged(self, link: PeerLink, end: int) -> None:
        """The peer answers for all deliveries whose number is below `end`."""
        link.free_deliveries(end)

    def changed(self, link: PeerLink, before: str) -> None:
        """The link's state is another than before, and its session has been attached or detached."""

    def began(self, link: PeerLink, after: int) -> None:
        """The peer's process, of `link.peer_incarnation`, began after this record of its log; before anything it sends."""

    def brought(self, link: PeerLink, record: int) -> None:
        """The peer has nothing for us of its log up to this record that has not come."""

    def restarted(self, link: PeerLink, incarnation: int) -> None:
        """The peer is heard in a higher incarnation; before anything that it said is acted on."""


@cython.final
cdef class PeerLink(Sink):
    """The sink of a peer's session, and the source of what the peer sends.

    Args:
        peer: its name, node/worker.
        session: the peer's: durable, and all its deliveries are of QoS 1. The link attaches and detaches it.
        incarnation: ours, 1 or more; higher than that of any process before us under our name.
        began_after: the newest record of our log that is older than this process.
        peer_incarnation: the highest of the peer that is known; 0 for none.
        window_bytes: at most about so much is on its way, 1 MiB or more; a frame beyond is not begun.
        heartbeat_ms: between two heartbeats while all is well.
        silence_ms: without an answer for so long, a link that was up is silent.
    """

    def __init__(self, bytes peer not None, LinkOwner owner not None, Session session not None, incarnation: int, *,
                 began_after: int = 0, peer_incarnation: int = 0, window_bytes: int = 8388608, heartbeat_ms: int = 1000,
                 silence_ms: int = 5000):
        assert incarnation > 0 and window_bytes >= WINDOW_MIN, (incarnation, window_bytes)
        self.peer = peer
        self.owner = owner
        self.session = session
        self.ledger = session.ledger
        self.incarnation = incarnation
        self.began_after = began_after
        self.peer_incarnation = peer_incarnation
        self.window_bytes = window_bytes
        self.heartbeat_ms = heartbeat_ms
        self.silence_ms = silence_ms
        self.batch = FrameWriter()
        self.epoch = <uint64_t>self.incarnation << 32 | 1
        self.round_trip_us = -1
        self.ticked_ms = self.ledger.now_ms
        self.probed_ms = heartbeat_ms            # the first tick sends one

    def __dealloc__(self):
        free(self.ring)

    # The sink --------------------------------------------------------------------------------------------------------

    cdef SinkResult publish(self, Message message, uint16_t packet_identifier, uint8_t qos, bint retain, bint dup,
                            const uint8_t* ids, uint32_t ids_length) except? SINK_FULL:
        """Put a delivery into the turn's batch. QoS 0 spends credit like the others, and without any it is dropped."""
        cdef Outgoing outgoing = self.session.outgoing
        cdef uint64_t sequence = 0
        cdef size_t length
        if not self.writable:
            return SINK_FULL
        if message.expires_ms and message.expires_ms <= self.ledger.now_ms:
            return SINK_EXPIRED
        if packet_identifier:
            sequence = outgoing.number_of(packet_identifier, outgoing.end_number + 1) + 1
            if sequence > self.sent_sequence:
                self.sent_sequence = sequence
        else:
            self.batch_qos0 += 1
        # Whoever chooses among members of a shared subscription may need to know the publisher; nobody else does.
        length = self.batch.add(message, sequence, message.record, retain, ids, ids_length,
                                message.publisher_key if ids_length else 0, self.ledger.now_us, self.ledger.now_ms)
        self.messages_out += 1
        self.outstanding += length
        if self.outstanding >= self.window_bytes:
            self.writable = False
        if self.batch.end >= FRAME_BYTES:
            self.send_batch()
        return SINK_SENT

    cdef int acknowledge(self, uint8_t packet_type, uint16_t packet_identifier, uint8_t reason) except -1:
        raise AssertionError(f"a link is asked to acknowledge {packet_identifier}: its session has QoS 2")

    # Sending ---------------------------------------------------------------------------------------------------------

    cdef int push(self, size_t length) except -1:
        """Note a frame that leaves, until the peer answers for it."""
        cdef uint64_t count = self.index - self.oldest_index
        if count == self.ring_capacity:
            self.ring = <uint32_t*>grown(
                self.ring, &self.ring_capacity, RING_MIN, sizeof(uint32_t), self.oldest_index, self.index)
        if count == 0:
            self.stalled_ms = 0
        self.ring[self.index & (self.ring_capacity - 1)] = <uint32_t>length
        self.index += 1
        return 0

    cdef int send_batch(self) except -1:
        """Send what the turn has gathered, and with it the ACK that is due."""
        cdef uint64_t[6] numbers
        cdef int count = 2
        if self.batch.count == 0:
            return 0
        numbers[0], numbers[1] = self.epoch, self.index
        if self.index == 0 or self.owes_ack():
            numbers[2], numbers[3], numbers[4] = self.received_epoch, self.settled_index, self.settled_sequence
            numbers[5] = self.began_after
            count = 5 + (self.index == 0)
            self.told()
        self.batch.seal(FRAME_DATA, numbers, count)
        self.push(self.batch.end - HEADER_ROOM)
        self.frames_out += 1
        self.bytes_out += self.batch.frame_length
        self.owner.send(self, self.batch.frame, self.batch.frame_length)
        self.batch.clear()
        self.batch_qos0 = 0
        return 0

    cdef int flush(self) except -1:
        self.send_batch()
        if self.owes_ack():
            self.send_ack(0)
        return 0

    cdef bint owes_ack(self) noexcept:
        return self.settled_sequence > self.told_sequence or self.untold_bytes >= ACK_BYTES

    cdef int told(self) noexcept:
        """All that is settled was put into an answer."""
        self.told_sequence = self.settled_sequence
        self.untold_bytes = 0
        return 0

    cdef int begin_epoch(self) except -1:
        """What is on its way counts for nothing any more; the session sends again from its oldest delivery on."""
        self.epoch += 1
        self.index = self.oldest_index = 0
        self.outstanding = 0
        while self.batch_qos0:
            self.batch_qos0 -= 1
            count_drop(self.ledger, self, DROP_OUTPUT_FULL)
        self.batch.clear()
        if self.ring_capacity > RING_MIN:
            free(self.ring)
            self.ring = NULL
            self.ring_capacity = 0
        self.writable = self.link_state == LINK_UP
        return 0

    cdef int rewind(self) except -1:
        """Go back to the oldest delivery that is not acknowledged, in a new epoch."""
        self.begin_epoch()
        self.rewinds += 1
        if self.session.outgoing is not None:
            self.session.outgoing.attach(self.session.receive_maximum)
        return self.session.drain()

    cdef int drain_if_room(self) except -1:
        if self.link_state != LINK_UP:
            return 0
        self.writable = self.outstanding < self.window_bytes
        if self.writable and self.session.outgoing is not None and self.session.outgoing.waiting():
            self.session.drain()
        return 0

    # What the peer answers -------------------------------------------------------------------------------------------

    cdef bint hear(self, uint64_t incarnation) except -1:
        """Return whether the peer's newest incarnation speaks; a newer one than before begins with nothing of ours."""
        if incarnation < self.peer_incarnation:
            return False
        if incarnation > self.peer_incarnation:
            if incarnation > 0xFFFFFFFF:
                raise FrameError(f"a frame of incarnation {incarnation}")
            self.peer_incarnation = <uint32_t>incarnation
            self.received_epoch = self.expected_index = self.received_sequence = 0
            self.settled_index = self.settled_sequence = self.told_sequence = 0
            self.untold_bytes = self.unsettled_bytes = self.gap_told = 0
            self.owner.restarted(self, incarnation)
            if self.link_state == LINK_UP:
                self.rewind()            # what was on its way to the one before is lost
        return True

    cdef int come_up(self) except -1:
        cdef str before = STATES[self.link_state]
        self.link_state = LINK_UP
        self.begin_epoch()
        self.session.attach(self, LINK_QUOTA)
        self.owner.changed(self, before)
        return self.session.drain()

    cdef int fall_silent(self, LinkState state) except -1:
        cdef str before = STATES[self.link_state]
        cdef bint was_up = self.link_state == LINK_UP
        self.link_state = state
        self.begin_epoch()
        if was_up:
            self.session.detach()
        self.owner.changed(self, before)
        return 0

    cdef int note_answer(self, uint64_t epoch, uint64_t sequence) except -1:
        """The peer has answered, for all deliveries up to a sequence."""
        if sequence > self.sent_sequence:
            raise FrameError(f"an answer for sequence {sequence}, and {self.sent_sequence} is the last that was sent")
        self.waited_ms = self.stalled_ms = 0
        if sequence > self.acknowledged_sequence:
            self.acknowledged_sequence = sequence
            self.owner.acknowledged(self, sequence)
        return 0

    cdef int on_ack(self, FrameReader frame) except -1:
        frame.expect(5)
        if self.hear(frame.numbers[4]):
            self.answered(frame.numbers[0], frame.numbers[1], frame.numbers[2], frame.numbers[3])
        return 0

    cdef int answered(self, uint64_t epoch, uint64_t index, uint64_t sequence, uint64_t stamp) except -1:
        """An ACK, which came alone or in front of messages. Stamp 0: no heartbeat asked for it."""
        if epoch == self.epoch and index > self.index:
            raise FrameError(f"an answer for {index} frames of {self.index}")
        # An epoch that is not of this process belongs to one before us, and so do its sequences.
        self.note_answer(epoch, sequence if epoch >> 32 == self.incarnation else 0)
        if stamp:
            self.round_trip_us = max(self.ledger.now_us - <int64_t>stamp, 0)
        if self.link_state != LINK_UP:
            return self.come_up()
        if epoch == self.epoch:
            while self.oldest_index < index:
                self.outstanding -= self.ring[self.oldest_index & (self.ring_capacity - 1)]
                self.oldest_index += 1
        return self.drain_if_room()

    cdef int on_gap(self, FrameReader frame) except -1:
        frame.expect(3)
        if not self.hear(frame.numbers[2]):
            return 0
        self.note_answer(frame.numbers[0], frame.numbers[1] if frame.numbers[0] >> 32 == self.incarnation else 0)
        if self.link_state != LINK_UP:
            return self.come_up()
        if frame.numbers[0] == self.epoch:       # else it complains of what we have left already
            return self.rewind()
        return self.drain_if_room()

    # What the peer sends ---------------------------------------------------------------------------------------------

    cdef int in_order(self, uint64_t epoch, uint64_t index) except -1:
        """Return 1 if this is the next frame, 0 if it is behind us, 2 if something is missing before it.

        An epoch is only ever taken up from its first frame: who has not seen that, a process that has just started, say,
        cannot know what was sent before.
        """
        if epoch > self.received_epoch and index == 0:
            self.received_epoch = epoch
            self.expected_index = self.settled_index = self.unsettled_bytes = 0
            return 1
        if epoch < self.received_epoch:
            return 0
        if epoch > self.received_epoch or index > self.expected_index:
            return 2
        return index == self.expected_index

    cdef int on_heartbeat(self, FrameReader frame) except -1:
        """Answer, and complain again if frames are missing that nothing has come behind."""
        cdef int order
        frame.expect(3)
        if not self.hear(frame.numbers[0] >> 32):
            return 0
        if frame.number_count >= 5:
            self.owner.began(self, frame.numbers[4])
        order = self.in_order(frame.numbers[0], frame.numbers[1])
        if order == 2:
            self.send_gap(frame.numbers[0])
        elif order == 1 and frame.number_count >= 4 and frame.numbers[3]:
            self.owner.brought(self, frame.numbers[3])
        return self.send_ack(frame.numbers[2])

    cdef int on_data(self, FrameReader frame) except -1:
        cdef uint64_t epoch, index
        cdef int order
        frame.expect(2)
        epoch, index = frame.numbers[0], frame.numbers[1]
        if not self.hear(epoch >> 32):
            return 0
        self.frames_in += 1
        self.bytes_in += frame.size
        if frame.number_count >= 5:
            self.answered(frame.numbers[2], frame.numbers[3], frame.numbers[4], 0)
        order = self.in_order(epoch, index)
        if order == 2 and self.gap_told != epoch:
            self.send_gap(epoch)
        if order != 1:
            return 0
        if frame.number_count >= 6:
            self.owner.began(self, frame.numbers[5])
        while frame.next(self.ledger.now_us, self.ledger.now_ms):
            if frame.sequence:
                if frame.sequence <= self.received_sequence:
                    self.repeats += 1
                    continue
                self.received_sequence = frame.sequence
            self.messages_in += 1
            self.owner.take(self, frame)
        self.expected_index += 1
        self.unsettled_bytes += frame.size
        return self.owner.taken(self, epoch, index, self.received_sequence)

    cdef int settled(self, uint64_t epoch, uint64_t index, uint64_t sequence) except -1:
        """All of a frame, and of those before it, is safe here. In order; of an epoch that was left, too."""
        cdef uint64_t share
        if epoch >> 32 != self.peer_incarnation:
            return 0
        assert sequence <= self.received_sequence, (sequence, self.received_sequence)
        if sequence > self.settled_sequence:
            self.settled_sequence = sequence
        if epoch == self.received_epoch:
            assert self.settled_index <= index < self.expected_index, (self.settled_index, index, self.expected_index)
            self.settled_index = index + 1
            share = self.unsettled_bytes // (self.expected_index - index)    # near enough, and exact at the last one
            self.unsettled_bytes -= share
            self.untold_bytes += share
        return 0

    cdef int send_ack(self, uint64_t stamp) except -1:
        cdef uint8_t[HEADER_ROOM] frame
        cdef uint64_t[5] numbers
        numbers[0], numbers[1], numbers[2] = self.received_epoch, self.settled_index, self.settled_sequence
        numbers[3], numbers[4] = stamp, self.incarnation
        self.told()
        return self.owner.answer(self, frame, header(frame, FRAME_ACK, numbers, 5))

    cdef int send_gap(self, uint64_t epoch) except -1:
        cdef uint8_t[HEADER_ROOM] frame
        cdef uint64_t[3] numbers
        numbers[0], numbers[1], numbers[2] = epoch, self.settled_sequence, self.incarnation
        self.gap_told = epoch
        return self.owner.answer(self, frame, header(frame, FRAME_GAP, numbers, 3))

    cdef int receive(self, FrameReader frame) except -1:
        """Act on a frame of the peer's. A frame that is not as it must be: FrameError, and both ends begin anew."""
        if self.link_state == LINK_GONE:
            return 1
        try:
            if frame.kind == FRAME_DATA:
                self.on_data(frame)
            elif frame.kind == FRAME_ACK:
                self.on_ack(frame)
            elif frame.kind == FRAME_HEARTBEAT:
                self.on_heartbeat(frame)
            elif frame.kind == FRAME_GAP:
                self.on_gap(frame)
            else:
                return 0
        except FrameError:
            self.errors += 1
            # Its next heartbeat shows the peer's sender that it must begin again: no faster, lest we go round and round.
            self.gap_told = max(self.received_epoch, frame.numbers[0] if frame.kind == FRAME_DATA else 0)
            self.received_epoch = self.expected_index = self.settled_index = self.unsettled_bytes = 0
            raise
        return 1

    # Time ------------------------------------------------------------------------------------------------------------

    cdef int tick(self, int64_t now_ms) except -1:
        """Send a heartbeat if one is due; find that the peer does not answer. At least four times a second."""
        cdef int64_t passed_ms = min(max(now_ms - self.ticked_ms, 0), TICK_MS_MAX)
        self.ticked_ms = now_ms
        if self.link_state == LINK_GONE:
            return 0
        self.waited_ms += passed_ms
        self.probed_ms += passed_ms
        self.stalled_ms += passed_ms
        if self.link_state == LINK_UP and self.waited_ms >= self.silence_ms:
            self.fall_silent(LINK_SILENT)
        if self.probed_ms >= self.heartbeat_ms or (
                self.oldest_index < self.index and self.stalled_ms >= STALL_MS and self.probed_ms >= STALL_MS):
            self.beat()
        return 0

    cdef int beat(self) except -1:
        """Send a heartbeat."""
        cdef uint8_t[HEADER_ROOM] frame
        cdef uint64_t[5] numbers
        self.probed_ms = 0
        numbers[0], numbers[1], numbers[2] = self.epoch, self.index, max(self.ledger.now_us, 1)
        numbers[3] = self.sent_record()
        # Who waits for what the process before this one sent ahead of its record need not wait for a message.
        numbers[4] = self.began_after
        return self.owner.send(self, frame, header(frame, FRAME_HEARTBEAT, numbers, 5))

    cdef uint64_t sent_record(self) noexcept:
        """Return up to which record of our log all that the peer is owed has left; 0 if that is not known now."""
        if self.link_state != LINK_UP or self.batch.count or (
                self.session.outgoing is not None and self.session.outgoing.waiting()):
            return 0
        return self.ledger.durable

    def give_up(self) -> None:
        """The peer is gone for good: its session is detached, and nothing is sent or heard any more."""
        if self.link_state != LINK_GONE:
            self.fall_silent(LINK_GONE)

    # For Python ------------------------------------------------------------------------------------------------------

    def settle(self, epoch: int, index: int, sequence: int) -> None:
        """settled() for Python callers."""
        self.settled(epoch, index, sequence)

    def free_deliveries(self, end: int) -> None:
        """Free the session's deliveries below a number: where no record says that they were acknowledged."""
        cdef Outgoing outgoing = self.session.outgoing
        cdef uint64_t number
        if outgoing is None:
            return
        for number in range(outgoing.oldest_open, min(<uint64_t>end, outgoing.next_number)):
            if number >= outgoing.oldest_open and outgoing.slot(number).state == DELIVERY_SENT:
                outgoing.on_puback(outgoing.identifier_of(number))

    def receive_frame(self, bytes frame not None) -> bool:
        """receive() of bytes for Python callers: whether the frame was the link's. Raises FrameError."""
        cdef FrameReader reader = FrameReader()
        reader.open(<const uint8_t*>PyBytes_AS_STRING(frame), len(frame))
        return self.receive(reader) == 1

    def end_turn(self) -> None:
        """flush() for Python callers."""
        self.flush()

    def advance(self, now_ms: int) -> None:
        """tick() for Python callers."""
        self.tick(now_ms)

    @property
    def state(self) -> str:
        """connecting, up, silent or gone."""
        return STATES[self.link_state]

    @property
    def has_credit(self) -> bool:
        """Whether a message would be sent now: the link is up and its window is open."""
        return self.writable

    def statistics(self) -> dict:
        """State, window and counts, for admin and tests."""
        return {
            "peer": self.peer.decode(), "state": self.state, "peer_incarnation": self.peer_incarnation,
            "epoch": self.epoch & 0xFFFFFFFF, "outstanding_bytes": self.outstanding, "window_bytes": self.window_bytes,
            "unacknowledged": self.sent_sequence - self.acknowledged_sequence, "round_trip_us": self.round_trip_us,
            "waited_ms": self.waited_ms, "frames_out": self.frames_out, "messages_out": self.messages_out,
            "bytes_out": self.bytes_out, "frames_in": self.frames_in, "messages_in": self.messages_in,
            "bytes_in": self.bytes_in, "rewinds": self.rewinds, "repeats": self.repeats, "errors": self.errors,
            "dropped": self.dropped(),
        }
