"""One link to one peer: what is on its way, what has arrived, and whether the peer answers."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from mesh.frames cimport FrameReader, FrameWriter
from router.sessions.ledger cimport Ledger
from router.core.message cimport Message
from router.sessions.session cimport Session
from router.sessions.sink cimport Sink, SinkResult

cdef enum LinkState:             # names in link.STATES
    LINK_CONNECTING = 0          # nobody has answered yet: heartbeats, nothing else
    LINK_UP = 1
    LINK_SILENT = 2              # no answer for too long: heartbeats, nothing else
    LINK_GONE = 3                # given up: nothing at all

cdef enum:
    LINK_QUOTA = 65535           # deliveries on their way at once; the window in bytes is reached before
    FRAME_BYTES = 65536          # a batch that has grown to this leaves before the turn ends

cdef class PeerLink


cdef class LinkOwner:
    # What a link needs of the world. Compiled methods by default call the Python method of the same line.
    cdef int send(self, PeerLink link, const uint8_t* frame, size_t length) except -1          # on_send(link, frame)
    cdef int answer(self, PeerLink link, const uint8_t* frame, size_t length) except -1        # on_answer(link, frame)
    # A message came, in order and once: entry.message is borrowed. on_message(link, entry)
    cdef int take(self, PeerLink link, FrameReader entry) except -1
    # All messages of a frame came: link.settled(epoch, index, sequence) is owed, in order, when they are safe here.
    cdef int taken(self, PeerLink link, uint64_t epoch, uint64_t index, uint64_t sequence) except -1   # on_taken(...)
    # The peer has what deliveries with a number below `end` carry. on_acknowledged(link, end); by default they are freed
    cdef int acknowledged(self, PeerLink link, uint64_t end) except -1


cdef class PeerLink(Sink):
    cdef readonly bytes peer             # node/worker
    cdef readonly Session session        # the peer's, which is attached exactly while the link is up
    cdef readonly LinkState link_state
    cdef readonly uint32_t incarnation       # ours
    cdef uint64_t began_after            # the newest record of our log before this incarnation; said in front of each epoch
    cdef readonly uint32_t peer_incarnation  # the highest heard of; 0: none. What an older one says is passed over
    cdef LinkOwner owner
    cdef public object place             # the owner's: what the link belongs to there, so that it need not be looked for
    cdef Ledger ledger
    # Sending. Frames of an epoch are numbered from 0; an epoch begins with the oldest delivery not acknowledged.
    cdef FrameWriter batch
    cdef uint32_t batch_qos0             # messages in it that nobody will send again
    cdef readonly uint64_t epoch         # incarnation << 32 | counter
    cdef readonly uint64_t index         # of the next frame
    cdef uint64_t oldest_index           # of the oldest frame that the peer has not answered for; ring: [oldest_index, index)
    cdef uint32_t* ring                  # bytes of frame number i: ring[i & (ring_capacity - 1)]
    cdef uint32_t ring_capacity          # a power of two, or 0
    cdef readonly uint64_t outstanding   # bytes in the batch and in the ring
    cdef readonly uint64_t window_bytes  # writable while outstanding is below
    cdef uint64_t sent_sequence          # highest in any frame; a delivery's sequence is its number + 1
    cdef uint64_t acknowledged_sequence
    # Receiving
    cdef uint64_t received_epoch         # 0: none yet
    cdef uint64_t expected_index
    cdef uint64_t received_sequence      # within the peer's incarnation; what is not above it came before
    cdef uint64_t settled_index          # frames of received_epoch that are safe here
    cdef uint64_t settled_sequence
    cdef uint64_t told_sequence          # of the last ACK
    cdef uint64_t untold_bytes           # settled and not in an ACK
    cdef uint64_t unsettled_bytes
    cdef uint64_t gap_told               # the epoch that we last complained of
    # Time, as ticks count it
    cdef int64_t ticked_ms
    cdef int64_t waited_ms               # since the peer last answered us
    cdef int64_t probed_ms               # since our last heartbeat
    cdef int64_t stalled_ms              # since the peer last answered, or since something is on its way again
    cdef uint32_t heartbeat_ms
    cdef uint32_t silence_ms
    cdef readonly int64_t round_trip_us  # of the last heartbeat, turns at both ends included; -1: none yet
    # Counts since the start
    cdef readonly uint64_t frames_out
    cdef readonly uint64_t messages_out
    cdef readonly uint64_t bytes_out
    cdef readonly uint64_t frames_in
    cdef readonly uint64_t messages_in
    cdef readonly uint64_t bytes_in
    cdef readonly uint64_t rewinds       # epochs begun since the link came up first
    cdef readonly uint64_t repeats       # messages that came again and were passed over
    cdef readonly uint64_t errors

    # Any frame that came from the peer, by either socket, opened. 1: it was the link's; 0: of another kind. FrameError
    cdef int receive(self, FrameReader frame) except -1
    cdef int settled(self, uint64_t epoch, uint64_t index, uint64_t sequence) except -1
    cdef int flush(self) except -1       # the turn ends: the batch leaves, and an ACK if one is due
    cdef int tick(self, int64_t now_ms) except -1
    cdef int beat(self) except -1
    cdef uint64_t sent_record(self) noexcept
    cdef int send_batch(self) except -1
    cdef int begin_epoch(self) except -1
    cdef int rewind(self) except -1
    cdef bint hear(self, uint64_t incarnation) except -1
    cdef int come_up(self) except -1
    cdef int fall_silent(self, LinkState state) except -1
    cdef int note_answer(self, uint64_t epoch, uint64_t sequence) except -1
    cdef int on_ack(self, FrameReader frame) except -1
    cdef int on_gap(self, FrameReader frame) except -1
    cdef int on_heartbeat(self, FrameReader frame) except -1
    cdef int on_data(self, FrameReader frame) except -1
    cdef int in_order(self, uint64_t epoch, uint64_t index) except -1
    cdef int answered(self, uint64_t epoch, uint64_t index, uint64_t sequence, uint64_t stamp) except -1
    cdef bint owes_ack(self) noexcept
    cdef int told(self) noexcept
    cdef int send_ack(self, uint64_t stamp) except -1
    cdef int send_gap(self, uint64_t epoch) except -1
    cdef int push(self, size_t length) except -1
    cdef int drain_if_room(self) except -1
